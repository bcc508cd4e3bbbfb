package gpuworker

import (
	"context"
	"errors"
	"fmt"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// reserve waits for the job's pages, in line. A worker that stops waiting
// because it stops gives the work back.
func (w *Worker) reserve(ctx, taking context.Context, j *job, tokens int) (*kvpool.Allocation, outcome) {
	wctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(taking, func() { cancel(errStopping) })()
	a, err := w.cfg.Pool.AllocWait(wctx, j.work.RequestID, w.info.PagesFor(tokens))
	switch {
	case err == nil:
		w.mu.Lock()
		j.alloc = a
		w.mu.Unlock()
		return a, outcome{}
	case errors.Is(err, kvpool.ErrTooLarge):
		return nil, w.tooLarge(ctx, j, tokens)
	}
	return nil, w.halted(wctx, err)
}

// tooLarge is for work that this pool can never hold. A worker of the model with
// a larger one may take it; where it keeps coming back here and there is none,
// a prompt gets the answer that an engine would give.
func (w *Worker) tooLarge(ctx context.Context, j *job, tokens int) outcome {
	w.mu.Lock()
	w.misfits[j.work.RequestID]++
	n := w.misfits[j.work.RequestID]
	if n == misfitTries {
		delete(w.misfits, j.work.RequestID)
	}
	if len(w.misfits) > maxMisfits {
		clear(w.misfits)
	}
	w.mu.Unlock()
	err := events.ContextExceeded("KV pool of the "+string(w.cfg.Role)+" worker", tokens, w.cfg.Pool.Stats().Pages*w.info.PageTokens)
	switch {
	case n < misfitTries || w.cfg.Role != events.RolePrefill:
		return retry(misfitDelay, err)
	case w.elsewhere(ctx, tokens):
		return w.leaveIt(ctx, j, err)
	}
	return w.reject(ctx, j, err)
}

// leaveIt gives work back to a worker that takes it, which may be busy for a
// while. Work of a request that has ended does not come again.
func (w *Worker) leaveIt(ctx context.Context, j *job, why error) outcome {
	c, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	w.check(c, j)
	if ctx.Err() != nil {
		return w.halted(ctx, why)
	}
	return retry(misfitDelay, why)
}

// elsewhere says whether some live prefill worker takes a prompt that is too
// long for this one. Where the lifecycle does not say, it may be so.
func (w *Worker) elsewhere(ctx context.Context, tokens int) bool {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	v, err := w.cfg.Lifecycle.Info(ctx)
	if err != nil {
		return true
	}
	for _, m := range v.Models {
		if m.Model == w.cfg.Model {
			return tokens <= m.MaxInputTokens
		}
	}
	return false
}

// stale says whether the lifecycle's view of a request rules out that this
// worker's part is still wanted. A view may be behind the log, so only what can
// never be undone counts.
func (w *Worker) stale(v *events.RequestView) bool {
	switch {
	case v.State.Final():
		return true
	case w.cfg.Role == events.RolePrefill:
		return v.State == events.Prefilled || v.State == events.Transferred
	}
	return v.State == events.Transferred
}

// check asks the lifecycle whether the request still wants this worker, and
// cancels the job where it does not. It costs no time: it runs beside a fetch.
func (w *Worker) check(ctx context.Context, j *job) {
	if w.cfg.Guards.NoStateCheck {
		return
	}
	v, err := w.cfg.Lifecycle.Get(ctx, j.work.RequestID)
	if err != nil || !w.stale(v) {
		return // the answer to the next command decides
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if j.phase == running {
		w.end(j, false)
	}
}

// sampling fetches how to continue the prompt. The admitted max_tokens counts:
// pages were reserved for so many.
func (w *Worker) sampling(ctx context.Context, j *job) (engine.Sampling, error) {
	b, err := w.cfg.Prompts.FetchPrompt(ctx, j.work, events.PartSampling)
	if err != nil {
		return engine.Sampling{}, fmt.Errorf("fetch sampling: %w", err)
	}
	s, err := events.DecodeSampling(b)
	if err != nil {
		return engine.Sampling{}, fmt.Errorf("fetch sampling: %w", err)
	}
	return engine.Sampling{
		MaxTokens: j.work.MaxTokens, Stop: s.Stop, Temperature: s.Temperature, Seed: s.Seed,
		Route: s.Route, Stream: s.Stream, MinTokens: s.MinTokens, Seeded: s.Seeded,
	}, nil
}

// prompt fetches the prompt and checks that it is the admitted one.
func (w *Worker) prompt(ctx context.Context, j *job) ([]byte, error) {
	b, err := w.cfg.Prompts.FetchPrompt(ctx, j.work, events.PartPrompt)
	if err != nil {
		return nil, fmt.Errorf("fetch prompt: %w", err)
	}
	if w.cfg.Guards.NoPromptCheck {
		return b, nil
	}
	if !events.SameDigest(j.work.PromptDigest, j.key, events.KindPrompt, b) {
		return nil, events.NewError(events.CodePromptUnavailable, "the gateway's prompt is not the admitted one: its digest differs")
	}
	if w.info.External {
		return b, nil // it says itself what it counted, and that is compared
	}
	n, err := w.cfg.Engine.Count(ctx, b)
	if err != nil {
		return nil, fmt.Errorf("count tokens: %w", err)
	}
	if n != j.work.PromptTokens {
		return nil, events.NewError(events.CodeTokenCountMismatch, fmt.Sprintf("the engine counts %d tokens, %d were admitted", n, j.work.PromptTokens))
	}
	return b, nil
}

// asError is the recorded form of an error: its own, where it has one.
func asError(err error, code events.Code, message string) *events.Error {
	if errors.Is(err, engine.ErrPoison) {
		return events.NewError(events.CodePoison, "the engine read a page that was not written for this request")
	}
	if e, ok := errors.AsType[*events.Error](err); ok {
		return presentable(e)
	}
	return events.NewError(code, message)
}
