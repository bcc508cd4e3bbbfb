package preflight

import (
	"cmp"
	"slices"
)

// Level is how bad a finding is.
type Level string

const (
	Green   Level = "GREEN"
	Unknown Level = "UNKNOWN" // not told, so not judged
	Amber   Level = "AMBER"   // it works, and somebody should look
	Red     Level = "RED"     // it must not serve
)

var rank = map[Level]int{Green: 0, Unknown: 1, Amber: 2, Red: 3}

// Finding is one judgement.
type Finding struct {
	Level  Level  `json:"level"`
	Check  string `json:"check"`          // which rule, or an advisory's id
	Node   string `json:"node,omitempty"` // whom it is about; empty: the fleet
	Text   string `json:"text"`
	Fix    string `json:"fix,omitempty"`
	Source string `json:"source,omitempty"` // of an advisory
}

// Report is what was found.
type Report struct {
	Nodes    []Facts   `json:"nodes"`
	Findings []Finding `json:"findings"`
}

// Worst is the report's verdict. A report without a finding says nothing.
func (r *Report) Worst() Level {
	if len(r.Findings) == 0 {
		return Unknown
	}
	return slices.MaxFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(rank[a.Level], rank[b.Level]) }).Level
}

// Of lists the findings of a level.
func (r *Report) Of(l Level) []Finding {
	var out []Finding
	for _, f := range r.Findings {
		if f.Level == l {
			out = append(out, f)
		}
	}
	return out
}

// Add takes over another report.
func (r *Report) Add(o Report) {
	r.Nodes = append(r.Nodes, o.Nodes...)
	r.Findings = append(r.Findings, o.Findings...)
}

// Sort puts the worst first, and keeps the order among equals.
func (r *Report) Sort() {
	slices.SortStableFunc(r.Findings, func(a, b Finding) int { return cmp.Compare(rank[b.Level], rank[a.Level]) })
}
