package gpuworker

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/statemachine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	model  = "ref"
	tenant = "acme"
)

func testKey(name string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(name))
	return ed25519.NewKeyFromSeed(seed[:])
}

// world is everything around workers, in memory: the lifecycle with its real
// state machine and a log that is checked at the end, the work queues, and a
// gateway.
type world struct {
	t        *testing.T
	secret   []byte
	grantKey ed25519.PrivateKey

	mu       sync.Mutex
	offset   time.Duration // of the clock
	machine  *statemachine.Machine
	ops      statemachine.Ops
	requests map[string]*statemachine.Request
	log      []*events.Envelope
	last     map[int]uint64 // partition -> last sequence
	heads    struct {
		seq  uint64
		hash string
	}
	workers []*node
	queues  map[events.Role]*queue
	calls   map[string]*call
	hook    func(c *events.Command, after bool) // outside of mu
	deaf    bool                                // notifications are lost
	guards  statemachine.Guards
	breach  bool // guards are off: the log must show it
	next    int
}

// call is one request at the gateway.
type call struct {
	id       string
	prompt   []byte
	sampling events.Sampling
	done     chan struct{} // closed once the request is final
	changed  chan struct{} // receives after each event

	// guarded by world.mu
	chunks []events.OutputChunk
	state  events.State
}

func newWorld(t *testing.T, g statemachine.Guards) *world {
	w := &world{
		t: t, secret: []byte("digest secret"), grantKey: testKey("lifecycle"), machine: statemachine.NewMachine(g), guards: g,
		requests: map[string]*statemachine.Request{}, last: map[int]uint64{}, calls: map[string]*call{},
		queues: map[events.Role]*queue{events.RolePrefill: newQueue(), events.RoleDecode: newQueue()},
	}
	t.Cleanup(w.check)
	return w
}

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nowLocked()
}

func (w *world) nowLocked() time.Time { return time.Now().Add(w.offset) }

// pass lets time go by, for clocks and leases.
func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.offset += d
}

// check reads the log as an auditor would.
func (w *world) check() {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := statemachine.NewChecker(statemachine.CheckerConfig{})
	for _, e := range w.log {
		if err := c.Add(e); err != nil {
			w.t.Errorf("log: %v", err)
		}
	}
	c.Close(w.nowLocked().Add(time.Hour))
	r := c.Report()
	// An admission that a missing guard let through is evident from its facts.
	found := slices.DeleteFunc(r.Violations, func(v statemachine.Violation) bool {
		return w.guards.NoAdmissionLimit && v.Rule == statemachine.RuleDecision && strings.HasPrefix(v.Message, "admitted against its own facts")
	})
	if w.breach {
		if len(found) == 0 {
			w.t.Error("the log does not show what the missing guards let through")
		}
		return
	}
	for _, v := range found {
		w.t.Errorf("log: %s", v)
	}
	if r.Open != 0 {
		w.t.Errorf("%d requests are open, or hold pages", r.Open)
		for id, q := range w.requests {
			if q.Open() {
				w.t.Logf("%s: %s, held %+v", id, q.State, q.Held)
			}
		}
	}
}

// command decides, records and answers one command.
func (w *world) command(role events.Role, principal string, c *events.Command) (*events.Answer, error) {
	if c.Data == nil {
		return nil, errors.New("no data")
	}
	c.Role, c.Principal = role, principal
	wire, err := events.AppendCommand(nil, c)
	if err != nil {
		return nil, err
	}
	if _, err := events.DecodeCommand(c.Type, wire); err != nil {
		w.t.Errorf("%s: the service would not read it: %v", c.Type, err)
		return nil, events.NewError(events.CodeMalformed, err.Error())
	}
	w.mu.Lock()
	hook := w.hook
	w.mu.Unlock()
	if hook != nil {
		hook(c, false)
	}
	w.mu.Lock()
	a := w.decide(c)
	w.mu.Unlock()
	if hook != nil {
		hook(c, true)
	}
	return a, nil
}

func isOps(t events.CommandType) bool {
	return t == events.CmdRegister || t == events.CmdLeave || t == events.CmdQuarantine || t == events.CmdRestore
}

func (w *world) decide(c *events.Command) *events.Answer {
	partition := 0
	if isOps(c.Type) {
		partition = events.OpsPartition
	}
	key := c.Key()
	if partition == 0 {
		if r := w.requests[c.Subject]; r != nil {
			if rec, ok := r.Answer(key); ok {
				return w.answer(c, rec.Type, r.State, c.Subject+"."+strconv.Itoa(rec.N), rec.Pos, rec.Hash, rec.Denied)
			}
		}
	} else if rec, ok := w.ops.Answer(c.Subject, key); ok {
		return w.answer(c, rec.Type, "", c.Subject+"."+strconv.Itoa(rec.N), rec.Pos, rec.Hash, rec.Denied)
	}

	now := w.nowLocked()
	f := &statemachine.Facts{Now: now, Known: true, Sender: w.ops.Workers[c.Principal]}
	_, f.Admission = w.ops.Admission(model, func(string, uint64) bool { return true })
	f.Admission.Policy = "test"
	if f.Admission.PrefillNodes == 0 {
		f.Admission.PrefillNodes, f.Admission.ContextTokens, f.Admission.MaxInputTokens = 1, 1<<16, 1<<16
	}
	if f.Admission.DecodeNodes == 0 { // it will come
		f.Admission.DecodeNodes, f.Admission.MaxDecodeTokens = 1, 1<<20
	}
	e := &events.Event{Source: "/pdgate/lifecycle/test", Subject: c.Subject, Time: events.Micros(now), Command: key, Principal: c.From(), Traceparent: c.Traceparent}
	r := w.requests[c.Subject]
	if partition == 0 {
		if r != nil && r.Prefill != nil {
			f.Owner = w.ops.Workers[r.Prefill.Worker]
		}
		e.Data = w.machine.Decide(r, c, f)
		if r == nil && e.Data.EventType() != events.TypeDenied {
			r = &statemachine.Request{ID: c.Subject}
			w.requests[c.Subject] = r
		}
		if r != nil {
			e.N, e.Prev, e.Tenant = r.N+1, r.Pos, tenant
			w.heads.seq++
			e.TenantSeq, e.TenantPrev = w.heads.seq, w.heads.hash
		}
	} else {
		e.Data = w.machine.DecideOps(&w.ops, c, f)
		s := w.ops.Subjects[c.Subject]
		e.N, e.Prev = s.N+1, s.Pos
	}
	e.Type = e.Data.EventType()
	e.ID = e.Subject + "." + strconv.Itoa(e.N)
	if e.N == 0 {
		e.ID = "denied." + key + "." + strconv.Itoa(len(w.log))
	}
	line, err := events.Append(nil, e)
	if err != nil {
		w.t.Errorf("event: %v", err)
		return nil
	}
	hash := events.Hash(line)
	if e.TenantSeq > 0 {
		w.heads.hash = hash
	}
	env := &events.Envelope{Partition: partition, Seq: uint64(len(w.log) + 1), Expected: w.last[partition], ID: "e" + strconv.Itoa(len(w.log)), Lines: append(line, '\n')}
	w.last[partition] = env.Seq
	w.log = append(w.log, env)
	pos := events.Position{Seq: env.Seq}
	state := events.State("")
	switch {
	case partition != 0:
		err = statemachine.FoldOps(&w.ops, e, pos, hash)
	case e.N > 0:
		err = statemachine.Fold(r, e, pos, hash)
		state = r.State
	}
	if err != nil {
		w.t.Errorf("fold: %v", err)
	}
	w.committed(e, r)
	var denied *events.Denial
	if d, ok := e.Data.(*events.CommandDenied); ok {
		denied = &events.Denial{Code: d.Code, Message: d.Message, State: d.State}
	}
	return w.answer(c, e.Type, state, e.ID, pos, hash, denied)
}

func (w *world) answer(c *events.Command, t events.Type, state events.State, id string, pos events.Position, hash string, denied *events.Denial) *events.Answer {
	a := &events.Answer{Subject: c.Subject, State: state, Type: t, ID: id, Position: pos.String(), Hash: hash, Denied: denied}
	r := w.requests[c.Subject]
	if t != events.TypeTransferGranted || r == nil || denied != nil {
		return a
	}
	g, p := r.Grant, r.Prefill
	if p == nil {
		p = &events.RequestPrefilled{}
	}
	var err error
	a.Grant, err = events.SignGrant(w.grantKey, &events.Grant{
		RequestID: r.ID, Model: r.Model, Tenant: r.Tenant, GrantEpoch: g.GrantEpoch, Event: pos.String(),
		Owner: g.Owner, OwnerEpoch: g.OwnerEpoch, OwnerKey: g.OwnerKey, OwnerAddress: g.OwnerAddress,
		Worker: g.Worker, WorkerEpoch: g.WorkerEpoch, WorkerKey: g.WorkerKey, Lease: g.Lease,
		Pages: p.Pages, PromptTokens: p.PromptTokens, KVBytes: p.KVBytes, KVDigest: p.KVDigest, Layout: p.Layout,
	})
	if err != nil {
		w.t.Errorf("sign: %v", err)
	}
	a.KVKey = fmt.Sprintf("%016x", events.KVKey(events.RequestKey(w.secret, r.ID)))
	return a
}

// committed dispatches and notifies. Callers hold mu.
func (w *world) committed(e *events.Event, r *statemachine.Request) {
	if r == nil || e.N == 0 {
		return
	}
	work := &events.Work{
		RequestID: r.ID, Event: e.ID, Model: r.Model, Tenant: r.Tenant, Gateway: r.Gateway, PromptTokens: r.PromptTokens,
		MaxTokens: r.MaxTokens, PromptDigest: r.PromptDigest, DigestKey: hex.EncodeToString(events.RequestKey(w.secret, r.ID)), Deadline: r.Deadline,
	}
	switch e.Type {
	case events.TypeAdmitted:
		work.Role = events.RolePrefill
		w.queues[work.Role].push(work)
	case events.TypePrefilled:
		work.Role, work.Layout, work.Lease = events.RoleDecode, r.Prefill.Layout, r.Prefill.Lease
		w.queues[work.Role].push(work)
	}
	if c := w.calls[r.ID]; c != nil {
		final := c.state.Final()
		c.state = r.State
		if r.State.Final() && !final {
			close(c.done)
		}
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
	if w.deaf {
		return
	}
	for _, n := range w.workers {
		if !n.severed.Load() {
			n.Notice(e)
		}
	}
}

// request looks at a request's state.
func (w *world) request(id string) *statemachine.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.requests[id]; r != nil {
		return r.Clone()
	}
	return &statemachine.Request{ID: id, State: events.New}
}

func (w *world) get(id string) (*events.RequestView, error) {
	r := w.request(id)
	if r.N == 0 {
		return nil, events.NewError(events.CodeNotFound, "unknown")
	}
	v := &events.RequestView{RequestID: id, State: r.State, Tenant: r.Tenant, Model: r.Model, PromptTokens: r.PromptTokens, MaxTokens: r.MaxTokens, Error: r.Error}
	if r.Prefill != nil {
		v.PrefillWorker = r.Prefill.Worker
	}
	if r.Grant != nil {
		v.DecodeWorker, v.GrantEpoch = r.Grant.Worker, r.Grant.GrantEpoch
	}
	return v, nil
}

// order is a command of the gateway's or the service's own.
func (w *world) order(role events.Role, principal, subject string, d events.CommandData) *events.Answer {
	w.t.Helper()
	a, err := w.command(role, principal, &events.Command{Type: d.CommandType(), Subject: subject, Data: d})
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// lost ends a worker's life as the lifecycle does when heartbeats end.
func (w *world) lost(name string) {
	w.t.Helper()
	w.mu.Lock()
	worker := w.ops.Workers[name]
	var ids []string
	for id := range w.requests {
		ids = append(ids, id)
	}
	w.mu.Unlock()
	if worker != nil { // it may have said so itself
		w.order(events.RoleLifecycle, "lifecycle", name, &events.Leave{Epoch: worker.Epoch, Reason: "lost"})
	}
	for _, id := range ids {
		r := w.request(id)
		if r.State == events.Prefilled && r.Prefill.Worker == name || r.State == events.Transferred && r.Transfer.Worker == name {
			w.order(events.RoleLifecycle, "lifecycle", id, &events.Fail{Stage: "lost", Error: *events.NewError(events.CodeWorkerLost, name+" is gone")})
		}
		for _, h := range w.request(id).Held {
			if h.Worker == name {
				w.order(events.RoleLifecycle, "lifecycle", id, &events.Release{Worker: name, WorkerEpoch: h.Epoch, Role: h.Role, Generation: h.Generation, Pages: h.Pages, Reason: "worker_lost"})
			}
		}
	}
}

// registered says whether a worker is.
func (w *world) registered(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ops.Workers[name] != nil
}

func (w *world) cancel(id string) *events.Answer {
	return w.order(events.RoleGateway, "gw1", id, &events.Cancel{Reason: events.CodeClientGone})
}

// submit admits a prompt.
func (w *world) submit(prompt []byte, s events.Sampling) *call {
	w.t.Helper()
	w.mu.Lock()
	w.next++
	id := fmt.Sprintf("%012x", w.nowLocked().UnixMilli())
	id = id[:8] + "-" + id[8:] + "-7000-8000-" + fmt.Sprintf("%012d", w.next)
	c := &call{id: id, prompt: prompt, sampling: s, done: make(chan struct{}), changed: make(chan struct{}, 1), state: events.New}
	w.calls[id] = c
	w.mu.Unlock()
	a := w.order(events.RoleGateway, "gw1", id, &events.Admit{
		Tenant: tenant, Model: model, PromptTokens: len(prompt), MaxTokens: s.MaxTokens,
		PromptDigest: events.Digest(events.RequestKey(w.secret, id), events.KindPrompt, prompt), TimeoutMS: 60_000,
	})
	if a.Type != events.TypeAdmitted {
		w.t.Logf("%s: %s", id, a.Type)
	}
	return c
}

// wait waits for the request's end.
func (w *world) wait(c *call) *statemachine.Request {
	w.t.Helper()
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		w.t.Fatalf("request %s does not end: %s", c.id, w.request(c.id).State)
	}
	return w.request(c.id)
}

// until waits for a condition that an event of the request brings about.
func (w *world) until(c *call, what string, ok func(r *statemachine.Request) bool) {
	w.t.Helper()
	limit := time.After(20 * time.Second)
	for !ok(w.request(c.id)) {
		select {
		case <-c.changed:
		case <-limit:
			w.t.Fatalf("request %s: %s does not come: %s", c.id, what, w.request(c.id).State)
		}
	}
}

// text joins the output, and checks that no piece is missing.
func (w *world) text(c *call) []byte {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var b []byte
	tokens := 0
	for i, ch := range c.chunks {
		if ch.Index != uint32(i) {
			w.t.Errorf("chunk %d has index %d", i, ch.Index)
		}
		b = append(b, ch.Text...)
		tokens += int(ch.Tokens)
	}
	if tokens != len(b) {
		w.t.Errorf("%d tokens in %d bytes", tokens, len(b))
	}
	return b
}

// queue is one role's work queue.
type queue struct {
	mu    sync.Mutex
	items []*delivery
	more  chan struct{}
	acks  chan struct{}
}

func newQueue() *queue { return &queue{more: make(chan struct{}, 1), acks: make(chan struct{}, 1)} }

type delivery struct {
	q        *queue
	work     *events.Work
	attempts int
	out      bool // with a worker
	acked    bool
	holder   string
	timer    *time.Timer
}

func (q *queue) push(w *events.Work) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(q.items, &delivery{q: q, work: w})
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// again delivers what a worker holds to somebody else, as after its
// acknowledgement time.
func (q *queue) again(holder string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, d := range q.items {
		if d.holder == holder {
			d.out = false
		}
	}
	q.signal()
}

func (q *queue) take(holder string) *delivery {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, d := range q.items {
		if !d.out && !d.acked {
			d.out, d.holder = true, holder
			d.attempts++
			q.signal() // there may be more
			return d
		}
	}
	return nil
}

// settled says whether all work of a request is acknowledged.
func (q *queue) settled(id string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !slices.ContainsFunc(q.items, func(d *delivery) bool { return d.work.RequestID == id && !d.acked })
}

// empty waits until all work is acknowledged.
func (q *queue) empty(t *testing.T) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		n := 0
		q.mu.Lock()
		for _, d := range q.items {
			if !d.acked {
				n++
			}
		}
		q.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-q.acks:
		case <-limit:
			t.Fatalf("%d items are left in the queue", n)
		}
	}
}

func (d *delivery) Work() *events.Work { c := *d.work; return &c }

func (d *delivery) Ack() error {
	d.q.mu.Lock()
	defer d.q.mu.Unlock()
	d.acked = true
	select {
	case d.q.acks <- struct{}{}:
	default:
	}
	return nil
}

func (d *delivery) Nak(delay time.Duration) error {
	d.q.mu.Lock()
	defer d.q.mu.Unlock()
	d.timer = time.AfterFunc(delay, func() {
		d.q.mu.Lock()
		defer d.q.mu.Unlock()
		d.out = false
		d.q.signal()
	})
	return nil
}

func (d *delivery) Progress() error { return nil }

// tear stops the queue's timers.
func (q *queue) tear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, d := range q.items {
		if d.timer != nil {
			d.timer.Stop()
		}
	}
}

// prompts of the ref engine: a question whose answer the prompt quotes.
func quiz(subject, answer string, pad int) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "The code of %s is %s.\n", subject, answer)
	for i := 0; b.Len() < pad; i++ {
		fmt.Fprintf(&b, "Line %d says little of %x.\n", i, sha256.Sum256([]byte(subject+strconv.Itoa(i))))
	}
	fmt.Fprintf(&b, "The code of %s is", subject)
	return b.Bytes()
}

func socket(t *testing.T, name string) string { return "unix://" + filepath.Join(t.TempDir(), name) }

// expected is the monolithic run's answer.
func expected(t *testing.T, e engine.Engine, c *call) []byte {
	t.Helper()
	text, _, err := engine.Complete(context.Background(), e, c.prompt, engine.Sampling{
		MaxTokens: c.sampling.MaxTokens, Stop: c.sampling.Stop, Temperature: c.sampling.Temperature, Seed: c.sampling.Seed,
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func newPool(t *testing.T, e engine.Engine, pages int, epoch uint64) *kvpool.Pool {
	t.Helper()
	p, err := kvpool.New(kvpool.Config{Pages: pages, PageBytes: e.Info().PageBytes(), Epoch: epoch})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
