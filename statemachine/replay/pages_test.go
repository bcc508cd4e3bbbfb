package replay

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/pdgate/pdgate/events"
)

// TestContents compares the ledger of what pages hold with one that keeps each page
// by itself.
func TestContents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const size = 40
		type page struct {
			known bool
			gen   uint64
			owner string
		}
		var model [size]page
		var c contents
		owners := []*owner{nil, {request: "a"}, {request: "b"}, {request: "c"}}
		for i := range rapid.IntRange(1, 40).Draw(t, "writes") {
			start := rapid.IntRange(0, size-1).Draw(t, "start")
			end := rapid.IntRange(start, size).Draw(t, "end")
			by := rapid.SampledFrom(owners).Draw(t, "by")
			gen := uint64(i + 1)
			c.write(uint64(start), uint64(end), gen, by)
			for p := start; p < end; p++ {
				model[p] = page{known: true, gen: gen}
				if by != nil {
					model[p].owner = by.request
				}
			}
		}
		for i, s := range c.spans {
			if s.start >= s.end || i > 0 && c.spans[i-1].end > s.start {
				t.Fatalf("spans are out of order: %v", c.spans)
			}
		}
		at := uint64(0)
		c.read(0, size, func(from, to uint64, h held, known bool) {
			if from != at {
				t.Fatalf("page %d follows %d", from, at)
			}
			for at = from; at < to; at++ {
				got := page{known: known}
				if known {
					got.gen = model[at].gen // scrubbed neighbours are one span, whatever their generations
					if h.owner != nil {
						got.gen, got.owner = h.generation, h.owner.request
					}
				}
				if got != model[at] {
					t.Fatalf("page %d holds %+v, want %+v", at, got, model[at])
				}
			}
		})
		if at != size {
			t.Fatalf("%d pages were read", at)
		}
	})
}

func TestPrefix(t *testing.T) {
	runs := []events.PageRun{{Start: 10, Count: 3, Generation: 1}, {Start: 2, Count: 2, Generation: 1}, {Start: 30, Count: 1, Generation: 1}}
	for _, c := range []struct {
		from, to uint64
		want     string
	}{{0, 6, "10-13 2-4 30-31 "}, {0, 2, "10-12 "}, {2, 4, "12-13 2-3 "}, {5, 99, "30-31 "}, {6, 9, ""}, {3, 3, ""}} {
		got := ""
		prefix(runs, c.from, c.to, func(start, end, _ uint64) { got += fmt.Sprintf("%d-%d ", start, end) })
		if got != c.want {
			t.Errorf("%d to %d: %q, want %q", c.from, c.to, got, c.want)
		}
	}
}
