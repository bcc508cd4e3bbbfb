package kvpool

import (
	"log/slog"

	"github.com/pdgate/pdgate/events"
)

// closed is the channel of a free that had nothing to do.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Free gives an allocation back. From here on every further use of its pages is
// refused; uses in flight end first, then the pages are scrubbed, get a
// generation of their own and are free, and the channel closes. Whoever ends the
// last use does the scrubbing, so Free itself does it where nothing is in
// flight: about 30 ms for 200 MB.
//
// Pages are given back by index and generation, never by owner: the loser of a
// race between two attempts of one request cannot free the winner's pages.
// Freeing twice is harmless; the second call gets the first one's channel.
func (p *Pool) Free(a *Allocation) <-chan struct{} { return p.FreeAfter(a, nil) }

// FreeAfter is [Pool.Free] with a word in between: report is called when no use
// is left and the pages are scrubbed, in a goroutine of its own, and nobody else
// gets them before it has returned. A worker reports them as released, so that
// the log never shows a page with two holders. report is told whether the poison
// was written; it is not called by a repeated free.
func (p *Pool) FreeAfter(a *Allocation, report func(scrubbed bool)) <-chan struct{} {
	if report == nil {
		return p.FreeThen(a, nil)
	}
	return p.FreeThen(a, func(scrubbed bool, done func()) {
		go func() { // whoever ended the last use does not wait for the report
			report(scrubbed)
			done()
		}()
	})
}

// FreeThen is [Pool.FreeAfter] for a caller that has its own way to wait: report
// is called by whoever ends the last use and must not block, and the pages are
// free once done was called, which happens once.
func (p *Pool) FreeThen(a *Allocation, report func(scrubbed bool, done func())) <-chan struct{} {
	if a == nil || a.pool != p {
		return closed
	}
	p.mu.Lock()
	if a.freed && p.guards.once {
		p.doubles++
		done := a.done
		p.mu.Unlock()
		p.log.Warn("pages freed twice", slog.String("request_id", a.owner), slog.Uint64("generation", a.gen))
		return done
	}
	a.freed, a.done, a.report = true, make(chan struct{}), report
	done := a.done
	a.back, a.scrub = p.takeBack(a), false
	ready := a.fenced()
	p.mu.Unlock()
	if ready {
		p.giveBack(a)
	}
	return done
}

// takeBack marks the pages that are a's own as draining. Callers hold mu.
func (p *Pool) takeBack(a *Allocation) (back []events.PageRun) {
	for _, r := range a.runs {
		for i := r.Start; i < r.Start+r.Count; i++ {
			pg := &p.pages[i]
			if p.guards.freeByGen && (pg.gen != r.Generation || pg.state != StateHeld) {
				continue
			}
			p.setState(pg, StateDraining)
			if k := len(back) - 1; k >= 0 && back[k].Start+back[k].Count == i {
				back[k].Count++
			} else {
				back = append(back, events.PageRun{Start: i, Count: 1, Generation: r.Generation})
			}
		}
	}
	return back
}

// fenced says, to exactly one caller, that a is freed and out of use: that
// caller calls giveBack after it has let go of the lock. Callers hold mu.
func (a *Allocation) fenced() bool {
	if !a.freed || a.busy > 0 || a.scrub {
		return false
	}
	a.scrub = true
	return true
}

// giveBack scrubs a's pages outside the lock, then frees them. A crash anywhere
// in here costs nothing: the pool dies with the process, and the next one starts
// poisoned under another epoch.
func (p *Pool) giveBack(a *Allocation) {
	a.gone.Store(true)
	err := p.noted(p.clean(a))
	if err != nil {
		// The bytes may still be there: the pages never go to anybody else.
		p.log.Error("scrub pages", slog.String("request_id", a.owner), slog.Any("error", err))
	}
	if a.report == nil {
		p.putBack(a, err)
		return
	}
	a.report(err == nil && p.cfg.Scrub == ScrubPoison, func() { p.putBack(a, err) })
}

// putBack frees a's pages, or retires them where they could not be scrubbed.
func (p *Pool) putBack(a *Allocation, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	gen := p.nextGen()
	for _, r := range a.back {
		for i := r.Start; i < r.Start+r.Count; i++ {
			pg := &p.pages[i]
			pg.owner, pg.epoch, pg.gen, pg.alloc = "", 0, gen, nil
			if err != nil {
				p.setState(pg, StateRetired)
			} else {
				p.setState(pg, StateFree)
			}
		}
		if err == nil {
			p.free.put(span{int(r.Start), int(r.Count)})
		}
	}
	close(a.done)
	p.serve()
}

// clean takes the allocation's tag off its pages, from where on the device refuses
// every copy of them, and scrubs them.
func (p *Pool) clean(a *Allocation) error {
	if err := a.dropCompute(); err != nil {
		return err
	}
	if err := p.dev.Retag(a.back, a.tag, Tag{}); err != nil {
		return err
	}
	return p.scrub(a.back)
}

// scrub overwrites runs with the configured pattern.
func (p *Pool) scrub(runs []events.PageRun) error {
	pattern := Poison
	switch p.cfg.Scrub {
	case ScrubNone:
		return nil
	case ScrubZero:
		pattern = 0
	}
	return p.dev.Scrub(runs, pattern)
}
