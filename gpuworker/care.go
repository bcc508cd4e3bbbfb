package gpuworker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
)

// confirmEvery is how often a worker makes sure that its life is the present
// one: an idle one would not notice otherwise that it was declared lost, and
// nobody is admitted on a lost worker's account.
const confirmEvery = 5 * time.Second

// care looks after what loops do not: signs of life, acknowledgement times,
// leases, pages on their way back, news that did not come, and the registration.
// It runs until ctx ends, also while the worker stops, and waits for what it has
// begun. Reports of released pages go on until releasing ends.
func (w *Worker) care(ctx, releasing context.Context, stop context.CancelCauseFunc) {
	t := time.NewTicker(tick)
	defer t.Stop()
	var bg sync.WaitGroup
	defer bg.Wait()
	var beat, progress time.Time
	confirmed, swept := time.Now(), time.Now()
	probed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.wake:
			for _, j := range w.exit() {
				bg.Go(func() { w.release(releasing, j) })
			}
			continue
		case <-w.probe:
			probed = true
		case <-t.C:
		}
		now := time.Now()
		if now.Sub(beat) >= w.cfg.Beat {
			beat = now
			w.beat()
		}
		if now.Sub(progress) >= progressEvery {
			progress = now
			w.progress()
		}
		w.leases()
		if now.Sub(swept) >= w.cfg.Sweep {
			swept = now
			if due := w.due(); len(due) > 0 {
				bg.Go(func() { w.sweep(ctx, due) })
			}
		}
		if since := now.Sub(confirmed); since >= confirmEvery || probed && since >= w.cfg.Beat {
			confirmed, probed = now, false
			bg.Go(func() { w.confirm(ctx, stop) })
		}
	}
}

func (w *Worker) beat() {
	st := w.cfg.Pool.Stats()
	w.mu.Lock()
	n := 0
	for _, j := range w.jobs {
		if j.phase == running {
			n++
		}
	}
	w.mu.Unlock()
	err := w.cfg.Lifecycle.Heartbeat(events.Heartbeat{
		Epoch: w.epoch, Model: w.cfg.Model, FreePages: st.Free, HeldPages: st.Held + st.Draining, Running: n,
		SentAt: events.Micros(w.cfg.Clock()),
	})
	if err != nil {
		w.log.Warn("heartbeat", "error", err)
	}
}

// progress keeps the deliveries that are worked on, or wait for pages.
func (w *Worker) progress() {
	var items []Item
	w.mu.Lock()
	for _, j := range w.jobs {
		if j.item != nil {
			items = append(items, j.item)
		}
	}
	w.mu.Unlock()
	for _, i := range items {
		w.settle(i.Progress())
	}
}

// leases lets go of KV that nobody pulled in time.
func (w *Worker) leases() {
	now := w.cfg.Clock()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range w.jobs {
		switch {
		case j.phase != kept:
		case j.ended:
			if !now.Before(j.until) {
				w.leave(j, j.reason)
			}
		case now.After(j.lease.Add(leaseMargin)):
			w.stats.LeasesOver++
			w.log.Warn("lease over", "request_id", j.work.RequestID)
			w.part(j, "lease_over")
		}
	}
}

// sweepBatch bounds how many requests one sweep asks about, the longest
// unasked first.
const sweepBatch = 32

// due lists the jobs to ask about, while no other sweep is on.
func (w *Worker) due() []*job {
	now := w.cfg.Clock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sweeping {
		return nil
	}
	var due []*job
	for _, j := range w.jobs {
		if j.phase != leaving && now.Sub(j.asked) >= w.cfg.Sweep {
			due = append(due, j)
		}
	}
	slices.SortFunc(due, func(a, b *job) int { return a.asked.Compare(b.asked) })
	due = due[:min(len(due), sweepBatch)]
	for _, j := range due {
		j.asked = now
	}
	w.sweeping = len(due) > 0
	return due
}

// sweep asks about requests that are held for a while: notifications may be
// lost. It runs beside care, so that a slow answer stops no heartbeat.
func (w *Worker) sweep(ctx context.Context, due []*job) {
	for _, j := range due {
		w.ask(ctx, j)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sweeping = false
}

// ask brings one job up to date with the lifecycle's view. What the view lacks
// does not count: it may be behind.
func (w *Worker) ask(ctx context.Context, j *job) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	v, err := w.cfg.Lifecycle.Get(ctx, j.work.RequestID)
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if v.State == events.Decoded {
		w.fetched(j)
	}
	switch {
	case j.phase == leaving:
	case v.State.Final() && !(w.cfg.Role == events.RoleDecode && v.State == events.Decoded && v.DecodeWorker == w.cfg.Name):
		w.end(j, v.State == events.Decoded)
	case v.State == events.Transferred && (w.cfg.Role == events.RolePrefill || v.DecodeWorker != w.cfg.Name):
		w.end(j, w.cfg.Role == events.RolePrefill)
	}
}

// confirm asks whether this life is the present one, and ends the worker where
// it is not. An unanswered question is no answer.
func (w *Worker) confirm(ctx context.Context, stop context.CancelCauseFunc) {
	w.mu.Lock()
	busy := w.asking
	w.asking = true
	w.mu.Unlock()
	if busy {
		return
	}
	c, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	var denial *events.Denial
	if errors.As(w.register(c), &denial) {
		w.log.Error("this life of the worker is over", "epoch", w.epoch, "error", denial)
		stop(errGone)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asking = false
}
