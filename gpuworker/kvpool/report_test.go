package kvpool

import (
	"errors"
	"testing"

	"github.com/pdgate/pdgate/events"
)

// Pages go to nobody before the report on them has returned, and are scrubbed
// when it is made.
func TestFreeAfterReports(t *testing.T) {
	p, err := New(Config{Pages: 4, PageBytes: 64, Epoch: 7})
	if err != nil {
		t.Fatal(err)
	}
	a, err := p.Alloc("r1", 4)
	if err != nil {
		t.Fatal(err)
	}
	runs := a.Runs()
	pin, err := p.Pin("r1", 7, runs)
	if err != nil {
		t.Fatal(err)
	}
	called, leave := make(chan bool), make(chan struct{})
	done := p.FreeAfter(a, func(scrubbed bool) { called <- scrubbed; <-leave })
	select {
	case <-called:
		t.Fatal("reported while a reader is on the pages")
	case <-done:
		t.Fatal("free while a reader is on the pages")
	default:
	}
	pin.Release()
	if scrubbed := <-called; !scrubbed {
		t.Error("reported as not scrubbed")
	}
	if n, err := p.dev.Audit([]events.PageRun{{Count: 4}}, Poison); n != 0 || err != nil {
		t.Errorf("%d words are not poison at the report, %v", n, err)
	}
	if _, err := p.Alloc("r2", 1); !errors.Is(err, ErrFull) {
		t.Errorf("a page was handed out before the report was through: %v", err)
	}
	if again := p.FreeAfter(a, func(bool) { t.Error("a repeated free reports") }); again != done {
		t.Error("the repeated free got a channel of its own")
	}
	close(leave)
	<-done
	if st := p.Stats(); st.Free != 4 {
		t.Errorf("stats %+v", st)
	}
}

// A pool whose scrubbing is off does not claim otherwise.
func TestFreeAfterTellsOfNoScrub(t *testing.T) {
	p, err := New(Config{Pages: 1, PageBytes: 64, Epoch: 7, Scrub: ScrubNone})
	if err != nil {
		t.Fatal(err)
	}
	a, err := p.Alloc("r1", 1)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan bool, 1)
	<-p.FreeAfter(a, func(scrubbed bool) { got <- scrubbed })
	if <-got {
		t.Error("reported as scrubbed")
	}
}

// CheckPages sees what Check sees, for the pages it is asked about.
func TestCheckPages(t *testing.T) {
	p, err := New(Config{Pages: 8, PageBytes: 64, Epoch: 7})
	if err != nil {
		t.Fatal(err)
	}
	a, err := p.Alloc("r1", 6)
	if err != nil {
		t.Fatal(err)
	}
	pin, err := p.Pin("r1", 7, a.Runs())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range [][2]int{{0, 6}, {0, 1}, {5, 6}, {2, 4}} {
		if err := pin.CheckPages(r[0], r[1]); err != nil {
			t.Errorf("pages %v: %v", r, err)
		}
	}
	for _, r := range [][2]int{{-1, 2}, {0, 7}, {3, 3}, {4, 2}} {
		if err := pin.CheckPages(r[0], r[1]); err == nil {
			t.Errorf("pages %v are accepted", r)
		}
	}
	done := p.Free(a)
	err = pin.CheckPages(2, 4)
	if e, ok := errors.AsType[*events.Error](err); !ok || e.Code != events.CodePageGeneration {
		t.Errorf("after the free: %v", err)
	}
	pin.Release()
	<-done
	if err := pin.CheckPages(0, 1); !errors.Is(err, ErrReleased) {
		t.Errorf("after the release: %v", err)
	}
}
