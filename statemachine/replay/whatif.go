package replay

import (
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// Policy is another admission policy, or other sizes, to judge recorded requests
// by. Fields that are zero keep what was recorded.
type Policy struct {
	Name              string        `json:"name,omitempty" yaml:"name"`
	ContextTokens     int           `json:"context_tokens,omitempty" yaml:"context_tokens"`
	MaxInputTokens    int           `json:"max_input_tokens,omitempty" yaml:"max_input_tokens"`       // longest prompt that prefill accepts
	PrefillPoolTokens int           `json:"prefill_pool_tokens,omitempty" yaml:"prefill_pool_tokens"` // a prompt must fit it as well
	DecodePoolTokens  int           `json:"decode_pool_tokens,omitempty" yaml:"decode_pool_tokens"`
	QueueLimit        int           `json:"queue_limit,omitempty" yaml:"queue_limit"`
	TenantLimit       int           `json:"tenant_limit,omitempty" yaml:"tenant_limit"`
	Lease             time.Duration `json:"lease,omitempty" yaml:"lease"` // of prefill's pages, from prefilled on
}

// GatePolicy is pdgate's own: the recorded facts, with the gate in force.
func GatePolicy() *Policy { return &Policy{Name: "gate"} }

// WhatIf is how recorded requests would have gone under another policy.
type WhatIf struct {
	Policy        *Policy   `json:"policy"`
	Unchanged     int64     `json:"unchanged"`
	Flipped       int64     `json:"flipped"`
	ToRejected    int64     `json:"flipped_to_rejected"`
	ToAdmitted    int64     `json:"flipped_to_admitted"`
	ToExpired     int64     `json:"flipped_to_expired"` // the transfer would have come too late
	ReasonChanged int64     `json:"reason_changed"`
	NotReplayable int64     `json:"not_replayable"`
	Changes       []Change  `json:"changes"`
	More          int64     `json:"changes_more,omitempty"`
	Why           []Missing `json:"not_replayable_why,omitempty"`
}

// Change is one request that would have gone another way.
type Change struct {
	Request      string    `json:"request"`
	Tenant       string    `json:"tenant"`
	Position     string    `json:"position"`
	Time         time.Time `json:"time"`
	PromptTokens int       `json:"prompt_tokens"`
	Recorded     string    `json:"recorded"`
	WhatIf       string    `json:"what_if"`
	Message      string    `json:"message,omitempty"`
}

// Missing counts requests whose facts are not in the input.
type Missing struct {
	Fact  string `json:"fact"`
	Count int64  `json:"count"`
}

func newWhatIf(p *Policy) *WhatIf { return &WhatIf{Policy: p, Changes: []Change{}} }

// facts are the recorded ones under the policy.
func (p *Policy) facts(f events.AdmissionFacts) events.AdmissionFacts {
	set := func(at *int, to int) {
		if to > 0 {
			*at = to
		}
	}
	set(&f.ContextTokens, p.ContextTokens)
	set(&f.MaxInputTokens, p.MaxInputTokens)
	if p.PrefillPoolTokens > 0 {
		f.MaxInputTokens = min(f.MaxInputTokens, p.PrefillPoolTokens)
		if p.MaxInputTokens == 0 {
			f.MaxInputTokens = p.PrefillPoolTokens
		}
	}
	set(&f.MaxDecodeTokens, p.DecodePoolTokens)
	set(&f.QueueLimit, p.QueueLimit)
	set(&f.TenantLimit, p.TenantLimit)
	return f
}

// see judges a recorded decision again. Facts that the event does not record are
// not made up: such a request is not replayable.
func (w *WhatIf) see(l *life, o *statemachine.Observation) {
	e := o.Event
	switch d := e.Data.(type) {
	case *events.RequestAdmitted:
		if d.Facts.ContextTokens == 0 && d.Facts.PrefillNodes == 0 {
			w.missing("admission facts")
			return
		}
		f := w.Policy.facts(d.Facts)
		no := statemachine.JudgeAdmission(&f, d.PromptTokens, d.MaxTokens)
		if no == nil {
			w.Unchanged++
			return
		}
		w.Flipped++
		w.ToRejected++
		w.change(l, o, d.PromptTokens, "admitted", "rejected: "+string(no.Code), no.Message)
	case *events.RequestRejected:
		switch {
		case o.Before != events.New:
			return // the engine's word on a request that was counted at its admission
		case d.Facts == nil || d.Error.Code == events.CodeModelNotFound:
			w.missing("admission facts")
			return
		}
		f := w.Policy.facts(*d.Facts)
		no := statemachine.JudgeAdmission(&f, d.PromptTokens, d.MaxTokens)
		switch {
		case no == nil:
			w.Flipped++
			w.ToAdmitted++
			w.change(l, o, d.PromptTokens, "rejected: "+string(d.Error.Code), "admitted", "")
		case no.Code != d.Error.Code:
			w.ReasonChanged++
			w.change(l, o, d.PromptTokens, "rejected: "+string(d.Error.Code), "rejected: "+string(no.Code), no.Message)
		default:
			w.Unchanged++
		}
	case *events.RequestTransferred:
		if w.Policy.Lease == 0 || l.filled.IsZero() || o.Before != events.Prefilled {
			return
		}
		if late := e.Time.Sub(l.filled.Add(w.Policy.Lease)); late >= 0 {
			w.Unchanged--
			w.Flipped++
			w.ToExpired++
			w.change(l, o, l.tokens, "transferred", "denied: "+string(events.CodeLeaseOver), "the copy would have ended "+late.String()+" after the lease")
		}
	}
}

func (w *WhatIf) missing(fact string) {
	w.NotReplayable++
	for i := range w.Why {
		if w.Why[i].Fact == fact {
			w.Why[i].Count++
			return
		}
	}
	w.Why = append(w.Why, Missing{fact, 1})
}

func (w *WhatIf) change(l *life, o *statemachine.Observation, tokens int, was, is, message string) {
	if len(w.Changes) == maxResponses {
		w.More++
		return
	}
	w.Changes = append(w.Changes, Change{l.owner.request, l.owner.tenant, o.Position.String(), o.Event.Time, tokens, was, is, strings.Clone(message)})
}
