package gpuworker

import (
	"fmt"
	"sync"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/statemachine"
)

// A request is cancelled at every point of its way: before and after each
// command is decided, with and without the notification. However it falls, the
// request ends once, no page is left, and the log is clean.
func TestCancelAtEveryPoint(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		for _, cmd := range []events.CommandType{events.CmdAdmit, events.CmdPrefilled, events.CmdGrant, events.CmdTransferred, events.CmdDecoded, events.CmdReleased} {
			for _, after := range []bool{false, true} {
				if cmd == events.CmdAdmit && !after {
					continue
				}
				t.Run(fmt.Sprintf("%s/after=%v/deaf=%v", cmd, after, deaf), func(t *testing.T) {
					w := newWorld(t, statemachine.Guards{})
					w.deaf = deaf
					e := newEngine(t, engine.Config{})
					p := w.start(events.RolePrefill, "p1", e, 50)
					d := w.start(events.RoleDecode, "d1", e, 50)
					w.once(cmd, after, func(id string) { w.cancel(id) })
					call := w.submit(quiz("x", "y", 1000), events.Sampling{MaxTokens: 50})
					r := w.wait(call)
					want := events.Cancelled
					if cmd == events.CmdReleased && r.State == events.Decoded || cmd == events.CmdDecoded && after {
						want = events.Decoded
					}
					if r.State != want {
						t.Errorf("%s, want %s", r.State, want)
					}
					w.queues[events.RolePrefill].empty(t)
					w.queues[events.RoleDecode].empty(t)
					p.idle()
					d.idle()
					p.clean()
					d.clean()
					if r := w.request(call.id); len(r.Held) != 0 {
						t.Errorf("the log holds pages: %+v", r.Held)
					}
				})
			}
		}
	}
}

// Many requests, a third of them cancelled at some time, in small pools.
func TestCancelStorm(t *testing.T) {
	w := newWorld(t, statemachine.Guards{})
	e := newEngine(t, engine.Config{})
	p1 := w.start(events.RolePrefill, "p1", e, 30)
	p2 := w.start(events.RolePrefill, "p2", e, 30)
	d1 := w.start(events.RoleDecode, "d1", e, 30)
	d2 := w.start(events.RoleDecode, "d2", e, 30)
	var calls []*call
	var wg sync.WaitGroup
	for i := range 45 {
		c := w.submit(quiz("x", "y", 100+i*17), events.Sampling{MaxTokens: 60})
		calls = append(calls, c)
		if i%3 == 0 {
			wg.Go(func() {
				for range i % 4 { // a few events later
					select {
					case <-c.changed:
					case <-c.done:
						return
					}
				}
				w.cancel(c.id)
			})
		}
	}
	decoded := 0
	for _, c := range calls {
		r := w.wait(c)
		if r.State == events.Decoded {
			decoded++
			if got, want := w.text(c), expected(t, e, c); string(got) != string(want) {
				t.Errorf("got %q, want %q", got, want)
			}
		} else if r.State != events.Cancelled {
			t.Errorf("%s: %s, %v", c.id, r.State, r.Error)
		}
	}
	wg.Wait()
	if decoded < 30 {
		t.Errorf("%d of 45 were decoded", decoded)
	}
	for _, n := range []*node{p1, p2, d1, d2} {
		n.idle()
		n.clean()
	}
}
