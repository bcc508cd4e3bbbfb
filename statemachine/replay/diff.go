package replay

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// Outcomes collects how each request went, for a comparison. Memory grows with the
// requests.
type Outcomes struct {
	all   map[string]*Outcome
	order []string
}

// Outcome is how one request went.
type Outcome struct {
	Request string       `json:"request"`
	Tenant  string       `json:"tenant"`
	State   events.State `json:"state"`
	Code    string       `json:"code,omitempty"` // of its error
	Prompt  int          `json:"prompt_tokens"`
	Output  int          `json:"output_tokens"`
	Events  int          `json:"events"`
	Denials int          `json:"denials"`
}

// NewOutcomes makes an empty collection; its See is an [Options.Observed].
func NewOutcomes() *Outcomes { return &Outcomes{all: map[string]*Outcome{}} }

// See takes an event.
func (c *Outcomes) See(o *statemachine.Observation) {
	if o.Request == nil {
		return
	}
	x := c.all[o.Event.Subject]
	if x == nil {
		x = &Outcome{Request: strings.Clone(o.Event.Subject), Tenant: strings.Clone(o.Event.Tenant)}
		c.all[x.Request] = x
		c.order = append(c.order, x.Request)
	}
	x.Events++
	x.State = o.Request.State
	switch d := o.Event.Data.(type) {
	case *events.RequestAdmitted:
		x.Prompt = d.PromptTokens
	case *events.RequestRejected:
		x.Prompt, x.Code = d.PromptTokens, string(d.Error.Code)
	case *events.RequestFailed:
		x.Code = string(d.Error.Code)
	case *events.RequestCancelled:
		x.Code = string(d.Reason)
	case *events.RequestDecoded:
		x.Output = d.CompletionTokens
	case *events.CommandDenied:
		x.Denials++
	}
}

// Match says which requests of two runs are the same one.
type Match string

// Matches.
const (
	MatchID    Match = "id"    // of the same id: two records of one run
	MatchOrder Match = "order" // of the same place in order: two runs of one load
)

// Diff is what differs between two runs.
type Diff struct {
	A       *Result      `json:"a"`
	B       *Result      `json:"b"`
	Match   Match        `json:"match"`
	Same    int64        `json:"same"`
	Differ  int64        `json:"differ"`
	OnlyA   int64        `json:"only_a"`
	OnlyB   int64        `json:"only_b"`
	Changes []Difference `json:"changes"`
	More    int64        `json:"changes_more,omitempty"`
	Kinds   []KindCount  `json:"violations"`
}

// Difference is one request; a side that lacks it is nil.
type Difference struct {
	A    *Outcome `json:"a"`
	B    *Outcome `json:"b"`
	What []string `json:"what"`
}

// KindCount compares how often a violation was found.
type KindCount struct {
	ID statemachine.Kind `json:"id"`
	A  int64             `json:"a"`
	B  int64             `json:"b"`
}

// Compare compares two runs.
func Compare(a, b *Result, oa, ob *Outcomes, match Match) *Diff {
	d := &Diff{A: a, B: b, Match: match, Changes: []Difference{}, Kinds: []KindCount{}}
	pair := func(i int, id string) *Outcome { return ob.all[id] }
	if match == MatchOrder {
		pair = func(i int, _ string) *Outcome {
			if i < len(ob.order) {
				return ob.all[ob.order[i]]
			}
			return nil
		}
	}
	found := map[string]bool{}
	for i, id := range oa.order {
		x, y := oa.all[id], pair(i, id)
		if y == nil {
			d.OnlyA++
			d.change(Difference{A: x, What: []string{"only in the first"}})
			continue
		}
		found[y.Request] = true
		if what := x.differs(y); len(what) > 0 {
			d.Differ++
			d.change(Difference{x, y, what})
		} else {
			d.Same++
		}
	}
	for _, id := range ob.order {
		if !found[id] {
			d.OnlyB++
			d.change(Difference{B: ob.all[id], What: []string{"only in the second"}})
		}
	}
	counts := map[statemachine.Kind]*KindCount{}
	side := func(gs []*Group, f func(*KindCount) *int64) {
		for _, g := range gs {
			if counts[g.ID] == nil {
				counts[g.ID] = &KindCount{ID: g.ID}
			}
			*f(counts[g.ID]) += g.Count
		}
	}
	side(a.Groups, func(k *KindCount) *int64 { return &k.A })
	side(b.Groups, func(k *KindCount) *int64 { return &k.B })
	for _, k := range counts {
		if k.A != k.B {
			d.Kinds = append(d.Kinds, *k)
		}
	}
	slices.SortFunc(d.Kinds, func(x, y KindCount) int { return cmp.Compare(x.ID, y.ID) })
	return d
}

func (d *Diff) change(x Difference) {
	if len(d.Changes) == maxResponses {
		d.More++
		return
	}
	d.Changes = append(d.Changes, x)
}

func (a *Outcome) differs(b *Outcome) (what []string) {
	say := func(name string, x, y any) {
		if x != y {
			what = append(what, fmt.Sprintf("%s %v → %v", name, x, y))
		}
	}
	say("state", a.State, b.State)
	say("code", dash(a.Code), dash(b.Code))
	say("tenant", dash(a.Tenant), dash(b.Tenant))
	say("prompt", a.Prompt, b.Prompt)
	say("output", a.Output, b.Output)
	say("events", a.Events, b.Events)
	say("denials", a.Denials, b.Denials)
	return what
}

// Exit is the exit code: 1 where the two differ, and the worse of both where one of
// them was not whole.
func (d *Diff) Exit() Severity {
	s := Clean
	if d.Differ+d.OnlyA+d.OnlyB > 0 || len(d.Kinds) > 0 {
		s = Violated
	}
	for _, r := range []*Result{d.A, d.B} {
		if r.Verdict.Exit > Violated {
			s = max(s, r.Verdict.Exit)
		}
	}
	return s
}

// WriteText prints the comparison.
func (d *Diff) WriteText(w io.Writer, limit int) error {
	p := &printer{Writer: bufio.NewWriter(w), limit: limit}
	p.line("first   %s", d.A.Verdict.Line)
	p.line("second  %s", d.B.Verdict.Line)
	p.line("")
	p.line("%d requests are the same, %d differ, %d are only in the first, %d only in the second (matched by %s)", d.Same, d.Differ, d.OnlyA, d.OnlyB, d.Match)
	var rows [][]string
	for _, k := range d.Kinds {
		rows = append(rows, []string{string(k.ID), fmt.Sprintf("%d → %d", k.A, k.B)})
	}
	p.table(rows)
	rows = nil
	for i, c := range d.Changes {
		if i == limit {
			break
		}
		id := cmp.Or(c.A, c.B).Request
		if c.A != nil && c.B != nil && c.B.Request != id {
			id += " | " + c.B.Request
		}
		rows = append(rows, []string{id, strings.Join(c.What, "; ")})
	}
	p.table(rows)
	p.more(int64(max(len(d.Changes)-limit, 0)) + d.More)
	return p.Flush()
}
