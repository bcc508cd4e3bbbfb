package engine

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/pdgate/pdgate/events"
)

// Room at decode is promised once, in line, and to no barred pair.
func TestPairingReserves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pairs := NewPairs(PairsConfig{Failures: 1})
		p := NewPairing(pairs)
		code := func(err error) events.Code {
			if e, ok := errors.AsType[*events.Error](err); ok {
				return e.Code
			}
			return ""
		}
		if _, err := p.reserve(t.Context(), "p1", 1); code(err) != events.CodeNoWorker {
			t.Errorf("nobody there: %v", err)
		}
		p.join("d1", &place{name: "d1", capacity: 100})
		if _, err := p.reserve(t.Context(), "p1", 101); code(err) != events.CodeOverloaded {
			t.Errorf("too large: %v", err)
		}
		d1, err := p.reserve(t.Context(), "p1", 60)
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan int, 2)
		for _, n := range []int{80, 10} { // the small one would fit, and waits behind the large one
			go func() {
				if _, err := p.reserve(t.Context(), "p1", n); err == nil {
					got <- n
				}
			}()
			synctest.Wait()
		}
		if len(got) != 0 {
			t.Fatal("over-committed, or overtaken")
		}
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { _, err := p.reserve(ctx, "p1", 5); left <- err }()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("left the line: %v", err)
		}
		p.giveBack(d1, 60)
		if a, b := <-got, <-got; a+b != 90 {
			t.Errorf("got %d and %d", a, b)
		}
		if _, reserved := p.Stats(); reserved != 90 || len(p.line) != 0 {
			t.Errorf("%d reserved, %d in line", reserved, len(p.line))
		}
		pairs.Failed("p2", "d1")
		if _, err := p.reserve(t.Context(), "p2", 5); code(err) != events.CodeTransferFailed {
			t.Errorf("a barred pair: %v", err)
		}
	})
}
