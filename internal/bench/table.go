package bench

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// WriteTable writes the report for people.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	r.head(&b)
	last := ""
	for _, c := range r.Cases {
		if c.Bench != last {
			fmt.Fprintf(&b, "\n%s\n", strings.ToUpper(c.Bench))
			last = c.Bench
		}
		c.table(&b)
	}
	if r.Growth != nil {
		r.Growth.table(&b)
	}
	if r.Trace != nil {
		r.Trace.table(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// what was measured, and when.
func (r *Report) what() string {
	dirty := ""
	if r.Build.Modified {
		dirty = ", with changes"
	}
	return fmt.Sprintf("pdgate %s (commit %s%s), %s, %s", r.Build.Version, cmp.Or(r.Build.Commit, "unknown"), dirty, r.Build.Go, r.Started.Format("2006-01-02 15:04 MST"))
}

func (m *Machine) String() string {
	return fmt.Sprintf("%s, %d CPUs (GOMAXPROCS %d), %d MB, %s %s", cmp.Or(m.CPU, "unknown processor"), m.CPUs, m.GOMAXPROCS, m.MemoryMB, m.OS, m.Kernel)
}

func (r *Report) head(b *strings.Builder) {
	m, s := &r.Machine, &r.Settings
	fmt.Fprintf(b, "%s\n", r.what())
	fmt.Fprintf(b, "machine   %s\n", m)
	fmt.Fprintf(b, "load      %.2f before, %.2f after (1 minute)\n", m.LoadBefore, m.LoadAfter)
	if m.Fsync != nil {
		fmt.Fprintf(b, "disk      %s; write of 4 KiB with fsync: p50 %s, p99 %s\n", cmp.Or(m.FileSystem, "unknown file system"), us(m.Fsync.P50), us(m.Fsync.P99))
	}
	if len(r.Cases) > 0 || r.Growth != nil {
		fmt.Fprintf(b, "settings  %d rounds of %gs, %d partitions, seed %d\n", s.Rounds, s.Seconds, s.Partitions, s.Seed)
	}
}

func (c *Case) title() string {
	var p []string
	for _, k := range slices.Sorted(maps.Keys(c.Params)) {
		p = append(p, k+"="+c.Params[k])
	}
	if len(p) == 0 {
		return c.Name
	}
	return c.Name + "  [" + strings.Join(p, ", ") + "]"
}

func (c *Case) table(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s\n", c.title())
	t := tabwriter.NewWriter(b, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\tmedian\tlow\thigh\t\tp50\tp99\tp99.9\tCPU µs/op\t  \n")
	for _, f := range []*Figure{c.Product, c.Ceiling} {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", f.Name, num(f.Value.Median), num(f.Value.Low), num(f.Value.High), f.Unit, quantiles(f.Latency), cpu(f.CPU))
	}
	t.Flush() // writes to memory
	fmt.Fprintf(b, "  ratio %s (%s to %s)", num(c.Ratio.Median), num(c.Ratio.Low), num(c.Ratio.High))
	if a := c.Added; a != nil {
		fmt.Fprintf(b, ", added: p50 %s, p99 %s", us(a.P50), us(a.P99))
	}
	b.WriteByte('\n')
	for _, f := range []*Figure{c.Product, c.Ceiling} {
		if len(f.CPU) > 1 {
			fmt.Fprintf(b, "  CPU µs/op of %s: %s\n", f.Name, byName(f.CPU))
		}
	}
	if len(c.Product.PeakMB) > 0 {
		fmt.Fprintf(b, "  peak memory, MB: %s\n", byName(c.Product.PeakMB))
	}
	for _, n := range c.Notes {
		fmt.Fprintf(b, "  %s\n", n)
	}
}

func quantiles(l *Latency) string {
	if l == nil {
		return "\t\t"
	}
	return us(l.P50) + "\t" + us(l.P99) + "\t" + us(l.P999)
}

// cpu is the sum over processes.
func cpu(m map[string]float64) string {
	if len(m) == 0 {
		return ""
	}
	sum := 0.0
	for _, v := range m {
		sum += v
	}
	return num(sum)
}

func byName(m map[string]float64) string {
	var s []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		s = append(s, k+" "+num(m[k]))
	}
	return strings.Join(s, ", ")
}

// us is a duration in microseconds, in the unit that reads best.
func us(v float64) string {
	a := v
	if a < 0 {
		a = -a
	}
	switch {
	case a >= 1e6:
		return num(v/1e6) + "s"
	case a >= 1e3:
		return num(v/1e3) + "ms"
	default:
		return num(v) + "µs"
	}
}

// num has three digits that count, and thousands set apart.
func num(v float64) string {
	a := v
	if a < 0 {
		a = -a
	}
	switch {
	case a == 0:
		return "0"
	case a < .1:
		return strconv.FormatFloat(v, 'g', 2, 64)
	case a < 10:
		return strconv.FormatFloat(v, 'f', 2, 64)
	case a < 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	s := strconv.FormatFloat(v, 'f', 0, 64)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
