package gpuworker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/handoff"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

const (
	stageTransfer = "transfer"
	stageDecode   = "decode"

	pullTries  = 3 // pulls of one request, each under a grant of its own
	epochTries = 3 // grants asked for where others have asked in between
)

// decode pulls one request's KV and continues it.
func (w *Worker) decode(ctx, taking context.Context, j *job, pass func()) outcome {
	if !j.work.Lease.IsZero() && !w.cfg.Clock().Before(j.work.Lease) {
		return dropped(events.NewError(events.CodeLeaseOver, "the lease of the KV is over"))
	}
	if e, ok := w.cfg.Engine.(engine.Placed); ok && e.Elsewhere(j.work.RequestID) {
		return retry(elsewhereWait, errElsewhere)
	}
	barred := w.together(ctx, j)
	if barred.leave {
		return retry(misfitDelay, barred.why)
	}
	alloc, out := w.reserve(ctx, taking, j, j.work.PromptTokens+j.work.MaxTokens)
	if alloc == nil {
		return out
	}
	pass()

	// How to continue is fetched while the KV is on its way.
	var sampling engine.Sampling
	var prompt []byte
	var serr, perr error
	var wg sync.WaitGroup
	fetching, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { w.check(ctx, j) })
	wg.Go(func() { sampling, serr = w.sampling(fetching, j) })
	if w.info.ReadsAgain {
		wg.Go(func() { prompt, perr = w.prompt(fetching, j) })
	}
	pulled, out, ok := w.pull(ctx, j, alloc, barred.why)
	if !ok {
		stop()
		wg.Wait()
		return out
	}
	wg.Wait()
	if serr == nil {
		serr = perr
	}
	if ctx.Err() != nil {
		return w.halted(ctx, serr)
	}
	if serr != nil {
		w.log.Warn("sampling unavailable", "request_id", j.work.RequestID, "error", serr)
		return w.fail(ctx, j, stageTransfer, asError(serr, events.CodePromptUnavailable, "the gateway does not say how to continue"))
	}
	if out, ok := w.transferred(ctx, j, pulled); !ok {
		return out
	}
	return w.generate(ctx, j, alloc, pulled, prompt, sampling)
}

// pull gets the KV, under a new grant for each try. It is false where the job
// is over, with its outcome. Where barred says that nothing may be pulled, the
// grant is only the right to end the request.
func (w *Worker) pull(ctx context.Context, j *job, alloc *kvpool.Allocation, barred *events.Error) (*handoff.Pulled, outcome, bool) {
	last := j.work.GrantEpoch
	var failure error
	for range pullTries {
		a, out, ok := w.grant(ctx, j, alloc, &last)
		if !ok {
			return nil, out, false
		}
		if barred != nil {
			return nil, w.fail(ctx, j, stageTransfer, barred), false
		}
		key, err := strconv.ParseUint(a.KVKey, 16, 64)
		if err != nil || a.Grant == nil {
			// A repeated grant that a later one replaced comes without its signature.
			failure = events.NewError(events.CodeGrantEpoch, "the answer holds no grant")
			continue
		}
		start := w.cfg.Clock()
		pulled, err := w.puller.Pull(ctx, handoff.Pull{RequestID: j.work.RequestID, Grant: a.Grant, Key: key, Into: alloc})
		if err == nil {
			w.mu.Lock()
			w.stats.Transfers++
			w.stats.TransferBytes += pulled.KVBytes
			w.mu.Unlock()
			return pulled, outcome{}, true
		}
		if ctx.Err() != nil {
			return nil, w.halted(ctx, err), false
		}
		failure = err
		w.mu.Lock()
		w.stats.FailedTransfers++
		w.mu.Unlock()
		if errors.Is(err, kvpool.ErrDevice) { // ours: a worker whose device works asks for a grant of its own
			return nil, retry(0, err), false
		}
		w.log.Warn("pull", "request_id", j.work.RequestID, "grant_epoch", last, "code", string(handoff.CodeOf(err)), "error", err,
			"duration", w.cfg.Clock().Sub(start))
		if c := handoff.CodeOf(err); c == events.CodeLeaseOver || c == events.CodeUnknownRequest || c == events.CodeWorkerEpoch ||
			c == events.CodeGrantUsed && w.info.External {
			break // a new grant is for the same KV: it is gone
		}
	}
	code := handoff.CodeOf(failure)
	return nil, w.fail(ctx, j, stageTransfer, events.NewError(events.CodeTransferFailed, "the KV did not arrive: "+string(code))), false
}

// grant asks for the right to pull. last is the epoch of the last grant known,
// and that of the new one on return.
func (w *Worker) grant(ctx context.Context, j *job, alloc *kvpool.Allocation, last *int) (*events.Answer, outcome, bool) {
	w.mu.Lock()
	known := j.recorded
	j.recorded = true // from here on the log may know of the reservation
	w.mu.Unlock()
	refused := func(out outcome) (*events.Answer, outcome, bool) {
		w.mu.Lock()
		defer w.mu.Unlock()
		j.recorded = known // every answer so far was a denial
		return nil, out, false
	}
	for try := 1; ; try++ {
		a, err := w.do(ctx, j, &events.GrantTransfer{
			WorkerEpoch: w.epoch, GrantEpoch: *last + 1, Pages: alloc.Runs(),
			ReservedTokens: j.work.PromptTokens + j.work.MaxTokens, Layout: w.info.Layout,
		})
		switch {
		case err != nil && ctx.Err() != nil:
			return nil, w.halted(ctx, err), false
		case err != nil:
			return nil, w.unrecorded(err), false
		case a.Denied == nil:
			*last++
			return a, outcome{}, true
		}
		switch code := a.Denied.Code; {
		case code == events.CodeGrantEpoch && try < epochTries:
			// Another try has a grant already. Ours fences it off, if it comes later.
			v, err := w.cfg.Lifecycle.Get(ctx, j.work.RequestID)
			if err != nil {
				return refused(w.halted(ctx, err))
			}
			*last = max(*last, v.GrantEpoch)
		case code == events.CodeWorkerUnknown, code == events.CodeIncompatible:
			// Another worker of the model may be the right one.
			return refused(retry(tryAgain, a.Err()))
		default:
			return refused(dropped(a.Err()))
		}
	}
}

// transferred reports the KV. Decoding starts only with the durable answer: a
// request that was cancelled meanwhile, or whose lease ran out, ends here.
func (w *Worker) transferred(ctx context.Context, j *job, p *handoff.Pulled) (outcome, bool) {
	reference := ""
	if len(p.Reference) > 0 {
		reference = events.Digest(j.key, events.KindReference, p.Reference)
	}
	a, err := w.do(ctx, j, &events.Transfer{
		WorkerEpoch: w.epoch, GrantEpoch: p.Grant.GrantEpoch, KVRequest: p.KVRequest,
		KVBytes: p.KVBytes, KVDigest: p.KVDigest, Reference: reference, DurationUS: p.Duration.Microseconds(),
	})
	switch {
	case w.cfg.Guards.NoTransferred:
		return outcome{}, true
	case err != nil && stopped(ctx):
		return w.lastWord(ctx, j), false // it may be recorded: nobody else could go on
	case err != nil && ctx.Err() != nil:
		return w.halted(ctx, err), false
	case err != nil:
		w.log.Error("report transfer", "request_id", j.work.RequestID, "error", err)
		return w.fail(ctx, j, stageTransfer, events.NewError(events.CodeTransferFailed, "the transfer could not be reported")), false
	case a.Denied != nil:
		return dropped(a.Err()), false
	}
	return outcome{}, true
}

// generate runs the engine and reports its output. From here on nobody else can
// do this request's work: what goes wrong ends it.
func (w *Worker) generate(ctx context.Context, j *job, alloc *kvpool.Allocation, p *handoff.Pulled, prompt []byte, sampling engine.Sampling) outcome {
	out := newOutput(j.key, func(c events.OutputChunk) error { return w.cfg.Output.SendOutput(j.work, c) })
	// Nothing is sent after the news that the request has ended, even where the
	// engine takes a step to notice.
	defer context.AfterFunc(ctx, out.close)()
	defer out.close()
	dec, err := w.run(ctx, j, alloc, p, prompt, sampling, out.emit)
	w.remember(ctx, p.Grant.Owner, err)
	if err == nil {
		err = out.flush()
	}
	if err == nil && !dec.FinishReason.Real() {
		err = fmt.Errorf("decode: the engine ended without a reason that is one")
	}
	if ctx.Err() != nil {
		if stopped(ctx) {
			return w.lastWord(ctx, j)
		}
		return w.halted(ctx, err)
	}
	if err != nil {
		w.log.Warn("decode", "request_id", j.work.RequestID, "error", err)
		if errors.Is(err, errSend) {
			return w.fail(ctx, j, stageDecode, events.NewError(events.CodeOutputLost, "the output could not be sent"))
		}
		return w.fail(ctx, j, stageDecode, asError(err, events.CodeDecodeFailed, "the engine failed"))
	}
	a, err := w.do(ctx, j, &events.DecodeDone{
		WorkerEpoch: w.epoch, PromptTokens: dec.PromptTokens, CompletionTokens: dec.CompletionTokens,
		FinishReason: dec.FinishReason, OutputDigest: out.digest.String(),
	})
	switch {
	case err != nil && ctx.Err() != nil:
		if stopped(ctx) {
			return w.lastWord(ctx, j)
		}
		return w.halted(ctx, err)
	case err != nil:
		w.log.Error("report output", "request_id", j.work.RequestID, "error", err)
		return w.fail(ctx, j, stageDecode, events.NewError(events.CodeDecodeFailed, "the output could not be reported"))
	case a.Denied != nil:
		if a.Denied.Code == events.CodeIllegalState {
			return dropped(a.Err())
		}
		return w.fail(ctx, j, stageDecode, events.NewError(events.CodeDecodeFailed, "the lifecycle did not take the output: "+string(a.Denied.Code)))
	}
	w.mu.Lock()
	w.stats.Decoded++
	w.stats.OutputTokens += int64(dec.CompletionTokens)
	w.mu.Unlock()
	return done()
}

// run is one engine call on the job's pages.
func (w *Worker) run(ctx context.Context, j *job, alloc *kvpool.Allocation, p *handoff.Pulled, prompt []byte, sampling engine.Sampling, emit engine.Emit) (engine.Decoded, error) {
	write, err := w.cfg.Pool.BeginWrite(alloc)
	if err != nil {
		return engine.Decoded{}, fmt.Errorf("decode: %w", err)
	}
	defer write.End()
	job := engine.DecodeJob{
		RequestID: j.work.RequestID, PromptTokens: p.PromptTokens, First: p.First, Sampling: sampling, Reference: p.Reference,
	}
	if w.info.External {
		job.Prompt, job.Owner, job.Lease = prompt, p.Grant.Owner, p.Lease
	} else {
		job.KV = alloc
	}
	dec, err := w.cfg.Engine.Decode(ctx, job, emit)
	if err != nil {
		return dec, fmt.Errorf("decode: %w", err)
	}
	return dec, nil
}

// stopped says whether the job ended because the worker does, or its engine.
func stopped(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return errors.Is(cause, errStopping) || errors.Is(cause, errLost)
}

// lastWord ends a request that this worker cannot finish because it stops. The
// job's context is over, and the client waits.
func (w *Worker) lastWord(ctx context.Context, j *job) outcome {
	c, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*w.cfg.Grace)
	defer cancel()
	return w.fail(c, j, stageDecode, events.NewError(events.CodeWorkerLost, "the decode worker stops"))
}

// flushAfter and flushBytes bound how long output rests before it is sent.
const (
	flushAfter = 2 * time.Millisecond
	flushBytes = 1 << 10
)
