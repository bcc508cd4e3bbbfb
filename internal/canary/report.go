package canary

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Outcome is what became of a probe.
type Outcome string

const (
	Pass        Outcome = "PASS"        // the right answer
	Refused     Outcome = "REFUSED"     // as it must be: 400, and no engine saw it
	Wrong       Outcome = "WRONG"       // another answer, or an answer where a refusal was due
	Foreign     Outcome = "FOREIGN"     // an answer with another probe's sentinel
	Unreachable Outcome = "UNREACHABLE" // no verdict
)

// Result is one probe's. It holds numbers, names and ids, and no text.
type Result struct {
	Tenant    string        `json:"tenant"`
	Tokens    int           `json:"prompt_tokens"`
	MaxTokens int           `json:"max_tokens"`
	Why       string        `json:"why"`
	Outcome   Outcome       `json:"outcome"`
	Detail    string        `json:"detail,omitempty"`
	Status    int           `json:"http_status,omitempty"`
	RequestID string        `json:"request_id,omitempty"`
	Receipt   string        `json:"receipt,omitempty"`
	Took      time.Duration `json:"took_ns"`
}

// Report is one run over one model.
type Report struct {
	Model       string        `json:"model"`
	Verdict     string        `json:"verdict"`
	Results     []Result      `json:"results"`
	Quarantined bool          `json:"quarantined"`        // by this run
	Position    string        `json:"position,omitempty"` // of the run's event in the log
	Took        time.Duration `json:"took_ns"`
}

func (r *Report) count(o Outcome) (n int) {
	for i := range r.Results {
		if r.Results[i].Outcome == o {
			n++
		}
	}
	return n
}

// judge sets the verdict.
func (r *Report) judge() {
	switch {
	case r.count(Foreign) > 0:
		r.Verdict = events.CanaryForeign
	case r.count(Wrong) > 0:
		r.Verdict = events.CanaryWrong
	case r.count(Unreachable) > 0 || len(r.Results) == 0:
		r.Verdict = events.CanaryInconclusive
	default:
		r.Verdict = events.CanaryClean
	}
}

// event is what is recorded.
func (r *Report) event() *events.Canary {
	d := &events.Canary{
		Model: r.Model, Verdict: r.Verdict, Passed: r.count(Pass), Refused: r.count(Refused), Wrong: r.count(Wrong),
		Foreign: r.count(Foreign), Unreachable: r.count(Unreachable), DurationUS: r.Took.Microseconds(), Evidence: r.evidence(),
	}
	var lengths []string
	for i := range r.Results {
		l := fmt.Sprintf("%d+%d", r.Results[i].Tokens, r.Results[i].MaxTokens)
		if !slices.Contains(lengths, l) && len(lengths) < events.MaxLengths {
			lengths = append(lengths, l)
		}
	}
	d.Lengths = strings.Join(lengths, " ")
	return d
}

// evidence names the answers that were foreign, and then those that were wrong.
func (r *Report) evidence() string {
	var items []string
	for _, o := range []Outcome{Foreign, Wrong} {
		for i := range r.Results {
			x := &r.Results[i]
			a := answer{requestID: x.RequestID, receipt: x.Receipt}
			if e := a.evidence(); x.Outcome == o && e != "" && len(items) < events.MaxEvidence {
				items = append(items, e)
			}
		}
	}
	return strings.Join(items, " ")
}

// Print writes a line a probe, and the verdict.
func (r *Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "RESULT\tTENANT\tPROMPT\tBESIDE\tTOOK\tREQUEST\tDETAIL\n")
	for _, x := range r.Results {
		id := x.RequestID
		if id == "" {
			id = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%v\t%s\t%s\n", x.Outcome, x.Tenant, x.Tokens, x.Why, x.Took.Round(time.Millisecond), id, x.Detail)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s: %s: %d passed, %d refused as they must, %d wrong, %d foreign, %d without an answer\n",
		r.Model, r.Verdict, r.count(Pass), r.count(Refused), r.count(Wrong), r.count(Foreign), r.count(Unreachable))
	if err == nil && r.Quarantined {
		_, err = fmt.Fprintf(w, "%s is quarantined: new requests get 503. Look at the requests above, then: pdgate model restore %s --reason …\n", r.Model, r.Model)
	}
	return err
}
