package gateway

import (
	"time"

	"github.com/pdgate/pdgate/events"
)

// Hold is the part of a gateway that decides what a client may see of one
// lifecycle, without HTTP and without NATS. A simulation feeds it what the
// gateway hears, in whatever order; the judgement is the gateway's own.
type Hold struct{ f *flight }

// HoldConfig describes a Hold.
type HoldConfig struct {
	RequestID string
	Key       []byte // of the request's digests, see events.RequestKey
	Prompt    []byte
	Sampling  []byte
	Now       func() time.Time
	Output    time.Duration // for the last pieces of output to arrive after decoded
	Guards    Guards
}

// NewHold opens a lifecycle of one choice.
func NewHold(cfg HoldConfig) *Hold {
	g := &Gateway{cfg: Config{
		Now: cfg.Now, Guards: cfg.Guards, Limits: Limits{Output: 1 << 20}, Timeouts: Timeouts{Output: cfg.Output},
	}, memory: budget{limit: 1 << 20}}
	c := &call{g: g, prompt: cfg.Prompt, lease: lease{from: &g.memory}, wake: make(chan struct{}, 1)}
	c.open.Store(1)
	return &Hold{&flight{
		id: cfg.RequestID, key: cfg.Key, sampling: cfg.Sampling,
		call: c, state: events.New, outputs: make(map[string]*output),
	}}
}

// Observe takes a durable event, from a notification or a history.
func (h *Hold) Observe(e *events.Event, raw []byte, position string) { h.f.observe(e, raw, position) }

// Answered takes the answer to one of the gateway's own commands.
func (h *Hold) Answered(a *events.Answer) { h.f.answered(a) }

// Output takes a piece of output from a worker.
func (h *Hold) Output(worker string, c events.OutputChunk) { h.f.arrived(worker, c) }

// Part is what a worker may have of the request; nil once it has ended.
func (h *Hold) Part(name string) []byte { return h.f.part(name) }

// State is where the request stands, as far as the gateway has heard.
func (h *Hold) State() events.State {
	s, _ := h.f.stands()
	return s
}

// Judgement is what a client may be given now.
type Judgement struct {
	Text   []byte        // to be sent; of a stream, as far as it goes
	Open   bool          // a stream's status line may be sent
	Done   bool          // the output is complete: decoded, and all of it arrived
	Failed *events.Error // the client gets this
	Lost   bool          // … because output went missing: the lifecycle must hear of it
}

// Take judges, and hands over what may be sent.
func (h *Hold) Take() Judgement {
	text, p := h.f.take(h.f.call.g.cfg.Now())
	return judgement(text, p)
}

// Look judges, and hands over nothing.
func (h *Hold) Look() Judgement { return judgement(nil, h.f.look(h.f.call.g.cfg.Now())) }

func judgement(text []byte, p progress) Judgement {
	j := Judgement{Text: text, Open: p.open, Done: p.done}
	if p.err != nil {
		j.Failed = &events.Error{Code: p.err.code, Message: p.err.message, Status: p.err.status}
		j.Lost = p.err.lost
	}
	return j
}
