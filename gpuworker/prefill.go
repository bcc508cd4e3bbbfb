package gpuworker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/handoff"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

const stagePrefill = "prefill"

// prefill computes one prompt's KV and reports it.
func (w *Worker) prefill(ctx, taking context.Context, j *job, pass func()) outcome {
	if most := cmp.Or(w.info.MaxInputTokens, w.info.ContextTokens); j.work.PromptTokens > most && w.elsewhere(ctx, j.work.PromptTokens) {
		// Where there is no such worker, the engine says no itself.
		return w.leaveIt(ctx, j, events.ContextExceeded("prompt", j.work.PromptTokens, most))
	}
	alloc, out := w.reserve(ctx, taking, j, j.work.PromptTokens)
	if alloc == nil {
		return out
	}
	pass()

	var prompt []byte
	var sampling engine.Sampling
	var err, serr error
	var wg sync.WaitGroup
	wg.Go(func() { w.check(ctx, j) })
	wg.Go(func() { sampling, serr = w.sampling(ctx, j) })
	prompt, err = w.prompt(ctx, j)
	wg.Wait()
	if err == nil {
		err = serr
	}
	if ctx.Err() != nil {
		return w.halted(ctx, err)
	}
	if err != nil {
		w.log.Warn("prompt unavailable", "request_id", j.work.RequestID, "error", err)
		return w.fail(ctx, j, stagePrefill, asError(err, events.CodePromptUnavailable, "the prompt could not be fetched"))
	}

	pre, digest, err := w.compute(ctx, j, alloc, prompt, sampling)
	if pre.Hold > 0 {
		w.mu.Lock()
		j.until = w.cfg.Clock().Add(pre.Hold)
		w.mu.Unlock()
	}
	switch {
	case ctx.Err() != nil:
		return w.halted(ctx, err)
	case pre.Refused != nil && !w.cfg.Guards.NoRefusedCheck:
		// Before anything else that the result says: an engine may refuse inside
		// and go on with a placeholder, and the rest then looks finished.
		return w.reject(ctx, j, pre.Refused)
	case errors.Is(err, kvpool.ErrDevice):
		// Nothing is recorded yet: a worker whose device works computes it anew.
		return retry(0, err)
	case err != nil:
		w.log.Warn("prefill", "request_id", j.work.RequestID, "error", err)
		return w.fail(ctx, j, stagePrefill, asError(err, events.CodePrefillFailed, "the engine failed"))
	}
	return w.report(ctx, j, alloc, pre, digest)
}

// compute runs the engine on the job's pages and sums what it wrote.
func (w *Worker) compute(ctx context.Context, j *job, alloc *kvpool.Allocation, prompt []byte, sampling engine.Sampling) (engine.Prefilled, kvpool.Digest, error) {
	write, err := w.cfg.Pool.BeginWrite(alloc)
	if err != nil {
		return engine.Prefilled{}, 0, fmt.Errorf("prefill: %w", err)
	}
	defer write.End()
	job := engine.PrefillJob{RequestID: j.work.RequestID, Prompt: prompt, Sampling: sampling, PromptTokens: j.work.PromptTokens}
	if !w.info.External {
		job.KV = alloc
	}
	pre, err := w.cfg.Engine.Prefill(ctx, job)
	if err != nil {
		return pre, 0, fmt.Errorf("prefill: %w", err)
	}
	if pre.Refused != nil && !w.cfg.Guards.NoRefusedCheck {
		return pre, 0, nil
	}
	if w.info.External {
		return pre, kvpool.Digest(kvpool.Sum(events.KVKey(j.key), 0, pre.Reference)), nil
	}
	pin, err := w.cfg.Pool.Pin(j.work.RequestID, w.epoch, alloc.Runs())
	if err != nil {
		return pre, 0, fmt.Errorf("sum KV: %w", err)
	}
	defer pin.Release()
	digest, err := pin.Digest(events.KVKey(j.key))
	if err != nil {
		return pre, 0, fmt.Errorf("sum KV: %w", err)
	}
	return pre, digest, nil
}

// report offers the KV to pulls and tells the lifecycle. The offer comes first:
// the grant that the report makes possible may be used before its answer is
// here. Nothing is pulled without a grant, so an offer whose report is denied
// was never seen by anybody.
func (w *Worker) report(ctx context.Context, j *job, alloc *kvpool.Allocation, pre engine.Prefilled, digest kvpool.Digest) outcome {
	now := w.cfg.Clock()
	lease := now.Add(w.cfg.Lease)
	if !pre.Lease.IsZero() { // the engine's is the one that counts
		lease = pre.Lease
	}
	err := w.server.Offer(handoff.Offer{
		RequestID: j.work.RequestID, Model: j.work.Model, Tenant: j.work.Tenant, Alloc: alloc,
		PromptTokens: pre.PromptTokens, Digest: digest, Key: events.KVKey(j.key), Lease: lease,
		Reference: pre.Reference, First: pre.First,
	})
	if err != nil {
		w.log.Error("offer KV", "request_id", j.work.RequestID, "error", err)
		return w.fail(ctx, j, stagePrefill, events.NewError(events.CodeInternal, "the KV could not be offered"))
	}
	reference := ""
	if len(pre.Reference) > 0 {
		reference = events.Digest(j.key, events.KindReference, pre.Reference)
	}
	w.mu.Lock()
	j.lease, j.recorded = lease, true // from here on the log may know of the pages
	w.mu.Unlock()
	a, err := w.do(ctx, j, &events.Prefill{
		WorkerEpoch: w.epoch, Tenant: j.work.Tenant, PromptTokens: pre.PromptTokens,
		Pages: alloc.Runs(), PageTokens: w.info.PageTokens, Layout: w.info.Layout,
		KVBytes: w.kvBytes(alloc, pre.Reference), KVDigest: digest.String(),
		Reference: reference, LeaseMS: lease.Sub(now).Milliseconds(),
	})
	switch {
	case err != nil && w.sawEnd(j):
		// Cancelled from outside, or pulled already: the release asks no answer.
		return dropped(context.Cause(ctx))
	case err != nil && ctx.Err() != nil:
		return w.halted(ctx, err)
	case err != nil:
		return w.unrecorded(err)
	case a.Denied != nil:
		return w.denied(ctx, j, pre, a.Denied)
	}
	w.mu.Lock()
	w.stats.Prefilled++
	w.mu.Unlock()
	return outcome{kind: keep}
}

// kvBytes is the size of what is handed off: all pages, or the reference of an
// engine that keeps them.
func (w *Worker) kvBytes(alloc *kvpool.Allocation, reference []byte) int64 {
	if w.info.External {
		return int64(len(reference))
	}
	return int64(alloc.Pages()) * int64(w.cfg.Pool.PageBytes())
}

// denied withdraws KV that the lifecycle does not take. Where the engine
// prefilled another number of tokens than were admitted, the request ends here,
// with the engine's own refusal if it gave one.
func (w *Worker) denied(ctx context.Context, j *job, pre engine.Prefilled, d *events.Denial) outcome {
	<-w.server.Revoke(j.work.RequestID)
	w.mu.Lock()
	j.recorded = false
	w.mu.Unlock()
	w.log.Warn("prefilled denied", "request_id", j.work.RequestID, "code", string(d.Code), "error", d)
	switch d.Code {
	case events.CodeIllegalState, events.CodeUnknownRequest, events.CodeDeadline:
		return dropped(d)
	case events.CodeWorkerUnknown, events.CodeWorkerEpoch:
		return retry(tryAgain, d)
	case events.CodeTokenCountMismatch:
		if pre.Refused != nil {
			return w.reject(ctx, j, pre.Refused)
		}
		return w.fail(ctx, j, stagePrefill, events.NewError(events.CodePrefillFailed,
			fmt.Sprintf("the engine prefilled %d of %d tokens", pre.PromptTokens, j.work.PromptTokens)))
	}
	return w.fail(ctx, j, stagePrefill, events.NewError(events.CodePrefillFailed, "the lifecycle did not take the KV: "+string(d.Code)))
}
