package corpus

import (
	"slices"

	"github.com/pdgate/pdgate/events"
)

// pool is a worker's pages, one by one: who holds each, and who wrote it last. It
// is the truth that a replay has to find again from events alone.
type pool struct {
	worker     string
	epoch      uint64
	pageTokens int
	holder     []int32 // request, 0: free
	writer     []int32 // request, 0: nobody
	next       int
	generation uint64
}

func newPool(worker string, epoch uint64, tokens, pageTokens int) *pool {
	n := tokens / pageTokens
	return &pool{worker: worker, epoch: epoch, pageTokens: pageTokens, holder: make([]int32, n), writer: make([]int32, n)}
}

func (p *pool) pagesFor(tokens int) int { return (tokens + p.pageTokens - 1) / p.pageTokens }

// alloc takes n pages from where the last allocation ended, so that a pool is used
// evenly. It is nil where there are not so many.
func (p *pool) alloc(request int32, n int) []events.PageRun {
	var pages []int
	for i := 0; i < len(p.holder) && len(pages) < n; i++ {
		if at := (p.next + i) % len(p.holder); p.holder[at] == 0 {
			pages = append(pages, at)
		}
	}
	if len(pages) < n || n == 0 {
		return nil
	}
	p.next = (pages[n-1] + 1) % len(p.holder)
	p.generation++
	slices.Sort(pages)
	var runs []events.PageRun
	for _, at := range pages {
		p.holder[at] = request
		if k := len(runs) - 1; k >= 0 && int(runs[k].Start+runs[k].Count) == at {
			runs[k].Count++
		} else {
			runs = append(runs, events.PageRun{Start: uint32(at), Count: 1, Generation: p.generation})
		}
	}
	return runs
}

// each calls f for the runs' pages from one to another, in their order.
func each(runs []events.PageRun, from, to int, f func(page int)) {
	at := 0
	for _, r := range runs {
		for i := range int(r.Count) {
			if at >= from && at < to {
				f(int(r.Start) + i)
			}
			at++
		}
	}
}

func (p *pool) write(runs []events.PageRun, from, to int, request int32) {
	each(runs, from, to, func(page int) { p.writer[page] = request })
}

func (p *pool) free(runs []events.PageRun) {
	each(runs, 0, events.Pages(runs), func(page int) { p.holder[page] = 0 })
}
