package replay

import (
	"sort"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// contents is what the pages of one worker's life hold, told from events alone:
// whose KV was written into them last, and whether it was scrubbed since. The
// checker's ledger knows who may use a page; this one knows what is in it, whoever
// may.
type contents struct {
	spans []held // disjoint, in order of their pages
}

// held is a run of pages that hold the same request's KV.
type held struct {
	start, end uint64 // end is not part of it
	generation uint64
	owner      *owner // nil: scrubbed
}

// owner is whose KV pages hold.
type owner struct {
	request, tenant string
}

// pool is one worker's life.
type poolKey struct {
	worker string
	epoch  uint64
}

// find is the index of the first span that ends behind a page.
func (c *contents) find(page uint64) int {
	if n := len(c.spans); n == 0 || c.spans[n-1].end <= page {
		return n
	}
	return sort.Search(len(c.spans), func(i int) bool { return c.spans[i].end > page })
}

// write puts the owner's KV into pages; a nil owner scrubs them.
func (c *contents) write(start, end, generation uint64, by *owner) {
	if start >= end {
		return
	}
	s := held{start, end, generation, by}
	i := c.find(start)
	if i < len(c.spans) && c.spans[i].start == start && c.spans[i].end == end {
		c.spans[i] = s // allocations of one size fall on the same pages again and again
		return
	}
	j := i
	var before, after held
	for ; j < len(c.spans) && c.spans[j].start < end; j++ {
		o := c.spans[j]
		if o.start < start {
			before = held{o.start, start, o.generation, o.owner}
		}
		if o.end > end {
			after = held{end, o.end, o.generation, o.owner}
		}
	}
	// Scrubbed neighbours are one span: otherwise an idle pool stays in pieces.
	if by == nil {
		if before.end == 0 && i > 0 && c.spans[i-1].owner == nil && c.spans[i-1].end == start {
			i--
			s.start = c.spans[i].start
		}
		if after.end == 0 && j < len(c.spans) && c.spans[j].owner == nil && c.spans[j].start == end {
			s.end = c.spans[j].end
			j++
		}
	}
	n := 1
	var put [3]held
	put[0] = s
	if before.end > 0 {
		put[0], put[1] = before, s
		n = 2
	}
	if after.end > 0 {
		put[n] = after
		n++
	}
	c.spans = splice(c.spans, i, j, put[:n])
}

// splice replaces all[i:j].
func splice(all []held, i, j int, by []held) []held {
	d := len(by) - (j - i)
	switch {
	case d > 0:
		for range d {
			all = append(all, held{})
		}
		copy(all[j+d:], all[j:len(all)-d])
	case d < 0:
		copy(all[j+d:], all[j:])
		clear(all[len(all)+d:])
		all = all[:len(all)+d]
	}
	copy(all[i:], by)
	return all
}

// read calls f for each piece of pages with what it holds; known is false where the
// input does not tell.
func (c *contents) read(start, end uint64, f func(from, to uint64, h held, known bool)) {
	for i := c.find(start); start < end; i++ {
		if i >= len(c.spans) || c.spans[i].start >= end {
			f(start, end, held{}, false)
			return
		}
		s := c.spans[i]
		if s.start > start {
			f(start, s.start, held{}, false)
			start = s.start
		}
		to := min(s.end, end)
		f(start, to, s, true)
		start = to
	}
}

// prefix calls f for the pieces of runs between pages from and to, counted along
// the runs.
func prefix(runs []events.PageRun, from, to uint64, f func(start, end, generation uint64)) {
	at := uint64(0)
	for _, r := range runs {
		n := uint64(r.Count)
		lo, hi := max(from, at), min(to, at+n)
		if lo < hi {
			f(uint64(r.Start)+lo-at, uint64(r.Start)+hi-at, r.Generation)
		}
		at += n
	}
}

// holders are the pools of all workers' lives.
type holders map[poolKey]*contents

func (h holders) of(worker string, epoch uint64) *contents {
	c := h[poolKey{worker, epoch}]
	if c == nil {
		c = &contents{}
		h[poolKey{strings.Clone(worker), epoch}] = c
	}
	return c
}

// joined lets go of the worker's earlier lives: their memory is gone.
func (h holders) joined(worker string, epoch uint64) {
	for k := range h {
		if k.worker == worker && k.epoch < epoch {
			delete(h, k)
		}
	}
}
