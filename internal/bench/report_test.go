package bench

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

// example is a report with everything in it.
func example(t *testing.T) *Report {
	t.Helper()
	l := func(scale float64) *Latency {
		return &Latency{N: 10, P50: 10 * scale, P99: 20 * scale, P999: 30 * scale, Max: 40 * scale}
	}
	sample := func(v float64) Sample {
		return Sample{Value: v, Count: 10, Seconds: 2, Latency: l(v), CPU: map[string]float64{"lc1": 2 * v, "nats": v}, PeakMB: map[string]float64{"lc1": 50}}
	}
	r := &Report{
		Tool: "pdgate bench", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		Build:    Build{Version: "1.0.0", Commit: "abc", Modified: true, Go: "go1.26"},
		Machine:  Machine{OS: "linux/amd64", Kernel: "6.1", CPU: "a processor", CPUs: 2, GOMAXPROCS: 2, MemoryMB: 4096, FileSystem: "ext4", LoadBefore: .5, LoadAfter: 1.5, Fsync: l(1)},
		Settings: Settings{Rounds: 3, Seconds: 2, Fsync: []bool{true}, Concurrency: 8, Rate: 9, Replicas: []int{1}, Partitions: 8, Seed: 7},
	}
	through := newCase("service", "closed", map[string]string{"fsync": "always", "a": "b"}, "product", "ceiling", "events/s", "a note")
	lag := newCase("service", "open", nil, "product", "ceiling", unitMillis)
	for _, v := range []float64{1, 2, 3} {
		through.add(sample(v), sample(4))
		lag.add(sample(2*v), sample(1))
	}
	r.Cases = []*Case{through, lag}
	for _, c := range r.Cases {
		if err := c.finish(); err != nil {
			t.Fatal(err)
		}
	}
	r.Trace = &Trace{Name: "t.jsonl", Speed: 2, Fsync: true, Engine: "fake", PrefillSpeed: 10, DecodeSpeed: 20, Prefill: 1, Decode: 2, PrefillTokens: 100, DecodeTokens: 200,
		Requests: 3, Completed: 2, Rejected: map[string]int{"400 context_length_exceeded": 1}, Seconds: 4, PromptTokens: 30, OutputTokens: 12, RequestRate: .5, TokenRate: 3,
		TTFT: l(1), Whole: l(2), Token: l(3), PrefillQueue: l(4), DecodeQueue: l(5), Late: l(6),
		Samples: []TraceSample{{0, 1, 1, .1, 0}, {1, 2, 0, .5, .25}}, Arrivals: []TracePoint{{0, 100}, {1, 200}}}
	point := func(n int) GrowthPoint {
		f := &Figure{Name: "lifecycle service", Unit: "lifecycles/s", Rounds: []Sample{sample(1000), sample(2000)}}
		f.finish()
		return GrowthPoint{
			Requests: n, Events: 7*n + 3, FillRate: 50_000, LogBytes: int64(3000 * n), BytesPerEvent: 420, StateBytes: int64(500 * n), ServerRSS: 90e6, ServiceRSS: 70e6, ServiceHeap: 40e6,
			Retained: n / 2, PerRetained: 800, Throughput: f, CatchUp: 2, CatchUpEvents: 7 * n, ReadSide: 3, CleanServer: .1, CleanService: .4, KilledServer: .2, KilledService: 1.4,
			ReplayRate: 200_000, ReplayPeakMB: 60,
		}
	}
	r.Growth = &Growth{Fsync: true, Points: []GrowthPoint{point(100_000), point(1_000_000)}, Ratio: .98}
	return r
}

func TestFinish(t *testing.T) {
	r := example(t)
	c := r.Cases[0]
	if c.Ratio != (Spread{Median: .5, Low: .25, High: .75}) || c.Added != nil {
		t.Errorf("ratio %+v, added %+v", c.Ratio, c.Added)
	}
	if d := cmp.Diff(map[string]float64{"lc1": 4, "nats": 2}, c.Product.CPU); d != "" {
		t.Error(d)
	}
	// Medians of differences: of 10, 30 and 50 for p50.
	if d := cmp.Diff(&Latency{N: 30, P50: 30, P99: 60, P999: 90, Max: 120}, r.Cases[1].Added); d != "" {
		t.Error(d)
	}
	for name, c := range map[string]*Case{
		"no rounds": newCase("b", "c", nil, "p", "q", "u"),
		"idle": func() *Case {
			c := newCase("b", "c", nil, "p", "q", "u")
			c.add(Sample{Value: 1}, Sample{})
			return c
		}(),
	} {
		if err := c.finish(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// keys lists the paths of all members of a JSON value.
func keys(v any, at string, found map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			keys(x, at+"."+k, found)
		}
	case []any:
		for _, x := range v {
			keys(x, at+"[]", found)
		}
	default:
		found[strings.TrimPrefix(at, ".")] = true
	}
}

// TestJSON holds the report's form: programs read it.
func TestJSON(t *testing.T) {
	var b bytes.Buffer
	if err := example(t).WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(b.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	keys(v, "", found)
	var paths []string
	for k := range found {
		paths = append(paths, k)
	}
	slices.Sort(paths)
	golden(t, "report-keys.txt", strings.Join(paths, "\n")+"\n")
	var back Report
	if err := json.Unmarshal(b.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(example(t), &back); d != "" {
		t.Error(d)
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (write it with -update):\n%s", path, d)
	}
}

func TestTable(t *testing.T) {
	var b bytes.Buffer
	if err := example(t).WriteTable(&b); err != nil {
		t.Fatal(err)
	}
	golden(t, "report.txt", b.String())
}

// TestHTML: the page has its charts in it, and asks for nothing from elsewhere.
func TestHTML(t *testing.T) {
	var b bytes.Buffer
	if err := example(t).WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	if n := strings.Count(page, "<svg"); n != 8 {
		t.Errorf("%d charts, want 8", n)
	}
	for _, bad := range []string{"<script", "src=", "href=", "@import", "url("} {
		if strings.Contains(strings.ReplaceAll(page, `xmlns:xlink="http://www.w3.org/1999/xlink"`, ""), bad) {
			t.Errorf("the page has %q", bad)
		}
	}
	if !strings.Contains(page, "400 context_length_exceeded") || !strings.HasSuffix(strings.TrimSpace(page), "</html>") {
		t.Error("the page is not whole")
	}
}

func TestNumbers(t *testing.T) {
	for v, want := range map[float64]string{0: "0", .0123: "0.012", .5: "0.50", 12.345: "12.3", 123.4: "123", 1234: "1,234", 1234567: "1,234,567", -1234: "-1,234", 999.6: "1,000"} {
		if got := num(v); got != want {
			t.Errorf("num(%v) = %q, want %q", v, got, want)
		}
	}
	for v, want := range map[float64]string{12: "12.0µs", 1500: "1.50ms", 2.5e6: "2.50s", -3000: "-3.00ms"} {
		if got := us(v); got != want {
			t.Errorf("us(%v) = %q, want %q", v, got, want)
		}
	}
}
