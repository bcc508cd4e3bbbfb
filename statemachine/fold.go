package statemachine

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Errors of a fold that leave the aggregate as it is: they say something about
// the caller, not about the log.
var (
	ErrNoHistory = errors.New("the event stands outside of any history")
	ErrFolded    = errors.New("the position is not after the last one folded")
)

// Fold applies one recorded event; hash is that of its canonical bytes. It is
// the only place where a request changes.
//
// An event that is not legal where it stands is an error, marks the request as
// tainted for good, and changes no state: whatever the log holds, a final state
// stays. Its number and position count all the same, since the events after it
// chain on it.
func Fold(r *Request, e *events.Event, pos events.Position, hash string) error {
	switch {
	case r == nil || e == nil:
		return errors.New("fold: no request, or no event")
	case e.N <= 0:
		return fmt.Errorf("fold: %w", ErrNoHistory)
	case !after(pos, r.Pos):
		return fmt.Errorf("fold at %s: %w", pos, ErrFolded)
	}
	if r.State == "" {
		r.State = events.New
	}
	if r.ID == "" {
		r.ID = e.Subject
	}
	met := r.State
	err := legal(r, e)
	if err == nil {
		r.State, _ = Next(met, e.Type)
		apply(r, e)
		r.UpdatedAt = e.Time
		if r.State.Final() {
			r.StateBy = time.Time{}
		}
	} else if r.Tainted == "" {
		r.Tainted = err.Error()
	}
	r.N, r.Pos, r.Hash = max(r.N, e.N), pos, hash
	if err != nil {
		return fmt.Errorf("fold %s at %s: %w", e.Type, pos, err)
	}
	if e.Command != "" {
		record(&r.Recorded, maxRecorded, e, Recorded{Key: e.Command, Met: met, State: r.State, Type: e.Type, N: e.N, Pos: pos, Hash: hash})
	}
	return nil
}

// after says whether a stands after b in the log.
func after(a, b events.Position) bool {
	return a.Seq > b.Seq || a.Seq == b.Seq && a.Line > b.Line
}

// legal says whether the event may stand here: in its chain, in the table, and
// with the states that it names itself. What the guards judge is not judged
// again; that is the checker's.
func legal(r *Request, e *events.Event) error {
	_, ok := Next(r.State, e.Type)
	switch {
	case e.Subject != r.ID:
		return errors.New("the event is of another subject")
	case e.N != r.N+1:
		return fmt.Errorf("number %d follows %d", e.N, r.N)
	case e.Prev != r.Pos:
		return fmt.Errorf("number %d names %q as the event before, which is at %q", e.N, e.Prev, r.Pos)
	case !ok:
		return fmt.Errorf("%s in state %s", known(e.Type), r.State)
	case emptyData(e.Data) || e.Data.EventType() != e.Type:
		return fmt.Errorf("%s with another type's data", e.Type)
	}
	from := r.State
	switch d := e.Data.(type) {
	case *events.RequestFailed:
		from = d.From
	case *events.RequestCancelled:
		from = d.From
	case *events.CommandDenied:
		from = d.State
	case *events.RequestReleased:
		if !slices.Contains(r.Held, holdingOf(d)) {
			return fmt.Errorf("release of pages that %s does not hold", word(d.Worker))
		}
	}
	if from != r.State {
		return fmt.Errorf("%s was decided in state %s, and the state is %s", e.Type, word(string(from)), r.State)
	}
	return nil
}

func known(t events.Type) events.Type {
	if !slices.ContainsFunc(table, func(r Row) bool { return r.Event == t }) {
		return "an event of no request"
	}
	return t
}

func holdingOf(d *events.RequestReleased) Holding {
	return Holding{Worker: d.Worker, Epoch: d.WorkerEpoch, Role: d.Role, Generation: d.Generation, Pages: d.Pages}
}

// apply writes the event's content into the request; the state is set already.
func apply(r *Request, e *events.Event) {
	switch d := e.Data.(type) {
	case *events.RequestAdmitted:
		r.Tenant, r.Traceparent, r.AdmittedAt = e.Tenant, e.Traceparent, e.Time
		r.Model, r.Gateway, r.PromptDigest = d.Model, d.Gateway, d.PromptDigest
		r.TenantKey = d.TenantKey
		r.PromptTokens, r.MaxTokens = d.PromptTokens, d.MaxTokens
		r.Deadline, r.StateBy = d.Deadline, d.PrefillBy
	case *events.RequestRejected:
		if r.AdmittedAt.IsZero() { // at admission: there is nothing yet
			r.Tenant, r.Traceparent = e.Tenant, e.Traceparent
			r.Model, r.PromptTokens, r.MaxTokens = d.Model, d.PromptTokens, d.MaxTokens
		}
		r.Error = &d.Error
	case *events.RequestPrefilled:
		r.Prefill, r.StateBy = d, d.Lease
		r.hold(d.Worker, d.WorkerEpoch, events.RolePrefill, d.Pages)
	case *events.TransferGranted:
		r.Grant = d
		r.hold(d.Worker, d.WorkerEpoch, events.RoleDecode, d.Pages)
	case *events.RequestTransferred:
		r.Transfer, r.StateBy = d, d.DecodeBy
	case *events.RequestDecoded:
		r.Decoded = d
	case *events.RequestFailed:
		r.Error = &d.Error
	case *events.RequestCancelled:
		r.Error = events.NewError(d.Reason, "the request was cancelled")
	case *events.RequestReleased:
		if len(r.Held) == 1 {
			r.Held = nil // as a snapshot that is read back
			return
		}
		i := slices.Index(r.Held, holdingOf(d))
		r.Held = slices.Delete(slices.Clone(r.Held), i, i+1)
	}
}

// hold notes an allocation. A second grant to another reservation leaves both
// held: the log does not know what the first worker did with its own.
func (r *Request) hold(worker string, epoch uint64, role events.Role, runs []events.PageRun) {
	gen := generation(runs)
	if len(runs) == 0 || r.holds(role, worker, epoch, gen) {
		return
	}
	r.Held = append(r.Held, Holding{worker, epoch, role, gen, events.Pages(runs)})
}

// maxRecorded bounds the answers that are kept of one request.
const maxRecorded = 64

// record keeps an answer. Denials are dropped first: a repeated command that was
// carried out must find its answer, one that was denied may be judged again.
func record(all *[]Recorded, limit int, e *events.Event, a Recorded) {
	if d, ok := e.Data.(*events.CommandDenied); ok {
		a.Denied = &events.Denial{Code: d.Code, Message: d.Message, State: d.State}
	}
	if len(*all) >= limit {
		i := max(0, slices.IndexFunc(*all, func(b Recorded) bool { return b.Denied != nil }))
		*all = slices.Delete(slices.Clone(*all), i, i+1)
	}
	*all = append(*all, a)
}

// emptyData says whether d is nil or holds a nil pointer.
func emptyData(d events.Data) bool {
	switch d := d.(type) {
	case nil:
		return true
	case *events.RequestAdmitted:
		return d == nil
	case *events.RequestRejected:
		return d == nil
	case *events.RequestPrefilled:
		return d == nil
	case *events.TransferGranted:
		return d == nil
	case *events.RequestTransferred:
		return d == nil
	case *events.RequestDecoded:
		return d == nil
	case *events.RequestFailed:
		return d == nil
	case *events.RequestCancelled:
		return d == nil
	case *events.RequestReleased:
		return d == nil
	case *events.CommandDenied:
		return d == nil
	case *events.WorkerJoined:
		return d == nil
	case *events.WorkerLeft:
		return d == nil
	case *events.ModelQuarantined:
		return d == nil
	case *events.ModelRestored:
		return d == nil
	case *events.TenantErased:
		return d == nil
	case *events.TenantNotified:
		return d == nil
	case *events.CanaryRan:
		return d == nil
	case *events.AuditRead:
		return d == nil
	case *events.LogTrimmed:
		return d == nil
	}
	return true
}

// Clone is a copy that later folds of r do not change. Payloads are shared: they
// are never written to after they were folded.
func (r *Request) Clone() *Request {
	c := *r
	c.Held = slices.Clone(r.Held)
	c.Recorded = slices.Clone(r.Recorded)
	return &c
}

// The snapshot form of aggregates: JSON, with positions as events write them.

type requestFields Request
type recordedFields Recorded

// MarshalJSON writes the snapshot form.
func (r *Request) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		*requestFields
		Pos string `json:"pos"`
	}{(*requestFields)(r), r.Pos.String()})
}

// UnmarshalJSON reads the snapshot form.
func (r *Request) UnmarshalJSON(b []byte) error {
	*r = Request{}
	w := struct {
		*requestFields
		Pos string `json:"pos"`
	}{requestFields: (*requestFields)(r)}
	if err := json.Unmarshal(b, &w); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	p, err := events.ParsePosition(w.Pos)
	r.Pos = p
	return err
}

// MarshalJSON writes the snapshot form.
func (a Recorded) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		recordedFields
		Pos string `json:"pos"`
	}{recordedFields(a), a.Pos.String()})
}

// UnmarshalJSON reads the snapshot form.
func (a *Recorded) UnmarshalJSON(b []byte) error {
	*a = Recorded{}
	w := struct {
		*recordedFields
		Pos string `json:"pos"`
	}{recordedFields: (*recordedFields)(a)}
	if err := json.Unmarshal(b, &w); err != nil {
		return fmt.Errorf("recorded answer: %w", err)
	}
	p, err := events.ParsePosition(w.Pos)
	a.Pos = p
	return err
}
