package kvpool

import (
	"errors"
	"fmt"
	"sync"

	"github.com/pdgate/pdgate/events"
)

// verify checks every page of runs on the pool's own page table. It changes
// nothing. Callers hold mu.
func (p *Pool) verify(owner string, epoch uint64, runs []events.PageRun) error {
	if len(runs) == 0 || len(runs) > events.MaxRuns {
		return events.NewError(events.CodeMalformed, fmt.Sprintf("%d page runs", len(runs)))
	}
	p.marks++
	for _, r := range runs {
		if r.Count == 0 || uint64(r.Start)+uint64(r.Count) > uint64(len(p.pages)) {
			return pageError(r.Start, events.CodeMalformed, fmt.Sprintf("run of %d pages in a pool of %d", r.Count, len(p.pages)))
		}
		for i := r.Start; i < r.Start+r.Count; i++ {
			pg := &p.pages[i]
			switch {
			case pg.mark == p.marks:
				return pageError(i, events.CodeMalformed, "page is named twice")
			case p.guards.generation && (pg.gen != r.Generation || pg.state == StateFree || pg.state == StateRetired):
				return pageError(i, events.CodePageGeneration, "page is of another generation")
			case p.guards.epoch && pg.epoch != epoch:
				return pageError(i, events.CodeWorkerEpoch, "page is of another boot epoch")
			case p.guards.owner && pg.owner != owner:
				return pageError(i, events.CodePageOwner, "page is of another owner")
			case p.guards.generation && pg.state != StateHeld:
				return pageError(i, events.CodePageGeneration, "page was given back")
			}
			pg.mark = p.marks
		}
	}
	return nil
}

// verifyAgain is verify for a use that was verified when it began. Callers hold
// mu.
func (p *Pool) verifyAgain(owner string, epoch uint64, runs []events.PageRun) error {
	if !p.guards.recheck {
		return nil
	}
	return p.verify(owner, epoch, runs)
}

// Pin is a reader's hold on pages: they stay as they are until Release. Its
// methods may be called concurrently.
type Pin struct {
	pool  *Pool
	owner string
	epoch uint64
	runs  []events.PageRun
	ends  []int
	holds []hold // guarded by pool.mu

	mu       sync.RWMutex // a copy reads, Release writes: no copy outlives the hold
	released bool
}

// hold is what a pin counts on one allocation.
type hold struct {
	alloc *Allocation
	pages int
}

// Pin verifies, on the pool's own page table, that every page of runs is held by
// owner since the given generation and boot epoch, and counts a reader on each.
// It is all or nothing. The order of runs is the order of pages in Gather.
func (p *Pool) Pin(owner string, epoch uint64, runs []events.PageRun) (*Pin, error) {
	if p.guards.epoch && epoch != p.cfg.Epoch {
		return nil, events.NewError(events.CodeWorkerEpoch, "the worker has another boot epoch")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.verify(owner, epoch, runs); err != nil {
		return nil, fmt.Errorf("pin: %w", err)
	}
	pin := &Pin{pool: p, owner: owner, epoch: epoch, runs: append([]events.PageRun(nil), runs...)}
	pin.ends = sums(pin.runs)
	for _, r := range runs {
		for i := r.Start; i < r.Start+r.Count; i++ {
			pin.count(&p.pages[i])
		}
	}
	return pin, nil
}

// count adds one reader to a page. Callers hold pool.mu.
func (pin *Pin) count(pg *page) {
	pg.readers++
	if pg.readers == 1 {
		pin.pool.pinned++
	}
	if pg.alloc == nil || !pin.pool.guards.readers {
		return
	}
	pg.alloc.busy++
	if k := len(pin.holds) - 1; k < 0 || pin.holds[k].alloc != pg.alloc {
		pin.holds = append(pin.holds, hold{alloc: pg.alloc})
	}
	pin.holds[len(pin.holds)-1].pages++
}

// Pages is the number of pages.
func (pin *Pin) Pages() int { return pin.ends[len(pin.ends)-1] }

// Gather copies pages [from, to) into dst, which has exactly their size. The
// copy is not to be used before [Pin.Check] has said that it is good.
func (pin *Pin) Gather(dst []byte, from, to int) error {
	pin.mu.RLock()
	defer pin.mu.RUnlock()
	size := pin.pool.cfg.PageBytes
	return pin.each(from, to, len(dst), func(start, count, page int) error {
		lo := (page - from) * size
		return pin.pool.dev.Gather(dst[lo:lo+count*size], start, count)
	})
}

// gatherBlock is copied and summed at once, from the processor's nearest cache.
const gatherBlock = 16 << 10

// GatherSum is [Pin.Gather], and the partial [Sum] under key of what lies in dst
// then; words count from the pin's first page.
func (pin *Pin) GatherSum(dst []byte, from, to int, key uint64) (sum uint64, err error) {
	pin.mu.RLock()
	defer pin.mu.RUnlock()
	size := pin.pool.cfg.PageBytes
	err = pin.each(from, to, len(dst), func(start, count, page int) error {
		lo := (page - from) * size
		b, word := dst[lo:lo+count*size], uint64(page)*uint64(size/8)
		h := pin.pool.host
		if h == nil {
			if err := pin.pool.dev.Gather(b, start, count); err != nil {
				return err
			}
			sum += Sum(key, word, b)
			return nil
		}
		for src := h.bytes(start, count); len(src) > 0; {
			n := copy(b[:min(len(b), gatherBlock)], src)
			sum += Sum(key, word, b[:n])
			src, b, word = src[n:], b[n:], word+uint64(n/8)
		}
		return nil
	})
	return sum, err
}

// Digest is the checksum of all pages under key.
func (pin *Pin) Digest(key uint64) (Digest, error) {
	pin.mu.RLock()
	defer pin.mu.RUnlock()
	size := pin.pool.cfg.PageBytes
	var sum uint64
	var staging []byte
	err := pin.each(0, pin.Pages(), pin.Pages()*size, func(start, count, page int) error {
		if h := pin.pool.host; h != nil {
			sum += Sum(key, uint64(page*(size/8)), h.bytes(start, count))
			return nil
		}
		if staging == nil {
			staging = make([]byte, size)
		}
		for i := range count {
			if err := pin.pool.dev.Gather(staging, start+i, 1); err != nil {
				return err
			}
			sum += Sum(key, uint64((page+i)*(size/8)), staging)
		}
		return nil
	})
	return Digest(sum), err
}

// each calls do for the stretches of neighbouring pages in [from, to), with
// their place in the pool and in the pin. Callers hold pin.mu.
func (pin *Pin) each(from, to, bytes int, do func(start, count, page int) error) error {
	switch {
	case pin.released:
		return fmt.Errorf("pin: %w", ErrReleased)
	case from < 0 || to < from || to > pin.Pages():
		return fmt.Errorf("kvpool: pages [%d,%d) of a pin of %d", from, to, pin.Pages())
	case bytes != (to-from)*pin.pool.cfg.PageBytes:
		return fmt.Errorf("kvpool: %d bytes for %d pages", bytes, to-from)
	}
	return stretches(pin.runs, pin.ends, from, to, do)
}

// stretches calls do for each part of a run in pages [from, to).
func stretches(runs []events.PageRun, ends []int, from, to int, do func(start, count, page int) error) error {
	for r, end := range ends {
		first := end - int(runs[r].Count)
		lo, hi := max(from, first), min(to, end)
		if lo >= hi {
			continue
		}
		if err := do(int(runs[r].Start)+lo-first, hi-lo, lo); err != nil {
			return err
		}
	}
	return nil
}

// Check verifies all pages again, after the copy: it fails where the request
// gave its pages back in the meantime, and then the copy must be wiped.
func (pin *Pin) Check() error {
	pin.mu.RLock()
	defer pin.mu.RUnlock()
	if pin.released {
		return fmt.Errorf("check: %w", ErrReleased)
	}
	pin.pool.mu.Lock()
	defer pin.pool.mu.Unlock()
	if err := pin.pool.verifyAgain(pin.owner, pin.epoch, pin.runs); err != nil {
		return fmt.Errorf("check: %w", err)
	}
	return nil
}

// Release ends the hold, after copies in flight. Repeating it does nothing.
func (pin *Pin) Release() {
	pin.mu.Lock()
	defer pin.mu.Unlock()
	if pin.released {
		return
	}
	pin.released = true
	p := pin.pool
	var ready []*Allocation
	p.mu.Lock()
	for _, r := range pin.runs {
		for i := r.Start; i < r.Start+r.Count; i++ {
			pg := &p.pages[i]
			pg.readers--
			if pg.readers == 0 {
				p.pinned--
			}
		}
	}
	for _, h := range pin.holds {
		h.alloc.busy -= h.pages
		if h.alloc.fenced() {
			ready = append(ready, h.alloc)
		}
	}
	p.mu.Unlock()
	for _, a := range ready {
		p.giveBack(a)
	}
}

// Write is a writer's hold on an allocation. Its methods may be called
// concurrently.
type Write struct {
	alloc *Allocation

	mu    sync.RWMutex // a copy reads, End writes
	ended bool
}

// BeginWrite counts a writer on the allocation, or refuses where its pages were
// given back. Until [Write.End], [Pool.Free] does not hand the pages on; an
// engine that fills pages through [Allocation.Page] does so between the two.
func (p *Pool) BeginWrite(a *Allocation) (*Write, error) {
	if a == nil || a.pool != p {
		return nil, errors.New("kvpool: write to an allocation of another pool")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.verify(a.owner, p.cfg.Epoch, a.runs); err != nil {
		return nil, fmt.Errorf("write: %w", err)
	}
	if p.guards.writers {
		a.busy++
	}
	return &Write{alloc: a}, nil
}

// Scatter copies src, whole pages, to the allocation's pages from page on. It
// verifies them first: a late writer of an older generation is refused, and so
// is one whose request gave its pages back while bytes were still coming in.
func (w *Write) Scatter(page int, src []byte) error {
	w.mu.RLock()
	defer w.mu.RUnlock()
	a, p := w.alloc, w.alloc.pool
	if p.cfg.PageBytes == 0 {
		return fmt.Errorf("scatter: %w", ErrAccount)
	}
	count := len(src) / p.cfg.PageBytes
	switch {
	case w.ended:
		return fmt.Errorf("scatter: %w", ErrReleased)
	case page < 0 || count < 1 || len(src)%p.cfg.PageBytes != 0 || count > a.Pages()-page:
		return fmt.Errorf("kvpool: scatter of %d bytes at page %d of %d", len(src), page, a.Pages())
	}
	var runs []events.PageRun
	_ = stretches(a.runs, a.ends, page, page+count, func(start, n, _ int) error {
		runs = append(runs, events.PageRun{Start: uint32(start), Count: uint32(n), Generation: a.gen})
		return nil
	})
	if err := w.verify(runs); err != nil {
		return fmt.Errorf("scatter: %w", err)
	}
	for _, r := range runs {
		n := int(r.Count) * p.cfg.PageBytes
		if err := p.dev.Scatter(int(r.Start), int(r.Count), src[:n]); err != nil {
			return fmt.Errorf("scatter: %w", err)
		}
		src = src[n:]
	}
	return nil
}

// End ends the hold, after copies in flight. Repeating it does nothing.
func (w *Write) End() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	w.ended = true
	p := w.alloc.pool
	p.mu.Lock()
	if p.guards.writers {
		w.alloc.busy--
	}
	ready := w.alloc.fenced()
	p.mu.Unlock()
	if ready {
		p.giveBack(w.alloc)
	}
}
