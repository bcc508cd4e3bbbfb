package kvpool

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/pdgate/pdgate/events"
)

// Poison fills every page that nobody has written for its owner. All ones is a
// NaN in float32, float16, bfloat16 and both float8 formats.
const Poison = ^uint64(0)

// ScrubMode says what becomes of the bytes of a page that was given back.
type ScrubMode int

// Only the zero value is for use. The others take the guard away, so that a
// test can see what it is for.
const (
	ScrubPoison ScrubMode = iota
	ScrubNone             // the bytes stay
	ScrubZero             // legal arithmetic: a wrong answer without an error
)

// Config describes a pool.
type Config struct {
	Pages     int    // at least 1
	PageBytes int    // a multiple of 8; 0: the pages are an account of memory that lies elsewhere, and hold nothing
	Epoch     uint64 // the worker's boot epoch; not zero, never used by an earlier boot

	Scrub  ScrubMode    // zero value: poison
	Device Device       // of Pages pages of PageBytes; nil: host memory
	Logger *slog.Logger // nil: nothing is logged
}

// guards are the checks that a test takes away one at a time. Each is true in
// every pool that New makes.
type guards struct {
	capacity   bool // Alloc refuses what it does not have
	epoch      bool // uses name the boot epoch of the page's tag
	generation bool // uses name the generation of the page's tag
	owner      bool // uses name the owner of the page's tag
	recheck    bool // a use verifies again: a pin after the copy, a write before each
	readers    bool // Free waits for pins
	writers    bool // Free waits for writes
	once       bool // an allocation is freed once
	freeByGen  bool // Free gives back only pages of the allocation's generation
	queue      bool // nobody overtakes an allocation that waits
	tags       bool // host memory looks at the pages' tags in each copy
}

// State is where a page is in its life.
type State uint8

// The states of a page.
const (
	StateFree     State = iota // scrubbed, in the free list
	StateHeld                  // belongs to an allocation
	StateDraining              // given back, waiting for uses in flight or being scrubbed
	StateRetired               // scrubbing failed: out of use until the worker restarts
	states
)

// String is the state's name in the console.
func (s State) String() string {
	if s >= states {
		return fmt.Sprintf("state(%d)", uint8(s))
	}
	return [states]string{"free", "held", "draining", "retired"}[s]
}

// MarshalText implements encoding.TextMarshaler.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// page is what the pool knows of a page besides its bytes.
type page struct {
	owner   string // tag, with epoch; empty: none
	epoch   uint64
	gen     uint64 // of the allocation; while free, of no allocation
	readers int
	state   State
	alloc   *Allocation // the holder; nil while free
	mark    uint64      // the last call that visited the page, to notice a page named twice
}

// Pool is a paged KV pool. Its methods may be called concurrently.
type Pool struct {
	cfg    Config
	dev    Device
	host   *host // dev, where that is host memory; nil otherwise
	gpu    *GPU  // dev, where that is a GPU; nil otherwise
	log    *slog.Logger
	guards guards

	// mu guards all fields below and the mutable fields of every Allocation.
	// No bytes are copied or scrubbed under it.
	mu      sync.Mutex
	pages   []page
	free    freeList
	lastGen uint64
	marks   uint64
	waiting []*waiter
	count   [states]int
	pinned  int // pages with a reader
	doubles int // repeated frees
	failure error

	broken chan struct{} // closed with failure
}

// New makes a pool whose pages are all free and poisoned: a page that was never
// used is as loud as one that was given back.
func New(cfg Config) (*Pool, error) {
	switch {
	case cfg.Pages < 1 || uint64(cfg.Pages) > 1<<32-1:
		return nil, fmt.Errorf("kvpool: Pages is %d, want 1 to 2^32-1", cfg.Pages)
	case cfg.PageBytes < 0 || cfg.PageBytes%8 != 0:
		return nil, fmt.Errorf("kvpool: PageBytes is %d, want a multiple of 8", cfg.PageBytes)
	case cfg.PageBytes == 0 && cfg.Device != nil:
		return nil, fmt.Errorf("kvpool: PageBytes is 0: an account has no Device")
	case cfg.Epoch == 0:
		return nil, fmt.Errorf("kvpool: Epoch is 0")
	case cfg.Scrub < ScrubPoison || cfg.Scrub > ScrubZero:
		return nil, fmt.Errorf("kvpool: Scrub is %d", cfg.Scrub)
	}
	p := &Pool{
		cfg: cfg, dev: cfg.Device, log: cfg.Logger,
		guards: guards{true, true, true, true, true, true, true, true, true, true, true},
		pages:  make([]page, cfg.Pages),
		count:  [states]int{StateFree: cfg.Pages},
		broken: make(chan struct{}),
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if p.dev == nil {
		p.host = newHost(cfg.Pages, cfg.PageBytes)
		p.host.guards = &p.guards
		p.dev = p.host
	}
	if g, ok := p.dev.(*GPU); ok {
		if g.pages != cfg.Pages || g.pageBytes != cfg.PageBytes {
			return nil, fmt.Errorf("kvpool: the device has %d pages of %d bytes, want %d of %d", g.pages, g.pageBytes, cfg.Pages, cfg.PageBytes)
		}
		p.gpu = g
	}
	if err := p.scrub([]events.PageRun{{Start: 0, Count: uint32(cfg.Pages)}}); err != nil {
		return nil, fmt.Errorf("poison pool: %w", err)
	}
	p.lastGen = 1
	for i := range p.pages {
		p.pages[i] = page{gen: p.lastGen, state: StateFree}
	}
	p.free.put(span{0, cfg.Pages})
	return p, nil
}

// Broken is closed when the device has failed: nothing that the pool holds is to
// be trusted, and the worker starts again. [Pool.Err] says what happened.
func (p *Pool) Broken() <-chan struct{} { return p.broken }

// Err is the device's first failure, nil while it works.
func (p *Pool) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failure
}

// noted takes note of a failure of the device, and returns err.
func (p *Pool) noted(err error) error {
	if !errors.Is(err, ErrDevice) {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failure == nil {
		p.failure = err
		close(p.broken)
	}
	return err
}

// word is the index of a page's first word in an allocation or a pin.
func (p *Pool) word(page int) uint64 { return uint64(page) * uint64(p.cfg.PageBytes/8) }

// Epoch is the boot epoch in every tag of this pool.
func (p *Pool) Epoch() uint64 { return p.cfg.Epoch }

// PageBytes is the size of a page.
func (p *Pool) PageBytes() int { return p.cfg.PageBytes }

// nextGen is a generation that this pool has not used. Callers hold mu.
func (p *Pool) nextGen() uint64 { p.lastGen++; return p.lastGen }

// setState moves a page between states and keeps the counts. Callers hold mu.
func (p *Pool) setState(pg *page, s State) {
	p.count[pg.state]--
	p.count[s]++
	pg.state = s
}

// Stats are the pool's figures at one instant.
type Stats struct {
	Pages, Free, Held, Draining, Retired int // the last four add up to the first

	Pinned      int // pages that a Pin holds
	Waiting     int // allocations in line
	DoubleFrees int // repeated frees, each a bug in the caller and harmless here
}

// Stats counts pages by state.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{
		Pages: len(p.pages), Free: p.count[StateFree], Held: p.count[StateHeld],
		Draining: p.count[StateDraining], Retired: p.count[StateRetired],
		Pinned: p.pinned, Waiting: len(p.waiting), DoubleFrees: p.doubles,
	}
}

// PageInfo is a row of the page table.
type PageInfo struct {
	Page       uint32
	Owner      string // empty while free
	Generation uint64
	State      State
	Readers    int
}

// Snapshot is the page table at one instant.
func (p *Pool) Snapshot() []PageInfo {
	out := make([]PageInfo, len(p.pages))
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.pages {
		pg := &p.pages[i]
		out[i] = PageInfo{Page: uint32(i), Owner: pg.owner, Generation: pg.gen, State: pg.state, Readers: pg.readers}
	}
	return out
}

// Audit reads every free page and counts the words that are not poison; any is
// a page that left its owner unscrubbed. It holds the pool's lock for a few
// pages at a time.
func (p *Pool) Audit() (int, error) {
	const step = 64
	dirty := 0
	for at := 0; at < len(p.pages); at += step {
		n, err := p.auditSome(at, min(at+step, len(p.pages)))
		if err != nil {
			return dirty, p.noted(err)
		}
		dirty += n
	}
	return dirty, nil
}

func (p *Pool) auditSome(lo, hi int) (int, error) {
	p.mu.Lock() // a page that is free stays free meanwhile
	defer p.mu.Unlock()
	var free []events.PageRun
	for i := lo; i < hi; i++ {
		if p.pages[i].state == StateFree {
			free = append(free, events.PageRun{Start: uint32(i), Count: 1})
		}
	}
	return p.dev.Audit(free, Poison)
}
