package gpuworker

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/statemachine"
)

// onDevice gives a worker a pool on the interpreter. The driver may be wrapped.
func onDevice(t *testing.T, e engine.Engine, pages int, wrap func(kvpool.Driver) kvpool.Driver) setup {
	t.Helper()
	drv, err := kvpool.OpenDriver("interpreter")
	if err != nil {
		t.Fatal(err)
	}
	outer := drv
	if wrap != nil {
		outer = wrap(drv)
	}
	size := e.Info().PageBytes()
	gpu, err := kvpool.NewGPU(outer, kvpool.GPUConfig{Pages: pages, PageBytes: size})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := kvpool.New(kvpool.Config{Pages: pages, PageBytes: size, Epoch: epochs.Add(1), Device: gpu})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the worker's own
		if err := errors.Join(gpu.Close(), drv.Close()); err != nil {
			t.Error(err)
		}
	})
	return func(c *Config) { c.Pool = pool }
}

// Both workers on devices, and each beside one in host memory: the answer is the
// monolithic run's.
func TestWorkersOnDevices(t *testing.T) {
	for _, on := range []struct{ prefill, decode bool }{{true, true}, {true, false}, {false, true}} {
		t.Run(fmt.Sprintf("%+v", on), func(t *testing.T) {
			w := newWorld(t, statemachine.Guards{})
			e := newEngine(t, engine.Config{})
			opts := func(device bool, pages int, more ...setup) []setup {
				if device {
					more = append(more, onDevice(t, e, pages, nil))
				}
				return more
			}
			w.start(events.RolePrefill, "p1", e, 80, opts(on.prefill, 80, func(c *Config) { c.Listen = socket(t, "p1") })...)
			w.start(events.RoleDecode, "d1", e, 80, opts(on.decode, 80)...)
			var calls []*call
			for i := range 3 { // of a hand-off of several chunks, and of one
				calls = append(calls, w.submit(quiz(fmt.Sprint("vault", i), fmt.Sprint(i, "-9182"), 4000-1900*i), events.Sampling{MaxTokens: 12, Stop: []string{"\n"}}))
			}
			for _, c := range calls {
				if r := w.wait(c); r.State != events.Decoded {
					t.Fatalf("%s: %v", r.State, r)
				}
				if got, want := w.text(c), expected(t, e, c); !bytes.Equal(got, want) {
					t.Errorf("%q, want %q", got, want)
				}
			}
		})
	}
}

// breaking is a driver that fails at the first launch of a kernel after it was
// armed, or after so many calls, and from then on.
type breaking struct {
	kvpool.Driver
	kernel string
	calls  atomic.Int64 // before it fails, where no kernel is named
	armed  atomic.Bool
	broken atomic.Bool
}

// call is one call to the device, of a kernel or of something else.
func (b *breaking) call(kernel string) error {
	if b.armed.Load() && (kernel != "" && kernel == b.kernel || b.kernel == "" && b.calls.Add(-1) < 0) {
		b.broken.Store(true)
	}
	if b.broken.Load() {
		return errFault
	}
	return nil
}

var errFault = fmt.Errorf("%w: cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS", kvpool.ErrDevice)

func (b *breaking) Run(f func(kvpool.Stream) error) error {
	if b.broken.Load() {
		return errFault
	}
	return b.Driver.Run(func(s kvpool.Stream) error { return f(breakingStream{s, b}) })
}

func (b *breaking) Alloc(n int64) (kvpool.Ptr, error) {
	if err := b.call(""); err != nil {
		return 0, err
	}
	return b.Driver.Alloc(n)
}

func (b *breaking) Pinned(n int) ([]byte, error) {
	if err := b.call(""); err != nil {
		return nil, err
	}
	return b.Driver.Pinned(n)
}

type breakingStream struct {
	kvpool.Stream
	b *breaking
}

func (s breakingStream) Launch(kernel string, x, y int, args ...uint64) error {
	if err := s.b.call(kernel); err != nil {
		return err
	}
	return s.Stream.Launch(kernel, x, y, args...)
}

func (s breakingStream) CopyIn(dst kvpool.Ptr, src []byte) error {
	if err := s.b.call(""); err != nil {
		return err
	}
	return s.Stream.CopyIn(dst, src)
}

func (s breakingStream) CopyOut(dst []byte, src kvpool.Ptr) error {
	if err := s.b.call(""); err != nil {
		return err
	}
	return s.Stream.CopyOut(dst, src)
}

func (s breakingStream) Fill(dst kvpool.Ptr, word uint32, n int64) error {
	if err := s.b.call(""); err != nil {
		return err
	}
	return s.Stream.Fill(dst, word, n)
}

// A worker whose device fails ends with the reason. What it had not finished is done
// by another one, and the answer is right; what can no longer be done ends with an
// error, and nothing wrong was said.
func TestDeviceFails(t *testing.T) {
	for _, c := range []struct {
		role    events.Role
		kernel  string
		late    bool // not before the KV waits for its pull
		decoded bool // by the other worker
	}{
		{events.RolePrefill, "kv_retag", false, true},    // pages are taken
		{events.RolePrefill, "ref_fill", false, true},    // the prompt is written
		{events.RolePrefill, "ref_scan", false, true},    // the first token
		{events.RolePrefill, "kv_sum", false, true},      // the digest
		{events.RolePrefill, "kv_gather", false, true},   // the pages that attention is over
		{events.RolePrefill, "kv_finalize", true, false}, // the copy for the puller: the KV is gone
		{events.RoleDecode, "kv_retag", false, true},
		{events.RoleDecode, "kv_scatter", false, true}, // what was pulled comes in
		{events.RoleDecode, "ref_scan", false, false},  // transferred is recorded: nobody else has the KV
	} {
		t.Run(string(c.role)+" "+c.kernel, func(t *testing.T) {
			w := newWorld(t, statemachine.Guards{})
			e := newEngine(t, engine.Config{})
			b := &breaking{kernel: c.kernel}
			device := onDevice(t, e, 40, func(d kvpool.Driver) kvpool.Driver { b.Driver = d; return b })
			other := events.RoleDecode
			if c.role == events.RoleDecode {
				other = events.RolePrefill
			}
			names := map[events.Role]string{events.RolePrefill: "p", events.RoleDecode: "d"}
			n := w.start(c.role, names[c.role]+"1", e, 40, device)
			n.breaks = true
			if !c.late {
				b.armed.Store(true)
				w.start(other, names[other]+"1", e, 40)
			}
			call := w.submit(quiz("the vault", "7719", 1000), events.Sampling{MaxTokens: 12, Stop: []string{"\n"}})
			if c.late {
				w.until(call, "prefilled", func(r *statemachine.Request) bool { return r.State == events.Prefilled })
				b.armed.Store(true)
				w.start(other, names[other]+"1", e, 40)
			}
			<-n.ended
			w.start(c.role, names[c.role]+"2", e, 40)
			w.lost(n.name) // what the lifecycle does about a worker that has left
			r := w.wait(call)
			got, want := w.text(call), expected(t, e, call)
			switch {
			case c.decoded && (r.State != events.Decoded || !bytes.Equal(got, want)):
				t.Errorf("%s: %q, want %q", r.State, got, want)
			case !c.decoded && (r.State != events.Failed || !bytes.HasPrefix(want, got)):
				t.Errorf("%s: %q, want an error, and no more than %q", r.State, got, want)
			}
		})
	}
}

// The device fails after more and more calls, until the request is done before it
// does. Whenever it is, the answer is the right one or a part of it with an error:
// never another one.
func TestDeviceFailsSometime(t *testing.T) {
	for _, role := range []events.Role{events.RolePrefill, events.RoleDecode} {
		step := int64(5)
		if testing.Short() {
			step = 31
		}
		ends := map[events.State]int{}
		for calls, whole := int64(0), false; !whole; calls += step {
			t.Run(fmt.Sprint(role, " ", calls), func(t *testing.T) {
				w := newWorld(t, statemachine.Guards{})
				e := newEngine(t, engine.Config{})
				b := &breaking{}
				b.calls.Store(calls)
				device := onDevice(t, e, 40, func(d kvpool.Driver) kvpool.Driver { b.Driver = d; return b })
				names := map[events.Role]string{events.RolePrefill: "p", events.RoleDecode: "d"}
				n := w.start(role, names[role]+"1", e, 40, device)
				for r, name := range names {
					if r != role {
						w.start(r, name+"1", e, 40)
					}
				}
				b.armed.Store(true)
				call := w.submit(quiz("the vault", "7719", 300), events.Sampling{MaxTokens: 6, Stop: []string{"\n"}})
				select {
				case <-n.ended:
					n.breaks = true
					w.start(role, names[role]+"2", e, 40)
					w.lost(n.name)
				case <-call.done:
					n.idle()
					b.armed.Store(false)
					n.breaks = b.broken.Load() // while it gave the pages back
					whole = !n.breaks
				}
				r := w.wait(call)
				ends[r.State]++
				got, want := w.text(call), expected(t, e, call)
				if ok := r.State == events.Decoded && bytes.Equal(got, want) || r.State == events.Failed && bytes.HasPrefix(want, got); !ok {
					t.Errorf("%s: %q, want %q", r.State, got, want)
				}
				if n.breaks {
					<-n.ended
					w.lost(n.name)
				}
			})
			if t.Failed() {
				return
			}
		}
		if !testing.Short() && (ends[events.Decoded] == 0 || ends[events.Failed] == 0) {
			t.Errorf("%s: %v: want some that another worker finished, and some that nobody could", role, ends)
		}
		t.Log(role, ends)
	}
}
