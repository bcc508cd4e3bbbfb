package bench

import (
	"math"
	"slices"
	"time"
)

// Latency are quantiles of durations, in microseconds.
type Latency struct {
	N    int     `json:"n"` // how many there were
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
	P999 float64 `json:"p999_us"`
	Max  float64 `json:"max_us"`
}

// Recorder keeps durations. It is not safe for concurrent use.
type Recorder struct{ d []time.Duration }

// Add keeps one.
func (r *Recorder) Add(d time.Duration) { r.d = append(r.d, d) }

// Latency sorts what was kept. Nil: nothing was.
func (r *Recorder) Latency() *Latency {
	if len(r.d) == 0 {
		return nil
	}
	slices.Sort(r.d)
	us := func(q float64) float64 { return micros(quantile(r.d, q)) }
	return &Latency{N: len(r.d), P50: us(.5), P99: us(.99), P999: us(.999), Max: micros(r.d[len(r.d)-1])}
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// quantile is the least value that at least q of all are not above: the nearest
// rank, always one that occurred. sorted must not be empty.
func quantile[T any](sorted []T, q float64) T {
	// Without the allowance, 0.07 of 100 would be rank 8: the product is a hair
	// above 7.
	n := int(math.Ceil(q*float64(len(sorted)) - 1e-9))
	return sorted[min(max(n, 1), len(sorted))-1]
}

// median is the middle one, or the mean of the two in the middle; 0 of none.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Clone(v)
	slices.Sort(v)
	n := len(v) / 2
	if len(v)%2 == 1 {
		return v[n]
	}
	return (v[n-1] + v[n]) / 2
}

// Spread is what the rounds came to.
type Spread struct {
	Median float64 `json:"median"`
	Low    float64 `json:"low"`
	High   float64 `json:"high"`
}

func spread(v []float64) Spread {
	if len(v) == 0 {
		return Spread{}
	}
	return Spread{Median: median(v), Low: slices.Min(v), High: slices.Max(v)}
}

// each makes one list out of the rounds, without those where f has nothing.
func each[T any](rounds []T, f func(*T) (float64, bool)) []float64 {
	var v []float64
	for i := range rounds {
		if x, ok := f(&rounds[i]); ok {
			v = append(v, x)
		}
	}
	return v
}

// latencies is the median of each quantile. Nil: no round has any.
func latencies(rounds []*Latency) *Latency {
	n := 0
	of := func(f func(*Latency) float64) float64 {
		return median(each(rounds, func(l **Latency) (float64, bool) {
			if *l == nil {
				return 0, false
			}
			return f(*l), true
		}))
	}
	for _, l := range rounds {
		if l != nil {
			n += l.N
		}
	}
	if n == 0 {
		return nil
	}
	return &Latency{
		N:   n,
		P50: of(func(l *Latency) float64 { return l.P50 }), P99: of(func(l *Latency) float64 { return l.P99 }),
		P999: of(func(l *Latency) float64 { return l.P999 }), Max: of(func(l *Latency) float64 { return l.Max }),
	}
}

// Schedule is when the calls of an open loop are meant to begin. It knows
// nothing of answers, so a server that stalls changes none of it: whatever
// became due during the stall counts from when it was due.
type Schedule struct {
	Start time.Time
	Rate  float64 // calls a second
}

// Due is when call i, counted from 0, is meant to begin.
func (s Schedule) Due(i int) time.Time {
	return s.Start.Add(time.Duration(float64(i) / s.Rate * float64(time.Second)))
}

// Owed is how many calls are due by now.
func (s Schedule) Owed(now time.Time) int {
	if now.Before(s.Start) {
		return 0
	}
	return int(now.Sub(s.Start).Seconds()*s.Rate+1e-6) + 1
}
