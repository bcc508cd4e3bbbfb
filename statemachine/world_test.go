package statemachine

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

// world is one partition and pdgate.log.ops as the service would run them: the
// real Decide and Fold over events in their canonical form, and the log that
// comes of it.
type world struct {
	t         testing.TB
	m         *Machine
	now       time.Time
	seq       uint64
	last      map[int]uint64
	requests  map[string]*Request
	ops       *Ops
	tenants   map[string]chainEnd
	facts     events.AdmissionFacts // the base; nodes and limits come from ops
	timeouts  Timeouts
	tenantKey string // of the tenant, as the service holds it
	log       []*events.Envelope
	answers   []events.Answer
}

// chainEnd is the end of a tenant's chain.
type chainEnd struct {
	seq  uint64
	hash string
}

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

const (
	model   = "ref-1.0"
	tenant  = "acme"
	layout  = "ref.v1:16:4"
	perPage = 16
)

func newWorld(t testing.TB, g Guards) *world {
	t.Helper()
	w := &world{
		t: t, m: NewMachine(g), now: start, last: map[int]uint64{},
		requests: map[string]*Request{}, ops: &Ops{}, tenants: map[string]chainEnd{},
		facts: events.AdmissionFacts{Policy: "p"},
	}
	w.register(events.RolePrefill, "p1", 11, nil)
	w.register(events.RolePrefill, "p2", 12, nil)
	w.register(events.RoleDecode, "d1", 21, nil)
	w.register(events.RoleDecode, "d2", 22, nil)
	return w
}

// id makes the nth request id, minted at at.
func id(n int, at time.Time) string {
	ms := fmt.Sprintf("%012x", at.UnixMilli())
	return ms[:8] + "-" + ms[8:] + "-7000-8000-" + fmt.Sprintf("%012x", n)
}

var id1, id2 = id(1, start), id(2, start)

func digest(s string) string { return "hmac-sha256:" + strings.Repeat(s, 64)[:64] }

func (w *world) register(role events.Role, name string, epoch uint64, change func(*events.Register)) events.Data {
	d := &events.Register{
		Model: model, Epoch: epoch, PublicKey: base64.StdEncoding.EncodeToString(make([]byte, 32)),
		Address: "tcp://127.0.0.1:7001", Engine: "ref", Version: "1", ContextTokens: 1000,
		MaxInputTokens: 600, PoolPages: 100, PageTokens: perPage, TokenBytes: 4, Layout: layout,
	}
	if change != nil {
		change(d)
	}
	return w.do(name, role, name, d)
}

// facts gathers what the service would gather for the command.
func (w *world) gather(r *Request, c *events.Command) *Facts {
	f := &Facts{Now: w.now, Timeouts: w.timeouts, Sender: w.ops.Workers[c.Principal]}
	if a, ok := c.Data.(*events.Admit); ok && a != nil {
		var limits events.AdmissionFacts
		f.Known, limits = w.ops.Admission(a.Model, func(string, uint64) bool { return true })
		f.Admission = limits
		f.Admission.Policy, f.Admission.QueueDepth, f.Admission.QueueLimit = w.facts.Policy, w.facts.QueueDepth, w.facts.QueueLimit
		f.Admission.TenantOpen, f.Admission.TenantLimit = w.facts.TenantOpen, w.facts.TenantLimit
		f.Admission.TenantErased, f.TenantKey = w.ops.Gone(a.Tenant, a.TenantKey), w.tenantKey
	}
	if r != nil && r.Prefill != nil {
		f.Owner = w.ops.Workers[r.Prefill.Worker]
	}
	return f
}

func command(subject string, role events.Role, principal string, d events.CommandData) *events.Command {
	c := &events.Command{Type: d.CommandType(), Subject: subject, Role: role, Principal: principal, Data: d}
	c.Raw, _ = json.Marshal(d)
	return c
}

// do sends a command, appends what was decided and folds it.
func (w *world) do(subject string, role events.Role, principal string, d events.CommandData) events.Data {
	w.t.Helper()
	c := command(subject, role, principal, d)
	if commandRows[c.Type].ForOps() {
		out := w.m.DecideOps(w.ops, c, nil)
		s := w.ops.Subjects[subject]
		w.append(events.OpsPartition, &events.Event{Subject: subject, N: s.N + 1, Prev: s.Pos, Command: c.Key(), Principal: c.From(), Data: out})
		return out
	}
	r := w.requests[subject]
	out := w.m.Decide(r, c, w.gather(r, c))
	e := &events.Event{Subject: subject, Command: c.Key(), Principal: c.From(), Data: out}
	switch {
	case r != nil:
		e.N, e.Prev, e.Tenant = r.N+1, r.Pos, r.Tenant
	case out.EventType() != events.TypeDenied:
		e.N, e.Tenant = 1, d.(*events.Admit).Tenant
	}
	w.append(0, e)
	return out
}

// append completes the event, puts it into the log in an envelope of its own and
// folds it.
func (w *world) append(partition int, e *events.Event) {
	w.t.Helper()
	if err := w.put(partition, e); err != nil {
		w.t.Fatalf("fold: %v", err)
	}
}

func (w *world) put(partition int, e *events.Event) error {
	w.t.Helper()
	e.Source, e.Time, e.Type = "/pdgate/lifecycle/lc1", events.Micros(w.now), e.Data.EventType()
	if e.N > 0 {
		e.ID = fmt.Sprintf("%s.%d", e.Subject, e.N)
	} else if e.ID == "" {
		e.ID = fmt.Sprintf("denied.%d", w.seq+1)
	}
	if e.Tenant != "" {
		end := w.tenants[e.Tenant]
		e.TenantSeq, e.TenantPrev = end.seq+1, end.hash
	}
	b, err := events.Append(nil, e)
	if err != nil {
		w.t.Fatalf("encode %s: %v", e.Type, err)
	}
	hash := events.Hash(b)
	if e.Tenant != "" {
		w.tenants[e.Tenant] = chainEnd{e.TenantSeq, hash}
	}
	w.seq++
	pos := events.Position{Seq: w.seq}
	w.log = append(w.log, &events.Envelope{
		Partition: partition, Seq: w.seq, Expected: w.last[partition],
		ID: fmt.Sprintf("e%d", w.seq), Lines: append(b, '\n'),
	})
	w.last[partition] = w.seq
	a := events.Answer{Subject: e.Subject, Type: e.Type, ID: e.ID, Position: pos.String(), Hash: hash}
	if d, ok := e.Data.(*events.CommandDenied); ok {
		a.Denied = &events.Denial{Code: d.Code, Message: d.Message, State: d.State}
	}
	err = nil
	switch {
	case e.N == 0:
		a.State = events.New
	case partition == events.OpsPartition:
		err = FoldOps(w.ops, e, pos, hash)
	default:
		r := w.requests[e.Subject]
		if r == nil {
			r = &Request{ID: e.Subject, State: events.New}
			w.requests[e.Subject] = r
		}
		err = Fold(r, e, pos, hash)
		a.State = r.State
	}
	w.answers = append(w.answers, a)
	return err
}

// raw puts an event into the log that no machine has decided.
func (w *world) raw(subject string, d events.Data) error {
	w.t.Helper()
	e := &events.Event{Subject: subject, N: 1, Tenant: tenant, Data: d, Command: fmt.Sprintf("raw%d", w.seq)}
	if r := w.requests[subject]; r != nil {
		e.N, e.Prev = r.N+1, r.Pos
	}
	return w.put(0, e)
}

// Rightful commands of the two workers' standard life.

func (w *world) admitData() *events.Admit {
	return &events.Admit{Tenant: tenant, Model: model, PromptTokens: 100, MaxTokens: 20, PromptDigest: digest("a"), Stream: true}
}

func runs(start, count uint32, gen uint64) []events.PageRun {
	return []events.PageRun{{Start: start, Count: count, Generation: gen}}
}

func (w *world) prefillData() *events.Prefill {
	return &events.Prefill{
		WorkerEpoch: 11, Tenant: tenant, PromptTokens: 100, Pages: runs(0, 7, 1), PageTokens: perPage,
		Layout: layout, KVBytes: 7 * perPage * 4, KVDigest: digest("b"), Reference: digest("c"), LeaseMS: 30_000,
	}
}

func (w *world) grantData() *events.GrantTransfer {
	return &events.GrantTransfer{WorkerEpoch: 21, GrantEpoch: 1, Pages: runs(0, 8, 1), ReservedTokens: 120, Layout: layout}
}

func (w *world) transferData(id string) *events.Transfer {
	return &events.Transfer{WorkerEpoch: 21, GrantEpoch: 1, KVRequest: id, KVBytes: 7 * perPage * 4, KVDigest: digest("b"), Reference: digest("c"), DurationUS: 5}
}

func (w *world) decodeData() *events.DecodeDone {
	return &events.DecodeDone{WorkerEpoch: 21, PromptTokens: 100, CompletionTokens: 20, FinishReason: events.FinishLength, OutputDigest: digest("d")}
}

func failData(epoch uint64) *events.Fail {
	return &events.Fail{WorkerEpoch: epoch, Stage: "test", Error: *events.NewError(events.CodeInternal, "7 went wrong")}
}

func releaseData(role events.Role) *events.Release {
	if role == events.RolePrefill {
		return &events.Release{Worker: "p1", WorkerEpoch: 11, Role: role, Generation: 1, Pages: 7, Drained: true, Scrubbed: true, Reason: "done"}
	}
	return &events.Release{Worker: "d1", WorkerEpoch: 21, Role: role, Generation: 1, Pages: 8, Drained: true, Scrubbed: true, Reason: "done"}
}

// step sends the rightful command of one kind.
func (w *world) step(id string, c events.CommandType) events.Data {
	w.t.Helper()
	switch c {
	case events.CmdAdmit:
		return w.do(id, events.RoleGateway, "gw1", w.admitData())
	case events.CmdReject:
		return w.do(id, events.RolePrefill, "p1", &events.Reject{WorkerEpoch: 11, Error: *events.ContextExceeded("prompt", 100, 50)})
	case events.CmdPrefilled:
		return w.do(id, events.RolePrefill, "p1", w.prefillData())
	case events.CmdGrant:
		return w.do(id, events.RoleDecode, "d1", w.grantData())
	case events.CmdTransferred:
		return w.do(id, events.RoleDecode, "d1", w.transferData(id))
	case events.CmdDecoded:
		return w.do(id, events.RoleDecode, "d1", w.decodeData())
	case events.CmdFail:
		return w.do(id, events.RoleLifecycle, "lc1", failData(0))
	case events.CmdCancel:
		return w.do(id, events.RoleGateway, "gw1", &events.Cancel{Reason: events.CodeClientGone})
	}
	w.t.Fatalf("no rightful %s", c)
	return nil
}

// must sends rightful commands that must be carried out.
func (w *world) must(id string, all ...events.CommandType) *world {
	w.t.Helper()
	for _, c := range all {
		if d, ok := w.step(id, c).(*events.CommandDenied); ok {
			w.t.Fatalf("%s: %s: %s (want %q, got %q)", c, d.Code, d.Message, d.Expected, d.Actual)
		}
	}
	return w
}

// releaseAll gives back whatever the request holds, by the service's own word.
func (w *world) releaseAll(id string) {
	w.t.Helper()
	for len(w.requests[id].Held) > 0 {
		h := w.requests[id].Held[0]
		w.want("", w.do(id, events.RoleLifecycle, "lc1", &events.Release{
			Worker: h.Worker, WorkerEpoch: h.Epoch, Role: h.Role, Generation: h.Generation, Pages: h.Pages, Reason: "worker_lost",
		}))
	}
}

// whole is every step of a life that ends well.
var whole = []events.CommandType{events.CmdAdmit, events.CmdPrefilled, events.CmdGrant, events.CmdTransferred, events.CmdDecoded}

// want checks that d is a denial with the code; "" is no denial.
func (w *world) want(code events.Code, d events.Data) {
	w.t.Helper()
	got := events.Code("")
	if no, ok := d.(*events.CommandDenied); ok {
		got = no.Code
		if no.Code != code {
			w.t.Logf("%s: %s (want %q, got %q)", no.Code, no.Message, no.Expected, no.Actual)
		}
	}
	if got != code {
		w.t.Fatalf("%s: denial %q, want %q", d.EventType(), got, code)
	}
}

func (w *world) state(id string, want events.State) {
	w.t.Helper()
	if got := w.requests[id].current(); got != want {
		w.t.Fatalf("state %s, want %s", got, want)
	}
}

// check runs the checker over the log.
func (w *world) check(cfg CheckerConfig) Report {
	w.t.Helper()
	c := NewChecker(cfg)
	for _, e := range w.log {
		if err := c.Add(e); err != nil {
			w.t.Fatalf("envelope %d: %v", e.Seq, err)
		}
	}
	c.CheckAnswers(w.answers)
	c.Close(w.now)
	return c.Report()
}

// clean checks that the log breaks no rule.
func (w *world) clean() {
	w.t.Helper()
	if r := w.check(CheckerConfig{}); !r.OK() {
		w.t.Fatalf("violations in a legal log: %v", r.Violations)
	}
}
