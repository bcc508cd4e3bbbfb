package kvpool

import (
	"cmp"
	"slices"
)

// span is a run of free pages.
type span struct{ start, count int }

// freeList holds the free pages as disjoint spans in order of start, no two of
// them adjacent: what comes back is joined with its neighbours, so that
// allocations stay few, long runs.
type freeList struct {
	spans []span
	pages int
}

// put gives a span back. The pages must not be in the list.
func (f *freeList) put(s span) {
	f.pages += s.count
	i, _ := slices.BinarySearchFunc(f.spans, s.start, func(x span, start int) int { return cmp.Compare(x.start, start) })
	left := i > 0 && f.spans[i-1].start+f.spans[i-1].count == s.start
	right := i < len(f.spans) && s.start+s.count == f.spans[i].start
	switch {
	case left && right:
		f.spans[i-1].count += s.count + f.spans[i].count
		f.spans = slices.Delete(f.spans, i, i+1)
	case left:
		f.spans[i-1].count += s.count
	case right:
		f.spans[i] = span{s.start, s.count + f.spans[i].count}
	default:
		f.spans = slices.Insert(f.spans, i, s)
	}
}

// take removes n pages and returns them in order of start, in the fewest spans
// possible: the smallest span that holds all of them, else the largest ones. It
// takes nothing and returns false where more than limit spans would be needed,
// or nothing is free. That n pages are free the caller has checked: of fewer it
// takes all.
func (f *freeList) take(n, limit int) ([]span, bool) {
	best := -1
	for i, s := range f.spans {
		if s.count >= n && (best < 0 || s.count < f.spans[best].count) {
			best = i
		}
	}
	if best >= 0 {
		return []span{f.cut(best, n)}, true
	}
	order := make([]int, len(f.spans))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(f.spans[b].count, f.spans[a].count), cmp.Compare(a, b))
	})
	k, have := 0, 0
	for ; k < len(order) && have < n; k++ {
		have += f.spans[order[k]].count
	}
	if k == 0 || k > limit {
		return nil, false
	}
	// Highest index first: cutting a whole span shifts only those behind it.
	last := order[k-1]
	chosen := slices.Clone(order[:k])
	slices.SortFunc(chosen, func(a, b int) int { return cmp.Compare(b, a) })
	out := make([]span, 0, k)
	for _, i := range chosen {
		c := f.spans[i].count
		if i == last {
			c -= max(0, have-n)
		}
		out = append(out, f.cut(i, c))
	}
	slices.Reverse(out)
	return out, true
}

// cut removes the first n pages of span i.
func (f *freeList) cut(i, n int) span {
	s := f.spans[i]
	f.pages -= n
	if n == s.count {
		f.spans = slices.Delete(f.spans, i, i+1)
	} else {
		f.spans[i] = span{s.start + n, s.count - n}
	}
	return span{s.start, n}
}
