package statemachine

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// ledger is who holds which page of which pool, told from events alone. Pages of
// one pool are kept as spans, so that it grows with allocations and not with
// pages, and each span remembers its last generation: a page that comes back
// with the same or a lower one could be taken for its former self.
type ledger map[life]*pool

// life is one worker's process from start to end: a pool dies with it.
type life struct {
	worker string
	epoch  uint64
}

type pool struct {
	spans []span // disjoint, in order of their pages
	live  int    // spans that are held
	old   bool   // the worker has started anew since
}

type span struct {
	start, end uint64 // end is not part of it
	generation uint64
	request    string // "" while free
}

// hold enters an allocation. The text is what is wrong with it, or "".
func (l ledger) hold(at life, request string, runs []events.PageRun) (wrong breach) {
	p := l[at]
	if p == nil {
		p = &pool{}
		l[life{strings.Clone(at.worker), at.epoch}] = p
	}
	for _, r := range runs {
		s := span{uint64(r.Start), uint64(r.Start) + uint64(r.Count), r.Generation, request}
		if r.Generation != runs[0].Generation {
			wrong = broke(KindPageGeneration, "pages of one allocation have different generations").are(strconv.FormatUint(runs[0].Generation, 10), strconv.FormatUint(r.Generation, 10))
		}
		if w := p.insert(s); w.kind != "" {
			wrong = w
		}
	}
	return wrong
}

func (p *pool) insert(s span) (wrong breach) {
	i := p.search(s.start)
	if i < len(p.spans) {
		// Allocations of one size fall on the same pages again and again.
		if o := &p.spans[i]; o.start == s.start && o.end == s.end && o.request == "" && o.generation < s.generation {
			*o = s
			p.live++
			return breach{}
		}
	}
	j := i
	var few [4]span // what s leaves over of the spans it cuts, most often
	rest := few[:0]
	for ; j < len(p.spans) && p.spans[j].start < s.end; j++ {
		o := p.spans[j]
		switch {
		case o.request == s.request && o.generation == s.generation && o.request != "":
			// granted again to the same reservation
		case o.request != "":
			wrong = broke(KindPageTaken, fmt.Sprintf("pages %d to %d are held by another allocation, of request %s", max(o.start, s.start), min(o.end, s.end)-1, o.request)).are("free", "generation "+strconv.FormatUint(o.generation, 10)+" of "+o.request)
		case s.generation <= o.generation:
			wrong = broke(KindPageGeneration, fmt.Sprintf("generation %d follows %d on page %d", s.generation, o.generation, max(o.start, s.start))).are("above "+strconv.FormatUint(o.generation, 10), strconv.FormatUint(s.generation, 10))
		}
		if o.request != "" {
			p.live--
		}
		if o.start < s.start {
			rest = append(rest, span{o.start, s.start, o.generation, o.request})
		}
		if o.end > s.end {
			rest = append(rest, span{s.end, o.end, o.generation, o.request})
		}
	}
	rest = append(rest, s)
	slices.SortFunc(rest, func(a, b span) int {
		if a.start < b.start {
			return -1
		}
		return 1
	})
	for _, o := range rest {
		if o.request != "" {
			p.live++
		}
	}
	p.spans = slices.Replace(p.spans, i, j, rest...)
	return wrong
}

// search is the index of the first span that ends after a page.
func (p *pool) search(page uint64) int {
	return sort.Search(len(p.spans), func(i int) bool { return p.spans[i].end > page })
}

// release frees an allocation, all of whose pages lie from start to end.
func (l ledger) release(at life, request string, generation, start, end uint64) (wrong breach) {
	p := l[at]
	if p == nil {
		return broke(KindReleaseUnheld, "a worker released pages that it never held")
	}
	found := false
	for i := p.search(start); i < len(p.spans) && p.spans[i].start < end; i++ {
		if s := &p.spans[i]; s.request == request && s.generation == generation {
			s.request, found = "", true
			p.live--
		}
	}
	if p.old && p.live == 0 {
		delete(l, at)
	}
	if !found {
		return broke(KindReleaseUnheld, fmt.Sprintf("release of generation %d, which the request does not hold", generation))
	}
	return breach{}
}

// joined lets go of pools of the worker's earlier lives that hold nothing.
func (l ledger) joined(worker string, epoch uint64) {
	for at, p := range l {
		if at.worker == worker && at.epoch < epoch {
			p.old = true
			if p.live == 0 {
				delete(l, at)
			}
		}
	}
}
