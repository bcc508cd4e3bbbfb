package kvpool

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/pdgate/pdgate/events"
)

// Many requests on too few pages: each paints its pages, then is freed while it
// is read through two pins, or while it is written. No reader sees a word that
// is not its own, and in the end every page is free and clean.
func TestConcurrent(t *testing.T) {
	p := newPool(t, 32)
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 100 {
				if err := oneRequest(t.Context(), p, fmt.Sprintf("%d.%d", g, i), 1+(g*7+i)%12); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if s := p.Stats(); s.Free+s.Held+s.Draining != s.Pages {
				t.Errorf("%+v", s)
			}
			if n, err := p.Audit(); n != 0 || err != nil {
				t.Errorf("%d dirty words in free pages, %v", n, err)
			}
		}
	})
	wg.Wait()
	close(stop)
	watch.Wait()
	if s := p.Stats(); s != (Stats{Pages: 32, Free: 32}) {
		t.Errorf("%+v", s)
	}
}

func oneRequest(ctx context.Context, p *Pool, id string, pages int) error {
	a, err := p.AllocWait(ctx, id, pages)
	if err != nil {
		return err
	}
	w, err := p.BeginWrite(a)
	if err != nil {
		return err
	}
	for i := range pages {
		for j := range a.Page(i) {
			a.Page(i)[j] = a.Generation()
		}
	}
	if pages%3 == 0 { // cancelled while bytes still come in
		late := make(chan error, 1)
		go func() {
			defer w.End()
			src := make([]byte, 32)
			for i := range pages {
				if err := w.Scatter(i, src); err != nil && code(err) != events.CodePageGeneration {
					late <- err
					return
				}
			}
			late <- nil
		}()
		<-p.Free(a)
		return <-late
	}
	w.End()
	pins := make([]*Pin, 2)
	for i := range pins {
		if pins[i], err = p.Pin(id, testEpoch, a.Runs()); err != nil {
			return err
		}
	}
	errs := make(chan error, len(pins))
	for _, pin := range pins {
		go func() {
			defer pin.Release()
			dst := make([]byte, 32*pages)
			err := pin.Gather(dst, 0, pages)
			if err == nil && !only(dst, a.Generation()) {
				err = fmt.Errorf("request %s read foreign words", id)
			}
			if err == nil {
				if cerr := pin.Check(); cerr != nil && code(cerr) != events.CodePageGeneration {
					err = cerr
				}
			}
			errs <- err
		}()
	}
	done := p.Free(a)
	for range pins {
		if e := <-errs; e != nil {
			err = e
		}
	}
	<-done
	return err
}

// A waiter that is cancelled at the moment it is served leaks nothing.
func TestAllocWaitCancelRace(t *testing.T) {
	p := newPool(t, 2)
	for range 300 {
		a := alloc(t, p, "a", 2)
		ctx, cancel := context.WithCancel(t.Context())
		res := make(chan *Allocation, 1)
		go func() {
			b, _ := p.AllocWait(ctx, "b", 2)
			res <- b
		}()
		go cancel()
		<-p.Free(a)
		if b := <-res; b != nil {
			<-p.Free(b)
		}
		cancel()
		if s := p.Stats(); s != (Stats{Pages: 2, Free: 2}) {
			t.Fatalf("%+v", s)
		}
	}
}

// FuzzPin: whatever the runs, Pin never panics, never leaves the pool, and
// accepts only pages that the owner holds.
func FuzzPin(f *testing.F) {
	f.Add("a", uint64(testEpoch), uint32(0), uint32(2), uint64(2), uint32(2), uint32(1), uint64(2))
	f.Add("b", uint64(testEpoch), uint32(3), uint32(1), uint64(3), uint32(1<<31), uint32(1<<31), uint64(0))
	f.Add("a", uint64(0), uint32(1<<32-1), uint32(1<<32-1), uint64(1), uint32(0), uint32(0), uint64(1))
	f.Fuzz(func(t *testing.T, owner string, epoch uint64, s0, c0 uint32, g0 uint64, s1, c1 uint32, g1 uint64) {
		p := newPool(t, 6)
		held := map[string]*Allocation{"a": alloc(t, p, "a", 3), "b": alloc(t, p, "b", 2)}
		runs := []events.PageRun{{Start: s0, Count: c0, Generation: g0}, {Start: s1, Count: c1, Generation: g1}}
		for _, runs := range [][]events.PageRun{runs, runs[:1], runs[1:], nil} {
			pin, err := p.Pin(owner, epoch, runs)
			if err != nil {
				if code(err) == "" || p.Stats().Pinned != 0 {
					t.Errorf("%v: %v, %d pinned", runs, err, p.Stats().Pinned)
				}
				continue
			}
			a := held[owner]
			if a == nil || epoch != testEpoch || pin.Pages() > a.Pages() {
				t.Fatalf("owner %q epoch %d %v: accepted", owner, epoch, runs)
			}
			own := a.Runs()[0]
			for _, r := range runs {
				if r.Generation != a.Generation() || r.Start < own.Start || r.Start+r.Count > own.Start+own.Count {
					t.Fatalf("%v of %v: accepted", r, own)
				}
			}
			if err := pin.Gather(make([]byte, 32*pin.Pages()), 0, pin.Pages()); err != nil {
				t.Fatal(err)
			}
			pin.Release()
		}
	})
}

func BenchmarkNew(b *testing.B) {
	const pages = 50 << 20 / 12_288
	b.SetBytes(pages * 12_288)
	for b.Loop() {
		if _, err := New(Config{Pages: pages, PageBytes: 12_288, Epoch: 1}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTransfer is a request of 200 MB: reserve, pin, gather, free.
func BenchmarkTransfer(b *testing.B) {
	const pages, chunk = 16_384, 64
	p, err := New(Config{Pages: pages, PageBytes: 12_288, Epoch: 1})
	if err != nil {
		b.Fatal(err)
	}
	staging := make([]byte, chunk*12_288)
	step := func(b *testing.B, gather bool) {
		a, err := p.Alloc("r", pages)
		if err != nil {
			b.Fatal(err)
		}
		if gather {
			pin, err := p.Pin("r", 1, a.Runs())
			if err != nil {
				b.Fatal(err)
			}
			for i := 0; i < pages; i += chunk {
				if err := pin.Gather(staging, i, i+chunk); err != nil {
					b.Fatal(err)
				}
			}
			if err := pin.Check(); err != nil {
				b.Fatal(err)
			}
			pin.Release()
		}
		<-p.Free(a)
	}
	for name, gather := range map[string]bool{"gather and free": true, "free": false} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(pages * 12_288)
			for b.Loop() {
				step(b, gather)
			}
		})
	}
}
