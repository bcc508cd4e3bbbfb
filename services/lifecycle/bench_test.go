package lifecycle

import (
	"sync"
	"testing"
)

// Whole lifecycles of seven commands each, through clients, the embedded server
// with a sync on every acknowledgement, and one replica, all in this process.
func BenchmarkLifecycles(b *testing.B) {
	r := newRig(b)
	r.start("lc1", nil)
	i := r.populate()
	const inFlight = 256
	todo := make(chan struct{})
	var wg sync.WaitGroup
	for range inFlight {
		wg.Go(func() {
			for range todo {
				i.lifecycle(newID(b))
			}
		})
	}
	for b.Loop() {
		todo <- struct{}{}
	}
	close(todo)
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "lifecycles/s")
	if rep := r.check(); rep.Open != 0 {
		b.Errorf("report: %+v", rep)
	}
}
