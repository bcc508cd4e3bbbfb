package bench

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMedian(t *testing.T) {
	for _, tt := range []struct {
		v    []float64
		want float64
	}{{nil, 0}, {[]float64{7}, 7}, {[]float64{3, 1}, 2}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 3, 2}, 2.5}, {[]float64{-1, 5, -3}, -1}} {
		before := append([]float64(nil), tt.v...)
		if got := median(tt.v); got != tt.want {
			t.Errorf("median(%v) = %v, want %v", tt.v, got, tt.want)
		}
		if d := cmp.Diff(before, tt.v); d != "" {
			t.Errorf("the list was changed: %s", d)
		}
	}
	if got := spread([]float64{3, 1, 2}); got != (Spread{Median: 2, Low: 1, High: 3}) {
		t.Errorf("spread: %+v", got)
	}
}

func TestQuantile(t *testing.T) {
	upTo := func(n int) (v []int) {
		for i := range n {
			v = append(v, i+1)
		}
		return v
	}
	for _, tt := range []struct {
		n    int
		q    float64
		want int
	}{
		{1, 0, 1}, {1, .5, 1}, {1, 1, 1}, {2, .5, 1}, {2, .51, 2}, {3, .5, 2}, {4, .5, 2}, {10, .99, 10}, {10, .9, 9},
		{100, .07, 7}, {100, .5, 50}, {100, .99, 99}, {100, .999, 100}, {1000, .999, 999}, {1001, .999, 1000}, {1000, 1, 1000},
	} {
		if got := quantile(upTo(tt.n), tt.q); got != tt.want {
			t.Errorf("quantile %v of 1 to %d is %d, want %d", tt.q, tt.n, got, tt.want)
		}
	}
}

func TestRecorder(t *testing.T) {
	var r Recorder
	if r.Latency() != nil {
		t.Error("latency of nothing")
	}
	for i := 1000; i > 0; i-- {
		r.Add(time.Duration(i) * time.Microsecond)
	}
	want := &Latency{N: 1000, P50: 500, P99: 990, P999: 999, Max: 1000}
	if d := cmp.Diff(want, r.Latency()); d != "" {
		t.Error(d)
	}
	// Medians of the rounds' quantiles; a round without any does not count.
	got := latencies([]*Latency{{N: 1, P50: 1, P99: 10, P999: 10, Max: 10}, nil, {N: 2, P50: 3, P99: 4, P999: 5, Max: 6}, {N: 3, P50: 2, P99: 30, P999: 31, Max: 32}})
	if d := cmp.Diff(&Latency{N: 6, P50: 2, P99: 10, P999: 10, Max: 10}, got); d != "" {
		t.Error(d)
	}
}

func TestSchedule(t *testing.T) {
	start := time.Unix(1000, 0)
	s := Schedule{Start: start, Rate: 1000}
	for _, tt := range []struct {
		after time.Duration
		owed  int
	}{{-time.Second, 0}, {0, 1}, {999 * time.Microsecond, 1}, {time.Millisecond, 2}, {time.Second, 1001}, {time.Hour, 3_600_001}} {
		if got := s.Owed(start.Add(tt.after)); got != tt.owed {
			t.Errorf("after %v %d are owed, want %d", tt.after, got, tt.owed)
		}
	}
	for _, rate := range []float64{.5, 3, 7, 333, 12_345.6} {
		s := Schedule{Start: start, Rate: rate}
		for i := range 5000 {
			if got := s.Owed(s.Due(i).Add(time.Nanosecond)); got != i+1 {
				t.Fatalf("at %v a second, when call %d is due %d are owed", rate, i, got)
			}
		}
	}
}

// TestOmission lets a server answer in 1 ms, except that it stalls for one
// second. Counted from the intended start, the stall is in the latency of all
// that it delayed; a closed loop of one call at a time sees it once.
func TestOmission(t *testing.T) {
	const rate, calls = 100, 1000 // ten seconds
	start := time.Unix(1000, 0)
	stall, end := start.Add(4*time.Second), start.Add(5*time.Second)
	answer := func(sent time.Time) time.Time {
		if done := sent.Add(time.Millisecond); done.Before(stall) || !sent.Before(end) {
			return done
		}
		return end.Add(time.Millisecond)
	}
	s := Schedule{Start: start, Rate: rate}
	var open, closed Recorder
	for i := range calls {
		open.Add(answer(s.Due(i)).Sub(s.Due(i)))
	}
	for i, now := 0, start; i < calls; i++ {
		done := answer(now)
		closed.Add(done.Sub(now))
		now = done.Add(time.Second / rate)
	}
	o, c := open.Latency(), closed.Latency()
	if o.P50 != 1000 || o.P99 < 850_000 || o.Max < 990_000 {
		t.Errorf("open loop: %+v: a tenth of all calls fell into the stall", o)
	}
	if c.P99 != 1000 || c.Max < 900_000 {
		t.Errorf("closed loop: %+v: one call fell into the stall", c)
	}
}
