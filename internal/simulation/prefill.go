package simulation

import (
	"fmt"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/handoff"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// prefill fetches the prompt, and the lifecycle's view beside it.
func (x *worker) prefill(j *job) {
	if !x.w.cfg.Guards.Worker.NoStateCheck {
		x.w.ask(x.life, j.work.RequestID, func(v *events.RequestView) {
			if v != nil && j.phase == running && (v.State.Final() || v.State == events.Prefilled || v.State == events.Transferred) {
				x.end(j, false)
			}
		})
	}
	x.fetch(j, events.PartPrompt, func(prompt []byte) { x.compute(j, prompt) })
}

// fetch gets a part of the request from its gateway, or ends the request.
func (x *worker) fetch(j *job, part string, then func([]byte)) {
	x.w.fetch(x.life, j.work, x.role, part, func(b []byte, err *events.Error) {
		if j.phase != running || j.ended {
			return
		}
		if err == nil && part == events.PartPrompt && !x.w.cfg.Guards.Worker.NoPromptCheck {
			if events.Digest(j.key, events.KindPrompt, b) != j.work.PromptDigest || len(b) != j.work.PromptTokens {
				err = events.NewError(events.CodePromptUnavailable, "the gateway's prompt is not the admitted one")
				x.w.stop("prefill checks the prompt", err)
			}
		}
		if err != nil {
			x.fail(j, "fetch", err)
			return
		}
		then(b)
	})
}

// compute runs the engine. Between the beginning of the write and its end
// anything may happen; an engine that was told to stop takes a step to notice,
// and writes until then.
func (x *worker) compute(j *job, prompt []byte) {
	write, err := x.pool.BeginWrite(j.alloc)
	if err != nil {
		x.w.stop("prefill writes", err)
		x.fail(j, "prefill", events.NewError(events.CodePrefillFailed, "the pages are gone"))
		return
	}
	x.w.on(x.life, x.w.delay(), func() {
		pre, err := x.engine.Prefill(noTime, engine.PrefillJob{
			RequestID: j.work.RequestID, Prompt: prompt, Sampling: engine.Sampling{MaxTokens: j.work.MaxTokens}, KV: j.alloc,
		})
		x.w.on(x.life, x.w.delay(), func() {
			defer write.End()
			if j.phase == running && !j.ended {
				x.computed(j, pre, err)
			}
		})
	})
}

func (x *worker) computed(j *job, pre engine.Prefilled, err error) {
	switch {
	case pre.Refused != nil && !x.w.cfg.Guards.Worker.NoRefusedCheck:
		x.w.stop("prefill asks whether the engine refused", pre.Refused)
		x.reject(j, pre.Refused)
		return
	case err != nil:
		x.fail(j, "prefill", events.NewError(events.CodePrefillFailed, "the engine failed"))
		return
	}
	pin, err := x.pool.Pin(j.work.RequestID, x.epoch, j.alloc.Runs())
	if err != nil {
		x.w.stop("prefill sums", err)
		x.fail(j, "prefill", events.NewError(events.CodePrefillFailed, "the pages are gone"))
		return
	}
	digest, err := pin.Digest(events.KVKey(j.key))
	pin.Release()
	if err != nil {
		x.fail(j, "prefill", events.NewError(events.CodePrefillFailed, "the pages cannot be read"))
		return
	}
	x.report(j, pre, digest)
}

// report offers the KV, and then says that it is there.
func (x *worker) report(j *job, pre engine.Prefilled, digest kvpool.Digest) {
	w := x.w
	j.until = w.now.Add(leaseTime)
	err := x.server.Offer(handoff.Offer{
		RequestID: j.work.RequestID, Model: j.work.Model, Tenant: j.work.Tenant, Alloc: j.alloc, PromptTokens: pre.PromptTokens,
		Digest: digest, Key: events.KVKey(j.key), Lease: j.until, First: pre.First,
	})
	if err != nil {
		x.fail(j, "prefill", events.NewError(events.CodeInternal, "the KV could not be offered"))
		return
	}
	if w.faults.MemFlip && w.chance(0.3) {
		w.say("%s: a word of %s flips in memory", x.name, short(j.work.RequestID))
		j.alloc.Page(0)[3] ^= 1 << 17
	}
	j.recorded = true
	info := x.engine.Info()
	j.do(&events.Prefill{
		WorkerEpoch: x.epoch, Tenant: j.work.Tenant, PromptTokens: pre.PromptTokens, Pages: j.alloc.Runs(), PageTokens: info.PageTokens,
		Layout: info.Layout, KVBytes: int64(j.alloc.Pages()) * int64(info.PageBytes()), KVDigest: digest.String(), LeaseMS: leaseTime.Milliseconds(),
	}, func(a *events.Answer) {
		if a.Denied == nil {
			x.keep(j)
			return
		}
		x.wait(x.server.Revoke(j.work.RequestID), 0, func() { x.denied(j, pre, a.Denied) })
	})
}

func (x *worker) denied(j *job, pre engine.Prefilled, d *events.Denial) {
	if j.phase != running || j.ended {
		return
	}
	j.recorded = false
	switch d.Code {
	case events.CodeIllegalState, events.CodeUnknownRequest, events.CodeDeadline:
		x.conclude(j, false, 0)
	case events.CodeWorkerUnknown, events.CodeWorkerEpoch:
		x.conclude(j, true, time.Second)
	case events.CodeTokenCountMismatch:
		if pre.Refused != nil {
			x.reject(j, pre.Refused)
			return
		}
		x.fail(j, "prefill", events.NewError(events.CodePrefillFailed,
			fmt.Sprintf("the engine prefilled %d of %d tokens", pre.PromptTokens, j.work.PromptTokens)))
	default:
		x.fail(j, "prefill", events.NewError(events.CodePrefillFailed, "the lifecycle did not take the KV: "+string(d.Code)))
	}
}
