package lifecycle

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Replicas, clients and workers live through cut connections, slow networks and
// restarts of the server. Each seed is another schedule of faults; what was
// acknowledged is in the log, and every lifecycle ends.
func TestFaults(t *testing.T) {
	seeds := 2
	if s := os.Getenv("PDGATE_SEEDS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		seeds = n
	}
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint("seed ", seed+1), func(t *testing.T) {
			bubble(t, func(t *testing.T) { faults(t, seed+1) })
		})
	}
}

func faults(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	r := newRig(t)
	r.start("lc1", nil)
	r.start("lc2", nil)
	i := r.populate()
	r.link.mu.Lock()
	r.link.rng, r.link.delay = rand.New(rand.NewPCG(seed, 2)), 10*time.Millisecond
	r.link.mu.Unlock()

	stop := make(chan struct{})
	var wg sync.WaitGroup
	var done, failed atomic.Int64
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if i.attempt(newID(t)) {
					done.Add(1)
				} else {
					failed.Add(1)
				}
			}
		})
	}
	restarts, cuts := 0, 0
	for range 12 {
		time.Sleep(time.Duration(rng.Int64N(int64(3 * time.Second))))
		if rng.IntN(3) > 0 {
			r.link.cut()
			cuts++
			continue
		}
		r.stopBroker()
		time.Sleep(time.Duration(rng.Int64N(int64(2 * time.Second))))
		r.startBroker()
		restarts++
	}
	time.Sleep(10 * time.Second)
	close(stop)
	wg.Wait()
	r.link.mu.Lock()
	r.link.delay = 0
	r.link.mu.Unlock()
	t.Logf("seed %d: %d lifecycles, %d given up, %d cuts, %d restarts", seed, done.Load(), failed.Load(), cuts, restarts)
	if done.Load() < 20 {
		t.Errorf("seed %d: hardly anything was done", seed)
	}
	if failed.Load() > 0 {
		// What was given up ends by its deadlines; its pages are released by the test.
		time.Sleep(11 * time.Minute)
	}
	rep := r.check()
	if rep.Requests < int(done.Load()) {
		t.Errorf("seed %d: report: %+v", seed, rep)
	}
	r.end()
}

// attempt takes one request through its life as far as faults let it, and says
// whether it reached the end. Whatever pages were named are released.
func (i *installation) attempt(id string) bool {
	ctx, cancel := context.WithTimeout(i.t.Context(), 30*time.Second)
	defer cancel()
	ok := true
	step := func(p *party, d events.CommandData) {
		if !ok {
			return
		}
		a, err := p.try(ctx, id, d)
		ok = err == nil && a.Denied == nil && a.Error == nil
	}
	pre, grant := i.p1.prefill(), i.d1.grant(1)
	step(i.gw, admit())
	step(i.p1, pre)
	step(i.d1, grant)
	step(i.d1, i.d1.transfer(id, pre, 1))
	step(i.d1, i.d1.output())
	all := ok
	// Releases are tried whatever happened: a step may be recorded although its
	// answer was lost. One that is not recorded is denied, which is no harm.
	ctx, cancel = context.WithTimeout(i.t.Context(), time.Minute)
	defer cancel()
	if !all {
		_, _ = i.gw.try(ctx, id, &events.Cancel{Reason: events.CodeClientGone})
	}
	for _, f := range []func() (*events.Answer, error){
		func() (*events.Answer, error) { return i.p1.try(ctx, id, i.p1.release(pre.Pages)) },
		func() (*events.Answer, error) { return i.d1.try(ctx, id, i.d1.release(grant.Pages)) },
	} {
		if a, err := f(); err != nil || all && a.Denied != nil {
			i.t.Errorf("release of %s: %+v %v", id, a, err)
		}
	}
	return all
}
