package kvpool

import (
	"bytes"
	"errors"
	"testing"

	"github.com/pdgate/pdgate/events"
)

// violation runs a scenario and says what went wrong; empty: nothing did.
type violation func(t *testing.T, p *Pool) string

// Each guard has a scenario that is harmless with it and shows the failure
// without it. Where guards overlap, the scenario names all that must be gone.
var guarded = []struct {
	name string
	off  func(*guards)
	run  violation
}{
	{"over-commit", func(g *guards) { g.capacity = false }, func(t *testing.T, p *Pool) string {
		alloc(t, p, "a", 3)
		if b, err := p.Alloc("b", 2); err == nil {
			return "2 pages promised, 1 there: " + string(rune('0'+b.Pages()))
		}
		return ""
	}},
	{"boot epoch", func(g *guards) { g.epoch = false }, func(t *testing.T, p *Pool) string {
		// The grant of an earlier boot: the generations started over and agree.
		a := alloc(t, p, "a", 1)
		if _, err := p.Pin("a", testEpoch-1, a.Runs()); err == nil {
			return "an earlier boot's grant reads this boot's page"
		}
		return ""
	}},
	{"generation", func(g *guards) { g.generation = false }, func(t *testing.T, p *Pool) string {
		// A retry of the request got the page of the first attempt.
		a := alloc(t, p, "r", 4)
		<-p.Free(a)
		b := alloc(t, p, "r", 4)
		paint(t, b, 2)
		if _, err := p.Pin("r", testEpoch, a.Runs()); err == nil {
			return "the first attempt's reference reads the second's pages"
		}
		return ""
	}},
	{"owner", func(g *guards) { g.owner = false }, func(t *testing.T, p *Pool) string {
		a := alloc(t, p, "victim", 1)
		if _, err := p.Pin("thief", testEpoch, a.Runs()); err == nil {
			return "another request reads the page"
		}
		return ""
	}},
	{"readers are counted", func(g *guards) { g.readers, g.tags = false, false }, func(t *testing.T, p *Pool) string {
		a := alloc(t, p, "a", 4)
		paint(t, a, 1)
		pin, err := p.Pin("a", testEpoch, a.Runs())
		if err != nil {
			t.Fatal(err)
		}
		defer pin.Release()
		first, second := make([]byte, 64), make([]byte, 64)
		if err := pin.Gather(first, 0, 2); err != nil {
			t.Fatal(err)
		}
		p.Free(a) // in the middle of the copy
		if b, err := p.Alloc("b", 4); err == nil {
			paint(t, b, 2)
		}
		if err := pin.Gather(second, 2, 4); err != nil {
			t.Fatal(err)
		}
		if !only(first, 1) || !only(second, 1) {
			return "one copy holds pages of two requests"
		}
		return ""
	}},
	{"check after the copy", func(g *guards) { g.recheck, g.tags = false, false }, func(t *testing.T, p *Pool) string {
		// With uncounted readers, the second check is what is left.
		p.guards.readers = false
		a := alloc(t, p, "a", 4)
		pin, err := p.Pin("a", testEpoch, a.Runs())
		if err != nil {
			t.Fatal(err)
		}
		defer pin.Release()
		p.Free(a)
		paint(t, alloc(t, p, "b", 4), 2)
		if err := pin.Gather(make([]byte, 128), 0, 4); p.guards.tags != (code(err) == events.CodePageGeneration) {
			t.Fatal(err)
		}
		if pin.CheckPages(1, 3) == nil || pin.Check() == nil {
			return "a copy of another request's pages is called good"
		}
		return ""
	}},
	{"writers are counted", func(g *guards) { g.writers, g.tags = false, false }, func(t *testing.T, p *Pool) string {
		// An engine writes on after its request was cancelled.
		a := alloc(t, p, "a", 4)
		w, err := p.BeginWrite(a)
		if err != nil {
			t.Fatal(err)
		}
		defer w.End()
		late := a.Page(0)
		p.Free(a)
		b, err := p.Alloc("b", 4)
		if err != nil {
			return ""
		}
		paint(t, b, 2)
		late[0] = 1
		if b.Page(0)[0] != 2 {
			return "a late writer overwrote the next owner's page"
		}
		return ""
	}},
	{"late writer", func(g *guards) { g.recheck, g.tags = false, false }, func(t *testing.T, p *Pool) string {
		// With uncounted writers, the tag check on each write is what is left.
		p.guards.writers = false
		a := alloc(t, p, "a", 4)
		w, err := p.BeginWrite(a)
		if err != nil {
			t.Fatal(err)
		}
		p.Free(a)
		b := alloc(t, p, "b", 4)
		paint(t, b, 2)
		_, received := w.Receive(bytes.NewReader(make([]byte, 32)), 0, 0, 1)
		for _, err := range []error{w.Scatter(0, make([]byte, 32)), received} {
			if err == nil {
				return "bytes of an older generation were written"
			} else if code(err) != events.CodePageGeneration {
				t.Fatal(err)
			}
		}
		return ""
	}},
	{"tags beside the memory", func(g *guards) { g.tags = false }, func(t *testing.T, p *Pool) string {
		// With nothing counted and nothing checked again, the device's look at the
		// tags within each copy is what is left.
		p.guards.readers, p.guards.writers, p.guards.recheck = false, false, false
		a := alloc(t, p, "a", 4)
		pin, err := p.Pin("a", testEpoch, a.Runs())
		if err != nil {
			t.Fatal(err)
		}
		defer pin.Release()
		w, err := p.BeginWrite(a)
		if err != nil {
			t.Fatal(err)
		}
		defer w.End()
		p.Free(a)
		b := alloc(t, p, "b", 4)
		paint(t, b, 2)
		got := make([]byte, 128)
		err = pin.Gather(got, 0, 4)
		if err == nil {
			return "a copy of another request's pages"
		}
		if code(err) != events.CodePageGeneration || !only(got, 0) {
			t.Fatal(err, got)
		}
		if _, err := pin.Digest(1); err == nil {
			return "a digest of another request's pages"
		}
		_, received := w.Receive(bytes.NewReader(make([]byte, 32)), 0, 0, 1)
		if err := w.Scatter(1, make([]byte, 32)); err == nil || received == nil || b.Page(0)[0] != 2 || b.Page(1)[0] != 2 {
			return "a late writer overwrote the next owner's pages"
		}
		return ""
	}},
	{"free twice", func(g *guards) { g.once, g.freeByGen = false, false }, doubleFree},
	{"queue", func(g *guards) { g.queue = false }, func(t *testing.T, p *Pool) string {
		p.waiting = append(p.waiting, &waiter{owner: "big", pages: 5, ready: make(chan *Allocation, 1)})
		if _, err := p.Alloc("small", 1); err == nil {
			return "a small request overtakes a large one"
		} else if !errors.Is(err, ErrFull) {
			t.Fatal(err)
		}
		return ""
	}},
}

// doubleFree: the loser of a race frees again after a winner got the pages.
func doubleFree(t *testing.T, p *Pool) string {
	a := alloc(t, p, "r", 4)
	<-p.Free(a)
	b := alloc(t, p, "r", 4)
	paint(t, b, 2)
	<-p.Free(a)
	if p.Stats().Held != 4 || b.Page(0)[0] != 2 {
		return "the loser freed the winner's pages"
	}
	return ""
}

func TestGuards(t *testing.T) {
	for _, g := range guarded {
		t.Run(g.name, func(t *testing.T) {
			if bad := g.run(t, newPool(t, 4)); bad != "" {
				t.Errorf("with all guards: %s", bad)
			}
			p := newPool(t, 4)
			g.off(&p.guards)
			bad := g.run(t, p)
			if bad == "" {
				t.Error("without the guard nothing fails: the scenario proves nothing")
			}
			t.Logf("without: %s", bad)
		})
	}
}

// Either of the two guards against a double free is enough.
func TestDoubleFreeGuardsOverlap(t *testing.T) {
	for name, off := range map[string]func(*guards){
		"once": func(g *guards) { g.once = false }, "by generation": func(g *guards) { g.freeByGen = false },
	} {
		p := newPool(t, 4)
		off(&p.guards)
		if bad := doubleFree(t, p); bad != "" {
			t.Errorf("without %s: %s", name, bad)
		}
	}
}

// Every way a page can go back leaves it poisoned; without scrubbing it does not.
func TestScrubGuard(t *testing.T) {
	for mode, clean := range map[ScrubMode]bool{ScrubPoison: true, ScrubNone: false, ScrubZero: false} {
		p, err := New(Config{Pages: 2, PageBytes: 32, Epoch: 1, Scrub: mode})
		if err != nil {
			t.Fatal(err)
		}
		a := alloc(t, p, "a", 2)
		paint(t, a, 42)
		<-p.Free(a)
		b := alloc(t, p, "b", 1)
		seen := b.Page(0)[0]
		<-p.Free(b)
		dirty, err := p.Audit()
		if err != nil || (dirty == 0) != clean || (seen == 42) != (mode == ScrubNone) {
			t.Errorf("mode %d: %d dirty words, the next owner sees %#x, %v", mode, dirty, seen, err)
		}
	}
}
