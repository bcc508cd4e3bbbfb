package bench

import (
	"strconv"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/services/lifecycle/partition"
)

// smallMachine stands in for the state machine where the journal is measured: a
// request goes through four states, and every event is as large, and as chained,
// as a real one. What it leaves out is what is decided, not what is stored.
type smallMachine struct {
	source   string
	requests map[string]*smallRequest
	tenant   smallChain
	draft    smallDraft
}

type smallRequest struct {
	step    int // next one
	pos     events.Position
	command string // key of the last command recorded
	answer  *events.Answer
}

type smallChain struct {
	seq  uint64
	hash string
}

// smallSteps is a request's life here.
var smallSteps = []struct {
	command events.CommandType
	state   events.State
	data    func(time.Time) events.Data
}{
	{events.CmdAdmit, events.Admitted, func(t time.Time) events.Data {
		return &events.RequestAdmitted{Model: loadModel, Gateway: siteGateway, PromptTokens: loadPrompt, MaxTokens: loadMost, PromptDigest: someDigest, PrefillBy: t, Deadline: t}
	}},
	{events.CmdPrefilled, events.Prefilled, func(t time.Time) events.Data {
		return &events.RequestPrefilled{Worker: sitePrefill, WorkerEpoch: 1, PromptTokens: loadPrompt, Pages: []events.PageRun{{Start: 1024, Count: promptPages, Generation: 1}},
			PageTokens: pageTokens, Layout: loadLayout, KVBytes: promptPages * pageTokens * tokenBytes, KVDigest: someSum, Lease: t}
	}},
	{events.CmdTransferred, events.Transferred, func(t time.Time) events.Data {
		return &events.RequestTransferred{GrantEpoch: 1, Worker: siteDecode, WorkerEpoch: 1, KVBytes: promptPages * pageTokens * tokenBytes, KVDigest: someSum, DecodeBy: t}
	}},
	{events.CmdDecoded, events.Decoded, func(time.Time) events.Data {
		return &events.RequestDecoded{Worker: siteDecode, WorkerEpoch: 1, PromptTokens: loadPrompt, CompletionTokens: loadMost, FinishReason: events.FinishLength, OutputDigest: someDigest}
	}},
}

func newSmallMachine() *smallMachine {
	m := &smallMachine{source: "/pdgate/lifecycle/bench", requests: map[string]*smallRequest{}}
	m.draft.m = m
	return m
}

// Recorded implements partition.Machine.
func (m *smallMachine) Recorded(c *events.Command, key string) (*events.Answer, bool) {
	r := m.requests[c.Subject]
	if r == nil || r.command != key {
		return nil, false
	}
	return r.answer, true
}

// smallDraft is the envelope that is being built.
type smallDraft struct {
	m    *smallMachine
	head smallChain
}

// Begin implements partition.Machine.
func (m *smallMachine) Begin() partition.Draft {
	m.draft.head = m.tenant
	return &m.draft
}

// Decide implements partition.Draft. The load sends each command once and in
// order, so there is nothing to deny.
func (d *smallDraft) Decide(c *events.Command, key string, now time.Time) *events.Event {
	at, prev := 0, events.Position{}
	if r := d.m.requests[c.Subject]; r != nil {
		at, prev = r.step, r.pos
	}
	now = events.Micros(now)
	e := &events.Event{
		ID: c.Subject + "." + strconv.Itoa(at+1), Source: d.m.source, Subject: c.Subject, Time: now, N: at + 1, Command: key, Principal: c.From(),
		Prev: prev, Tenant: loadTenant, TenantSeq: d.head.seq + 1, TenantPrev: d.head.hash, Data: smallSteps[at].data(now),
	}
	e.Type = e.Data.EventType()
	return e
}

// Encoded implements partition.Draft.
func (d *smallDraft) Encoded(e *events.Event, hash string) {
	d.head = smallChain{e.TenantSeq, hash}
}

// Fold implements partition.Machine.
func (m *smallMachine) Fold(e *events.Event, pos events.Position, hash string) *events.Answer {
	m.tenant = smallChain{e.TenantSeq, hash}
	at := e.N - 1
	a := &events.Answer{Subject: e.Subject, State: smallSteps[at].state, Type: e.Type, ID: e.ID, Position: pos.String(), Hash: hash}
	if at+1 == len(smallSteps) {
		delete(m.requests, e.Subject)
		return a
	}
	r := m.requests[e.Subject]
	if r == nil {
		r = &smallRequest{}
		m.requests[e.Subject] = r
	}
	*r = smallRequest{step: at + 1, pos: pos, command: e.Command, answer: a}
	return a
}
