package replay

import (
	"cmp"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pdgate/pdgate/statemachine"
)

// Options say how traces are replayed. The zero value is for a whole log.
type Options struct {
	Key       []byte        // of the envelopes' MAC; nil: not checked
	SkewBound time.Duration // how far a history's time may step back; 0: 5 seconds
	Slack     time.Duration // how late an end may be recorded; 0: the checker's
	Now       time.Time     // what open requests are judged by; zero: the log's last time
	At        *Point        // stop there, and show the state
	WhatIf    *Policy       // judge admissions and leases by another policy too

	// What the caller vouches for.
	AcceptUnanchored bool // lines without anything behind their ends
	AcceptLifecycle  bool // lives that engines tell of

	// Each is called for each event, after it was judged.
	Observed  func(*statemachine.Observation)
	Violation func(statemachine.Kind, Evidence)

	Maps *[]PageMap // takes the pools at the first affected responses
}

// Properties say what a source's envelopes are.
type Properties struct {
	Partitions int // of the log; 0: not checked
	Unlinked   bool
	Unplaced   bool
	Lifecycle  bool
	Midway     bool
	Torn       bool
	Anchored   bool      // something vouches for the whole: a digest, a signature, the stream
	Sum        hash.Hash // of a trace, see [Trace]
}

// Replay is one run over any number of inputs.
type Replay struct {
	o      Options
	res    *Result
	logs   []*logRun
	groups map[groupKey]*Group
	radius *radius
	stop   bool // the point that was asked for has come
	worst  Severity

	configs []*Config
}

// New begins a replay.
func New(o Options) *Replay {
	if o.SkewBound <= 0 {
		o.SkewBound = 5 * time.Second
	}
	r := &Replay{o: o, groups: map[groupKey]*Group{}, radius: newRadius(),
		res: &Result{Format: ResultFormat, Coverage: CoveragePages, Range: Range{Types: map[string]int64{}}}}
	if o.WhatIf != nil {
		r.res.WhatIf = newWhatIf(o.WhatIf)
	}
	return r
}

// Add replays one input. An error is about the reading itself; what is wrong with
// the content is in the result.
func (r *Replay) Add(in *Input, src Source, p Properties) error {
	if !slices.Contains(r.res.Inputs, in) {
		r.res.Inputs = append(r.res.Inputs, in)
	}
	if p.Lifecycle {
		r.res.Coverage = LifecycleOnly
	}
	for !r.stop {
		env, err := src.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		var m *Malformed
		if errors.As(err, &m) {
			r.problem(of(src, in), m)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", in.Name, err)
		}
		l := r.log(p, env)
		if in.Events == 0 {
			l.sum.to = p.Sum
		}
		l.add(of(src, in), src.Where(), env)
	}
	r.markers(in, src)
	if s, ok := src.(interface{ Marks() []Mark }); ok {
		for _, m := range s.Marks() {
			r.mark(m.Kind, m.Evidence)
			if byID[m.Kind].Exposes {
				r.radius.suspect(m.Evidence.Subject, m.Kind)
			}
		}
	}
	if in.Events == 0 && len(in.Problems) == 0 && !r.stop {
		r.problem(in, &Malformed{Want: "at least one event", Cut: true})
	}
	return nil
}

// Include lists an input whose records come with another one's, as those of the
// several logs of one cluster do.
func (r *Replay) Include(in *Input) { r.res.Inputs = append(r.res.Inputs, in) }

// Vouch adds what somebody else found of an input: whether it is what was written.
func (r *Replay) Vouch(s Severity, notes ...string) {
	r.worst = max(r.worst, s)
	r.res.Integrity = append(r.res.Integrity, notes...)
}

// Mark is a violation that a source has seen by itself.
type Mark struct {
	Kind     statemachine.Kind
	Evidence Evidence
}

// of is the input that the source's last envelope is of.
func of(src Source, in *Input) *Input {
	if s, ok := src.(interface{ Input() *Input }); ok && s.Input() != nil {
		return s.Input()
	}
	return in
}

// problem notes what cannot be read.
func (r *Replay) problem(in *Input, m *Malformed) {
	s := Incomplete
	if m.Broken {
		s = Broken
	}
	r.worst = max(r.worst, s)
	if len(in.Problems) == maxListed {
		in.More++
		return
	}
	want := m.Want
	if m.Err != nil {
		want += ": " + m.Err.Error()
	}
	in.Problems = append(in.Problems, Problem{m.Where.Line, m.Where.Offset, want, s})
}

// markers takes over what a source noted beside its envelopes.
func (r *Replay) markers(in *Input, src Source) {
	switch s := src.(type) {
	case *Lines:
		for _, g := range s.Gaps {
			r.res.Range.Gaps += int64(g.To - g.From + 1)
			r.mark(KindLogHole, Evidence{Subject: "log", Input: in.Name, Position: fmt.Sprint(g.From), What: fmt.Sprintf("the stream has none of the messages %d to %d", g.From, g.To)})
		}
		for range s.Foreign {
			r.mark(KindForeign, Evidence{Subject: "log", Input: in.Name, What: "a message that no holder of the log key wrote"})
		}
		if s.BOM {
			in.Notes = append(in.Notes, "begins with a byte order mark, which was left out")
		}
		if s.CRLF > 0 {
			in.Notes = append(in.Notes, fmt.Sprintf("%d lines end in CR LF, and were read without the CR", s.CRLF))
		}
	case *Trace:
		in.Digest = s.Digest()
	}
}

func (r *Replay) mark(k statemachine.Kind, e Evidence) { r.group(groupKey{kind: k}, e) }

type groupKey struct {
	kind            statemachine.Kind
	version, policy string
}

const maxSamples = 4 // of a group, besides first and last

func (r *Replay) group(k groupKey, e Evidence) {
	g := r.groups[k]
	f := byID[k.kind]
	if g == nil {
		k.version, k.policy = strings.Clone(k.version), strings.Clone(k.policy)
		g = &Group{ID: k.kind, Rule: f.Rule, Title: f.Title, Severity: f.Severity, Version: k.version, Policy: k.policy, First: e}
		r.groups[k] = g
	} else if len(g.Samples) < maxSamples {
		g.Samples = append(g.Samples, e)
	}
	g.Count++
	g.Last = e
	r.worst = max(r.worst, f.Severity)
}

// Finish judges what is open, and closes the result.
func (r *Replay) Finish() *Result {
	res := r.res
	for _, l := range r.logs {
		now := r.o.Now
		if now.IsZero() {
			now = l.checker.Clock()
		}
		if !r.stop {
			l.pages.finish()
			l.checker.Close(now)
			l.where = Where{}
			l.flush(nil)
		}
		rep := l.checker.Report()
		res.Range.Requests += int64(rep.Requests)
		res.Range.Open += int64(rep.Open)
		res.Range.Events += int64(rep.Events)
		if !l.p.Unplaced {
			res.Range.LastSeq = max(res.Range.LastSeq, l.last)
		}
		for t, n := range l.types {
			res.Range.Types[string(t)] += n
		}
		if l.pages.shadow {
			res.Coverage = LifecycleOnly
		}
	}
	res.Range.SkewBound = r.o.SkewBound.Microseconds()
	for _, c := range r.configs {
		res.Configs = append(res.Configs, *c)
	}
	res.Groups = r.sortedGroups()
	res.Exposure = r.radius.result()
	if r.o.At != nil && len(r.logs) > 0 {
		res.At = r.logs[len(r.logs)-1].state(r.o.At)
	}
	if r.o.Maps != nil {
		*r.o.Maps = r.radius.maps
	}
	r.limits()
	res.Verdict = r.verdict()
	return res
}

func (r *Replay) sortedGroups() []*Group {
	all := make([]*Group, 0, len(r.groups))
	for _, g := range r.groups {
		all = append(all, g)
	}
	order := map[statemachine.Kind]int{}
	for i, f := range catalogue {
		order[f.ID] = i
	}
	slices.SortFunc(all, func(a, b *Group) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Rule, b.Rule), cmp.Compare(order[a.ID], order[b.ID]), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Policy, b.Policy))
	})
	return all
}
