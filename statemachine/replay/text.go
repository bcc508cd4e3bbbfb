package replay

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText prints the result for people: the same facts as its JSON, in the order
// of docs/forensics.md. limit bounds each list; what is left out is counted, and
// stands in the JSON.
func (res *Result) WriteText(w io.Writer, limit int) error {
	p := &printer{Writer: bufio.NewWriter(w), limit: limit}
	p.inputs(res)
	p.span(res)
	p.line("")
	p.line("%s", res.Verdict.Line)
	p.groups(res.Groups)
	p.exposure(res)
	p.whatIf(res.WhatIf)
	p.state(res.At)
	p.list("integrity", res.Integrity)
	p.list("not claimed", res.Limits)
	return p.Flush()
}

type printer struct {
	*bufio.Writer
	limit int
}

func (p *printer) line(format string, args ...any) {
	fmt.Fprintf(p, "%s\n", strings.TrimRight(Printable(fmt.Sprintf(format, args...)), " "))
}

// Printable keeps what an input brings from steering a terminal.
func Printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\t' || r >= 0x7f && r < 0xa0 || r == 0x2028 || r == 0x2029 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, s)
}

// table prints rows under a title.
func (p *printer) table(rows [][]string) {
	t := tabwriter.NewWriter(p, 2, 0, 2, ' ', 0)
	for _, r := range rows {
		for i, c := range r {
			r[i] = strings.ReplaceAll(Printable(c), "\t", " ")
		}
		fmt.Fprintf(t, "  %s\n", strings.Join(r, "\t"))
	}
	_ = t.Flush() // the buffer below keeps the error
}

func (p *printer) more(n int64) {
	if n > 0 {
		p.line("  … and %d more (--format json has them)", n)
	}
}

// unlisted counts what is beyond the bounds of a result, in JSON as well.
func (p *printer) unlisted(n int64) {
	if n > 0 {
		p.line("  … and %d more that are only counted", n)
	}
}

func (p *printer) inputs(res *Result) {
	p.line("inputs")
	var rows [][]string
	for _, in := range res.Inputs {
		form := string(in.Format)
		if in.Compression != "" {
			form += ", " + in.Compression
		}
		sum := in.Digest
		if in.SHA256 != "" {
			sum = "sha256:" + in.SHA256
		}
		rows = append(rows, []string{in.Name, form, fmt.Sprintf("%d bytes", in.Bytes), fmt.Sprintf("%d events", in.Events), sum})
	}
	p.table(rows)
	for _, in := range res.Inputs {
		for i, x := range in.Problems {
			if i == p.limit {
				p.more(int64(len(in.Problems)-i) + in.More)
				break
			}
			p.line("  %s: %s: want %s", in.Name, Where{x.Line, x.Offset}, x.Want)
		}
		for _, n := range in.Notes {
			p.line("  %s: note: %s", in.Name, n)
		}
	}
}

// Stamp prints a time.
func Stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05.000000Z")
}

func (p *printer) span(res *Result) {
	r := &res.Range
	p.line("")
	p.line("range")
	rows := [][]string{
		{"time", Stamp(r.First) + " to " + Stamp(r.Last)},
		{"requests", fmt.Sprintf("%d, %d of them open", r.Requests, r.Open)},
		{"events", fmt.Sprintf("%d, of %s", r.Events, types(r.Types))},
		{"gaps", fmt.Sprintf("%d messages are marked as missing", r.Gaps)},
		{"clock skew", fmt.Sprintf("%v at most, the bound is %v", time.Duration(r.SkewUS)*time.Microsecond, time.Duration(r.SkewBound)*time.Microsecond)},
		{"coverage", string(res.Coverage)},
	}
	if r.LastSeq > 0 {
		rows = slices.Insert(rows, 1, []string{"sequences", fmt.Sprintf("%d to %d", r.FirstSeq, r.LastSeq)})
	}
	if r.Unjudged > 0 {
		rows = append(rows, []string{"not judged", fmt.Sprintf("%d events of requests that began before the input", r.Unjudged)})
	}
	p.table(rows)
	for i, c := range res.Configs {
		if i == p.limit {
			p.more(int64(len(res.Configs) - i))
			break
		}
		p.line("  configuration %s: context %d, longest input %d, largest decode pool %d tokens; %d requests from %s to %s, %d of them affected",
			dash(c.Policy), c.ContextTokens, c.MaxInputTokens, c.MaxDecode, c.Requests, Stamp(c.First), Stamp(c.Last), c.Affected)
		for _, w := range c.Workers {
			p.line("    %s: %s, %s %s, longest input %d, pool %d tokens in pages of %d, layout %s", w.Worker, w.Role, w.Engine, w.Version, w.MaxInputTokens, w.PoolTokens, w.PageTokens, w.Layout)
		}
	}
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func types(m map[string]int64) string {
	names := make([]string, 0, len(m))
	for t := range m {
		names = append(names, t)
	}
	slices.Sort(names)
	for i, t := range names {
		names[i] = fmt.Sprintf("%s (%d)", t, m[t])
	}
	if len(names) == 0 {
		return "no type"
	}
	return strings.Join(names, ", ")
}

func (p *printer) groups(all []*Group) {
	for i, g := range all {
		if i == 0 {
			p.line("")
			p.line("violations")
		}
		p.line("  %-3s %s: %s", g.Rule, g.ID, g.Title)
		of := fmt.Sprintf("%d times", g.Count)
		if g.Version != "" {
			of += ", under " + g.Version
		}
		if g.Policy != "" {
			of += ", policy " + g.Policy
		}
		p.line("      %s", of)
		p.evidence("first", &g.First)
		if g.Count > 1 {
			p.evidence("last", &g.Last)
		}
	}
}

func (p *printer) evidence(name string, e *Evidence) {
	at := e.Subject
	if e.Tenant != "" {
		at += " (" + e.Tenant + ")"
	}
	if e.Position != "" {
		at += " at " + e.Position
	}
	if e.Input != "" && e.Line > 0 {
		at += fmt.Sprintf(", %s:%d", e.Input, e.Line)
	}
	if !e.Time.IsZero() {
		at += ", " + Stamp(e.Time)
	}
	p.line("      %-5s %s: %s", name, at, e.What)
	if e.Expected != "" || e.Actual != "" {
		p.line("            expected %s; got %s", dash(e.Expected), dash(e.Actual))
	}
}

func (p *printer) exposure(res *Result) {
	x := &res.Exposure
	if x.Rings == (Rings{}) {
		return
	}
	p.line("")
	p.line("blast radius")
	p.table([][]string{
		{"confirmed", fmt.Sprintf("%d responses were made from another request's pages (%d of them from another tenant's)", x.Rings.Confirmed, x.CrossTenant)},
		{"possible", fmt.Sprintf("%d more may have been", x.Rings.Possible)},
		{"population", fmt.Sprintf("%d responses of the same decode workers in that time", x.Rings.Population)},
		{"time", Stamp(x.First) + " to " + Stamp(x.Last)},
		{"prompts", fmt.Sprintf("%d to %d tokens", x.MinPrompt, x.MaxPrompt)},
		{"tenants exposed", fmt.Sprintf("%d: %s", len(x.TenantsExposed), dash(strings.Join(x.TenantsExposed, ", ")))},
		{"tenants receiving", fmt.Sprintf("%d: %s", len(x.TenantsReceiving), dash(strings.Join(x.TenantsReceiving, ", ")))},
	})
	rows := [][]string{{"RESPONSE", "TENANT", "RING", "WORKER", "TIME", "POSITION", "PROMPT", "OUTPUT", "FOREIGN PAGES", "OF REQUESTS", "WHY"}}
	for i, r := range x.Responses {
		if i == p.limit {
			break
		}
		rows = append(rows, []string{r.Request, dash(r.Tenant), r.Ring, dash(r.Worker), Stamp(r.Time), dash(r.Position), fmt.Sprint(r.PromptTokens), fmt.Sprint(r.OutputTokens), fmt.Sprint(r.Pages), fmt.Sprint(r.Owners), strings.Join(r.Why, " ")})
	}
	p.table(rows)
	p.more(int64(max(len(x.Responses)-p.limit, 0)))
	p.unlisted(x.ResponsesMore)
	if len(x.Edges) == 0 {
		return
	}
	p.line("exposure edges: owner → reader")
	rows = [][]string{}
	for i, e := range x.Edges {
		if i == p.limit {
			break
		}
		rows = append(rows, []string{e.OwnerTenant, e.Owner, "→ " + e.ReaderTenant, e.Reader, e.Worker, fmt.Sprintf("%d pages from %d", e.Pages, e.FirstPage), fmt.Sprintf("generation %d, not %d", e.GenRead, e.GenExpected), e.Position})
	}
	p.table(rows)
	p.more(int64(max(len(x.Edges)-p.limit, 0)))
	p.unlisted(x.EdgesMore)
}

func (p *printer) whatIf(w *WhatIf) {
	if w == nil {
		return
	}
	p.line("")
	p.line("what if: policy %s", dash(w.Policy.Name))
	p.table([][]string{
		{"unchanged", fmt.Sprint(w.Unchanged)},
		{"flipped", fmt.Sprintf("%d: %d to rejected, %d to admitted, %d to an expired lease", w.Flipped, w.ToRejected, w.ToAdmitted, w.ToExpired)},
		{"reason changed", fmt.Sprint(w.ReasonChanged)},
		{"not replayable", fmt.Sprint(w.NotReplayable)},
	})
	for _, m := range w.Why {
		p.line("  not replayable: %d lack their %s", m.Count, m.Fact)
	}
	var rows [][]string
	for i, c := range w.Changes {
		if i == p.limit {
			break
		}
		rows = append(rows, []string{c.Request, dash(c.Tenant), dash(c.Position), fmt.Sprintf("%d tokens", c.PromptTokens), c.Recorded + " → " + c.WhatIf, c.Message})
	}
	p.table(rows)
	p.more(int64(max(len(w.Changes)-p.limit, 0)))
	p.unlisted(w.More)
}

func (p *printer) state(s *State) {
	if s == nil {
		return
	}
	at := fmt.Sprintf("sequence %d", s.Point.Seq)
	if s.Point.Seq == 0 {
		at = Stamp(s.Point.Time)
	}
	p.line("")
	p.line("state at %s", at)
	names := make([]string, 0, len(s.States))
	for n := range s.States {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		p.line("  %d %s", s.States[n], n)
	}
	rows := [][]string{{"OPEN", "TENANT", "STATE", "POSITION", "PROMPT", "SINCE", "PAGES"}}
	for i, r := range s.Requests {
		if i == p.limit {
			break
		}
		rows = append(rows, []string{r.Request, dash(r.Tenant), string(r.State), dash(r.Position), fmt.Sprint(r.PromptTokens), Stamp(r.Since), fmt.Sprint(r.HeldPages)})
	}
	p.table(rows)
	p.more(int64(max(len(s.Requests)-p.limit, 0)))
	rows = [][]string{{"PAGES OF", "FROM", "COUNT", "GENERATION", "KV OF", "TENANT", "HELD"}}
	for i, x := range s.Pages {
		if i == p.limit {
			break
		}
		what := x.Request
		if what == "" {
			what = "(scrubbed)"
		}
		rows = append(rows, []string{x.Worker, fmt.Sprint(x.First), fmt.Sprint(x.Count), fmt.Sprint(x.Generation), what, dash(x.Tenant), fmt.Sprint(x.Held)})
	}
	p.table(rows)
	p.more(int64(max(len(s.Pages)-p.limit, 0)))
}

func (p *printer) list(title string, all []string) {
	if len(all) == 0 {
		return
	}
	p.line("")
	p.line("%s", title)
	for _, s := range all {
		p.line("  - %s", s)
	}
}
