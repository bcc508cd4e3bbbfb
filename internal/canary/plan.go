package canary

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/pdgate/pdgate/events"
)

// maxProbes bounds the different lengths of one run.
const maxProbes = 24

// probe is one prompt to send.
type probe struct {
	tokens int
	why    string // which limit it lies beside
	refuse bool   // it is above one, and must come back as 400
}

// limits are what admission has to hold requests to. They are worked out here from
// the registrations alone, not with the code that is under test.
type limits struct {
	input   int // the longest prompt that some live prefill worker accepts
	context int // prompt and completion, of the strictest worker
	decode  int // prompt and completion, the largest live decode pool
}

func limitsOf(workers []events.WorkerView) (l limits) {
	for _, w := range workers {
		if l.context == 0 || w.ContextTokens < l.context {
			l.context = w.ContextTokens
		}
		if w.Role == events.RolePrefill {
			l.input = max(l.input, longest(&w))
		} else {
			l.decode = max(l.decode, w.PoolTokens())
		}
	}
	return l
}

// longest is the longest prompt that a prefill worker accepts.
func longest(w *events.WorkerView) int {
	n := min(w.ContextTokens, w.PoolTokens())
	if w.MaxInputTokens > 0 {
		n = min(n, w.MaxInputTokens)
	}
	return n
}

// refuses says whether a prompt of n tokens is above a limit.
func (l limits) refuses(n int) bool { return n > l.input || n+most > l.context || n+most > l.decode }

// serving are the live workers of a model, if there is one of each role.
func serving(all []events.WorkerView, model string) []events.WorkerView {
	var out []events.WorkerView
	roles := map[events.Role]bool{}
	for _, w := range all {
		if w.Live && w.Model == model {
			out, roles[w.Role] = append(out, w), true
		}
	}
	if len(roles) < 2 {
		return nil
	}
	return out
}

// plan lists the prompts of one run: at and just above each worker's limits, and
// around the first and the last page boundary that a prompt can have. least is the
// shortest prompt; slack widens the distance from a limit where lengths are not
// exact. Fewer are listed if there are more than maxProbes lengths.
func plan(workers []events.WorkerView, least int, slack func(n int) int) ([]probe, error) {
	l := limitsOf(workers)
	var all []probe
	add := func(n int, why string) {
		at := slices.IndexFunc(all, func(p probe) bool { return p.tokens == n })
		if n >= least && at < 0 {
			all = append(all, probe{n, why, l.refuses(n)})
		}
	}
	beside := func(n int, why string) {
		add(n-slack(n), "at "+why)
		add(n+1+slack(n), "above "+why)
	}
	for i := range workers {
		w := &workers[i]
		if w.Role == events.RolePrefill {
			beside(longest(w), w.Worker+"'s longest prompt")
		} else {
			beside(w.PoolTokens()-most, w.Worker+"'s pool")
		}
		beside(w.ContextTokens-most, "the context window")
	}
	allowed := min(l.input, l.context-most, l.decode-most)
	for i := range workers {
		page := workers[i].PageTokens
		if page < 2 {
			continue
		}
		why := fmt.Sprintf("a boundary of pages of %d", page)
		for _, n := range []int{(least + page) / page * page, allowed / page * page} {
			add(n-1, why)
			add(n, why)
			add(n+1, why)
		}
	}
	if !slices.ContainsFunc(all, func(p probe) bool { return !p.refuse }) {
		return nil, fmt.Errorf("the limits leave no room for a prompt of %d tokens and %d more (longest prompt %d, context %d, decode pool %d)", least, most, l.input, l.context, l.decode)
	}
	slices.SortStableFunc(all, func(a, b probe) int { return cmp.Compare(b.tokens, a.tokens) })
	return thin(all), nil
}

// thin keeps the longest that must be answered, which fill the pools, and of the
// others every so many-th.
func thin(all []probe) []probe {
	for len(all) > maxProbes {
		at := 0
		for at < len(all)-1 && all[at].refuse == all[at+1].refuse {
			at++
		}
		at = min(at+2, len(all)-1) // the second below the first change
		all = slices.Delete(all, at, at+1)
	}
	return all
}
