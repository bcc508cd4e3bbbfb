package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A document holds the tables of each bench between two lines of its own; what
// stands outside of them is its author's.
const (
	markBegin = "<!-- bench %s -->\n"
	markEnd   = "<!-- end of bench %s -->\n"
)

// Markdown returns doc with this report's tables in it: in the place of those of
// an earlier run, and at the end where there are none. Tables of benches that
// this run did not measure stay as they are.
func (r *Report) Markdown(doc string) (string, error) {
	for _, s := range r.sections() {
		begin, end := fmt.Sprintf(markBegin, s.name), fmt.Sprintf(markEnd, s.name)
		text := begin + "\n" + s.text + "\n" + end
		i := strings.Index(doc, begin)
		if i < 0 {
			if doc != "" {
				doc = strings.TrimRight(doc, "\n") + "\n\n"
			}
			doc += text
			continue
		}
		n := strings.Index(doc[i:], end)
		if n < 0 {
			return "", fmt.Errorf("markdown: the tables of bench %s begin and have no end: add the line %q", s.name, strings.TrimSpace(end))
		}
		doc = doc[:i] + text + doc[i+n+len(end):]
	}
	return doc, nil
}

// section is what one bench came to.
type section struct{ name, text string }

func (r *Report) sections() []section {
	var all []section
	var names []string
	cases := map[string][]*Case{}
	for _, c := range r.Cases {
		if !slices.Contains(names, c.Bench) {
			names = append(names, c.Bench)
		}
		cases[c.Bench] = append(cases[c.Bench], c)
	}
	for _, name := range names {
		var b strings.Builder
		r.measured(&b)
		markdownCases(&b, cases[name])
		all = append(all, section{name, b.String()})
	}
	if r.Growth != nil {
		var b strings.Builder
		r.measured(&b)
		r.Growth.markdown(&b)
		all = append(all, section{"growth", b.String()})
	}
	if r.Trace != nil {
		var b strings.Builder
		r.measured(&b)
		r.Trace.markdown(&b)
		all = append(all, section{"trace " + r.Trace.Name, b.String()})
	}
	return all
}

// measured says what was measured, where and how.
func (r *Report) measured(b *strings.Builder) {
	fmt.Fprintf(b, "Measured: %s; %s; load %.2f before and %.2f after", r.what(), &r.Machine, r.Machine.LoadBefore, r.Machine.LoadAfter)
	if f := r.Machine.Fsync; f != nil {
		fmt.Fprintf(b, "; 4 KiB with fsync on %s p50 %s, p99 %s", r.Machine.FileSystem, us(f.P50), us(f.P99))
	}
	if r.Trace == nil {
		fmt.Fprintf(b, "; %d rounds of %g s, %d partitions", r.Settings.Rounds, r.Settings.Seconds, r.Settings.Partitions)
	}
	b.WriteString(".\n\n")
}

// row writes one row of a table.
func row(b *strings.Builder, cells ...string) {
	for _, c := range cells {
		b.WriteString("| " + strings.ReplaceAll(c, "|", `\|`) + " ")
	}
	b.WriteString("|\n")
}

// rule writes the line below a table's head: the first column is text, the
// others are numbers.
func rule(b *strings.Builder, columns int) {
	b.WriteString("|---|" + strings.Repeat("--:|", columns-1) + "\n")
}

func markdownCases(b *strings.Builder, cases []*Case) {
	row(b, "case", "unit", "pdgate", "ceiling", "ratio", "p50", "p99", "p99.9", "CPU µs/op", "CPU µs/op of the ceiling")
	rule(b, 10)
	var notes []string
	for _, c := range cases {
		q := []string{"", "", ""}
		if l := c.Product.Latency; l != nil {
			q = []string{us(l.P50), us(l.P99), us(l.P999)}
		}
		row(b, c.title(), c.Product.Unit, among(c.Product.Value), among(c.Ceiling.Value), among(c.Ratio), q[0], q[1], q[2], cpu(c.Product.CPU), cpu(c.Ceiling.CPU))
		against := fmt.Sprintf("%s: %s against %s", c.Name, c.Product.Name, c.Ceiling.Name)
		for _, n := range append([]string{against}, c.Notes...) {
			if !slices.Contains(notes, n) {
				notes = append(notes, n)
			}
		}
	}
	b.WriteByte('\n')
	for _, n := range notes {
		fmt.Fprintf(b, "- %s\n", n)
	}
}

// among is a median, and the rounds that it is the median of.
func among(s Spread) string {
	if s.Low == s.High {
		return num(s.Median)
	}
	return fmt.Sprintf("%s (%s to %s)", num(s.Median), num(s.Low), num(s.High))
}

func (g *Growth) markdown(b *strings.Builder) {
	cells := []string{""}
	for i := range g.Points {
		cells = append(cells, g.Points[i].title())
	}
	row(b, cells...)
	rule(b, len(cells))
	for _, r := range growthRows() {
		cells = []string{strings.TrimSpace(r.name)}
		for i := range g.Points {
			cells = append(cells, r.cell(&g.Points[i]))
		}
		row(b, cells...)
	}
	fmt.Fprintf(b, "\n- %s\n- %s\n", g.ratio(), g.about())
}

func (t *Trace) markdown(b *strings.Builder) {
	row(b, t.Name, "p50", "p99", "p99.9", "max")
	rule(b, 5)
	for _, l := range t.latencies() {
		if l.l != nil {
			row(b, l.name, us(l.l.P50), us(l.l.P99), us(l.l.P999), us(l.l.Max))
		}
	}
	fmt.Fprintf(b, "\n- %s\n- %s\n", t.settings(), t.outcome())
	for _, code := range slices.Sorted(maps.Keys(t.Rejected)) {
		fmt.Fprintf(b, "- rejected with %s: %d\n", code, t.Rejected[code])
	}
	fmt.Fprintf(b, "- %s\n", t.most())
}
