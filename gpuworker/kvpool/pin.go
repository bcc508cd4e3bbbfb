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
	as    Owner // owner and epoch, as a device knows them
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
	pin := &Pin{pool: p, owner: owner, epoch: epoch, as: ownerOf(owner, epoch), runs: append([]events.PageRun(nil), runs...)}
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
	_, err := pin.GatherSum(dst, from, to, 0)
	return err
}

// GatherSum is [Pin.Gather], and the partial [Sum] under key of what lies in dst
// then; words count from the pin's first page.
func (pin *Pin) GatherSum(dst []byte, from, to int, key uint64) (sum uint64, err error) {
	pin.mu.RLock()
	defer pin.mu.RUnlock()
	p := pin.pool
	runs, err := pin.part(from, to)
	if err != nil {
		return 0, err
	}
	sum, err = p.dev.Gather(dst, runs, pin.as, key, p.word(from))
	return sum, p.noted(err)
}

// Digest is the checksum of all pages under key.
func (pin *Pin) Digest(key uint64) (Digest, error) {
	pin.mu.RLock()
	defer pin.mu.RUnlock()
	runs, err := pin.part(0, pin.Pages())
	if err != nil {
		return 0, err
	}
	sum, err := pin.pool.dev.Sum(runs, pin.as, key, 0)
	return Digest(sum), pin.pool.noted(err)
}

// part is the runs of pages [from, to). Callers hold pin.mu.
func (pin *Pin) part(from, to int) ([]events.PageRun, error) {
	switch {
	case pin.released:
		return nil, fmt.Errorf("pin: %w", ErrReleased)
	case from < 0 || to < from || to > pin.Pages():
		return nil, fmt.Errorf("kvpool: pages [%d,%d) of a pin of %d", from, to, pin.Pages())
	}
	return part(pin.runs, pin.ends, from, to), nil
}

// part is the runs of pages [from, to), which are there.
func part(runs []events.PageRun, ends []int, from, to int) (out []events.PageRun) {
	for r, end := range ends {
		first := end - int(runs[r].Count)
		if lo, hi := max(from, first), min(to, end); lo < hi {
			out = append(out, events.PageRun{Start: runs[r].Start + uint32(lo-first), Count: uint32(hi - lo), Generation: runs[r].Generation})
		}
	}
	return out
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

	mu       sync.RWMutex // a copy reads, End writes
	ended    bool
	incoming incoming
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
	runs := part(a.runs, a.ends, page, page+count)
	if err := w.verify(runs); err != nil {
		return fmt.Errorf("scatter: %w", err)
	}
	if _, err := p.dev.Scatter(runs, src, a.tag.Owner, 0, 0); err != nil {
		return fmt.Errorf("scatter: %w", p.noted(err))
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
	w.incoming.drop()
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
