package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"time"
)

// Report is a whole run. Its JSON form is stable: fields are added, never
// changed.
type Report struct {
	Tool     string    `json:"tool"`
	Build    Build     `json:"build"`
	Started  time.Time `json:"started"`
	Machine  Machine   `json:"machine"`
	Settings Settings  `json:"settings"`
	Cases    []*Case   `json:"cases,omitempty"`
	Trace    *Trace    `json:"trace,omitempty"`
	Growth   *Growth   `json:"growth,omitempty"`
}

// Settings are the options that a figure depends on, as they were in force.
type Settings struct {
	Rounds      int     `json:"rounds"`
	Seconds     float64 `json:"seconds_per_measurement"`
	Fsync       []bool  `json:"fsync"`
	Concurrency int     `json:"concurrency,omitempty"` // 0: each case's own
	Rate        float64 `json:"rate,omitempty"`        // 0: half of the closed loop's
	Replicas    []int   `json:"replicas"`
	Partitions  int     `json:"partitions"`
	Seed        uint64  `json:"seed"`
}

// Case is one comparison.
type Case struct {
	Bench   string            `json:"bench"`
	Name    string            `json:"name"`
	Params  map[string]string `json:"params,omitempty"`
	Product *Figure           `json:"product"`
	Ceiling *Figure           `json:"ceiling"`
	// Ratio is product to ceiling, taken within each round.
	Ratio Spread `json:"ratio"`
	// Added is product less ceiling, for cases that measure latency: the median
	// of the rounds' differences. Nil otherwise.
	Added *Latency `json:"added,omitempty"`
	Notes []string `json:"notes,omitempty"`
}

// Figure is one side of a case.
type Figure struct {
	Name    string             `json:"name"`
	Unit    string             `json:"unit"`
	Value   Spread             `json:"value"`
	Latency *Latency           `json:"latency,omitempty"`       // medians of the rounds' quantiles
	CPU     map[string]float64 `json:"cpu_us_per_op,omitempty"` // by process; median of the rounds
	PeakMB  map[string]float64 `json:"peak_rss_mb,omitempty"`   // by process; of the last round
	Rounds  []Sample           `json:"rounds"`
}

// Sample is one measurement.
type Sample struct {
	Value   float64            `json:"value"`
	Count   int                `json:"count"` // operations in it
	Seconds float64            `json:"seconds"`
	Latency *Latency           `json:"latency,omitempty"`
	CPU     map[string]float64 `json:"cpu_us_per_op,omitempty"`
	PeakMB  map[string]float64 `json:"peak_rss_mb,omitempty"`
}

// newCase is a case without samples. unit is that of both sides.
func newCase(bench, name string, params map[string]string, product, ceiling, unit string, notes ...string) *Case {
	return &Case{
		Bench: bench, Name: name, Params: maps.Clone(params), Notes: notes,
		Product: &Figure{Name: product, Unit: unit}, Ceiling: &Figure{Name: ceiling, Unit: unit},
	}
}

// add keeps one round.
func (c *Case) add(product, ceiling Sample) {
	c.Product.Rounds = append(c.Product.Rounds, product)
	c.Ceiling.Rounds = append(c.Ceiling.Rounds, ceiling)
}

// latency says whether the case's unit is one of time: less is better.
func (c *Case) latency() bool { return c.Product.Unit == unitMillis || c.Product.Unit == unitMicros }

// Units of cases that measure latency.
const (
	unitMillis = "ms"
	unitMicros = "µs"
)

// finish computes what the rounds came to.
func (c *Case) finish() error {
	p, q := c.Product.Rounds, c.Ceiling.Rounds
	if len(p) == 0 || len(p) != len(q) {
		return fmt.Errorf("%s %s: %d rounds of one side, %d of the other", c.Bench, c.Name, len(p), len(q))
	}
	c.Product.finish()
	c.Ceiling.finish()
	var ratios []float64
	var added []*Latency
	for i := range p {
		if q[i].Value <= 0 || p[i].Value <= 0 {
			return fmt.Errorf("%s %s, round %d: %v against %v: one of them did nothing", c.Bench, c.Name, i+1, p[i].Value, q[i].Value)
		}
		ratios = append(ratios, p[i].Value/q[i].Value)
		if a, b := p[i].Latency, q[i].Latency; c.latency() && a != nil && b != nil {
			added = append(added, &Latency{N: a.N, P50: a.P50 - b.P50, P99: a.P99 - b.P99, P999: a.P999 - b.P999, Max: a.Max - b.Max})
		}
	}
	c.Ratio, c.Added = spread(ratios), latencies(added)
	return nil
}

func (f *Figure) finish() {
	f.Value = spread(each(f.Rounds, func(s *Sample) (float64, bool) { return s.Value, true }))
	var all []*Latency
	for i := range f.Rounds {
		all = append(all, f.Rounds[i].Latency)
	}
	f.Latency = latencies(all)
	last := f.Rounds[len(f.Rounds)-1]
	f.PeakMB = last.PeakMB
	for name := range last.CPU {
		if f.CPU == nil {
			f.CPU = map[string]float64{}
		}
		f.CPU[name] = median(each(f.Rounds, func(s *Sample) (float64, bool) { v, ok := s.CPU[name]; return v, ok }))
	}
}

// WriteJSON writes the report for programs.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}
