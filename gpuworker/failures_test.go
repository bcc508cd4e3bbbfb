package gpuworker

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/statemachine"
)

// F01: the engine rejects inside and goes on with a placeholder. Behind the
// worker the client gets the engine's own 400, whichever guard is the one that
// sees it; with all of them gone the request ends as if it had been answered.
func TestF01EngineRejectsInside(t *testing.T) {
	for _, c := range []struct {
		name   string
		sm     statemachine.Guards
		worker Guards
		silent bool
		state  events.State
		code   events.Code
		denied int // prefilled commands that were denied
	}{
		{"stopped at admission", statemachine.Guards{}, Guards{}, false, events.Rejected, events.CodeContextLength, 0},
		{"stopped by asking first", statemachine.Guards{NoAdmissionLimit: true}, Guards{}, false, events.Rejected, events.CodeContextLength, 0},
		{"stopped by the token count", statemachine.Guards{NoAdmissionLimit: true}, Guards{NoRefusedCheck: true}, false, events.Rejected, events.CodeContextLength, 1},
		{"hidden, stopped by the token count", statemachine.Guards{NoAdmissionLimit: true}, Guards{}, true, events.Failed, events.CodePrefillFailed, 1},
		{"nobody looks", statemachine.Guards{NoAdmissionLimit: true, NoTokenCount: true}, Guards{NoRefusedCheck: true}, false, events.Decoded, "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.sm)
			w.breach = c.state == events.Decoded
			e := newEngine(t, engine.Config{Name: "faulty", MaxInputTokens: 1000, Silent: c.silent})
			w.start(events.RolePrefill, "p1", e, 100, func(cfg *Config) { cfg.Guards = c.worker })
			w.start(events.RoleDecode, "d1", e, 100, func(cfg *Config) { cfg.Guards = c.worker })
			denied := 0
			w.mu.Lock()
			w.hook = func(cmd *events.Command, after bool) {
				if cmd.Type != events.CmdPrefilled || !after {
					return
				}
				if r := w.request(cmd.Subject); r.State == events.Admitted {
					denied++
				}
			}
			w.mu.Unlock()
			call := w.submit(quiz("the vault", "4711", 3000), events.Sampling{MaxTokens: 8})
			r := w.wait(call)
			if r.State != c.state || c.code != "" && (r.Error == nil || r.Error.Code != c.code) {
				t.Errorf("%s, %v; want %s, %s", r.State, r.Error, c.state, c.code)
			}
			if c.state == events.Rejected && r.Error.HTTPStatus() != 400 {
				t.Errorf("status %d", r.Error.HTTPStatus())
			}
			if out := w.text(call); c.state != events.Decoded && len(out) != 0 {
				t.Errorf("%d bytes of output", len(out))
			}
			if denied != c.denied {
				t.Errorf("%d reports of a prefill were denied, want %d", denied, c.denied)
			}
		})
	}
}

// F26: the client goes while its prompt is in prefill. The engine call is
// cancelled, and the pages come back.
func TestF26CancelDuringPrefill(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	inside := make(chan struct{})
	stopped := make(chan error, 1)
	e := &hooked{Engine: newEngine(t, engine.Config{})}
	e.prefill = func(ctx context.Context, _ engine.PrefillJob) (engine.Prefilled, error) {
		close(inside)
		<-ctx.Done()
		stopped <- context.Cause(ctx)
		return engine.Prefilled{}, ctx.Err()
	}
	p := w.start(events.RolePrefill, "p1", e, 50)
	call := w.submit(quiz("x", "y", 100), events.Sampling{MaxTokens: 4})
	<-inside
	w.cancel(call.id)
	select {
	case err := <-stopped:
		if !errors.Is(err, errEnded) {
			t.Errorf("cause %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the engine call goes on")
	}
	w.queues[events.RolePrefill].empty(t)
	p.idle()
	p.clean()
}

// F27: the client goes while the KV is on its way. Both sides end the transfer,
// then free their pages.
func TestF27CancelDuringTransfer(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	p := w.start(events.RolePrefill, "p1", e, 700)
	var armed atomic.Pointer[string]
	var seen sync.Once
	d := w.start(events.RoleDecode, "d1", e, 700, func(c *Config) {
		c.Clock = func() time.Time {
			// The puller looks at the clock before each chunk.
			if id := armed.Load(); id != nil && p.Stats().Handoff.Open == 1 {
				seen.Do(func() { w.cancel(*id) })
			}
			return w.now()
		}
	})
	w.once(events.CmdGrant, true, func(id string) { armed.Store(&id) })
	call := w.submit(quiz("x", "y", 40_000), events.Sampling{MaxTokens: 4})
	if r := w.wait(call); r.State != events.Cancelled {
		t.Fatalf("%s", r.State)
	}
	p.idle()
	d.idle()
	p.clean()
	d.clean()
	if len(w.text(call)) != 0 {
		t.Error("output after the cancellation")
	}
	if r := w.request(call.id); len(r.Held) != 0 {
		t.Errorf("the log holds pages: %+v", r.Held)
	}
}

// flaky passes connections on to a data plane, after it broke some.
func flaky(t *testing.T, breaks int32) (advertise string, to func(address string)) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var target atomic.Value
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			if atomic.AddInt32(&breaks, -1) >= 0 {
				_ = in.Close()
				continue
			}
			out, err := net.Dial("tcp", target.Load().(string))
			if err != nil {
				_ = in.Close()
				continue
			}
			for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
				wg.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_, _ = pair[0].Close(), pair[1].Close()
				})
			}
		}
	})
	t.Cleanup(func() { _ = l.Close(); wg.Wait() })
	return "tcp://" + l.Addr().String(), func(a string) { target.Store(strings.TrimPrefix(a, "tcp://")) }
}

// A pull that breaks is tried again under a new grant, three times in all; then
// the request fails (F18: nothing of an output exists).
func TestBrokenTransfers(t *testing.T) {
	for _, c := range []struct {
		breaks int32
		state  events.State
		epoch  int
	}{{0, events.Decoded, 1}, {2, events.Decoded, 3}, {3, events.Failed, 3}} {
		w := newWorld(t, statemachine.Guards{})
		e := newEngine(t, engine.Config{})
		advertise, to := flaky(t, c.breaks)
		l, err := net.Listen("tcp", "127.0.0.1:0") // a free port
		if err != nil {
			t.Fatal(err)
		}
		at := "tcp://" + l.Addr().String()
		_ = l.Close()
		to(at)
		w.start(events.RolePrefill, "p1", e, 100, func(cfg *Config) { cfg.Listen, cfg.Advertise = at, advertise })
		w.start(events.RoleDecode, "d1", e, 100)
		call := w.submit(quiz("x", "y", 1000), events.Sampling{MaxTokens: 4})
		r := w.wait(call)
		if r.State != c.state || r.Grant.GrantEpoch != c.epoch {
			t.Errorf("%d breaks: %s after grant %d, %v", c.breaks, r.State, r.Grant.GrantEpoch, r.Error)
		}
		if c.state == events.Failed && (r.Error.Code != events.CodeTransferFailed || len(w.text(call)) != 0) {
			t.Errorf("failed with %v", r.Error)
		}
	}
}

// F10, F17, F23: nobody pulls. The pages are freed at the lease's end, and a
// decode worker that comes too late gets nothing.
func TestF23LeaseOver(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	p := w.start(events.RolePrefill, "p1", e, 50)
	call := w.submit(quiz("x", "y", 1000), events.Sampling{MaxTokens: 4})
	w.until(call, "prefilled", func(r *statemachine.Request) bool { return r.State == events.Prefilled })
	w.pass(DefaultLease + 2*leaseMargin)
	p.idle()
	p.clean()
	if st := p.Stats(); st.LeasesOver != 1 {
		t.Errorf("stats %+v", st)
	}
	w.start(events.RoleDecode, "d1", e, 50)
	w.queues[events.RoleDecode].empty(t)
	w.order(events.RoleLifecycle, "lifecycle", call.id, &events.Fail{Stage: "prefilled", Error: *events.NewError(events.CodeDeadline, "lease")})
	if r := w.wait(call); r.Grant != nil || len(r.Held) != 0 {
		t.Errorf("%s: grant %+v, held %+v", r.State, r.Grant, r.Held)
	}
}

// F11: pools too small for everything at once. All requests are answered, in
// turn, and a large one among small ones is not starved.
func TestF11SmallPools(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	// 640 tokens of prefill, 1,280 of decode: the large request needs nearly all.
	p := w.start(events.RolePrefill, "p1", e, 10)
	d := w.start(events.RoleDecode, "d1", e, 20)
	var calls []*call
	for i := range 30 {
		pad := 150
		if i%10 == 5 {
			pad = 500
		}
		calls = append(calls, w.submit(quiz("x", strings.Repeat("y", 1+i%7), pad), events.Sampling{MaxTokens: 200, Stop: []string{"\n"}}))
	}
	for _, c := range calls {
		if r := w.wait(c); r.State != events.Decoded {
			t.Errorf("%s: %s, %v", c.id, r.State, r.Error)
		} else if got, want := w.text(c), expected(t, e, c); string(got) != string(want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	p.idle()
	d.idle()
	p.clean()
	d.clean()
}

// What a pool can never hold ends with the answer an engine would give, after
// other workers had their chance.
func TestTooLargeForThePool(t *testing.T) {
	w := newWorld(t, statemachine.Guards{NoAdmissionLimit: true})
	p := w.start(events.RolePrefill, "p1", newEngine(t, engine.Config{}), 4)
	call := w.submit(quiz("x", "y", 1000), events.Sampling{MaxTokens: 4})
	r := w.wait(call)
	if r.State != events.Rejected || r.Error.Code != events.CodeContextLength || r.Error.HTTPStatus() != 400 {
		t.Errorf("%s, %v", r.State, r.Error)
	}
	if st := p.Stats(); st.GivenBack != misfitTries-1 {
		t.Errorf("given back %d times", st.GivenBack)
	}
}

// A prompt that is too long for one worker waits for the one that was counted on
// when it was admitted, however long that one is busy.
func TestTooLargeForOneOfTwo(t *testing.T) {
	for name, limit := range map[string]func(w *world) *node{
		"pool": func(w *world) *node { return w.start(events.RolePrefill, "p1", newEngine(w.t, engine.Config{}), 4) },
		"engine": func(w *world) *node {
			return w.start(events.RolePrefill, "p1", newEngine(w.t, engine.Config{MaxInputTokens: 256}), 50)
		},
	} {
		t.Run(name, func(t *testing.T) { tooLargeForOneOfTwo(t, limit) })
	}
}

func tooLargeForOneOfTwo(t *testing.T, startSmall func(w *world) *node) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	busy, release := make(chan struct{}, 2), make(chan struct{})
	slow := &hooked{Engine: e}
	slow.prefill = func(ctx context.Context, job engine.PrefillJob) (engine.Prefilled, error) {
		busy <- struct{}{}
		<-release
		return e.Prefill(ctx, job)
	}
	large := w.start(events.RolePrefill, "p2", slow, 50, func(c *Config) { c.Concurrency = 1 })
	w.start(events.RoleDecode, "d1", e, 50)
	first := w.submit(quiz("x", "y", 1000), events.Sampling{MaxTokens: 4})
	<-busy
	small := startSmall(w)
	second := w.submit(quiz("x", "z", 1000), events.Sampling{MaxTokens: 4})
	for limit := time.Now().Add(10 * time.Second); small.Stats().GivenBack < 2*misfitTries && !w.request(second.id).State.Final(); {
		if time.Now().After(limit) {
			t.Fatalf("%+v", small.Stats())
		}
		pause(t.Context(), 5*time.Millisecond)
	}
	// Work that nobody wants any more does not go round for that long.
	third := w.submit(quiz("x", "z", 1000), events.Sampling{MaxTokens: 4})
	w.cancel(third.id)
	for limit := time.Now().Add(10 * time.Second); !w.queues[events.RolePrefill].settled(third.id); {
		if time.Now().After(limit) {
			t.Fatal("the work of a cancelled request goes round")
		}
		pause(t.Context(), 5*time.Millisecond)
	}
	close(release)
	for _, c := range []*call{first, second} {
		if r := w.wait(c); r.State != events.Decoded {
			t.Errorf("%s, %v", r.State, r.Error)
		}
	}
	large.idle()
	small.idle()
}

// What goes wrong in an engine, a gateway or on the way becomes a failure with
// its code; nothing leaks, and nothing that an error says is a client's text.
func TestFailureCodes(t *testing.T) {
	secret := "secret-of-the-client"
	for name, c := range map[string]struct {
		arrange func(w *world, e *hooked, p, d *node)
		code    events.Code
		output  bool // some may have been sent before
	}{
		"prefill engine": {func(_ *world, e *hooked, _, _ *node) {
			e.prefill = func(context.Context, engine.PrefillJob) (engine.Prefilled, error) {
				return engine.Prefilled{}, errors.New("broken at " + secret)
			}
		}, events.CodePrefillFailed, false},
		"prefill poison": {func(_ *world, e *hooked, _, _ *node) {
			e.prefill = func(context.Context, engine.PrefillJob) (engine.Prefilled, error) {
				return engine.Prefilled{}, engine.ErrPoison
			}
		}, events.CodePoison, false},
		"decode engine": {func(_ *world, e *hooked, _, _ *node) {
			e.decode = func(context.Context, engine.DecodeJob, engine.Emit) (engine.Decoded, error) {
				return engine.Decoded{}, errors.New("broken at " + secret)
			}
		}, events.CodeDecodeFailed, false},
		"decode poison": {func(_ *world, e *hooked, _, _ *node) {
			inner := e.Engine
			e.decode = func(ctx context.Context, job engine.DecodeJob, emit engine.Emit) (engine.Decoded, error) {
				job.PromptTokens += 200 // it reads into what nobody wrote
				job.Sampling.MaxTokens -= 200
				return inner.Decode(ctx, job, emit)
			}
		}, events.CodePoison, false},
		"decode counts another prompt": {func(_ *world, e *hooked, _, _ *node) {
			inner := e.Engine
			e.decode = func(ctx context.Context, job engine.DecodeJob, emit engine.Emit) (engine.Decoded, error) {
				d, err := inner.Decode(ctx, job, emit)
				d.PromptTokens--
				return d, err
			}
		}, events.CodeDecodeFailed, true},
		"decode has no real end": {func(_ *world, e *hooked, _, _ *node) {
			inner := e.Engine
			e.decode = func(ctx context.Context, job engine.DecodeJob, emit engine.Emit) (engine.Decoded, error) {
				d, err := inner.Decode(ctx, job, emit)
				d.FinishReason = "abort"
				return d, err
			}
		}, events.CodeDecodeFailed, true},
		"no prompt": {func(_ *world, _ *hooked, p, _ *node) {
			p.fetch = func(part string) error { return errors.New("no gateway for " + secret) }
		}, events.CodePromptUnavailable, false},
		"another prompt": {func(w *world, _ *hooked, p, _ *node) {
			p.fetch = func(string) error {
				w.mu.Lock()
				defer w.mu.Unlock()
				for _, c := range w.calls {
					c.prompt[0] ^= 1
				}
				return nil
			}
		}, events.CodePromptUnavailable, false},
		"no sampling at decode": {func(_ *world, _ *hooked, _, d *node) {
			d.fetch = func(part string) error { return events.NewError(events.CodePromptUnavailable, "gone") }
		}, events.CodePromptUnavailable, false},
		"output cannot be sent": {func(_ *world, _ *hooked, _, d *node) {
			d.sent = func(c events.OutputChunk) error { return errors.New("no connection for " + secret) }
		}, events.CodeOutputLost, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, statemachine.Guards{})
			e := &hooked{Engine: newEngine(t, engine.Config{})}
			p := w.start(events.RolePrefill, "p1", e, 50)
			d := w.start(events.RoleDecode, "d1", e, 50)
			c.arrange(w, e, p, d)
			call := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 300})
			r := w.wait(call)
			if r.State != events.Failed || r.Error.Code != c.code {
				t.Errorf("%s, %v; want %s", r.State, r.Error, c.code)
			}
			if r.Error != nil && strings.Contains(r.Error.Message, secret) {
				t.Errorf("the recorded error quotes what broke: %v", r.Error)
			}
			p.idle()
			d.idle()
			p.clean()
			d.clean()
			if out := w.text(call); !c.output && len(out) != 0 {
				t.Errorf("%d bytes of output", len(out))
			}
		})
	}
}

// A prompt whose tokens the engine counts otherwise than the gateway did.
func TestTokenCountDiffers(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	w.start(events.RolePrefill, "p1", &miscounting{newEngine(t, engine.Config{})}, 50)
	w.start(events.RoleDecode, "d1", newEngine(t, engine.Config{}), 50)
	if r := w.wait(w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 3})); r.State != events.Failed || r.Error.Code != events.CodeTokenCountMismatch {
		t.Errorf("%s, %v", r.State, r.Error)
	}
}

type miscounting struct{ engine.Engine }

func (m *miscounting) Count(ctx context.Context, prompt []byte) (int, error) {
	n, err := m.Engine.Count(ctx, prompt)
	return n + 1, err
}

// The answer to transferred comes before the engine: where it is a denial,
// there is no output. Without that guard there is.
func TestDecodeWaitsForTransferred(t *testing.T) {
	for _, g := range []Guards{{}, {NoTransferred: true}} {
		w := newWorld(t, statemachine.Guards{})
		w.mu.Lock()
		w.deaf = true // the worker must not hear of it otherwise
		w.mu.Unlock()
		e := newEngine(t, engine.Config{})
		p := w.start(events.RolePrefill, "p1", e, 50)
		d := w.start(events.RoleDecode, "d1", e, 50, func(c *Config) { c.Guards, c.Sweep = g, time.Hour })
		w.once(events.CmdTransferred, false, func(id string) { w.cancel(id) })
		call := w.submit(quiz("x", "y", 500), events.Sampling{MaxTokens: 30})
		if r := w.wait(call); r.State != events.Cancelled {
			t.Errorf("%s", r.State)
		}
		d.idle()
		p.idle()
		if out := w.text(call); (len(out) > 0) != g.NoTransferred {
			t.Errorf("guards %+v: %d bytes of output after the cancellation", g, len(out))
		}
	}
}
