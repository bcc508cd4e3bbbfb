//go:build unix

package replay_test

import (
	"bytes"
	"syscall"
	"testing"
	"time"

	"github.com/pdgate/pdgate/internal/corpus"
	"github.com/pdgate/pdgate/statemachine/replay"
)

// BenchmarkReplay replays a clean trace; its rate is events a second on one core
// where GOMAXPROCS is 1.
func BenchmarkReplay(b *testing.B) {
	trace, _ := incident(b, corpus.IncidentConfig{Seed: 2, Requests: 30_000, Clean: true, Batch: 64})
	n := bytes.Count(trace, []byte(`{"specversion"`))
	b.ReportAllocs()
	before := cpu(b)
	for b.Loop() {
		if r := runTrace(b, trace, replay.Options{}); r.Verdict.Exit != replay.Clean {
			b.Fatal(r.Verdict.Line)
		}
	}
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(n)*float64(b.N)/(cpu(b)-before), "events/cpu-s")
	b.ReportMetric(float64(len(trace))/float64(n), "B/event")
}

// cpu is the processor time that the process has used, in seconds: on a machine that
// others use too, elapsed time says little.
func cpu(tb testing.TB) float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
