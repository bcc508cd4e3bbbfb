package importer

import (
	"fmt"
	"time"

	"github.com/pdgate/pdgate/events"
)

// chain numbers the events of requests that engines tell of.
type chain struct {
	seq uint64
}

func newChain() *chain { return &chain{} }

// writer makes one request's events, in the order of a life. A time that lies before
// the one of the step before it is moved up to it: the legs have clocks of their own.
type writer struct {
	j       *Joiner
	one     *record
	subject string
	tenant  string
	at      time.Time
	n       int
	prev    events.Position
}

func (w *writer) put(at time.Time, from *record, d events.Data) {
	if at.After(w.at) {
		w.at = at
	}
	w.n++
	w.j.env.seq++
	e := events.Event{Source: "/import/" + w.one.engine, Type: d.EventType(), Subject: w.subject, Time: events.Micros(w.at), N: w.n, Prev: w.prev, Tenant: w.tenant, Data: d}
	e.ID = fmt.Sprintf("%s.%d", w.subject, w.n)
	b, err := events.Append(nil, &e)
	if err != nil {
		return // what a log says does not fit an event: the leg stays without it
	}
	w.prev = events.Position{Seq: w.j.env.seq}
	w.j.queue = append(w.j.queue, made{&events.Envelope{Seq: w.j.env.seq, Lines: append(b, '\n')}, from.in, from.where})
}

const model = "external"

func layout(engine string) string { return "external:" + engine }

// legs is a life of two legs, or of the one that is there.
func (w *writer) legs(p, d *record) {
	prompt := 0
	if d != nil {
		prompt = d.prompt // decode is given the whole prompt, whatever prefill made of it
	}
	if p != nil && prompt == 0 {
		prompt = p.prompt
	}
	first := w.one
	if p != nil {
		first = p
	}
	w.put(first.begin, first, &events.RequestAdmitted{Model: model, Gateway: "external", PromptTokens: prompt})
	refused := p != nil && p.finish == "abort"
	if refused {
		w.put(p.end, p, w.refusal(p))
	}
	if p != nil && (!refused || p.output > 0 || p.prompt > 0 && d != nil) {
		w.put(p.end, p, &events.RequestPrefilled{Worker: p.worker, PromptTokens: p.prompt, Layout: layout(p.engine)})
	}
	if d == nil {
		return
	}
	if p != nil {
		w.put(d.begin, d, &events.TransferGranted{GrantEpoch: 1, Owner: p.worker, Worker: d.worker})
		if d.finish != "abort" {
			w.put(d.begin, d, &events.RequestTransferred{GrantEpoch: 1, Worker: d.worker})
		}
	}
	switch {
	case p == nil: // nobody says that it was not prefilled
	case d.finish == "abort":
		w.put(d.end, d, &events.RequestFailed{Error: w.error(d, events.CodeDecodeFailed), From: events.Prefilled, Stage: "decode", Worker: d.worker})
	case d.finish != "":
		w.put(d.end, d, &events.RequestDecoded{Worker: d.worker, PromptTokens: d.prompt, CompletionTokens: d.output, FinishReason: events.FinishReason(d.finish)})
	}
}

// refusal is an abort of the prefill leg. One without a status went out as 200.
func (w *writer) refusal(p *record) events.Data {
	return &events.RequestRejected{Error: w.error(p, events.CodeEngineRefused), Stage: "engine", Model: model, PromptTokens: p.prompt, Worker: p.worker}
}

func (w *writer) error(l *record, code events.Code) events.Error {
	e := events.Error{Code: code, Message: "the engine aborted", Status: l.status}
	if l.message != "" {
		e.Code = classify(l.message, code)
	}
	if e.Status == 0 {
		e.Status = 200 // an abort without a status is an ordinary answer
	}
	return e
}

// lease is a life of which only its end of lease is known.
func (w *writer) lease(l *record) {
	over := l.expired
	if over.IsZero() {
		over = l.late
	}
	w.put(over, l, &events.RequestAdmitted{Model: model, Gateway: "external"})
	w.put(over, l, &events.RequestPrefilled{Worker: l.worker, Layout: layout(l.engine), Lease: events.Micros(over)})
	if l.late.IsZero() {
		return
	}
	w.put(l.late, l, &events.TransferGranted{GrantEpoch: 1, Owner: l.worker, Lease: events.Micros(over)})
	w.put(l.late, l, &events.RequestTransferred{GrantEpoch: 1})
}
