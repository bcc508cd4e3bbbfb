package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

func (t *Trace) table(b *strings.Builder) {
	fmt.Fprintf(b, "\nTRACE %s\n\n%s\n%s\n", t.Name, t.settings(), t.outcome())
	for _, code := range slices.Sorted(maps.Keys(t.Rejected)) {
		fmt.Fprintf(b, "rejected with %s: %d\n", code, t.Rejected[code])
	}
	b.WriteByte('\n')
	w := tabwriter.NewWriter(b, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\tp50\tp99\tp99.9\tmax\t\n")
	for _, l := range t.latencies() {
		if l.l != nil {
			fmt.Fprintf(w, "%s\t%s\t%s\t\n", l.name, quantiles(l.l), us(l.l.Max))
		}
	}
	w.Flush() // writes to memory
	fmt.Fprintf(b, "\n%s\n", t.most())
}

// settings are what the replay ran against.
func (t *Trace) settings() string {
	speed := ""
	if t.Engine == "fake" {
		speed = fmt.Sprintf(" (prefill %s tokens/s a worker, decode %s tokens/s a request; 0: no limit)", num(t.PrefillSpeed), num(t.DecodeSpeed))
	}
	return fmt.Sprintf("speed %g, fsync %s, engine %s%s, %d prefill workers of %s tokens, %d decode workers of %s tokens",
		t.Speed, onOff(t.Fsync), t.Engine, speed, t.Prefill, num(float64(t.PrefillTokens)), t.Decode, num(float64(t.DecodeTokens)))
}

func (t *Trace) outcome() string {
	return fmt.Sprintf("%d requests, %d completed in %.1f s: %s requests/s, %s prompt tokens, %s output tokens, %s output tokens/s",
		t.Requests, t.Completed, t.Seconds, num(t.RequestRate), num(float64(t.PromptTokens)), num(float64(t.OutputTokens)), num(t.TokenRate))
}

// most is the most of each kind that was seen at once.
func (t *Trace) most() string {
	var most TraceSample
	for _, s := range t.Samples {
		most.InFlight, most.Waiting = max(most.InFlight, s.InFlight), max(most.Waiting, s.Waiting)
		most.Prefill, most.Decode = max(most.Prefill, s.Prefill), max(most.Decode, s.Decode)
	}
	return fmt.Sprintf("at most %d in flight, %d waiting for prefill; pools at most %.0f %% (prefill) and %.0f %% (decode) used",
		most.InFlight, most.Waiting, 100*most.Prefill, 100*most.Decode)
}

type namedLatency struct {
	name string
	l    *Latency
}

func (t *Trace) latencies() []namedLatency {
	return []namedLatency{
		{"time to first token", t.TTFT}, {"each further token", t.Token}, {"whole request", t.Whole},
		{"age in the prefill queue", t.PrefillQueue}, {"age in the decode queue", t.DecodeQueue}, {"sent late by the load", t.Late},
	}
}
