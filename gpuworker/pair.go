package gpuworker

import (
	"context"
	"errors"

	"github.com/pdgate/pdgate/events"
)

var errElsewhere = errors.New("the request is decoded at another worker's engine")

// pairTries is how often work of a barred pair is left to another decode worker
// before it fails.
const pairTries = 3

// bar is the verdict on a pair of workers.
type bar struct {
	why   *events.Error // nil: the two may work together
	leave bool          // another decode worker may do better
}

// together says whether the worker may decode what the request's prefill worker
// computed. Where the two fail together too often, another decode worker may do
// better; where there is none, the request fails now and not at its deadline.
func (w *Worker) together(ctx context.Context, j *job) bar {
	if !w.cfg.Pairs.Any(w.cfg.Name) {
		return bar{}
	}
	c, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	v, err := w.cfg.Lifecycle.Get(c, j.work.RequestID)
	if err != nil || !w.cfg.Pairs.Barred(v.PrefillWorker, w.cfg.Name) {
		return bar{}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.misfits[j.work.RequestID]++
	n := w.misfits[j.work.RequestID]
	if n == pairTries {
		delete(w.misfits, j.work.RequestID)
	}
	return bar{leave: n < pairTries, why: events.NewError(events.CodeTransferFailed,
		"the workers "+v.PrefillWorker+" and "+w.cfg.Name+" are quarantined together after repeated failures")}
}

// remember counts what became of a decode from another worker's KV. What the
// client or this worker broke off says nothing of the pair.
func (w *Worker) remember(ctx context.Context, owner string, err error) {
	switch {
	case !w.info.External || ctx.Err() != nil || errors.Is(err, errSend) || errors.Is(err, errClosed):
	case err == nil:
		w.cfg.Pairs.Worked(owner, w.cfg.Name)
	default:
		if e, ok := errors.AsType[*events.Error](err); ok && e.HTTPStatus() < 500 {
			return // the engine's no to this request
		}
		w.cfg.Pairs.Failed(owner, w.cfg.Name)
	}
}
