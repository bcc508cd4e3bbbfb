package gpuworker

import (
	"context"
	"errors"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// do sends a command about a job's request.
func (w *Worker) do(ctx context.Context, j *job, d events.CommandData) (*events.Answer, error) {
	a, err := w.cfg.Lifecycle.Do(ctx, &events.Command{
		Type: d.CommandType(), Subject: j.work.RequestID, Traceparent: j.work.Traceparent, Data: d,
	})
	if err != nil {
		return nil, err
	}
	if a.Denied != nil && (a.Denied.Code == events.CodeWorkerUnknown || a.Denied.Code == events.CodeWorkerEpoch) {
		// It may be this worker that is unknown, or another one: the registration
		// tells.
		w.suspect()
	}
	return a, nil
}

// suspect has the registration confirmed soon.
func (w *Worker) suspect() {
	select {
	case w.probe <- struct{}{}:
	default:
	}
}

// fail ends the request with an error of ours. The first error wins; a denial
// means that somebody else ended it, or that it is another worker's.
func (w *Worker) fail(ctx context.Context, j *job, stage string, cause *events.Error) outcome {
	a, err := w.do(ctx, j, &events.Fail{WorkerEpoch: w.epoch, Stage: stage, Error: *cause})
	return w.reported(ctx, a, err, cause)
}

// reject ends the request with the engine's own refusal; no KV exists.
func (w *Worker) reject(ctx context.Context, j *job, refusal *events.Error) outcome {
	refusal = presentable(refusal)
	a, err := w.do(ctx, j, &events.Reject{WorkerEpoch: w.epoch, Error: *refusal})
	return w.reported(ctx, a, err, refusal)
}

// reported is the outcome after a report that ends the request.
func (w *Worker) reported(ctx context.Context, a *events.Answer, err error, cause *events.Error) outcome {
	switch {
	case err != nil && ctx.Err() != nil:
		return w.halted(ctx, err)
	case err != nil:
		return w.unrecorded(err)
	case a.Denied != nil && a.Denied.Code == events.CodeWorkerUnknown:
		return retry(tryAgain, a.Err()) // the next life, or another worker
	case a.Denied != nil:
		return dropped(a.Err())
	}
	w.mu.Lock()
	w.stats.Failed++
	w.mu.Unlock()
	return dropped(cause)
}

// unrecorded is the outcome after a command that was not recorded at all.
func (w *Worker) unrecorded(err error) outcome {
	var refused *events.Error
	if errors.As(err, &refused) && (refused.Code == events.CodeMalformed || refused.Code == events.CodeForbidden) {
		// Sending it again cannot help; the request ends by its deadline.
		w.log.Error("command refused", "error", err)
		return dropped(err)
	}
	return retry(tryAgain, err)
}

// maxMessage is what an event carries of an error's message.
const maxMessage = 2048

// presentable is an engine's error as it can be recorded: engines invent codes
// and statuses.
func presentable(e *events.Error) *events.Error {
	out := *e
	if !out.Code.Known() {
		out.Code = events.CodeEngineRefused
	}
	if out.Status != 0 && (out.Status < 400 || out.Status > 599) {
		out.Status = 0
	}
	out.Message = strings.ToValidUTF8(out.Message[:min(len(out.Message), maxMessage-3)], "?")
	return &out
}
