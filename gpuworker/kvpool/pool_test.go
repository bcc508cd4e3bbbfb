package kvpool

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
)

const testEpoch = 77

func newPool(tb testing.TB, pages int) *Pool {
	tb.Helper()
	p, err := New(Config{Pages: pages, PageBytes: 32, Epoch: testEpoch})
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func alloc(tb testing.TB, p *Pool, owner string, pages int) *Allocation {
	tb.Helper()
	a, err := p.Alloc(owner, pages)
	if err != nil {
		tb.Fatal(err)
	}
	return a
}

// paint fills an allocation with one word, under a write as an engine would.
func paint(tb testing.TB, a *Allocation, word uint64) {
	tb.Helper()
	w, err := a.pool.BeginWrite(a)
	if err != nil {
		tb.Fatal(err)
	}
	defer w.End()
	for i := range a.Pages() {
		page := a.Page(i)
		for j := range page {
			page[j] = word
		}
	}
}

// words are b as words.
func words(b []byte) (w []uint64) {
	for ; len(b) >= 8; b = b[8:] {
		w = append(w, binary.LittleEndian.Uint64(b))
	}
	return w
}

// only says whether all words of b are word.
func only(b []byte, word uint64) bool {
	return !slices.ContainsFunc(words(b), func(w uint64) bool { return w != word })
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// code is the recorded code in err; empty without one.
func code(err error) events.Code {
	if e, ok := errors.AsType[*events.Error](err); ok {
		return e.Code
	}
	return ""
}

func TestNewRefuses(t *testing.T) {
	for _, cfg := range []Config{
		{PageBytes: 8, Epoch: 1}, {Pages: 1, PageBytes: -8, Epoch: 1}, {Pages: 1, PageBytes: 12, Epoch: 1},
		{Pages: 1, Epoch: 1, Device: newHost(1, 8)},
		{Pages: 1, PageBytes: 8}, {Pages: 1, PageBytes: 8, Epoch: 1, Scrub: 9}, {Pages: 1 << 33, PageBytes: 8, Epoch: 1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

// A page's whole life, as the page table shows it.
func TestLife(t *testing.T) {
	p := newPool(t, 4)
	if n, err := p.Audit(); n != 0 || err != nil {
		t.Fatalf("a fresh pool has %d words that are not poison, %v", n, err)
	}
	a := alloc(t, p, "a", 3)
	paint(t, a, 5)
	if n, err := p.Audit(); n != 0 || err != nil {
		t.Fatalf("held pages were audited: %d, %v", n, err)
	}
	gen := a.Generation()
	if diff := cmp.Diff([]events.PageRun{{Start: 0, Count: 3, Generation: gen}}, a.Runs()); diff != "" {
		t.Error(diff)
	}
	pin, err := p.Pin("a", testEpoch, []events.PageRun{{Start: 1, Count: 1, Generation: gen}})
	if err != nil {
		t.Fatal(err)
	}
	done := p.Free(a)
	want := []PageInfo{
		{0, "a", gen, StateDraining, 0}, {1, "a", gen, StateDraining, 1}, {2, "a", gen, StateDraining, 0}, {3, "", 1, StateFree, 0},
	}
	if diff := cmp.Diff(want, p.Snapshot()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(Stats{Pages: 4, Free: 1, Draining: 3, Pinned: 1}, p.Stats()); diff != "" || isClosed(done) {
		t.Error(diff, isClosed(done))
	}
	pin.Release()
	pin.Release()
	if diff := cmp.Diff(Stats{Pages: 4, Free: 4}, p.Stats()); diff != "" || !isClosed(done) {
		t.Error(diff, isClosed(done))
	}
	if n, err := p.Audit(); n != 0 || err != nil {
		t.Errorf("%d words left unscrubbed, %v", n, err)
	}
	if a.Page(0) != nil {
		t.Error("memory of a freed allocation is still to be had")
	}
	if b := alloc(t, p, "a", 3); b.Generation() <= gen {
		t.Errorf("generation %d after %d", b.Generation(), gen)
	}
}

func TestAllocErrors(t *testing.T) {
	p := newPool(t, 4)
	alloc(t, p, "a", 3)
	for _, c := range []struct {
		owner string
		pages int
		want  error
	}{{"b", 2, ErrFull}, {"b", 5, ErrTooLarge}, {"b", 5, ErrFull}} {
		if _, err := p.Alloc(c.owner, c.pages); !errors.Is(err, c.want) {
			t.Errorf("%d pages: %v, want %v", c.pages, err, c.want)
		}
	}
	if _, err := p.AllocWait(t.Context(), "b", 5); !errors.Is(err, ErrTooLarge) {
		t.Errorf("what never fits waits: %v", err)
	}
	var full *FullError
	if _, err := p.Alloc("b", 2); !errors.As(err, &full) || *full != (FullError{Need: 2, Free: 1}) {
		t.Errorf("%v", err)
	}
	for _, c := range []struct {
		owner string
		pages int
	}{{"", 1}, {"b", 0}, {"b", -1}} {
		if _, err := p.Alloc(c.owner, c.pages); err == nil || errors.Is(err, ErrFull) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// More runs than an event may name: refused as if full, and nothing is taken.
func TestFragmented(t *testing.T) {
	const n = 2 * (events.MaxRuns + 1)
	p := newPool(t, n)
	var all []*Allocation
	for range n {
		all = append(all, alloc(t, p, "x", 1))
	}
	for i := 0; i < n; i += 2 {
		<-p.Free(all[i])
	}
	_, err := p.Alloc("big", events.MaxRuns+1)
	if !errors.Is(err, ErrFragmented) || !errors.Is(err, ErrFull) || p.Stats().Free != n/2 {
		t.Fatalf("%v, %d free", err, p.Stats().Free)
	}
	if a := alloc(t, p, "big", events.MaxRuns); len(a.Runs()) != events.MaxRuns {
		t.Errorf("%d runs", len(a.Runs()))
	}
	<-p.Free(all[n-3]) // page n-2 is what big left: these two join it
	<-p.Free(all[n-1])
	if a := alloc(t, p, "long", 3); len(a.Runs()) != 1 || a.Runs()[0].Start != n-3 {
		t.Errorf("%v", a.Runs())
	}
}

// Page i of an allocation is the same memory whichever way one gets there.
func TestPagesAcrossRuns(t *testing.T) {
	p := newPool(t, 8)
	var one []*Allocation
	for range 8 {
		one = append(one, alloc(t, p, "x", 1))
	}
	for _, i := range []int{0, 2, 3, 6} {
		<-p.Free(one[i])
	}
	a := alloc(t, p, "a", 4)
	if len(a.Runs()) != 3 {
		t.Fatal(a.Runs())
	}
	w, err := p.BeginWrite(a)
	if err != nil {
		t.Fatal(err)
	}
	src := make([]byte, 4*32)
	for i := range src {
		src[i] = byte(i)
	}
	if err := w.Scatter(0, src[:32]); err != nil {
		t.Fatal(err)
	}
	if err := w.Scatter(1, src[32:]); err != nil {
		t.Fatal(err)
	}
	w.End()
	w.End()
	for i := range 4 {
		if diff := cmp.Diff(words(src[32*i:32*i+32]), a.Page(i)); diff != "" {
			t.Errorf("page %d: %s", i, diff)
		}
	}
	pin, err := p.Pin("a", testEpoch, a.Runs())
	if err != nil {
		t.Fatal(err)
	}
	defer pin.Release()
	for from := range 4 {
		for to := from; to <= 4; to++ {
			dst := make([]byte, (to-from)*32)
			if err := pin.Gather(dst, from, to); err != nil || !slices.Equal(dst, src[32*from:32*to]) {
				t.Errorf("[%d,%d): %v %v", from, to, dst, err)
			}
			clear(dst)
			sum, err := pin.GatherSum(dst, from, to, 9)
			if err != nil || !slices.Equal(dst, src[32*from:32*to]) || sum != Sum(9, uint64(4*from), dst) {
				t.Errorf("[%d,%d): %v %v, sum %x", from, to, dst, err, sum)
			}
		}
	}
	if d, err := pin.Digest(9); err != nil || d != Digest(Sum(9, 0, src)) {
		t.Errorf("%v %v", d, err)
	}
}

func TestUsesRefused(t *testing.T) {
	p, other := newPool(t, 4), newPool(t, 4)
	a := alloc(t, p, "a", 2)
	g := a.Generation()
	for _, c := range []struct {
		name  string
		owner string
		epoch uint64
		runs  []events.PageRun
		want  events.Code
	}{
		{"no runs", "a", testEpoch, nil, events.CodeMalformed},
		{"empty run", "a", testEpoch, []events.PageRun{{Start: 0, Count: 0, Generation: g}}, events.CodeMalformed},
		{"out of range", "a", testEpoch, []events.PageRun{{Start: 3, Count: 2, Generation: g}}, events.CodeMalformed},
		{"overflow", "a", testEpoch, []events.PageRun{{Start: 1<<32 - 1, Count: 1<<32 - 1, Generation: g}}, events.CodeMalformed},
		{"named twice", "a", testEpoch, []events.PageRun{{Start: 0, Count: 2, Generation: g}, {Start: 1, Count: 1, Generation: g}}, events.CodeMalformed},
		{"too many runs", "a", testEpoch, make([]events.PageRun, events.MaxRuns+1), events.CodeMalformed},
		{"epoch", "a", testEpoch + 1, a.Runs(), events.CodeWorkerEpoch},
		{"owner", "b", testEpoch, a.Runs(), events.CodePageOwner},
		{"no owner, free page", "", testEpoch, []events.PageRun{{Start: 2, Count: 1, Generation: 1}}, events.CodePageGeneration},
		{"generation", "a", testEpoch, []events.PageRun{{Start: 0, Count: 2, Generation: g - 1}}, events.CodePageGeneration},
		{"second page", "a", testEpoch, []events.PageRun{{Start: 0, Count: 3, Generation: g}}, events.CodePageGeneration},
	} {
		if _, err := p.Pin(c.owner, c.epoch, c.runs); code(err) != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
	}
	if p.Stats().Pinned != 0 {
		t.Error("a refused pin left readers behind")
	}

	pin, err := p.Pin("a", testEpoch, a.Runs())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ bytes, from, to int }{{32, 0, 2}, {64, 1, 3}, {0, 1, 0}, {32, -1, 0}} {
		if pin.Gather(make([]byte, c.bytes), c.from, c.to) == nil {
			t.Errorf("gather %+v is accepted", c)
		}
	}
	w, err := p.BeginWrite(a)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ page, bytes int }{{0, 0}, {0, 31}, {-1, 32}, {2, 32}, {1, 64}, {1 << 40, 32}} {
		if w.Scatter(c.page, make([]byte, c.bytes)) == nil {
			t.Errorf("scatter %+v is accepted", c)
		}
	}
	if err := pin.Check(); err != nil {
		t.Error(err)
	}
	for from := -1; from <= 3; from++ {
		for to := -1; to <= 3; to++ {
			if legal := from >= 0 && from < to && to <= 2; (pin.CheckPages(from, to) == nil) != legal {
				t.Errorf("check of pages [%d,%d)", from, to)
			}
		}
	}

	done := p.Free(a) // the request ends while both are in flight
	if err := pin.Check(); code(err) != events.CodePageGeneration {
		t.Errorf("check after free: %v", err)
	}
	if err := pin.CheckPages(1, 2); code(err) != events.CodePageGeneration {
		t.Errorf("check of a page after free: %v", err)
	}
	if err := w.Scatter(0, make([]byte, 32)); code(err) != events.CodePageGeneration {
		t.Errorf("scatter after free: %v", err)
	}
	if _, err := p.BeginWrite(a); code(err) != events.CodePageGeneration {
		t.Errorf("write after free: %v", err)
	}
	if _, err := p.Pin("a", testEpoch, a.Runs()); code(err) != events.CodePageGeneration {
		t.Errorf("pin after free: %v", err)
	}
	pin.Release()
	if isClosed(done) {
		t.Error("free did not wait for the writer")
	}
	w.End()
	if !isClosed(done) {
		t.Error("free waits for nobody")
	}
	if err := pin.Gather(make([]byte, 64), 0, 2); !errors.Is(err, ErrReleased) {
		t.Errorf("gather after release: %v", err)
	}
	if err := pin.Check(); !errors.Is(err, ErrReleased) {
		t.Errorf("check after release: %v", err)
	}
	if err := pin.CheckPages(0, 1); !errors.Is(err, ErrReleased) {
		t.Errorf("check of a page after release: %v", err)
	}
	if err := w.Scatter(0, make([]byte, 32)); !errors.Is(err, ErrReleased) {
		t.Errorf("scatter after end: %v", err)
	}
	if _, err := other.BeginWrite(a); err == nil {
		t.Error("another pool takes the allocation")
	}
	if !isClosed(other.Free(a)) || !isClosed(other.Free(nil)) || other.Stats() != (Stats{Pages: 4, Free: 4}) {
		t.Error("another pool frees the allocation")
	}
}

func TestFreeTwice(t *testing.T) {
	p := newPool(t, 2)
	a := alloc(t, p, "r", 2)
	first := p.Free(a)
	b := alloc(t, p, "r", 2) // the same owner, the same pages
	if second := p.Free(a); second != first || !isClosed(second) {
		t.Error("the second free has a channel of its own")
	}
	if got := p.Stats(); got != (Stats{Pages: 2, Held: 2, DoubleFrees: 1}) {
		t.Errorf("%+v", got)
	}
	paint(t, b, 1)
}

// First come, first served: the large request at the head is not overtaken, and
// a cancelled one lets the next through.
func TestAllocWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(t, 4)
		a, b := alloc(t, p, "a", 2), alloc(t, p, "b", 2)
		got := map[string]*Allocation{}
		errs := map[string]error{}
		var mu sync.Mutex
		ask := func(ctx context.Context, owner string, pages int) {
			go func() {
				a, err := p.AllocWait(ctx, owner, pages)
				mu.Lock()
				defer mu.Unlock()
				got[owner], errs[owner] = a, err
			}()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		ask(t.Context(), "big", 4)
		ask(ctx, "mid", 3)
		ask(t.Context(), "small", 1)
		<-p.Free(a)
		synctest.Wait()
		if len(got) != 0 || p.Stats().Waiting != 3 {
			t.Fatalf("%v got pages before the head of the line", got)
		}
		if _, err := p.Alloc("late", 1); !errors.Is(err, ErrFull) {
			t.Errorf("Alloc overtakes the line: %v", err)
		}
		<-p.Free(b)
		synctest.Wait()
		if len(got) != 1 || got["big"] == nil {
			t.Fatalf("%v", got)
		}
		<-p.Free(got["big"]) // mid and small fit together
		synctest.Wait()
		if got["mid"] == nil || got["small"] == nil || p.Stats().Waiting != 0 {
			t.Fatalf("%v", got)
		}
		ask(ctx, "head", 2)
		ask(t.Context(), "next", 1)
		<-p.Free(got["small"])
		synctest.Wait()
		if len(got) != 3 {
			t.Fatalf("%v", got)
		}
		cancel()
		synctest.Wait()
		if !errors.Is(errs["head"], context.Canceled) || got["next"] == nil || p.Stats() != (Stats{Pages: 4, Held: 4}) {
			t.Errorf("%v %v %+v", errs, got, p.Stats())
		}
		if _, err := p.AllocWait(ctx, "over", 1); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	})
}

// brittle is a device other than host memory, whose scrubbing can fail.
type brittle struct {
	*host
	broken bool
}

func (b *brittle) Scrub(runs []events.PageRun, pattern uint64) error {
	if b.broken {
		return fmt.Errorf("%w: launch", ErrDevice)
	}
	return b.host.Scrub(runs, pattern)
}

// Pages that could not be scrubbed never go to anybody else, and whoever waits
// for the free is not left waiting.
func TestScrubFails(t *testing.T) {
	dev := &brittle{host: newHost(4, 32)}
	p, err := New(Config{Pages: 4, PageBytes: 32, Epoch: testEpoch, Device: dev})
	if err != nil {
		t.Fatal(err)
	}
	a := alloc(t, p, "a", 3)
	if a.Page(0) != nil {
		t.Error("device memory as Go memory")
	}
	w, err := p.BeginWrite(a)
	if err != nil {
		t.Fatal(err)
	}
	src := make([]byte, 96)
	copy(src, "secret")
	if err := w.Scatter(0, src); err != nil {
		t.Fatal(err)
	}
	w.End()
	pin, err := p.Pin("a", testEpoch, a.Runs())
	if err != nil {
		t.Fatal(err)
	}
	if d, err := pin.Digest(3); err != nil || d != Digest(Sum(3, 0, src)) {
		t.Errorf("%v %v", d, err)
	}
	pin.Release()
	dev.broken = true
	if !isClosed(p.Free(a)) {
		t.Error("the caller waits for ever")
	}
	if got := p.Stats(); got != (Stats{Pages: 4, Free: 1, Retired: 3}) {
		t.Errorf("%+v", got)
	}
	if !isClosed(p.Broken()) || !errors.Is(p.Err(), ErrDevice) {
		t.Errorf("nobody is told: %v", p.Err())
	}
	if _, err := p.Alloc("b", 2); !errors.Is(err, ErrFull) {
		t.Errorf("%v", err)
	}
	if _, err := p.Pin("a", testEpoch, a.Runs()); code(err) != events.CodePageGeneration {
		t.Errorf("%v", err)
	}
	if _, err := New(Config{Pages: 4, PageBytes: 32, Epoch: 1, Device: dev}); err == nil {
		t.Error("a pool that could not be poisoned")
	}
}
