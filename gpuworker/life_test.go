package gpuworker

import (
	"context"
	"crypto/ed25519"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/statemachine"
)

// die takes a worker's process away: nothing gets in or out any more.
func (n *node) die() {
	n.severed.Store(true)
	n.w.queues[n.role].again(n.name)
}

// The prefill worker dies while its KV waits. The request fails at once, and a
// decode worker that has the work gets no grant.
func TestPrefillWorkerDies(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	p := w.start(events.RolePrefill, "p1", e, 50)
	call := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 30})
	w.until(call, "prefilled", func(r *statemachine.Request) bool { return r.State == events.Prefilled })
	p.die()
	w.lost("p1")
	d := w.start(events.RoleDecode, "d1", e, 50)
	w.queues[events.RoleDecode].empty(t)
	if r := w.wait(call); r.State != events.Failed || r.Error.Code != events.CodeWorkerLost || r.Grant != nil {
		t.Errorf("%s, %v", r.State, r.Error)
	}
	d.idle()
	d.clean()
}

// It dies before it has reported: another one takes the work.
func TestPrefillWorkIsTakenOver(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := &hooked{Engine: newEngine(t, engine.Config{})}
	inside := make(chan struct{})
	dead := &hooked{Engine: e.Engine, prefill: func(ctx context.Context, _ engine.PrefillJob) (engine.Prefilled, error) {
		close(inside)
		<-ctx.Done()
		return engine.Prefilled{}, ctx.Err()
	}}
	p1 := w.start(events.RolePrefill, "p1", dead, 50)
	call := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 30})
	<-inside
	w.start(events.RolePrefill, "p2", e, 50)
	w.start(events.RoleDecode, "d1", e, 50)
	p1.die()
	if r := w.wait(call); r.State != events.Decoded || r.Prefill.Worker != "p2" {
		t.Errorf("%s, %v", r.State, r.Error)
	}
	w.lost("p1")
}

// A decode worker dies with a grant in hand. Another one takes the work, gets
// the next grant, and finishes.
func TestDecodeWorkIsTakenOver(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	w.start(events.RolePrefill, "p1", e, 50)
	d1 := w.start(events.RoleDecode, "d1", e, 50)
	w.once(events.CmdGrant, true, func(string) { d1.die() })
	call := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 30})
	w.until(call, "grant", func(r *statemachine.Request) bool { return r.Grant != nil })
	w.lost("d1")
	w.start(events.RoleDecode, "d2", e, 50)
	r := w.wait(call)
	if r.State != events.Decoded || r.Decoded.Worker != "d2" || r.Grant.GrantEpoch != 2 {
		t.Errorf("%s by grant %+v, %v", r.State, r.Grant, r.Error)
	}
	if got, want := w.text(call), expected(t, e, call); string(got) != string(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// It dies after transferred: nobody else has the KV, and the request fails.
func TestDecodeWorkerDiesAfterTransfer(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	p := w.start(events.RolePrefill, "p1", e, 50)
	d1 := w.start(events.RoleDecode, "d1", e, 50)
	w.once(events.CmdTransferred, true, func(string) { d1.die() })
	call := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 30})
	w.until(call, "transferred", func(r *statemachine.Request) bool { return r.State == events.Transferred })
	d2 := w.start(events.RoleDecode, "d2", e, 50)
	w.queues[events.RoleDecode].empty(t)
	w.lost("d1")
	if r := w.wait(call); r.State != events.Failed || r.Error.Code != events.CodeWorkerLost {
		t.Errorf("%s, %v", r.State, r.Error)
	}
	d2.idle()
	d2.clean()
	p.idle()
	p.clean()
}

// Every item is delivered twice, to different workers at once. Each request is
// decoded once, from one worker's output.
func TestDoubledWork(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	var nodes []*node
	for _, name := range []string{"p1", "p2"} {
		nodes = append(nodes, w.start(events.RolePrefill, name, e, 100))
	}
	for _, name := range []string{"d1", "d2"} {
		nodes = append(nodes, w.start(events.RoleDecode, name, e, 100))
	}
	w.mu.Lock()
	w.hook = func(c *events.Command, after bool) {
		// The moment a worker reports, its work goes out a second time.
		if !after && (c.Type == events.CmdPrefilled || c.Type == events.CmdGrant && c.Data.(*events.GrantTransfer).GrantEpoch == 1) {
			w.queues[c.Role].again(c.Principal)
		}
	}
	w.mu.Unlock()
	var calls []*call
	for range 12 {
		calls = append(calls, w.submit(quiz("x", "y", 700), events.Sampling{MaxTokens: 30}))
	}
	for _, c := range calls {
		if r := w.wait(c); r.State != events.Decoded {
			t.Errorf("%s, %v", r.State, r.Error)
		} else if got, want := w.text(c), expected(t, e, c); string(got) != string(want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, n := range nodes {
		n.idle()
		n.clean()
	}
}

// Notifications that never come are made up for by asking.
func TestLostNotifications(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	w.deaf = true
	e := newEngine(t, engine.Config{})
	p := w.start(events.RolePrefill, "p1", e, 50)
	d := w.start(events.RoleDecode, "d1", e, 50)
	call := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 30})
	if r := w.wait(call); r.State != events.Decoded {
		t.Errorf("%s", r.State)
	}
	p.idle()
	d.idle()
	p.clean()
	d.clean()
	if st := p.Stats(); st.LeasesOver != 0 {
		t.Error("the pages were kept until the lease's end")
	}
}

// A worker that stops gives back what it has not begun to report, ends what
// nobody else can finish, and leaves with its pool empty.
func TestStop(t *testing.T) {
	blocked := func(inside chan struct{}) func(context.Context) {
		var once sync.Once
		return func(ctx context.Context) {
			once.Do(func() { close(inside) })
			<-ctx.Done()
		}
	}
	t.Run("prefill running", func(t *testing.T) {
		w := newWorld(t, statemachine.Guards{})
		e := newEngine(t, engine.Config{})
		inside := make(chan struct{})
		block := blocked(inside)
		p1 := w.start(events.RolePrefill, "p1", &hooked{Engine: e, prefill: func(ctx context.Context, _ engine.PrefillJob) (engine.Prefilled, error) {
			block(ctx)
			return engine.Prefilled{}, ctx.Err()
		}}, 50)
		call := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 3})
		<-inside
		w.start(events.RolePrefill, "p2", e, 50)
		w.start(events.RoleDecode, "d1", e, 50)
		p1.halt()
		if r := w.wait(call); r.State != events.Decoded {
			t.Errorf("%s, %v", r.State, r.Error)
		}
	})
	t.Run("prefill waiting for pages", func(t *testing.T) {
		w := newWorld(t, statemachine.Guards{})
		e := newEngine(t, engine.Config{})
		p1 := w.start(events.RolePrefill, "p1", e, 10)
		first := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 3})
		w.until(first, "prefilled", func(r *statemachine.Request) bool { return r.State == events.Prefilled })
		second := w.submit(quiz("x", "y", 501), events.Sampling{MaxTokens: 3})
		p1.halt()
		if r := w.wait(first); r.State != events.Failed || r.Error.Code != events.CodeWorkerLost {
			t.Errorf("kept: %s, %v", r.State, r.Error)
		}
		w.start(events.RolePrefill, "p2", e, 10)
		w.start(events.RoleDecode, "d1", e, 50)
		if r := w.wait(second); r.State != events.Decoded {
			t.Errorf("waiting: %s, %v", r.State, r.Error)
		}
	})
	t.Run("decode running", func(t *testing.T) {
		w := newWorld(t, statemachine.Guards{})
		e := newEngine(t, engine.Config{})
		inside := make(chan struct{})
		block := blocked(inside)
		w.start(events.RolePrefill, "p1", e, 50)
		d1 := w.start(events.RoleDecode, "d1", &hooked{Engine: e, decode: func(ctx context.Context, _ engine.DecodeJob, _ engine.Emit) (engine.Decoded, error) {
			block(ctx)
			return engine.Decoded{}, ctx.Err()
		}}, 50)
		call := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 3})
		<-inside
		d1.halt()
		if r := w.wait(call); r.State != events.Failed || r.Error.Code != events.CodeWorkerLost {
			t.Errorf("%s, %v", r.State, r.Error)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.ops.Workers["d1"] != nil {
			t.Error("the worker did not leave")
		}
	})
}

// A worker whose life the lifecycle has ended says so, with its pool empty: its
// pages are void, and it must start again under another epoch.
func TestGone(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	p := w.start(events.RolePrefill, "p1", e, 50)
	w.lost("p1") // wrongly: it is alive
	call := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 3})
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the worker does not notice")
	}
	if !errors.Is(p.result, ErrGone) {
		t.Errorf("run: %v", p.result)
	}
	p.clean()
	w.start(events.RolePrefill, "p1", e, 50) // the same name, a later epoch
	w.start(events.RoleDecode, "d1", e, 50)
	if r := w.wait(call); r.State != events.Decoded {
		t.Errorf("%s, %v", r.State, r.Error)
	}
}

// Registration tells what admission and grants rest on; heartbeats follow.
func TestRegistration(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{ContextTokens: 4096, MaxInputTokens: 4000})
	p := w.start(events.RolePrefill, "p1", e, 50)
	w.start(events.RoleDecode, "d1", e, 20)
	w.mu.Lock()
	got := *w.ops.Workers["p1"]
	address := w.ops.Workers["d1"].Address
	w.mu.Unlock()
	if got.Model != model || got.Epoch != p.pool.Epoch() || got.Address != p.Address() || got.PoolPages != 50 || got.PageTokens != 64 ||
		got.TokenBytes != 192 || got.ContextTokens != 4096 || got.MaxInputTokens != 4000 || got.Layout != e.Info().Layout || got.Role != events.RolePrefill {
		t.Errorf("registered %+v", got)
	}
	if address != noAddress {
		t.Errorf("decode serves %s", address)
	}
	limit := time.After(10 * time.Second)
	for n := p.beats.Load(); p.beats.Load() < n+2; {
		select {
		case <-limit:
			t.Fatal("no heartbeats")
		case <-time.After(10 * time.Millisecond):
		}
	}
	// A second life under an epoch that is not later is refused.
	cfg := p.Worker.cfg
	cfg.Pool = newPool(t, e, 5, p.pool.Epoch()-1)
	cfg.Listen = ""
	again, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "set the clock") {
		t.Errorf("an earlier epoch: %v", err)
	}
}

func TestConfigIsChecked(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	n := &node{w: w, name: "p1", role: events.RolePrefill}
	good := Config{Name: "p1", Role: events.RolePrefill, Model: model, Engine: e, Pool: newPool(t, e, 4, 1), Lifecycle: (*nodeLifecycle)(n),
		Queue: (*nodeQueue)(n), Prompts: (*nodeGateway)(n), Identity: testKey("p1"), GrantKeys: func() []ed25519.PublicKey { return nil }}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for name, f := range map[string]func(c *Config){
		"name": func(c *Config) { c.Name = "a b" }, "model": func(c *Config) { c.Model = "" }, "role": func(c *Config) { c.Role = events.RoleGateway },
		"engine": func(c *Config) { c.Engine = nil }, "pool": func(c *Config) { c.Pool = nil }, "lifecycle": func(c *Config) { c.Lifecycle = nil },
		"output": func(c *Config) { c.Role = events.RoleDecode }, "identity": func(c *Config) { c.Identity = nil }, "keys": func(c *Config) { c.GrantKeys = nil },
		"lease": func(c *Config) { c.Lease = time.Millisecond }, "grace": func(c *Config) { c.Grace = -1 },
	} {
		c := good
		f(&c)
		if _, err := New(c); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// A worker whose preflight fails has registered, takes nothing of what waits, and
// leaves; one whose preflight is fine does the work.
func TestPreflightComesBeforeWork(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	good := w.start(events.RolePrefill, "p1", e, 50)
	w.start(events.RoleDecode, "d1", e, 50)
	good.die() // registered, so that requests are admitted, and takes no work
	call := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 30})

	bad := &node{w: w, name: "p2", role: events.RolePrefill, pool: newPool(t, e, 50, epochs.Add(1))}
	registered := false
	cfg := Config{
		Name: "p2", Role: events.RolePrefill, Model: model, Engine: e, Pool: bad.pool, Lifecycle: (*nodeLifecycle)(bad), Queue: (*nodeQueue)(bad),
		Prompts: (*nodeGateway)(bad), Identity: testKey("p2"), Clock: w.now, Grace: 200 * time.Millisecond,
		GrantKeys: func() []ed25519.PublicKey { return nil },
		Preflight: func(context.Context) error {
			registered = w.registered("p2")
			return errors.New("RED")
		},
	}
	worker, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	bad.Worker = worker
	if err := worker.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "RED") {
		t.Fatalf("Run: %v", err)
	}
	if !registered || w.registered("p2") {
		t.Errorf("registered when it was asked: %v; after it left: %v", registered, w.registered("p2"))
	}
	if r := w.request(call.id); r.State != events.Admitted || bad.Stats().Pool.Free != bad.Stats().Pool.Pages {
		t.Errorf("the work was touched: %s, %+v", r.State, bad.Stats())
	}
	w.start(events.RolePrefill, "p3", e, 50, func(c *Config) { c.Preflight = func(context.Context) error { return nil } })
	if r := w.wait(call); r.State != events.Decoded {
		t.Errorf("%s, %v", r.State, r.Error)
	}
	w.lost("p1")
}
