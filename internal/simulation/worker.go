package simulation

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/handoff"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// Sizes of the engines. A page of theirs holds 64 tokens.
const (
	contextTokens = 320
	inputTokens   = 160 // what a prefill engine takes
	prefillPages  = 7
	decodePages   = 9
	concurrency   = 3
)

const (
	leaseTime   = 5 * time.Second
	leaseMargin = 500 * time.Millisecond
	drainTime   = 2 * time.Second
	pullTries   = 3
	grantTries  = 3
)

// noTime is the context of whatever wants one: nothing in a run is cancelled by
// a context.
var noTime = context.Background()

func newEngines() map[string]engine.Engine {
	all := map[string]engine.Engine{}
	for name, cfg := range map[string]engine.Config{
		"ref":    {ContextTokens: contextTokens, MaxInputTokens: inputTokens},
		"faulty": {Name: "faulty", ContextTokens: contextTokens, MaxInputTokens: inputTokens},
		"silent": {Name: "faulty", Silent: true, ContextTokens: contextTokens, MaxInputTokens: inputTokens},
		"decode": {ContextTokens: contextTokens},
	} {
		cfg.Model = model
		e, err := engine.New(cfg)
		if err != nil {
			panic(err)
		}
		all[name] = e
	}
	return all
}

// worker is one worker, over all of its lives. It follows gpuworker step by step;
// where that runs a goroutine, this one has a delivery for each step.
type worker struct {
	w      *world
	role   events.Role
	name   string
	key    ed25519.PrivateKey
	engine engine.Engine

	// Of one life.
	life        *life
	pool        *kvpool.Pool
	server      *handoff.Server // prefill only
	puller      *handoff.Puller // decode only
	address     string
	epoch       uint64
	registered  bool
	jobs        []*job
	generations map[uint64]bool // of the pool's allocations
	heard       map[string]*events.RequestPrefilled
}

// job is one request at a worker.
type job struct {
	x     *worker
	work  *events.Work
	key   []byte // of the request's digests
	lease *lease // the latest delivery; nil once acknowledged
	phase phase
	ended bool // the request went on without us, or is over
	here  bool // … because its KV arrived at decode
	cut   bool // transfers were revoked
	call  *call

	alloc    *kvpool.Allocation
	recorded bool // the log may know the allocation
	until    time.Time
	reason   string
	last     int // grant epoch
	pulls    int
}

// host is one life of a prefill worker, as its address names it.
type host struct {
	x      *worker
	life   *life
	server *handoff.Server
}

type phase int

const (
	running phase = iota
	kept
	leaving
)

func newWorker(w *world, role events.Role, name string) *worker {
	x := &worker{w: w, role: role, name: name, key: keyOf(name), life: &life{dead: true}}
	switch {
	case role == events.RoleDecode:
		x.engine = w.engines["decode"]
	case w.faults.Silent:
		x.engine = w.engines["silent"]
	case w.faults.Faulty:
		x.engine = w.engines["faulty"]
	default:
		x.engine = w.engines["ref"]
	}
	return x
}

// boot begins a life: a pool that is poisoned, under an epoch never used before.
func (x *worker) boot() {
	w := x.w
	x.life = &life{name: x.name}
	x.epoch = uint64(w.now.UnixMicro())
	x.jobs, x.registered, x.generations = nil, false, map[uint64]bool{}
	x.heard = map[string]*events.RequestPrefilled{}
	pages := decodePages
	if x.role == events.RolePrefill {
		pages = prefillPages
	}
	info := x.engine.Info()
	var err error
	if x.pool, err = kvpool.New(kvpool.Config{Pages: pages, PageBytes: info.PageBytes(), Epoch: x.epoch, Scrub: w.cfg.Guards.Scrub}); err != nil {
		panic(err)
	}
	keys := func() []ed25519.PublicKey { return []ed25519.PublicKey{w.grantKey.Public().(ed25519.PublicKey)} }
	clock := func() time.Time { return w.now }
	guards := w.cfg.Guards.Worker.Handoff
	w.names++
	x.address = fmt.Sprintf("tcp://127.0.0.1:%d", 10_000+w.names%50_000)
	if x.role == events.RolePrefill {
		x.server, err = handoff.NewServer(handoff.Config{
			Name: x.name, Epoch: x.epoch, Layout: info.Layout, Pool: x.pool, Identity: x.key, GrantKeys: keys,
			ChunkBytes: info.PageBytes(), Clock: clock, Guards: guards,
		})
		w.plane[x.address] = &host{x, x.life, x.server}
	} else {
		x.puller, err = handoff.NewPuller(handoff.PullerConfig{
			Name: x.name, Epoch: x.epoch, Layout: info.Layout, Pool: x.pool, Identity: x.key, GrantKeys: keys, Clock: clock, Guards: guards,
		})
	}
	if err != nil {
		panic(err)
	}
	w.say("%s starts under epoch %d", x.name, x.epoch)
	x.register()
	l := x.life
	w.every(l, 900*time.Millisecond, 1100*time.Millisecond, x.beat)
	w.every(l, 80*time.Millisecond, 160*time.Millisecond, x.care)
	w.every(l, 1500*time.Millisecond, 2500*time.Millisecond, x.sweep)
	w.every(l, 4*time.Second, 6*time.Second, x.register)
}

// register announces the life, or confirms it. One that is over starts again.
func (x *worker) register() {
	info := x.engine.Info()
	claim := info.MaxInputTokens
	if x.w.faults.Overclaim && x.role == events.RolePrefill {
		claim = contextTokens
	}
	x.w.do(x.life, x.role, x.name, x.name, &events.Register{
		Model: model, Epoch: x.epoch, PublicKey: handoff.EncodeKey(x.key.Public().(ed25519.PublicKey)), Address: x.address,
		Engine: info.Name, Version: info.Version, ContextTokens: contextTokens, MaxInputTokens: claim,
		PoolPages: x.pool.Stats().Pages, PageTokens: info.PageTokens, TokenBytes: info.TokenBytes, Layout: info.Layout,
	}, func(a *events.Answer, err *events.Error) {
		switch {
		case err != nil:
		case a.Denied != nil:
			x.w.say("%s: this life is over: %s", x.name, a.Denied.Code)
			x.crash(x.w.between(10*time.Millisecond, 300*time.Millisecond))
		default:
			x.registered = true
		}
	})
}

// crash ends a life; its memory is gone. The next one begins after down.
func (x *worker) crash(down time.Duration) {
	if x.life.dead {
		return
	}
	x.life.dead = true
	x.w.say("%s crashes", x.name)
	x.w.seen["worker crash"]++
	x.w.after(down, x.boot)
}

func (x *worker) beat() {
	w := x.w
	st := x.pool.Stats()
	b, err := events.AppendHeartbeat(nil, &events.Heartbeat{
		Epoch: x.epoch, Model: model, FreePages: st.Free, HeldPages: st.Held + st.Draining, Running: len(x.jobs), SentAt: events.Micros(w.now),
	})
	if err != nil {
		w.breach(RuleRefused, "heartbeat: %v", err)
	}
	for _, r := range w.replicas {
		w.deliver("", func() {
			w.let(r.life, func() { r.core.Heartbeat(events.HeartbeatSubject(x.role, x.name), b) })
		})
	}
}

// care looks after leases, deadlines and acknowledgement times, and asks for work.
func (x *worker) care() {
	now := x.w.now
	for _, j := range slices.Clone(x.jobs) {
		switch {
		case j.phase == kept && now.After(j.until.Add(leaseMargin)):
			x.w.seen["lease over"]++
			x.leave(j, "lease_over")
		case j.phase == running && !now.Before(j.work.Deadline):
			x.end(j, false)
		case j.lease != nil && x.w.rnd.IntN(6) == 0:
			j.lease.progress()
		}
	}
	n := 0
	for _, j := range x.jobs {
		if j.phase == running {
			n++
		}
	}
	if x.registered && n < concurrency {
		x.w.queues[x.role].want(x)
	}
}

// sweep asks about requests that are held: notifications may be lost.
func (x *worker) sweep() {
	for _, j := range slices.Clone(x.jobs) {
		if j.phase != leaving {
			x.w.ask(x.life, j.work.RequestID, func(v *events.RequestView) { x.view(j, v) })
		}
	}
}

func (x *worker) view(j *job, v *events.RequestView) {
	switch {
	case v == nil || j.phase == leaving:
	case v.State.Final() && !(x.role == events.RoleDecode && v.State == events.Decoded && v.DecodeWorker == x.name):
		x.end(j, v.State == events.Decoded)
	case v.State == events.Transferred && (x.role == events.RolePrefill || v.DecodeWorker != x.name):
		x.end(j, x.role == events.RolePrefill)
	}
}

func (x *worker) find(id string) *job {
	for _, j := range x.jobs {
		if j.work.RequestID == id {
			return j
		}
	}
	return nil
}

// notice takes a recorded event.
func (x *worker) notice(e *events.Event) {
	x.misbehave(e)
	j := x.find(e.Subject)
	if j == nil {
		return
	}
	on := func(worker string, epoch uint64) {
		if x.role == events.RolePrefill || worker != x.name || epoch != x.epoch {
			x.end(j, x.role == events.RolePrefill)
		}
	}
	switch d := e.Data.(type) {
	case *events.RequestRejected, *events.RequestFailed, *events.RequestCancelled:
		x.end(j, false)
	case *events.RequestTransferred:
		on(d.Worker, d.WorkerEpoch)
	case *events.RequestDecoded:
		on(d.Worker, d.WorkerEpoch)
	}
}

// end stops what runs for a request, or begins to give back what is kept for it.
func (x *worker) end(j *job, here bool) {
	if j.ended {
		return
	}
	j.ended, j.here = true, here
	switch j.phase {
	case running:
		j.call.drop()
		x.conclude(j, false, 0)
	case kept:
		x.leave(j, "done")
	}
}

// take begins with a delivery.
func (x *worker) take(l *lease) {
	work := l.work()
	if work == nil {
		return
	}
	if j := x.find(work.RequestID); j != nil {
		switch j.phase {
		case running:
			j.lease = l
		case kept:
			l.ack()
		case leaving:
			l.nak(200 * time.Millisecond)
		}
		return
	}
	j := &job{x: x, work: work, key: events.RequestKey(x.w.secret, work.RequestID), lease: l, last: work.GrantEpoch}
	x.jobs = append(x.jobs, j)
	x.w.say("%s takes %s", x.name, short(work.RequestID))
	if x.role == events.RolePrefill {
		x.reserve(j, work.PromptTokens, x.prefill)
		return
	}
	if !x.w.now.Before(work.Lease) {
		x.w.stop("decode takes work", events.NewError(events.CodeLeaseOver, "the KV's lease is over"))
		x.conclude(j, false, 0)
		return
	}
	x.reserve(j, work.PromptTokens+work.MaxTokens, x.decode)
}

// step has a running job go on in d, unless it ended meanwhile.
func (j *job) step(d time.Duration, f func()) {
	j.x.w.on(j.x.life, d, func() {
		if j.phase == running && !j.ended {
			f()
		}
	})
}

// do sends a command about the job's request; the answer is for a job that still
// runs.
func (j *job) do(data events.CommandData, done func(a *events.Answer)) {
	x := j.x
	j.call = x.w.do(x.life, x.role, x.name, j.work.RequestID, data, func(a *events.Answer, err *events.Error) {
		if j.phase != running || j.ended {
			return
		}
		if err != nil {
			x.conclude(j, false, 0)
			return
		}
		done(a)
	})
}

// reserve waits for the job's pages.
func (x *worker) reserve(j *job, tokens int, then func(*job)) {
	a, err := x.pool.Alloc(j.work.RequestID, x.engine.Info().PagesFor(tokens))
	switch {
	case err == nil:
		if x.generations[a.Generation()] {
			x.w.breach(RulePool, "%s: generation %d comes twice", x.name, a.Generation())
		}
		x.generations[a.Generation()] = true
		j.alloc = a
		j.step(x.w.delay(), func() { then(j) })
	case errors.Is(err, kvpool.ErrTooLarge):
		if x.role == events.RolePrefill {
			x.reject(j, events.ContextExceeded("prompt", tokens, inputTokens))
			return
		}
		x.conclude(j, true, time.Second)
	default:
		x.w.seen["pool full"]++
		j.step(x.w.between(20*time.Millisecond, 80*time.Millisecond), func() { x.reserve(j, tokens, then) })
	}
}

// fail ends the request with an error of ours.
func (x *worker) fail(j *job, stage string, e *events.Error) {
	j.do(&events.Fail{WorkerEpoch: x.epoch, Stage: stage, Error: *e}, func(a *events.Answer) { x.reported(j, a) })
}

// reject ends the request with the engine's own refusal.
func (x *worker) reject(j *job, e *events.Error) {
	j.do(&events.Reject{WorkerEpoch: x.epoch, Error: *e}, func(a *events.Answer) { x.reported(j, a) })
}

func (x *worker) reported(j *job, a *events.Answer) {
	unknown := a.Denied != nil && a.Denied.Code == events.CodeWorkerUnknown
	x.conclude(j, unknown, time.Second)
}

// conclude acknowledges a delivery, or gives it back, and lets go of the pages.
func (x *worker) conclude(j *job, again bool, d time.Duration) {
	if l := j.lease; l != nil {
		j.lease = nil
		if again {
			l.nak(d)
		} else {
			l.ack()
		}
	}
	x.leave(j, "done")
}

// keep acknowledges a delivery and keeps the pages for the pull.
func (x *worker) keep(j *job) {
	j.lease.ack()
	j.lease = nil
	j.phase = kept
}

// leave drains, frees and reports, in this order.
func (x *worker) leave(j *job, reason string) {
	if j.phase == leaving {
		return
	}
	j.phase, j.reason = leaving, reason
	x.w.on(x.life, x.w.delay(), func() { x.drain(j) })
}

func (x *worker) drain(j *job) {
	id := j.work.RequestID
	revoke := func() {
		j.cut = true
		x.wait(x.server.Revoke(id), 0, func() { x.free(j) })
	}
	switch {
	case x.server == nil || x.w.cfg.Guards.Worker.NoDrain:
		x.free(j)
	case j.here:
		x.wait(x.server.Drain(id), drainTime, revoke)
	default:
		revoke()
	}
}

// wait goes on once the channel is closed, or after most, if that is not 0.
func (x *worker) wait(c <-chan struct{}, most time.Duration, then func()) {
	select {
	case <-c:
		then()
		return
	default:
	}
	since := x.w.now
	var look func()
	look = func() {
		select {
		case <-c:
			then()
		default:
			if most > 0 && x.w.now.Sub(since) >= most {
				then()
				return
			}
			x.w.on(x.life, x.w.between(5*time.Millisecond, 25*time.Millisecond), look)
		}
	}
	x.w.on(x.life, 5*time.Millisecond, look)
}

// free gives the pages back. They are reported after the last use of them has
// ended, and nobody else gets them before the report is in the log.
func (x *worker) free(j *job) {
	if j.alloc == nil {
		x.forget(j)
		return
	}
	var report func(scrubbed bool, done func())
	if j.recorded {
		report = func(scrubbed bool, done func()) {
			x.w.do(x.life, x.role, x.name, j.work.RequestID, &events.Release{
				Worker: x.name, WorkerEpoch: x.epoch, Role: x.role, Generation: j.alloc.Generation(), Pages: j.alloc.Pages(),
				Drained: !x.w.cfg.Guards.Worker.NoDrain, Scrubbed: scrubbed, Reason: j.reason,
			}, func(*events.Answer, *events.Error) { done() })
		}
	}
	if report != nil && x.w.cfg.Guards.NoReportFirst {
		first := report
		report = func(scrubbed bool, done func()) {
			done()
			first(scrubbed, func() {})
		}
	}
	x.wait(x.pool.FreeThen(j.alloc, report), 0, func() { x.forget(j) })
}

func (x *worker) forget(j *job) {
	if i := slices.Index(x.jobs, j); i >= 0 {
		x.jobs = slices.Delete(x.jobs, i, i+1)
	}
}

func codeOf(err error) events.Code {
	if e, ok := errors.AsType[*events.Error](err); ok {
		return e.Code
	}
	return events.CodeTransferFailed
}
