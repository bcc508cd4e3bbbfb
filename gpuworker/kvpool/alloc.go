package kvpool

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"sync/atomic"

	"github.com/pdgate/pdgate/events"
)

// Allocation is a request's pages. All of them are reserved at once: a request
// that has its pages cannot run out of them half-way.
type Allocation struct {
	pool  *Pool
	owner string
	gen   uint64
	tag   Tag // of the pages, at the device
	runs  []events.PageRun
	ends  []int // pages in runs[:i+1]

	gone atomic.Bool // the pages have been given back

	// Guarded by pool.mu.
	freed bool // Free was called
	busy  int  // uses in flight: one for each pinned page and each Write
	scrub bool // somebody is past the fence and scrubs
	back  []events.PageRun
	done  chan struct{} // made by Free, closed when the pages are free

	report func(scrubbed bool, done func()) // see FreeThen; nil: none

	compute compute
}

// Owner is the request id in the tag of the pages.
func (a *Allocation) Owner() string { return a.owner }

// Generation is the one generation of all pages.
func (a *Allocation) Generation() uint64 { return a.gen }

// Pages is the number of pages.
func (a *Allocation) Pages() int { return a.ends[len(a.ends)-1] }

// Runs lists the pages in order. The slice is the caller's.
func (a *Allocation) Runs() []events.PageRun { return slices.Clone(a.runs) }

// Page is the memory of page i, counted within the allocation. It is valid
// between [Pool.BeginWrite] and the end of that write; after the pages have been
// given back, and on a device other than host memory, it is nil.
func (a *Allocation) Page(i int) []uint64 {
	if a.pool.host == nil || a.gone.Load() {
		return nil
	}
	return a.pool.host.span(at(a.runs, a.ends, i), 1)
}

// at is the index in the pool of the i-th page of runs.
func at(runs []events.PageRun, ends []int, i int) int {
	r := sort.SearchInts(ends, i+1)
	return int(runs[r].Start) + int(runs[r].Count) - (ends[r] - i)
}

// sums is the running total of pages in runs.
func sums(runs []events.PageRun) []int {
	ends, n := make([]int, len(runs)), 0
	for i, r := range runs {
		n += int(r.Count)
		ends[i] = n
	}
	return ends
}

// Alloc reserves pages for owner, or takes nothing: [ErrFull] where they are not
// there, or where an earlier [Pool.AllocWait] still waits for its own.
func (p *Pool) Alloc(owner string, pages int) (*Allocation, error) {
	if err := p.checkAsk(owner, pages); err != nil {
		return nil, err
	}
	a, err := p.allocNow(owner, pages)
	if err != nil {
		return nil, err
	}
	return p.adopt(a)
}

func (p *Pool) allocNow(owner string, pages int) (*Allocation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.guards.queue && len(p.waiting) > 0 {
		return nil, &FullError{Need: pages, Free: p.free.pages, Waiting: len(p.waiting)}
	}
	return p.allocLocked(owner, pages)
}

// adopt has the device put the allocation's tag on its pages. Nobody has seen the
// allocation before.
func (p *Pool) adopt(a *Allocation) (*Allocation, error) {
	if err := p.noted(p.dev.Retag(a.runs, Tag{}, a.tag)); err != nil {
		p.Free(a) // retires the pages: what they carry is not known
		return nil, fmt.Errorf("allocate %d pages: %w", a.Pages(), err)
	}
	return a, nil
}

func (p *Pool) checkAsk(owner string, pages int) error {
	switch {
	case owner == "":
		return fmt.Errorf("kvpool: an allocation needs an owner")
	case pages < 1:
		return fmt.Errorf("kvpool: allocation of %d pages", pages)
	case pages > len(p.pages) && p.guards.capacity:
		return fmt.Errorf("%w: %w", ErrTooLarge, &FullError{Need: pages, Free: len(p.pages)})
	}
	return nil
}

// allocLocked does the work. Callers hold mu.
func (p *Pool) allocLocked(owner string, pages int) (*Allocation, error) {
	if pages > p.free.pages && p.guards.capacity {
		return nil, &FullError{Need: pages, Free: p.free.pages}
	}
	spans, ok := p.free.take(pages, events.MaxRuns)
	if !ok {
		return nil, fmt.Errorf("%w: %w", ErrFragmented, &FullError{Need: pages, Free: p.free.pages})
	}
	a := &Allocation{pool: p, owner: owner, gen: p.nextGen(), runs: make([]events.PageRun, 0, len(spans))}
	a.tag = Tag{ownerOf(owner, p.cfg.Epoch), a.gen}
	for _, s := range spans {
		a.runs = append(a.runs, events.PageRun{Start: uint32(s.start), Count: uint32(s.count), Generation: a.gen})
		for i := s.start; i < s.start+s.count; i++ {
			pg := &p.pages[i]
			p.setState(pg, StateHeld)
			pg.owner, pg.epoch, pg.gen, pg.alloc = owner, p.cfg.Epoch, a.gen, a
		}
	}
	a.ends = sums(a.runs)
	return a, nil
}

// waiter is an allocation in line.
type waiter struct {
	owner string
	pages int
	ready chan *Allocation // holds one
}

// AllocWait is [Pool.Alloc] that waits for its pages, first come, first served:
// a large request is not starved by small ones behind it. What can never fit is
// refused at once with [ErrTooLarge].
func (p *Pool) AllocWait(ctx context.Context, owner string, pages int) (*Allocation, error) {
	if err := p.checkAsk(owner, pages); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("wait for %d pages: %w", pages, err)
	}
	w := &waiter{owner: owner, pages: pages, ready: make(chan *Allocation, 1)}
	p.mu.Lock()
	p.waiting = append(p.waiting, w)
	p.serve()
	p.mu.Unlock()
	select {
	case a := <-w.ready:
		return p.adopt(a)
	case <-ctx.Done():
	}
	p.mu.Lock()
	if i := slices.Index(p.waiting, w); i >= 0 {
		p.waiting = slices.Delete(p.waiting, i, i+1)
		p.serve() // the next in line may fit where w did not
	}
	p.mu.Unlock()
	select {
	case a := <-w.ready: // served in the meantime: nobody will use it
		if a, err := p.adopt(a); err == nil {
			p.Free(a)
		}
	default:
	}
	return nil, fmt.Errorf("wait for %d pages: %w", pages, ctx.Err())
}

// serve hands pages to the head of the line while there are enough. Callers
// hold mu.
func (p *Pool) serve() {
	for len(p.waiting) > 0 {
		w := p.waiting[0]
		a, err := p.allocLocked(w.owner, w.pages)
		if err != nil {
			return // full or fragmented: the next free tries again
		}
		p.waiting = slices.Delete(p.waiting, 0, 1)
		w.ready <- a
	}
}
