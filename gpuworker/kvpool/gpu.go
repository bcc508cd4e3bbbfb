package kvpool

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool/kernels"
)

// GPU is a [Device] in a driver's memory: the pages, a tag beside each, and the
// kernels that look at the tag inside the copy.
//
// All work goes through the driver's one line, in order: a scrub, a change of a
// tag and a copy never run beside each other, and the second look of a gather
// comes after its last store. Bytes come and go through staging on the device,
// which belongs to one call at a time and is wiped before the next.
type GPU struct {
	drv       Driver
	pages     int
	pageBytes int
	vectors   uint64 // of 16 bytes in a page

	// mu is held through each call, and guards what follows.
	mu     sync.Mutex
	pool   Ptr
	meta   Ptr
	stage  Ptr // stageSlots pages
	jobs   Ptr // what a launch reads: jobs or a list of pages
	outs   Ptr // what it reports
	owned  []Ptr
	closed bool

	stageSlots int
	words      []byte // jobs, on their way to the device
	results    []byte // outs, on theirs from it
	pinned     [][]byte
}

// GPUConfig describes a GPU's memory.
type GPUConfig struct {
	Pages      int
	PageBytes  int // a multiple of 16
	StageBytes int // staging on the device, at least a page; 0: DefaultStageBytes
}

// DefaultStageBytes is what one launch copies at most, bytes.
const DefaultStageBytes = 4 << 20

const (
	jobBytes = 32
	outBytes = 16
	tagBytes = 16
	maxList  = 16384 // pages of one launch: its list is copied in each time
)

// NewGPU takes the memory of a pool from the driver. The caller closes it before
// the driver.
func NewGPU(drv Driver, cfg GPUConfig) (*GPU, error) {
	if cfg.StageBytes == 0 {
		cfg.StageBytes = DefaultStageBytes
	}
	switch {
	case cfg.Pages < 1:
		return nil, fmt.Errorf("kvpool: GPUConfig.Pages is %d", cfg.Pages)
	case cfg.PageBytes < 16 || cfg.PageBytes%16 != 0:
		return nil, fmt.Errorf("kvpool: GPUConfig.PageBytes is %d, want a multiple of 16", cfg.PageBytes)
	case cfg.StageBytes < 0:
		return nil, fmt.Errorf("kvpool: GPUConfig.StageBytes is %d", cfg.StageBytes)
	}
	g := &GPU{
		drv: drv, pages: cfg.Pages, pageBytes: cfg.PageBytes, vectors: uint64(cfg.PageBytes / 16),
		stageSlots: min(max(1, cfg.StageBytes/cfg.PageBytes), maxList),
	}
	for _, m := range []struct {
		at    *Ptr
		bytes int64
	}{
		{&g.pool, int64(cfg.Pages) * int64(cfg.PageBytes)}, {&g.meta, int64(cfg.Pages) * tagBytes},
		{&g.stage, int64(g.stageSlots) * int64(cfg.PageBytes)}, {&g.jobs, maxList * jobBytes}, {&g.outs, maxList * outBytes},
	} {
		p, err := drv.Alloc(m.bytes)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%d pages of %d bytes: %w", cfg.Pages, cfg.PageBytes, err), g.Close())
		}
		*m.at, g.owned = p, append(g.owned, p)
	}
	for _, m := range []struct {
		at    *[]byte
		bytes int
	}{{&g.words, maxList * jobBytes}, {&g.results, maxList * outBytes}} {
		b, err := drv.Pinned(m.bytes)
		if err != nil {
			return nil, errors.Join(err, g.Close())
		}
		*m.at, g.pinned = b, append(g.pinned, b)
	}
	err := drv.Run(func(s Stream) error {
		// Memory that nobody has written is the same on every machine, also where a test
		// has the poison left out.
		return cmp.Or(s.Fill(g.pool, 0, int64(cfg.Pages)*int64(cfg.PageBytes)/4), s.Fill(g.meta, 0, int64(cfg.Pages)*tagBytes/4), g.wipe(s, g.stageSlots))
	})
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

// Close gives the memory back to the driver. Of several failures it returns the
// first: after a fault, CUDA refuses them all with the same reason.
func (g *GPU) Close() (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, p := range g.owned {
		err = cmp.Or(err, g.drv.Free(p))
	}
	for _, b := range g.pinned {
		err = cmp.Or(err, g.drv.FreePinned(b))
	}
	g.owned, g.pinned, g.closed = nil, nil, true
	return err
}

// Name is the driver's name of the device.
func (g *GPU) Name() string { return g.drv.Name() }

// wipe clears the staging's first slots.
func (g *GPU) wipe(s Stream, slots int) error {
	return s.Fill(g.stage, 0, int64(slots)*int64(g.pageBytes)/4)
}

// chunks is how many blocks cover a page.
func (g *GPU) chunks() int { return (g.pageBytes + kernels.Chunk - 1) / kernels.Chunk }

// batch is part of a copy that goes in one launch.
type batch struct {
	pages []events.PageRun // one page each
	owner Owner
	from  int // pages of the copy before it
}

// each calls do with the pages of runs, at most n at a time. Callers hold mu.
func (g *GPU) each(runs []events.PageRun, n int, do func(batch) error) error {
	if g.closed {
		return fmt.Errorf("%w: it was closed", ErrDevice)
	}
	b := batch{pages: make([]events.PageRun, 0, min(n, pagesIn(runs)))}
	flush := func() error {
		if len(b.pages) == 0 {
			return nil
		}
		err := do(b)
		b.from += len(b.pages)
		b.pages = b.pages[:0]
		return err
	}
	for _, r := range runs {
		if uint64(r.Start)+uint64(r.Count) > uint64(g.pages) {
			return refusal(r.Start, kernels.StatusRange)
		}
		for i := range r.Count {
			b.pages = append(b.pages, events.PageRun{Start: r.Start + i, Count: 1, Generation: r.Generation})
			if len(b.pages) == n {
				if err := flush(); err != nil {
					return err
				}
			}
		}
	}
	return flush()
}

// put copies the batch's jobs in and clears what they report to.
func (g *GPU) put(s Stream, b batch) error {
	g.words = g.words[:0]
	for slot, p := range b.pages {
		g.words = appendJob(g.words, p, uint64(slot), b.owner)
	}
	return cmp.Or(s.CopyIn(g.jobs, g.words), s.Fill(g.outs, 0, int64(len(b.pages))*outBytes/4))
}

func appendJob(dst []byte, p events.PageRun, slot uint64, owner Owner) []byte {
	for _, w := range [...]uint64{uint64(p.Start), slot, uint64(owner), p.Generation} {
		dst = binary.LittleEndian.AppendUint64(dst, w)
	}
	return dst
}

// report copies out what a launch on n pages reported, words for each.
func (g *GPU) report(s Stream, n, words int) error {
	return s.CopyOut(g.results[:8*n*words], g.outs)
}

func (g *GPU) result(i int) uint64 { return binary.LittleEndian.Uint64(g.results[8*i:]) }

// verdict adds up the batch's sums, or says which page was refused.
func (g *GPU) verdict(b batch) (sum uint64, err error) {
	for i, p := range b.pages {
		if status := g.result(2 * i); status != 0 {
			return 0, refusal(p.Start, status)
		}
		sum += g.result(2*i + 1)
	}
	return sum, nil
}

// Gather implements [Device].
func (g *GPU) Gather(dst []byte, runs []events.PageRun, owner Owner, key, word uint64) (sum uint64, err error) {
	if err := checkSize(len(dst), runs, g.pageBytes); err != nil {
		return 0, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	err = g.each(runs, g.stageSlots, func(b batch) error {
		b.owner = owner
		n := len(b.pages)
		to := dst[b.from*g.pageBytes:][:n*g.pageBytes]
		err := g.drv.Run(func(s Stream) error {
			err := g.put(s, b)
			if err == nil {
				err = s.Launch("kv_gather", g.chunks(), n, uint64(g.pool), uint64(g.meta), uint64(g.pages), g.vectors,
					uint64(g.jobs), uint64(g.stage), uint64(g.stageSlots), uint64(g.outs), g.keyAt(key, word, b.from))
			}
			if err == nil {
				err = s.Launch("kv_finalize", g.chunks(), n, uint64(g.meta), uint64(g.pages), g.vectors,
					uint64(g.jobs), uint64(g.stage), uint64(g.stageSlots), uint64(g.outs))
			}
			if err == nil {
				err = cmp.Or(g.report(s, n, 2), s.CopyOut(to, g.stage))
			}
			return cmp.Or(err, g.wipe(s, n))
		})
		if err != nil {
			return err
		}
		part, err := g.verdict(b)
		sum += part
		return err
	})
	if err != nil {
		clear(dst)
		return 0, fmt.Errorf("gather: %w", err)
	}
	return sum, nil
}

// keyAt is the key of a launch whose first page is n pages behind word.
func (g *GPU) keyAt(key, word uint64, n int) uint64 {
	return key + (word+uint64(n)*2*g.vectors)*kg
}

// Scatter implements [Device].
func (g *GPU) Scatter(runs []events.PageRun, src []byte, owner Owner, key, word uint64) (sum uint64, err error) {
	if err := checkSize(len(src), runs, g.pageBytes); err != nil {
		return 0, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	err = g.each(runs, g.stageSlots, func(b batch) error {
		b.owner = owner
		n := len(b.pages)
		err := g.drv.Run(func(s Stream) error {
			err := cmp.Or(g.put(s, b), s.CopyIn(g.stage, src[b.from*g.pageBytes:][:n*g.pageBytes]))
			if err == nil {
				err = s.Launch("kv_scatter", g.chunks(), n, uint64(g.pool), uint64(g.meta), uint64(g.pages), g.vectors,
					uint64(g.jobs), uint64(g.stage), uint64(g.stageSlots), uint64(g.outs), g.keyAt(key, word, b.from))
			}
			if err == nil {
				err = g.report(s, n, 2)
			}
			return cmp.Or(err, g.wipe(s, n))
		})
		if err != nil {
			return err
		}
		part, err := g.verdict(b)
		sum += part
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("scatter: %w", err)
	}
	return sum, nil
}

// Sum implements [Device].
func (g *GPU) Sum(runs []events.PageRun, owner Owner, key, word uint64) (sum uint64, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	err = g.each(runs, maxList, func(b batch) error {
		b.owner = owner
		err := g.drv.Run(func(s Stream) error {
			err := g.put(s, b)
			if err == nil {
				err = s.Launch("kv_sum", g.chunks(), len(b.pages), uint64(g.pool), uint64(g.meta), uint64(g.pages), g.vectors,
					uint64(g.jobs), uint64(g.outs), g.keyAt(key, word, b.from))
			}
			if err == nil {
				err = g.report(s, len(b.pages), 2)
			}
			return err
		})
		if err != nil {
			return err
		}
		part, err := g.verdict(b)
		sum += part
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("sum: %w", err)
	}
	return sum, nil
}

// list runs a launch on a plain list of pages, and calls done with the batch once
// its report is here.
func (g *GPU) list(runs []events.PageRun, words int, launch func(Stream, batch) error, done func(batch) error) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.each(runs, maxList, func(b batch) error {
		g.words = g.words[:0]
		for _, p := range b.pages {
			g.words = binary.LittleEndian.AppendUint64(g.words, uint64(p.Start))
		}
		err := g.drv.Run(func(s Stream) error {
			err := cmp.Or(s.CopyIn(g.jobs, g.words), s.Fill(g.outs, 0, int64(len(b.pages))*outBytes/4))
			if err == nil {
				err = launch(s, b)
			}
			if err == nil {
				err = g.report(s, len(b.pages), words)
			}
			return err
		})
		if err != nil {
			return err
		}
		return done(b)
	})
}

// Scrub implements [Device].
func (g *GPU) Scrub(runs []events.PageRun, pattern uint64) error {
	err := g.list(runs, 1, func(s Stream, b batch) error {
		return s.Launch("kv_scrub", g.chunks(), len(b.pages), uint64(g.pool), uint64(g.meta), uint64(g.pages), g.vectors,
			uint64(g.jobs), pattern, uint64(g.outs))
	}, func(b batch) error {
		for i, p := range b.pages {
			if status := g.result(i); status != 0 {
				return refusal(p.Start, status)
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("scrub: %w", err)
	}
	return nil
}

// Audit implements [Device].
func (g *GPU) Audit(runs []events.PageRun, pattern uint64) (n int, err error) {
	err = g.list(runs, 1, func(s Stream, b batch) error {
		return s.Launch("kv_audit", g.chunks(), len(b.pages), uint64(g.pool), uint64(g.pages), g.vectors,
			uint64(g.jobs), pattern, uint64(g.outs))
	}, func(b batch) error {
		for i := range b.pages {
			n += int(g.result(i))
		}
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("audit: %w", err)
	}
	return n, nil
}

// Retag implements [Device]. A page is left as it is where it carries another tag
// than from; others may have been changed then.
func (g *GPU) Retag(runs []events.PageRun, from, to Tag) error {
	err := g.list(runs, 1, func(s Stream, b batch) error {
		n := len(b.pages)
		return s.Launch("kv_retag", (n+kernels.Threads-1)/kernels.Threads, 1, uint64(g.meta), uint64(g.pages), uint64(g.jobs), uint64(n),
			uint64(from.Owner), from.Generation, uint64(to.Owner), to.Generation, uint64(g.outs))
	}, func(b batch) error {
		if status := g.result(0); status != 0 {
			return refusal(b.pages[0].Start, status)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("retag: %w", err)
	}
	return nil
}
