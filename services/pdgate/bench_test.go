package main

import (
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/internal/bench"
)

func benchOptions(t *testing.T) bench.Options {
	t.Helper()
	return bench.Options{
		Version: "test", Dir: t.TempDir(), Rounds: 1, Duration: 100 * time.Millisecond, Fsync: []bool{true, false}, Concurrency: 2, Seed: 1,
		Stack: benchStack, Logger: slog.New(slog.DiscardHandler),
	}
}

// TestBenchGateway runs the smallest comparison of whole stacks with a proxy.
func TestBenchGateway(t *testing.T) {
	o := benchOptions(t)
	o.Fsync = []bool{false}
	r, err := bench.Run(t.Context(), o, "gateway")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Cases) != 3 {
		t.Errorf("%d cases", len(r.Cases))
	}
	for _, c := range r.Cases {
		if c.Ratio.Median <= 0 || c.Product.Value.Median <= 0 || c.Ceiling.Value.Median <= 0 || c.Product.Rounds[0].Count < 1 {
			t.Errorf("%s: %+v", c.Name, c)
		}
	}
	left, err := os.ReadDir(o.Dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the data directory: %v %v", left, err)
	}
}

// TestBenchTrace replays a trace of three requests, one of which is too long.
func TestBenchTrace(t *testing.T) {
	trace := `{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [7, 8]}
{"timestamp": 50, "input_length": 90000, "output_length": 5, "hash_ids": [9]}
{"timestamp": 100, "input_length": 30, "output_length": 0, "hash_ids": [10]}
`
	for _, engine := range []string{"fake", "ref"} {
		t.Run(engine, func(t *testing.T) {
			r, err := bench.RunTrace(t.Context(), benchOptions(t), bench.TraceOptions{
				Name: "three", Trace: strings.NewReader(trace), Engine: engine, Context: 4096, Concurrency: 2, Speed: 2, Speeds: bench.Speeds{Prefill: 50_000, Decode: 200},
			})
			if err != nil {
				t.Fatal(err)
			}
			x := r.Trace
			if x.Requests != 3 || x.Completed != 2 || x.Rejected["400 context_length_exceeded"] != 1 || x.PromptTokens != 730 || x.OutputTokens != 6 {
				t.Errorf("%+v", x)
			}
			if x.TTFT == nil || x.TTFT.N != 2 || x.PrefillQueue == nil || x.PrefillQueue.N != 2 || x.DecodeQueue == nil || x.DecodeQueue.N != 2 || x.Late == nil {
				t.Errorf("latencies: %+v", x)
			}
			if len(x.Samples) < 2 || len(x.Arrivals) != 2 {
				t.Errorf("%d samples, %d arrivals", len(x.Samples), len(x.Arrivals))
			}
			used := slices.ContainsFunc(x.Samples, func(s bench.TraceSample) bool { return s.Prefill > 0 || s.Decode > 0 })
			if engine == "fake" && !used {
				t.Errorf("no sample shows a page in use: %+v", x.Samples)
			}
		})
	}
	for trace, want := range map[string]string{
		"{\"timestamp\": 0}\n": "line 1", "\n\n": "no line of it is a request", "TIMESTAMP,ContextTokens,GeneratedTokens\n": "no line of it is a request",
	} {
		if _, err := bench.RunTrace(t.Context(), benchOptions(t), bench.TraceOptions{Trace: strings.NewReader(trace)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", trace, err, want)
		}
	}
}
