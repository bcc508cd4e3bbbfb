package statemachine

import (
	"slices"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// ClientOutcome is what one HTTP client was given.
type ClientOutcome struct {
	RequestID    string
	Status       int
	Complete     bool   // the whole body came, to its proper end
	OutputDigest string // keyed digest of the output that came; "": not compared
}

// CheckAnswers compares answers that principals were given with the log: an
// answer exists only for what is in it.
func (c *Checker) CheckAnswers(all []events.Answer) {
	for _, a := range all {
		c.clients.answers[a.ID] = append(c.clients.answers[a.ID], a)
		if s, ok := c.clients.events[a.ID]; ok {
			c.clients.compare(a.ID, s)
		}
	}
}

// CheckClients compares what clients were given with the log.
func (c *Checker) CheckClients(all []ClientOutcome) {
	c.clients.outcomes = append(c.clients.outcomes, all...)
	for _, o := range all {
		c.clients.fate(o.RequestID, true)
	}
}

// clientSide is what the checker was told that others were told.
type clientSide struct {
	index    bool
	events   map[string]sighting // by event id; only with index
	fates    map[string]*fate    // by request id; only of asked ones without index
	answers  map[string][]events.Answer
	outcomes []ClientOutcome
	found    []Violation
}

type sighting struct {
	subject string
	pos     events.Position
	hash    string
	state   events.State // "" on pdgate.log.ops
	typ     events.Type
	code    events.Code // of a denial
}

type fate struct {
	stream, transferred, decoded bool
	output                       string
}

func newClientSide(index bool) clientSide {
	return clientSide{index: index, events: map[string]sighting{}, fates: map[string]*fate{}, answers: map[string][]events.Answer{}}
}

func (s *clientSide) fate(request string, make bool) *fate {
	f := s.fates[request]
	if f == nil && make {
		f = &fate{}
		s.fates[request] = f
	}
	return f
}

// listen says whether anything that saw is told may matter.
func (s *clientSide) listen() bool { return s.index || len(s.fates) > 0 || len(s.answers) > 0 }

// saw notes an event that stands in the log, and the state after it.
func (s *clientSide) saw(e *events.Event, pos events.Position, hash []byte, state events.State) {
	if !s.listen() {
		return
	}
	at := sighting{strings.Clone(e.Subject), pos, string(hash), state, e.Type, ""}
	switch d := e.Data.(type) {
	case *events.CommandDenied:
		at.code = d.Code
	case *events.RequestAdmitted:
		if f := s.fate(at.subject, s.index); f != nil {
			f.stream = d.Stream
		}
	case *events.RequestTransferred:
		if f := s.fate(at.subject, s.index); f != nil && state == events.Transferred {
			f.transferred = true
		}
	case *events.RequestDecoded:
		if f := s.fate(at.subject, s.index); f != nil && state == events.Decoded {
			f.decoded, f.output = true, strings.Clone(d.OutputDigest)
		}
	}
	if s.index {
		s.events[strings.Clone(e.ID)] = at
	}
	s.compare(e.ID, at)
}

// compare settles the answers that name the event.
func (s *clientSide) compare(id string, at sighting) {
	for _, a := range s.answers[id] {
		what := ""
		switch {
		case a.Position != at.pos.String():
			what = "the answer names position " + word(a.Position)
		case a.Hash != at.hash:
			what = "the answer names another hash"
		case a.Subject != at.subject:
			what = "the answer is for another subject"
		case a.Type != at.typ:
			what = "the answer names event " + word(string(a.Type))
		case (a.Denied != nil) != (at.typ == denied) || a.Denied != nil && a.Denied.Code != at.code:
			what = "the answer and the log differ on the denial"
		case at.state != "" && a.State != at.state:
			what = "the answer names state " + word(string(a.State))
		}
		if what != "" {
			s.found = append(s.found, Violation{Rule: RuleLog, Kind: KindAnswerDiffers, Subject: at.subject, Position: at.pos, Message: what})
		}
	}
	delete(s.answers, id)
}

// judge lists the breaches: those found, answers without an event, and clients
// that got more than the log allows.
func (s *clientSide) judge() []Violation {
	all := slices.Clone(s.found)
	var lost []string
	for id := range s.answers {
		lost = append(lost, id)
	}
	slices.Sort(lost)
	for _, id := range lost {
		a := s.answers[id][0]
		p, _ := events.ParsePosition(a.Position)
		all = append(all, Violation{Rule: RuleLog, Kind: KindAnswerUnlogged, Subject: a.Subject, Position: p, Message: "an event that was answered is not in the log"})
	}
	for _, o := range s.outcomes {
		if b := o.unearned(s.fates[o.RequestID]); b.kind != "" {
			all = append(all, Violation{Rule: RuleClient, Kind: b.kind, Subject: o.RequestID, Message: b.what})
		}
	}
	return all
}

// unearned says why a client must not have got what it got.
func (o *ClientOutcome) unearned(f *fate) breach {
	switch {
	case o.Status < 200 || o.Status > 299:
		return breach{}
	case f == nil || !f.transferred:
		return broke(KindClientUnearned, "a client got a success for KV that was never transferred")
	case (!f.stream || o.Complete) && !f.decoded:
		return broke(KindClientUndecoded, "a client got a whole output that was never decoded")
	case o.OutputDigest != "" && o.OutputDigest != f.output && f.decoded && (o.Complete || !f.stream):
		return broke(KindClientOutput, "a client got another output than the one recorded")
	}
	return breach{}
}
