package partition

import (
	"fmt"
	"time"

	"github.com/pdgate/pdgate/events"
)

// machine is a small state machine that judges while it folds: whatever a broken
// loop makes of the log shows in bad. A recorded answer is final for its
// command, denials too, so that no command may be in the log twice.
type machine struct {
	source   string
	reqs     map[string]*request
	tenants  map[string]chain
	recorded map[string]*events.Answer
	last     events.Position
	draft    *draft
	bad      func(format string, args ...any)
}

type request struct {
	state events.State
	n     int
	pos   events.Position
}

// chain is the end of a tenant's history.
type chain struct {
	seq  uint64
	hash string
}

func newMachine(source string, bad func(string, ...any)) *machine {
	return &machine{source: source, reqs: map[string]*request{}, tenants: map[string]chain{}, recorded: map[string]*events.Answer{}, bad: bad}
}

// moves is the machine's table.
var moves = map[events.CommandType]map[events.State]events.State{
	events.CmdAdmit:       {events.New: events.Admitted},
	events.CmdPrefilled:   {events.Admitted: events.Prefilled},
	events.CmdTransferred: {events.Prefilled: events.Transferred},
	events.CmdDecoded:     {events.Transferred: events.Decoded},
	events.CmdCancel:      {events.Admitted: events.Cancelled, events.Prefilled: events.Cancelled, events.Transferred: events.Cancelled},
}

// after is the state that an event leads to.
var after = map[events.Type]events.State{
	events.TypeAdmitted: events.Admitted, events.TypePrefilled: events.Prefilled, events.TypeTransferred: events.Transferred,
	events.TypeDecoded: events.Decoded, events.TypeCancelled: events.Cancelled,
}

func (m *machine) request(id string) request {
	if r := m.reqs[id]; r != nil {
		return *r
	}
	return request{state: events.New}
}

func (m *machine) Recorded(_ *events.Command, key string) (*events.Answer, bool) {
	a, ok := m.recorded[key]
	return a, ok
}

func (m *machine) Begin() Draft {
	m.draft = &draft{m: m, tenants: map[string]chain{}}
	return m.draft
}

type draft struct {
	m       *machine
	tenants map[string]chain
}

// tenantOf spreads requests over two tenants, so that one envelope holds several
// events of a tenant.
func tenantOf(subject string) string {
	if subject[len(subject)-1]%2 == 0 {
		return "acme"
	}
	return "zeta"
}

func (d *draft) Decide(c *events.Command, key string, now time.Time) *events.Event {
	r := d.m.request(c.Subject)
	t := tenantOf(c.Subject)
	end, ok := d.tenants[t]
	if !ok {
		end = d.m.tenants[t]
	}
	e := &events.Event{
		ID: fmt.Sprintf("%s.%d", c.Subject, r.n+1), Source: d.m.source, Subject: c.Subject, Time: events.Micros(now),
		N: r.n + 1, Command: key, Principal: c.From(), Prev: r.pos,
		Tenant: t, TenantSeq: end.seq + 1, TenantPrev: end.hash,
	}
	if _, ok := moves[c.Type][r.state]; !ok {
		e.Data = &events.CommandDenied{Command: c.Type, State: r.state, Code: events.CodeIllegalState, Message: string(c.Type) + " in " + string(r.state)}
		e.Type = events.TypeDenied
		return e
	}
	switch c.Type {
	case events.CmdAdmit:
		e.Data = &events.RequestAdmitted{Model: "m", Gateway: "gw1", PromptTokens: 3, MaxTokens: 4, PromptDigest: "hmac-sha256:00", PrefillBy: e.Time, Deadline: e.Time}
	case events.CmdPrefilled:
		e.Data = &events.RequestPrefilled{Worker: "p1", WorkerEpoch: 1, PromptTokens: 3, Pages: []events.PageRun{{Start: 1, Count: 2, Generation: 3}}, PageTokens: 16, Layout: "l", KVBytes: 1, KVDigest: "d", Lease: e.Time}
	case events.CmdTransferred:
		e.Data = &events.RequestTransferred{GrantEpoch: 1, Worker: "d1", WorkerEpoch: 1, KVBytes: 1, KVDigest: "d", DecodeBy: e.Time}
	case events.CmdDecoded:
		e.Data = &events.RequestDecoded{Worker: "d1", WorkerEpoch: 1, PromptTokens: 3, CompletionTokens: 4, FinishReason: events.FinishStop, OutputDigest: "hmac-sha256:00"}
	case events.CmdCancel:
		e.Data = &events.RequestCancelled{Reason: events.CodeClientGone, From: r.state}
	}
	e.Type = e.Data.EventType()
	return e
}

func (d *draft) Encoded(e *events.Event, hash string) {
	if d.m.draft != d {
		d.m.bad("a draft is told of %s after the next one began", e.ID)
	}
	d.tenants[e.Tenant] = chain{e.TenantSeq, hash}
}

func (m *machine) Fold(e *events.Event, pos events.Position, hash string) *events.Answer {
	if pos.Seq < m.last.Seq || pos.Seq == m.last.Seq && pos.Line <= m.last.Line && m.last.Seq != 0 {
		m.bad("line %s is folded after %s", pos, m.last)
	}
	m.last = pos
	r := m.request(e.Subject)
	if e.N != r.n+1 || e.Prev != r.pos {
		m.bad("%s at %s: event %d after %s, want %d after %s", e.Subject, pos, e.N, e.Prev, r.n+1, r.pos)
	}
	if t := m.tenants[e.Tenant]; e.TenantSeq != t.seq+1 || e.TenantPrev != t.hash {
		m.bad("%s at %s: %s is number %d of the tenant, want %d on its last hash", e.Subject, pos, e.ID, e.TenantSeq, t.seq+1)
	}
	if _, twice := m.recorded[e.Command]; twice {
		m.bad("%s at %s: command %s is applied twice", e.Subject, pos, e.Command)
	}
	a := &events.Answer{Subject: e.Subject, Type: e.Type, ID: e.ID, Position: pos.String(), Hash: hash}
	if d, ok := e.Data.(*events.CommandDenied); ok {
		if _, legal := moves[d.Command][r.state]; legal || d.State != r.state {
			m.bad("%s at %s: %s denied in %s, the state is %s", e.Subject, pos, d.Command, d.State, r.state)
		}
		a.Denied = &events.Denial{Code: d.Code, Message: d.Message, State: d.State}
	} else {
		legal := false
		for _, to := range moves {
			legal = legal || to[r.state] == after[e.Type]
		}
		if !legal {
			m.bad("%s at %s: %s in %s", e.Subject, pos, e.Type, r.state)
		}
		r.state = after[e.Type]
	}
	r.n, r.pos = e.N, pos
	m.reqs[e.Subject] = &r
	m.tenants[e.Tenant] = chain{e.TenantSeq, hash}
	a.State = r.state
	m.recorded[e.Command] = a
	return a
}
