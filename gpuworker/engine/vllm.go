package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine/remote"
)

// vllm fronts one vLLM node with its NixlConnector. Prefill goes first and
// answers with a reference to its blocks; decode gets it and fetches them itself.
//
// The engine checks next to nothing of a reference: one that is stale gives the
// answer to another prompt, under 200, and no counter moves. So it is used once,
// before its lease's end by our own clock, in the life of the node that gave it.
//
// The lease begins at the engine when prefill is done, which is somewhere between
// our question and its answer: it is counted from the question. A prefill that
// takes as long as the lease has none left, and fails: the lease of such a
// deployment is to be longer.
type vllm struct {
	server
	info Info
	fail *meter // of transfers that failed at this node

	given seen        // references that this node's prefill gave
	used  seen        // references that its decode was called with
	named atomic.Bool // a reference has named the request it was given for
}

func newVLLM(cfg Config) (*vllm, error) {
	r := *cfg.Remote
	n, err := remote.NewNode(r.URL, r.Key)
	if err != nil {
		return nil, err
	}
	info := r.Facts.info("vllm", cfg)
	info.ReadsAgain = true
	return &vllm{
		server: server{cfg: r, node: n, life: newLife(n, r.Logger)}, info: info,
		fail: newMeter(n, "vllm:nixl_num_failed_transfers_total"),
	}, nil
}

// Info implements [Engine].
func (e *vllm) Info() Info { return e.info }

// Count implements [Engine].
func (e *vllm) Count(ctx context.Context, prompt []byte) (int, error) {
	return countTokens(ctx, e.node, e.cfg.Facts.Model, prompt)
}

// Watch implements [Watched].
func (e *vllm) Watch(ctx context.Context) error {
	defer e.node.Close()
	return e.life.watch(ctx)
}

// Prefill implements [Engine].
func (e *vllm) Prefill(ctx context.Context, job PrefillJob) (Prefilled, error) {
	if err := validRoute(job.Sampling.Route); err != nil {
		return Prefilled{}, err
	}
	body, err := clientBody(job.Prompt)
	if err != nil {
		return Prefilled{}, err
	}
	asked := e.cfg.Clock()
	resp, err := e.node.Send(ctx, remote.Post{
		Path: job.Sampling.Route, RequestID: job.RequestID,
		Body: prefillBody(body, e.cfg.Facts.Model, &job.Sampling).Set("kv_transfer_params", []byte(askReference)).Bytes(),
	})
	if err != nil {
		return Prefilled{}, e.unreachable(ctx, "prefill", err, events.CodePrefillFailed)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		no := refused(resp, job.Prompt, events.CodePrefillFailed)
		if refusal(no) {
			return Prefilled{Refused: no}, nil
		}
		return Prefilled{}, fmt.Errorf("prefill: %w", no)
	}
	// From here on the node may hold blocks, whatever else the answer says.
	out := Prefilled{Hold: e.cfg.Lease}
	b, err := remote.ReadAll(resp.Body)
	if err != nil {
		return out, e.unreachable(ctx, "prefill", err, events.CodePrefillFailed)
	}
	a, err := parseAnswer(b, job.Prompt, events.CodePrefillFailed)
	switch {
	case err != nil:
		return out, fmt.Errorf("prefill: %w", err)
	case a.Usage == nil || len(a.Choices) != 1 || a.Choices[0].FinishReason == nil:
		return out, events.NewError(events.CodePrefillFailed, "the engine's answer to prefill lacks usage, choice or finish reason")
	}
	out.PromptTokens = a.Usage.PromptTokens
	// One token of a tool call has that call's reason.
	if _, ok := finished(*a.Choices[0].FinishReason); !ok {
		return out, events.NewError(events.CodePrefillFailed, "the engine ended prefill for a reason that is none")
	}
	ref, err := checkReference(a.Transfer)
	if err == nil {
		err = e.own(ref, a.Transfer, job.RequestID)
	}
	if err != nil && !e.cfg.Guards.NoReference {
		return out, fmt.Errorf("prefill: %w", err)
	}
	if err := e.life.seen(ctx, ref.EngineID); err != nil {
		return out, events.NewError(events.CodePrefillFailed, "the engine restarted: its reference is void")
	}
	out.Reference, out.Lease = a.Transfer, asked.Add(e.cfg.Lease-e.cfg.Margin)
	if !e.cfg.Clock().Before(out.Lease) && !e.cfg.Guards.NoLease {
		return out, events.NewError(events.CodeLeaseOver,
			fmt.Sprintf("prefill took as long as the engine's lease of %v allows: raise kv_lease_duration there and --engine-lease here", e.cfg.Lease))
	}
	return out, nil
}

// own says whether a reference is this request's, as far as it tells: it was not
// given before, and where the node's references name the request that they were
// given for, as those of current builds do, it names this one.
func (e *vllm) own(ref vllmReference, raw []byte, requestID string) error {
	names := ref.RequestID != nil && requestID != "" && strings.Contains(*ref.RequestID, requestID)
	if names {
		e.named.Store(true)
	}
	if e.given.again(raw) || !names && e.named.Load() {
		return events.NewError(events.CodeReferenceMismatch, "the engine's reference is another request's")
	}
	return nil
}

// askReference has a prefill node keep its blocks for somebody else.
const askReference = `{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`

// Decode implements [Engine].
func (e *vllm) Decode(ctx context.Context, job DecodeJob, emit Emit) (Decoded, error) {
	if err := validRoute(job.Sampling.Route); err != nil {
		return Decoded{}, err
	}
	body, err := clientBody(job.Prompt)
	if err != nil {
		return Decoded{}, err
	}
	post := remote.Post{
		Path: job.Sampling.Route, RequestID: job.RequestID, Before: job.Lease, Now: e.cfg.Clock,
		Body: decodeBody(body, e.cfg.Facts.Model, &job.Sampling).Set("kv_transfer_params", job.Reference).Bytes(),
	}
	if e.cfg.Guards.NoLease {
		post.Before = time.Time{}
	}
	before, err := e.fail.sample(ctx)
	if err != nil {
		return Decoded{}, e.unreachable(ctx, "decode", err, events.CodeDecodeFailed)
	}
	// Used from here on, whatever becomes of the call.
	if e.used.again(job.Reference) && !e.cfg.Guards.NoOnce {
		return Decoded{}, fmt.Errorf("decode: %w", events.NewError(events.CodeGrantUsed, "decode was called with this reference before"))
	}
	resp, err := e.node.Send(ctx, post)
	switch {
	case errors.Is(err, remote.ErrLate):
		return Decoded{}, fmt.Errorf("decode: %w", events.NewError(events.CodeLeaseOver, "the lease of the engine's reference was over before decode could begin"))
	case err != nil:
		return Decoded{}, e.unreachable(ctx, "decode", err, events.CodeDecodeFailed)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return Decoded{}, fmt.Errorf("decode: %w", refused(resp, job.Prompt, events.CodeDecodeFailed))
	}
	out := &output{job: job, emit: emit, limit: e.cfg.Facts.limit(), noCount: e.cfg.Guards.NoCount, prove: func(ctx context.Context) error { return e.unharmed(ctx, before) }}
	done, err := out.read(ctx, resp)
	if err != nil {
		return done, e.broken(ctx, err)
	}
	return done, nil
}

// unharmed says whether no transfer failed at the node since before. One that
// did cannot be told from ours: the node names none.
func (e *vllm) unharmed(ctx context.Context, before float64) error {
	after, err := e.fail.sample(ctx)
	switch {
	case e.cfg.Guards.NoCounters:
	case err != nil && e.cfg.Policy == Strict:
		return e.unreachable(ctx, "decode", err, events.CodeDecodeFailed)
	case err == nil && after > before:
		e.cfg.Logger.Warn("a transfer failed at the decode engine", "url", e.node.URL(), "failed", after-before, "policy", string(e.cfg.Policy))
		if e.cfg.Policy == Strict {
			return events.NewError(events.CodeTransferFailed, "a KV transfer failed at the decode engine while this request's was open")
		}
	}
	return nil
}
