package gpuworker

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/statemachine"
)

// Each guard of the worker, on and off: what it stops, and what gets through
// without it. (The refusal and the answer to transferred have tests of their own:
// F01 and TestDecodeWaitsForTransferred.)

// Another prompt than the admitted one is not answered.
func TestGuardPromptCheck(t *testing.T) {
	for _, g := range []Guards{{}, {NoPromptCheck: true}} {
		w := newWorld(t, statemachine.Guards{})
		e := newEngine(t, engine.Config{})
		p := w.start(events.RolePrefill, "p1", e, 50, func(c *Config) { c.Guards = g })
		w.start(events.RoleDecode, "d1", e, 50)
		p.fetch = func(part string) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, c := range w.calls {
				if part == events.PartPrompt {
					c.prompt = quiz("another place", "42", 500)[:500]
				}
			}
			return nil
		}
		c := w.submit(quiz("x", "y", 500)[:500], events.Sampling{MaxTokens: 4})
		want := events.Failed
		if g.NoPromptCheck {
			want = events.Decoded
		}
		if r := w.wait(c); r.State != want {
			t.Errorf("guards %+v: %s, %v; want %s", g, r.State, r.Error, want)
		}
	}
}

// Work of a request that has ended does not reach the engine.
func TestGuardStateCheck(t *testing.T) {
	for _, g := range []Guards{{}, {NoStateCheck: true}} {
		w := newWorld(t, statemachine.Guards{})
		w.deaf = true
		c := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 4})
		w.cancel(c.id)
		var calls atomic.Int32
		e := &hooked{Engine: newEngine(t, engine.Config{})}
		inner := e.Engine
		e.prefill = func(ctx context.Context, job engine.PrefillJob) (engine.Prefilled, error) {
			calls.Add(1)
			return inner.Prefill(ctx, job)
		}
		p := w.start(events.RolePrefill, "p1", e, 50, func(c *Config) { c.Guards = g })
		w.queues[events.RolePrefill].empty(t)
		p.idle()
		if n := calls.Load(); (n > 0) != g.NoStateCheck {
			t.Errorf("guards %+v: %d engine calls", g, n)
		}
	}
}

// Pages are not given back with their offer still standing.
func TestGuardDrain(t *testing.T) {
	for _, g := range []Guards{{}, {NoDrain: true}} {
		w := newWorld(t, statemachine.Guards{})
		w.breach = g.NoDrain // F06: the log says that it was freed undrained
		e := newEngine(t, engine.Config{})
		p := w.start(events.RolePrefill, "p1", e, 50, func(c *Config) { c.Guards = g })
		c := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 4})
		w.until(c, "prefilled", func(r *statemachine.Request) bool { return r.State == events.Prefilled })
		w.cancel(c.id)
		w.queues[events.RolePrefill].empty(t)
		p.idle()
		if n := p.Stats().Handoff.Offers; (n > 0) != g.NoDrain {
			t.Errorf("guards %+v: %d offers of pages that are free", g, n)
		}
		w.mu.Lock()
		released := *w.requests[c.id]
		w.mu.Unlock()
		if len(released.Held) != 0 {
			t.Errorf("held %+v", released.Held)
		}
	}
}

// The pages of a request that was handed on are in nobody's hands before the
// log says so: with the report held up, the next request waits for them.
func TestReleasedBeforeReused(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	p := w.start(events.RolePrefill, "p1", e, 10)
	w.start(events.RoleDecode, "d1", e, 50)
	hold, held := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	w.mu.Lock()
	w.hook = func(c *events.Command, after bool) {
		if c.Type == events.CmdReleased && c.Role == events.RolePrefill && !after && !first.Swap(true) {
			close(held)
			<-hold
		}
	}
	w.mu.Unlock()
	a := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 4})
	b := w.submit(quiz("x", "z", 500), events.Sampling{MaxTokens: 4})
	<-held
	if r := w.wait(a); r.State != events.Decoded {
		t.Errorf("%s", r.State)
	}
	if st := p.pool.Stats(); st.Draining != 9 && st.Draining != 8 {
		t.Errorf("pool %+v", st)
	}
	if s := w.request(b.id).State; s != events.Admitted {
		t.Errorf("the next request is %s with the pages not released", s)
	}
	close(hold)
	if r := w.wait(b); r.State != events.Decoded {
		t.Errorf("%s, %v", r.State, r.Error)
	}
}

// A lifecycle that cannot be reached at the end does not keep the worker.
func TestStopWithoutLifecycle(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	p := w.start(events.RolePrefill, "p1", e, 50)
	c := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 4})
	w.until(c, "prefilled", func(r *statemachine.Request) bool { return r.State == events.Prefilled })
	p.severed.Store(true)
	start := time.Now()
	p.halt()
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
	p.clean()
	w.lost("p1")
}
