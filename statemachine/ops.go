package statemachine

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Ops is the aggregate of pdgate.log.ops: which workers there are, which models
// may not be admitted, and which tenants were erased. Only [FoldOps] changes it.
type Ops struct {
	Pos         events.Position                 `json:"-"`           // of the last event
	Workers     map[string]*events.WorkerJoined `json:"workers"`     // by name: the present life
	Quarantined map[string]Quarantine           `json:"quarantined"` // by model
	Erased      map[string][]string             `json:"erased"`      // tenant -> fingerprints of its destroyed keys
	Subjects    map[string]OpsSubject           `json:"subjects"`    // worker, model, tenant or the log -> its history's end
	Trimmed     *events.LogTrimmed              `json:"trimmed"`     // the last one; nil: the whole log is there
}

// Quarantine is why, by whom and since when a model is not admitted.
type Quarantine struct {
	Reason   string    `json:"reason"`
	By       string    `json:"by"`       // principal of the last order
	Since    time.Time `json:"since"`    // of the first order that still counts
	Position string    `json:"position"` // of the last order
	Cancel   bool      `json:"cancel"`   // open requests are cancelled, and not left to end
	Evidence string    `json:"evidence,omitempty"`
}

// OpsSubject is the end of one worker's, model's or tenant's history.
type OpsSubject struct {
	N        int             `json:"n"`
	Pos      events.Position `json:"-"`
	Changed  int             `json:"changed,omitempty"`  // number of the last event that was no denial
	Epoch    uint64          `json:"epoch,omitempty"`    // a worker's last one, of whatever life: epochs only grow
	Recorded []Recorded      `json:"recorded,omitempty"` // the last few answers
}

// maxOpsRecorded bounds the answers that are kept of one worker or model.
const maxOpsRecorded = 16

// Answer looks up the recorded answer to a command. Orders of operations come
// again on purpose: a model that was quarantined and restored may be quarantined
// for the same reason. So an answer counts only while nothing has changed since,
// and a denial only while nothing was recorded since.
func (o *Ops) Answer(subject, key string) (Recorded, bool) {
	s := o.Subjects[subject]
	for _, a := range slices.Backward(s.Recorded) {
		if a.Key != key {
			continue
		}
		if a.N == s.N || a.Denied == nil && a.N == s.Changed {
			return a, true
		}
	}
	return Recorded{}, false
}

// Admission is what the registrations say about a model: whether any worker is
// registered for it, and the limits over the workers that live says are alive.
// Queue, tenant and policy are the caller's to fill in.
func (o *Ops) Admission(model string, live func(worker string, epoch uint64) bool) (known bool, f events.AdmissionFacts) {
	if q, ok := o.Quarantined[model]; ok {
		f.Quarantined, f.Quarantine = true, q.Reason
	}
	for _, w := range o.Workers {
		if w.Model != model {
			continue
		}
		known = true
		if !live(w.Worker, w.Epoch) {
			continue
		}
		if f.ContextTokens == 0 || w.ContextTokens < f.ContextTokens {
			f.ContextTokens = w.ContextTokens
		}
		switch w.Role {
		case events.RolePrefill:
			f.PrefillNodes++
			longest := w.MaxInputTokens
			if longest <= 0 {
				longest = w.ContextTokens
			}
			f.MaxInputTokens = max(f.MaxInputTokens, min(longest, w.PoolTokens()))
		case events.RoleDecode:
			f.DecodeNodes++
			f.MaxDecodeTokens = max(f.MaxDecodeTokens, w.PoolTokens())
		}
	}
	return known, f
}

// Gone says whether requests of the tenant may not be admitted under the key: the
// tenant was erased, and the key is none that was made since.
func (o *Ops) Gone(tenant, fingerprint string) bool {
	erased := o.Erased[tenant]
	return len(erased) > 0 && (fingerprint == "" || slices.Contains(erased, fingerprint))
}

// FoldOps applies one recorded event of operations, as [Fold] does for requests.
// An event that is not legal where it stands is an error and changes nothing but
// its subject's place in the log.
func FoldOps(o *Ops, e *events.Event, pos events.Position, hash string) error {
	switch {
	case o == nil || e == nil:
		return errors.New("fold: no operations, or no event")
	case e.N <= 0:
		return fmt.Errorf("fold: %w", ErrNoHistory)
	case !after(pos, o.Pos):
		return fmt.Errorf("fold at %s: %w", pos, ErrFolded)
	}
	if o.Subjects == nil {
		o.Subjects = map[string]OpsSubject{}
		o.Workers = map[string]*events.WorkerJoined{}
		o.Quarantined = map[string]Quarantine{}
		o.Erased = map[string][]string{}
	}
	s := o.Subjects[e.Subject]
	err := legalOps(o, &s, e)
	if err == nil {
		switch d := e.Data.(type) {
		case *events.WorkerJoined:
			o.Workers[d.Worker] = d
			s.Epoch = d.Epoch
		case *events.WorkerLeft:
			delete(o.Workers, d.Worker)
		case *events.ModelQuarantined:
			q := Quarantine{
				Reason: d.Reason, By: e.Principal, Since: e.Time, Position: pos.String(),
				Cancel: d.Running == events.RunningCancel, Evidence: d.Evidence,
			}
			if was, ok := o.Quarantined[d.Model]; ok {
				// One quarantine, ordered again: it lasts since the first order.
				q.Since = was.Since
			}
			o.Quarantined[d.Model] = q
		case *events.ModelRestored:
			delete(o.Quarantined, d.Model)
		case *events.TenantErased:
			o.Erased[d.Tenant] = append(slices.Clip(o.Erased[d.Tenant]), d.TenantKey)
		case *events.LogTrimmed:
			o.Trimmed = d
		}
		if e.Type != denied {
			s.Changed = e.N
		}
		if e.Command != "" {
			record(&s.Recorded, maxOpsRecorded, e, Recorded{Key: e.Command, Type: e.Type, N: e.N, Pos: pos, Hash: hash})
		}
	}
	s.N, s.Pos, o.Pos = max(s.N, e.N), pos, pos
	o.Subjects[e.Subject] = s
	if err != nil {
		return fmt.Errorf("fold %s at %s: %w", e.Type, pos, err)
	}
	return nil
}

func legalOps(o *Ops, s *OpsSubject, e *events.Event) error {
	switch {
	case e.N != s.N+1:
		return fmt.Errorf("number %d follows %d", e.N, s.N)
	case e.Prev != s.Pos:
		return fmt.Errorf("number %d names %q as the event before, which is at %q", e.N, e.Prev, s.Pos)
	case emptyData(e.Data) || e.Data.EventType() != e.Type:
		return errors.New("an event with another type's data")
	}
	subject := ""
	switch d := e.Data.(type) {
	case *events.CommandDenied:
		return nil
	case *events.WorkerJoined:
		if subject = d.Worker; d.Epoch <= s.Epoch {
			return fmt.Errorf("epoch %d follows %d", d.Epoch, s.Epoch)
		}
	case *events.WorkerLeft:
		w := o.Workers[d.Worker]
		if subject = d.Worker; w == nil || w.Epoch != d.Epoch {
			return fmt.Errorf("no worker has epoch %d", d.Epoch)
		}
	case *events.ModelQuarantined:
		subject = d.Model
	case *events.ModelRestored:
		subject = d.Model
	case *events.TenantErased:
		if subject = d.Tenant; slices.Contains(o.Erased[d.Tenant], d.TenantKey) {
			return fmt.Errorf("key %s is erased already", d.TenantKey)
		}
	case *events.LogTrimmed:
		subject = events.LogStream
		if what := untrimmable(o, d); what != "" {
			return errors.New(what)
		}
	case *events.TenantNotified:
		subject = d.Tenant
	default:
		return errors.New("an event of a request")
	}
	if subject != e.Subject {
		return errors.New("the event is of another subject")
	}
	return nil
}

// Clone is a copy that later folds of o do not change.
func (o *Ops) Clone() *Ops {
	c := *o
	c.Workers = maps.Clone(o.Workers)
	c.Quarantined = maps.Clone(o.Quarantined)
	c.Erased = maps.Clone(o.Erased)
	c.Subjects = maps.Clone(o.Subjects)
	for k, s := range c.Subjects {
		s.Recorded = slices.Clone(s.Recorded)
		c.Subjects[k] = s
	}
	return &c
}

type opsFields Ops
type opsSubjectFields OpsSubject

// MarshalJSON writes the snapshot form.
func (o *Ops) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		*opsFields
		Pos string `json:"pos"`
	}{(*opsFields)(o), o.Pos.String()})
}

// UnmarshalJSON reads the snapshot form.
func (o *Ops) UnmarshalJSON(b []byte) error {
	*o = Ops{}
	w := struct {
		*opsFields
		Pos string `json:"pos"`
	}{opsFields: (*opsFields)(o)}
	if err := json.Unmarshal(b, &w); err != nil {
		return fmt.Errorf("operations: %w", err)
	}
	p, err := events.ParsePosition(w.Pos)
	o.Pos = p
	return err
}

// MarshalJSON writes the snapshot form.
func (s OpsSubject) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		opsSubjectFields
		Pos string `json:"pos"`
	}{opsSubjectFields(s), s.Pos.String()})
}

// UnmarshalJSON reads the snapshot form.
func (s *OpsSubject) UnmarshalJSON(b []byte) error {
	*s = OpsSubject{}
	w := struct {
		*opsSubjectFields
		Pos string `json:"pos"`
	}{opsSubjectFields: (*opsSubjectFields)(s)}
	if err := json.Unmarshal(b, &w); err != nil {
		return fmt.Errorf("subject of operations: %w", err)
	}
	p, err := events.ParsePosition(w.Pos)
	s.Pos = p
	return err
}
