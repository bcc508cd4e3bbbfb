package replay

import (
	"fmt"
	"slices"
	"strings"
)

// limits says what the result does not claim, and what vouches for the inputs.
func (r *Replay) limits() {
	res := r.res
	unanchored, lifecycle, unkeyed := 0, false, false
	for _, l := range r.logs {
		switch {
		case l.p.Lifecycle:
			lifecycle = true
		case !l.p.Anchored:
			unanchored++
		}
		unkeyed = unkeyed || !l.p.Lifecycle && r.o.Key == nil && !(l.p.Unplaced && l.p.Anchored)
		if l.p.Midway {
			res.Limits = append(res.Limits, "the input begins, or is cut out, in the middle of the log: requests that began before it are counted and not judged")
		}
		if l.p.Torn {
			res.Limits = append(res.Limits, "the input leaves out other requests: who wrote a page before may not be in it")
		}
	}
	for i, in := range res.Inputs {
		for _, was := range res.Inputs[:i] {
			if in.SHA256+in.Digest != "" && in.SHA256 == was.SHA256 && in.Digest == was.Digest {
				res.Limits = append(res.Limits, fmt.Sprintf("%s is the same as %s: what is in it was counted twice", in.Name, was.Name))
				r.worst = max(r.worst, Incomplete)
			}
		}
	}
	if unanchored > 0 {
		res.Integrity = append(res.Integrity, "nothing stands behind the last lines of the input: an event that was taken from its end, or altered there, would not show (a trace, a bundle or the stream has an end that vouches for it)")
		if !r.o.AcceptUnanchored {
			r.worst = max(r.worst, Incomplete)
		}
	}
	if lifecycle {
		res.Integrity = append(res.Integrity, "not evidenced: engine logs carry no digests and no chain, so what was altered or left out does not show")
		res.Limits = append(res.Limits, "coverage is lifecycle-only: the input names no pages, so nothing is claimed about which pages were read, nor whose")
		if !r.o.AcceptLifecycle {
			r.worst = max(r.worst, Incomplete)
		}
	}
	if unkeyed {
		res.Integrity = append(res.Integrity, "who wrote the envelopes was not checked: that takes the log key (--keys), or a bundle with its signatures")
	}
	if res.Coverage == LifecycleOnly && !lifecycle {
		res.Limits = append(res.Limits, "coverage is lifecycle-only: the pages of external engines are an account, not the pool, so nothing is claimed about whose pages were read")
	}
	if res.Exposure.EdgesMore > 0 {
		res.Limits = append(res.Limits, fmt.Sprintf("%d exposure edges beyond the first %d are counted and not listed", res.Exposure.EdgesMore, maxEdges))
	}
	if at := r.o.At; at != nil && !r.stop && (at.Seq > 0 && at.Seq != res.Range.LastSeq || at.Time.After(res.Range.Last)) {
		why := "the input ends before the point that was asked for"
		if at.Seq > 0 && slices.ContainsFunc(r.logs, func(l *logRun) bool { return l.p.Unplaced }) {
			why = "the input names no stream sequences, so --at takes a time"
		}
		res.Limits = append(res.Limits, why+": the state is that at the end of the input")
		r.worst = max(r.worst, Incomplete)
	}
	if r.stop {
		res.Limits = append(res.Limits, "the replay stopped at the point that was asked for: what came after was not read")
	}
	res.Limits = append(res.Limits, "that everything was logged rests on decode failing closed where the log cannot be written; compare the counts with the gateway's")
}

// verdict is the one line.
func (r *Replay) verdict() Verdict {
	res := r.res
	var violations, kinds int64
	seen := map[string]bool{}
	for _, g := range res.Groups {
		violations += g.Count
		if !seen[string(g.ID)] {
			seen[string(g.ID)] = true
			kinds++
		}
	}
	v := Verdict{Exit: r.worst}
	var parts []string
	if violations > 0 {
		parts = append(parts, fmt.Sprintf("%s of %s", count(violations, "violation"), count(kinds, "kind")))
	} else {
		parts = append(parts, "no violation found")
	}
	if x := res.Exposure.Rings; x.Confirmed+x.Possible > 0 {
		parts = append(parts, fmt.Sprintf("%s confirmed, %d possible, of %d", count(x.Confirmed, "exposed response"), x.Possible, x.Population))
	}
	switch r.worst {
	case Clean:
		v.Word = "clean"
	case Violated:
		v.Word = "violations"
	case Unreadable:
		v.Word = "unreadable"
	case Incomplete:
		v.Word = "inconclusive"
		if violations > 0 {
			v.Word = "violations, and incomplete"
		}
	case Broken:
		v.Word = "integrity failure"
	}
	if n := r.problems(); n > 0 {
		parts = append(parts, count(n, "place")+" could not be read")
	}
	parts = append(parts, fmt.Sprintf("%s of %s", count(res.Range.Events, "event"), count(res.Range.Requests, "request")))
	v.Line = strings.ToUpper(v.Word) + ": " + strings.Join(parts, "; ")
	return v
}

func (r *Replay) problems() (n int64) {
	for _, in := range r.res.Inputs {
		n += int64(len(in.Problems)) + in.More
	}
	return n
}

func count(n int64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
