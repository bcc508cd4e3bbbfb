package gpuworker

import (
	"context"
	"errors"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
)

// leave has a job's pages given back. It happens once for each job, and not
// here: the loop goes on, and so does whoever brought the news. Callers hold mu.
func (w *Worker) leave(j *job, reason string) {
	if j.phase == leaving {
		return
	}
	j.phase, j.reason = leaving, reason
	w.exits = append(w.exits, j)
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// part is leave for a job whose engine may still hold memory: nothing is handed
// off any more, and the account keeps its pages until the engine has surely let
// go of them. Callers hold mu.
func (w *Worker) part(j *job, reason string) {
	if j.until.IsZero() || !w.cfg.Clock().Before(j.until) {
		w.leave(j, reason)
		return
	}
	if j.phase == leaving {
		return
	}
	j.phase, j.ended, j.reason = kept, true, reason
	w.withdraw(j)
}

// withdraw ends the offer of a job's KV, and what its engine keeps for decode.
func (w *Worker) withdraw(j *job) {
	switch {
	case w.server == nil:
	case j.arrived:
		w.server.Drain(j.work.RequestID)
	default:
		w.server.Revoke(j.work.RequestID)
		w.forget(j.work.RequestID)
	}
}

// forget ends what the engine keeps for a request that decode has not taken
// over.
func (w *Worker) forget(requestID string) {
	if f, ok := w.cfg.Engine.(engine.Forgetful); ok {
		f.Forget(requestID)
	}
}

// fetched is the news that decode has read the engine's memory, which is then
// free there. Callers hold mu.
func (w *Worker) fetched(j *job) {
	if w.cfg.Role != events.RolePrefill {
		return
	}
	j.until = time.Time{}
	if j.phase == kept && j.ended {
		w.leave(j, j.reason)
	}
}

// exit takes the jobs whose release is to begin.
func (w *Worker) exit() []*job {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.exits
	w.exits = nil
	return e
}

// release drains, scrubs, reports and frees. The order is the point: transfers
// end, or are cut; then the pool waits for whatever still reads or writes the
// pages and scrubs them; then the lifecycle is told; and only then can another
// request have them. In the log, too, a page has one holder at a time.
func (w *Worker) release(ctx context.Context, j *job) {
	id := j.work.RequestID
	w.mu.Lock()
	alloc, recorded, arrived, reason := j.alloc, j.recorded, j.arrived, j.reason
	w.mu.Unlock()
	if w.server != nil && !w.cfg.Guards.NoDrain {
		if arrived {
			// The transfer that brought the news has ended, or is about to; another
			// one, of an older grant, is not waited for long.
			drained := w.server.Drain(id)
			t := time.NewTimer(drainTime)
			select {
			case <-drained:
			case <-t.C:
			}
			t.Stop()
		}
		<-w.server.Revoke(id)
	}
	if !arrived {
		w.forget(id)
	}
	if alloc != nil {
		var report func(bool)
		if recorded {
			report = func(scrubbed bool) {
				if !scrubbed && w.cfg.Pool.Err() != nil {
					return // the lifecycle writes them off with this life, whose end Run is about to report
				}
				w.released(ctx, j, &events.Release{
					Worker: w.cfg.Name, WorkerEpoch: w.epoch, Role: w.cfg.Role, Generation: alloc.Generation(), Pages: alloc.Pages(),
					Drained: !w.cfg.Guards.NoDrain, Scrubbed: scrubbed, Reason: reason,
				})
			}
		}
		<-w.cfg.Pool.FreeAfter(alloc, report)
	}
	w.mu.Lock()
	delete(w.jobs, id)
	w.stats.Released++
	w.mu.Unlock()
	close(j.done)
}

// released reports pages that nobody uses any more. It goes on until it is
// heard, or ctx ends because the worker does: a worker that the lifecycle cannot
// hear has no use for free pages. A denial means that the log knew nothing of
// them, or has them back already.
func (w *Worker) released(ctx context.Context, j *job, d *events.Release) {
	for {
		a, err := w.do(ctx, j, d)
		var refused *events.Error
		switch {
		case err == nil:
			if a.Denied != nil {
				w.log.Debug("released denied", "request_id", j.work.RequestID, "code", string(a.Denied.Code))
			}
			return
		case ctx.Err() != nil, errors.As(err, &refused) && refused.Code != events.CodeUnavailable && refused.Code != events.CodeBackpressure:
			w.log.Warn("report released pages", "request_id", j.work.RequestID, "error", err)
			return
		}
		pause(ctx, tryAgain)
	}
}
