package gpuworker

import (
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/handoff"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// counters count since the worker started.
type counters struct {
	Prefilled       uint64 // reported KV
	Decoded         uint64 // complete outputs
	Failed          uint64 // requests that this worker ended with an error
	GivenBack       uint64 // deliveries that another worker may do better
	Released        uint64 // jobs whose pages are back
	LeasesOver      uint64 // KV that nobody pulled in time
	Transfers       uint64 // pulls that arrived
	FailedTransfers uint64
	TransferBytes   int64
	OutputTokens    int64
}

// Stats are a worker's figures at one instant, for people and metrics.
type Stats struct {
	Running int // engine calls, and what leads up to them
	Kept    int // finished KV that waits for its pull
	Lingers int // ended, and an external engine may hold memory for it still
	Leaving int // on their way back to the pool

	Prefilled, Decoded, Failed, GivenBack, Released, LeasesOver uint64
	Transfers, FailedTransfers                                  uint64
	TransferBytes, OutputTokens                                 int64

	Pool    kvpool.Stats
	Handoff handoff.Stats     // prefill only
	Pairs   []engine.PairStat // decode, external engines: what failed together with whom
}

// Stats counts.
func (w *Worker) Stats() Stats {
	s := Stats{Pool: w.cfg.Pool.Stats()}
	if w.server != nil {
		s.Handoff = w.server.Stats()
	}
	for _, p := range w.cfg.Pairs.Stats() {
		if p.Decode == w.cfg.Name {
			s.Pairs = append(s.Pairs, p)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, j := range w.jobs {
		switch j.phase {
		case running:
			s.Running++
		case kept:
			if j.ended {
				s.Lingers++
			} else {
				s.Kept++
			}
		case leaving:
			s.Leaving++
		}
	}
	c := &w.stats
	s.Prefilled, s.Decoded, s.Failed, s.GivenBack = c.Prefilled, c.Decoded, c.Failed, c.GivenBack
	s.Released, s.LeasesOver = c.Released, c.LeasesOver
	s.Transfers, s.FailedTransfers = c.Transfers, c.FailedTransfers
	s.TransferBytes, s.OutputTokens = c.TransferBytes, c.OutputTokens
	return s
}

// Pages is the worker's page table at one instant.
func (w *Worker) Pages() []kvpool.PageInfo { return w.cfg.Pool.Snapshot() }
