package audit

import (
	"fmt"
	"io"
	"strings"
)

// Severity of a problem is the exit code that it asks for.
type Severity int

const (
	Noted      Severity = 0 // good to know
	Finding    Severity = 1 // verified, but not as the policy or the caller wants it
	Incomplete Severity = 3 // something is missing, or could not be judged
	Broken     Severity = 4 // the content is not what the log signed
)

func (s Severity) String() string {
	switch s {
	case Noted:
		return "note"
	case Finding:
		return "finding"
	case Incomplete:
		return "incomplete"
	}
	return "broken"
}

// MarshalText makes a severity a word in JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Problem is one thing that does not hold.
type Problem struct {
	Severity Severity `json:"severity"`
	Where    string   `json:"where"` // file, and line where there is one
	What     string   `json:"what"`
}

// Fact is something that was read and holds.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// maxProblems bounds a report; the rest is counted.
const maxProblems = 100

// Report is the outcome of a verification.
type Report struct {
	Subject   string    `json:"subject"`
	Verdict   string    `json:"verdict"`
	Code      Severity  `json:"-"`
	Exit      int       `json:"exit"`
	Facts     []Fact    `json:"facts"`
	Problems  []Problem `json:"problems"`
	Dropped   int       `json:"problems_dropped,omitempty"` // beyond the first hundred
	Proven    []string  `json:"proven"`
	NotProven []string  `json:"not_proven"`
}

// NewReport is a report without problems.
func NewReport(subject string) *Report {
	return &Report{Subject: subject, Facts: []Fact{}, Problems: []Problem{}, Proven: []string{}, NotProven: []string{}}
}

// Add notes a problem.
func (r *Report) Add(s Severity, where, format string, args ...any) {
	r.Code = max(r.Code, s)
	if len(r.Problems) == maxProblems {
		r.Dropped++
		return
	}
	r.Problems = append(r.Problems, Problem{s, cut(where), cut(fmt.Sprintf(format, args...))})
}

// cut bounds what a bundle can put into a report.
func cut(s string) string {
	if len(s) > 400 {
		return strings.ToValidUTF8(s[:400], "") + "…"
	}
	return s
}

func (r *Report) fact(name, format string, args ...any) {
	r.Facts = append(r.Facts, Fact{name, cut(fmt.Sprintf(format, args...))})
}

// Close sets verdict and exit code. With strict, notes are findings.
func (r *Report) Close(strict bool) {
	if strict && r.Code == Noted && len(r.Problems) > 0 {
		r.Code = Finding
	}
	r.Exit = int(r.Code)
	r.Verdict = map[Severity]string{Noted: "verified", Finding: "verified, with findings",
		Incomplete: "incomplete or inconclusive", Broken: "not verified"}[r.Code]
	if r.Code == Broken {
		r.Proven = []string{}
	}
}

// WriteTo writes the report for people.
func (r *Report) WriteTo(w io.Writer) (int64, error) {
	var b strings.Builder
	for _, f := range r.Facts {
		fmt.Fprintf(&b, "%-18s %s\n", f.Name, printable(f.Value))
	}
	fmt.Fprintf(&b, "\n%s: %s\n", strings.ToUpper(r.Verdict), printable(r.Subject))
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "  %-10s %s: %s\n", p.Severity, printable(p.Where), printable(p.What))
	}
	if r.Dropped > 0 {
		fmt.Fprintf(&b, "  … and %d more\n", r.Dropped)
	}
	list := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintf(&b, "\n%s\n", title)
		for _, l := range lines {
			fmt.Fprintf(&b, "  - %s\n", l)
		}
	}
	list("Proven:", r.Proven)
	list("Not proven:", r.NotProven)
	n, err := io.WriteString(w, b.String())
	return int64(n), err
}

// printable keeps what a bundle brings from steering a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
