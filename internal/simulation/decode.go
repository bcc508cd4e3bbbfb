package simulation

import (
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/handoff"
)

// decode asks how to continue, and then for the KV.
func (x *worker) decode(j *job) {
	if !x.w.cfg.Guards.Worker.NoStateCheck {
		x.w.ask(x.life, j.work.RequestID, func(v *events.RequestView) {
			if v != nil && j.phase == running && v.State.Final() {
				x.end(j, false)
			}
		})
	}
	x.fetch(j, events.PartSampling, func([]byte) { x.grant(j, 1) })
}

// grant asks for the right to pull.
func (x *worker) grant(j *job, try int) {
	known := j.recorded
	j.recorded = true
	j.do(&events.GrantTransfer{
		WorkerEpoch: x.epoch, GrantEpoch: j.last + 1, Pages: j.alloc.Runs(),
		ReservedTokens: j.work.PromptTokens + j.work.MaxTokens, Layout: x.engine.Info().Layout,
	}, func(a *events.Answer) {
		if a.Denied == nil {
			j.last++
			if a.Grant == nil { // a later grant took its place
				x.again(j, events.NewError(events.CodeGrantEpoch, "the answer holds no grant"))
				return
			}
			x.pull(j, a)
			return
		}
		j.recorded = known
		switch code := a.Denied.Code; {
		case code == events.CodeGrantEpoch && try < grantTries:
			x.w.ask(x.life, j.work.RequestID, func(v *events.RequestView) {
				if j.phase != running || j.ended {
					return
				}
				if v != nil {
					j.last = max(j.last, v.GrantEpoch)
				}
				x.grant(j, try+1)
			})
		case code == events.CodeWorkerUnknown, code == events.CodeIncompatible:
			x.conclude(j, true, time.Second)
		default:
			x.conclude(j, false, 0)
		}
	})
}

// again tries another pull, under a grant of its own, or ends the request.
func (x *worker) again(j *job, err error) {
	if j.phase != running || j.ended {
		return
	}
	x.w.stop("pull", err)
	j.pulls++
	code := handoff.CodeOf(err)
	if j.pulls < pullTries && code != events.CodeLeaseOver && code != events.CodeUnknownRequest && code != events.CodeWorkerEpoch {
		x.grant(j, 1)
		return
	}
	x.fail(j, "transfer", events.NewError(events.CodeTransferFailed, "the KV did not arrive: "+string(code)))
}

// pulled reports the KV. Decoding begins with the durable answer.
func (x *worker) pulled(j *job, p *handoff.Pulled) {
	j.do(&events.Transfer{
		WorkerEpoch: x.epoch, GrantEpoch: p.Grant.GrantEpoch, KVRequest: p.KVRequest, KVBytes: p.KVBytes, KVDigest: p.KVDigest,
	}, func(a *events.Answer) {
		if a.Denied != nil && !x.w.cfg.Guards.Worker.NoTransferred {
			x.conclude(j, false, 0)
			return
		}
		x.generate(j, p)
	})
}

// generate runs the engine and sends what it says, piece by piece. Nothing is
// sent after the news that the request has ended.
func (x *worker) generate(j *job, p *handoff.Pulled) {
	w := x.w
	write, err := x.pool.BeginWrite(j.alloc)
	if err != nil {
		w.stop("decode writes", err)
		x.fail(j, "decode", events.NewError(events.CodeDecodeFailed, "the pages are gone"))
		return
	}
	tokens := p.PromptTokens
	if w.cfg.Guards.NoArrivedCount {
		tokens = j.work.PromptTokens
	}
	w.on(x.life, w.delay(), func() {
		var pieces []string
		digest := events.NewDigester(j.key, events.KindOutput)
		dec, err := x.engine.Decode(noTime, engine.DecodeJob{
			RequestID: j.work.RequestID, PromptTokens: tokens, First: p.First,
			Sampling: engine.Sampling{MaxTokens: j.work.MaxTokens}, KV: j.alloc,
		}, func(text []byte, _ int) error {
			_, _ = digest.Write(text) // a hash does not fail
			pieces = append(pieces, string(text))
			return nil
		})
		w.on(x.life, w.delay(), func() {
			write.End()
			if j.phase != running || j.ended {
				return
			}
			if err != nil {
				w.stop("decode computes", events.NewError(events.CodePoison, err.Error()))
				x.fail(j, "decode", events.NewError(events.CodePoison, "the engine read a page that was not written for this request"))
				return
			}
			x.emit(j, group(pieces), 0, &events.DecodeDone{
				WorkerEpoch: x.epoch, PromptTokens: dec.PromptTokens, CompletionTokens: dec.CompletionTokens,
				FinishReason: dec.FinishReason, OutputDigest: digest.String(),
			})
		})
	})
}

// group joins an engine's pieces, of a token each, to a few.
func group(pieces []string) []events.OutputChunk {
	var all []events.OutputChunk
	for len(pieces) > 0 {
		n := min(5, len(pieces))
		c := events.OutputChunk{Index: uint32(len(all)), Tokens: uint32(n)}
		for _, p := range pieces[:n] {
			c.Text = append(c.Text, p...)
		}
		all = append(all, c)
		pieces = pieces[n:]
	}
	return all
}

func (x *worker) emit(j *job, all []events.OutputChunk, i int, done *events.DecodeDone) {
	if i == len(all) {
		j.do(done, func(a *events.Answer) {
			if a.Denied != nil && a.Denied.Code != events.CodeIllegalState {
				x.fail(j, "decode", events.NewError(events.CodeDecodeFailed, "the lifecycle did not take the output: "+string(a.Denied.Code)))
				return
			}
			x.conclude(j, false, 0)
		})
		return
	}
	x.w.output(x.name, j.work, all[i])
	j.step(x.w.delay(), func() { x.emit(j, all, i+1, done) })
}
