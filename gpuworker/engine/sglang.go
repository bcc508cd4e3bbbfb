package engine

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine/remote"
)

// sglang fronts one SGLang node. Prefill pushes the KV into pages that decode
// has set aside before, and waits for decode to name them: both legs are called
// at once, under a room that is drawn anew for each attempt. What can be held
// back is dispatch, and decode's answer: it is read and kept until prefill has
// proven that it computed this prompt, and handed to the decode worker by a
// reference that only a grant gives out.
//
// The room is the engines' only key. A node that serves the prompt of another
// request under it cannot be told from outside, except by what it counts.
type sglang struct {
	server
	info Info

	stop chan struct{}  // closed when the worker has ended
	legs sync.WaitGroup // prefill legs, and what waits for their end
}

func newSGLang(cfg Config) (*sglang, error) {
	r := *cfg.Remote
	if r.Pairing == nil || r.Name == "" || r.Role != events.RolePrefill && r.Role != events.RoleDecode {
		return nil, errors.New("engine sglang: Pairing, Name and Role are needed: prefill and decode workers share a process")
	}
	if m := r.Facts.Mode; m != "" && m != string(r.Role) {
		return nil, fmt.Errorf("engine sglang at %s: its disaggregation_mode is %q, and it is named as a %s node", r.URL, m, r.Role)
	}
	n, err := remote.NewNode(r.URL, r.Key)
	if err != nil {
		return nil, err
	}
	e := &sglang{server: server{cfg: r, node: n, life: newLife(n, r.Logger)}, info: r.Facts.info("sglang", cfg), stop: make(chan struct{})}
	if r.Role == events.RoleDecode {
		r.Pairing.join(r.Name, &place{name: r.Name, engine: e, capacity: r.Facts.PoolTokens})
	}
	return e, nil
}

// Info implements [Engine].
func (e *sglang) Info() Info { return e.info }

// Count implements [Engine].
func (e *sglang) Count(ctx context.Context, prompt []byte) (int, error) {
	return countTokens(ctx, e.node, e.cfg.Facts.Model, prompt)
}

// Watch implements [Watched].
func (e *sglang) Watch(ctx context.Context) error {
	defer e.node.Close()
	err := e.life.watch(ctx)
	close(e.stop)
	if err == nil {
		e.legs.Wait() // of a node that is gone they end when their requests do
	}
	if e.cfg.Role == events.RoleDecode {
		e.cfg.Pairing.leave(e.cfg.Name, e)
	}
	return err
}

// Elsewhere implements [Placed].
func (e *sglang) Elsewhere(requestID string) bool {
	return e.cfg.Role == events.RoleDecode && e.cfg.Pairing.elsewhere(requestID, e.cfg.Name)
}

// Forget implements [Forgetful].
func (e *sglang) Forget(requestID string) {
	if e.cfg.Role == events.RolePrefill {
		e.cfg.Pairing.drop(requestID)
	}
}

// drawRoom is a room nobody else is in: 63 random bits.
func drawRoom() int64 {
	var b [8]byte
	rand.Read(b[:])
	return int64(binary.BigEndian.Uint64(b[:]) >> 1)
}

// bootstrap are the members by which the two legs find each other.
func (e *sglang) bootstrap(o remote.Object, room int64) remote.Object {
	host := e.cfg.Facts.Host
	if host == "" {
		host = e.node.Host()
	}
	if strings.Contains(host, ":") {
		host = "[" + strings.Trim(host, "[]") + "]"
	}
	port := json.RawMessage("null")
	if p := e.cfg.Facts.BootstrapPort; p > 0 {
		port = remote.Int(int64(p))
	}
	return o.Set("bootstrap_host", remote.Text(host)).Set("bootstrap_port", port).Set("bootstrap_room", remote.Int(room))
}

// reference is what stands for the KV: the room, and the pairing that holds
// decode's answer.
type reference struct {
	Room    int64  `json:"room"`
	Pairing string `json:"pairing"`
}

// Prefill implements [Engine]: it calls both legs, and is done when prefill has
// proven itself. Where either fails, the other is ended at once. Where the client
// leaves, both go on for a while: pages that decode gives back while prefill
// still writes there are the next request's.
func (e *sglang) Prefill(ctx context.Context, job PrefillJob) (Prefilled, error) {
	if err := validRoute(job.Sampling.Route); err != nil {
		return Prefilled{}, err
	}
	body, err := clientBody(job.Prompt)
	if err != nil {
		return Prefilled{}, err
	}
	to, err := e.cfg.Pairing.reserve(ctx, e.cfg.Name, job.PromptTokens+job.Sampling.MaxTokens)
	if err != nil {
		return Prefilled{}, fmt.Errorf("prefill: %w", err)
	}
	id := make([]byte, 16)
	rand.Read(id)
	a := &attempt{engine: e, job: job, ref: reference{Room: drawRoom(), Pairing: hex.EncodeToString(id)}, done: make(chan struct{})}
	var legs context.Context
	legs, a.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	a.held = newHeld(legs, job, to, a.cancel)
	a.held.start(remote.Post{Path: job.Sampling.Route, RequestID: job.RequestID, Body: to.engine.bootstrapped(body, &job.Sampling, e, a.ref.Room)})
	e.legs.Go(func() { // ends with the leg, which drain bounds
		defer close(a.done)
		a.run(legs, remote.Post{
			Path: job.Sampling.Route, RequestID: job.RequestID,
			Body: e.bootstrap(prefillBody(body, e.cfg.Facts.Model, &job.Sampling), a.ref.Room).Bytes(),
		})
	})
	select {
	case <-a.done:
		return a.result()
	case <-ctx.Done():
		e.legs.Go(a.drain)
		return Prefilled{}, fmt.Errorf("prefill: %w", ctx.Err())
	}
}

// attempt is one call of both legs.
type attempt struct {
	engine *sglang
	job    PrefillJob
	ref    reference
	held   *held
	cancel context.CancelCauseFunc // of both legs
	done   chan struct{}           // closed when prefill's leg has ended

	// Good once done is closed.
	out   Prefilled
	first events.Piece
	err   error
}

// run is prefill's leg.
func (a *attempt) run(legs context.Context, p remote.Post) {
	a.out, a.first, a.err = a.engine.prefillLeg(legs, a.job, p)
	if cause := context.Cause(legs); a.err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		a.err = cause // decode's failure ended the leg
	}
}

// result judges a leg that came to its end, and keeps decode's answer for its
// claim.
func (a *attempt) result() (Prefilled, error) {
	e, out, err := a.engine, a.out, a.err
	if err == nil && out.Refused == nil {
		err = a.held.prove(a.first)
	}
	if no, ok := errors.AsType[*events.Error](err); ok && refusal(no) {
		out.Refused, err = no, nil // decode's no, which came first
	}
	if err == nil && out.Refused == nil {
		out.Reference, err = json.Marshal(a.ref)
	}
	if err != nil || out.Refused != nil {
		if no, ok := errors.AsType[*events.Error](err); ok && no.Code == events.CodeTransferFailed {
			e.cfg.Pairing.pairs.Failed(e.cfg.Name, a.held.to.name)
		}
		a.close()
		return out, err
	}
	out.Lease = e.cfg.Clock().Add(e.cfg.Lease - e.cfg.Margin)
	e.cfg.Pairing.hold(a.job.RequestID, a.ref, a.held, e.cfg.Lease)
	return out, nil
}

// drain lets both legs of a request that nobody waits for go on until prefill
// has ended, for a while, and then ends them. What they reserved at decode stays
// reserved.
func (a *attempt) drain() {
	t := time.NewTimer(a.engine.cfg.Drain)
	defer t.Stop()
	select {
	case <-a.done:
	case <-t.C:
	case <-a.engine.stop:
	}
	a.close()
	<-a.done
}

func (a *attempt) close() {
	a.cancel(nil)
	a.held.close()
}

// bootstrapped is decode's body: its own model name, and the prefill node's
// address.
func (e *sglang) bootstrapped(body remote.Object, s *Sampling, prefill *sglang, room int64) []byte {
	return prefill.bootstrap(decodeBody(body, e.cfg.Facts.Model, s), room).Bytes()
}

// prefillLeg calls prefill and reads its answer, which comes after the KV has
// been pushed. first is what it computed, for a decode that has nothing to add.
func (e *sglang) prefillLeg(ctx context.Context, job PrefillJob, p remote.Post) (out Prefilled, first events.Piece, err error) {
	if e.cfg.Guards.NoHold {
		e.legs.Go(func() { e.unwatched(context.WithoutCancel(ctx), p) })
		return Prefilled{PromptTokens: job.PromptTokens}, first, nil
	}
	resp, err := e.node.Send(ctx, p)
	if err != nil {
		return out, first, e.unreachable(ctx, "prefill", err, events.CodePrefillFailed)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		no := refused(resp, job.Prompt, events.CodePrefillFailed)
		if refusal(no) {
			return Prefilled{Refused: no}, first, nil
		}
		return out, first, fmt.Errorf("prefill: %w", no)
	}
	b, err := remote.ReadAll(resp.Body)
	if err != nil {
		return out, first, e.unreachable(ctx, "prefill", err, events.CodePrefillFailed)
	}
	a, err := parseAnswer(b, job.Prompt, events.CodePrefillFailed)
	switch {
	case err != nil:
		return out, first, fmt.Errorf("prefill: %w", err)
	case len(a.Choices) != 1 || a.Choices[0].FinishReason == nil || a.Usage == nil:
		return out, first, events.NewError(events.CodePrefillFailed, "the engine's answer to prefill lacks usage, choice or finish reason")
	}
	out.PromptTokens, first = a.Usage.PromptTokens, a.Choices[0].Piece
	if _, ok := finished(*first.FinishReason); !ok {
		return out, first, events.NewError(events.CodePrefillFailed, "the engine aborted prefill under 200")
	}
	return out, first, nil
}

// unwatched calls prefill and asks nothing, which is what a test of the guard
// shows the cost of.
func (e *sglang) unwatched(ctx context.Context, p remote.Post) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.Lease)
	defer cancel()
	e.legs.Go(func() {
		select {
		case <-e.stop:
			cancel()
		case <-ctx.Done():
		}
	})
	if resp, err := e.node.Send(ctx, p); err == nil {
		_, _ = remote.ReadAll(resp.Body)
		_ = resp.Body.Close()
	}
}

// Decode implements [Engine]: it claims the answer that the reference stands
// for, once.
func (e *sglang) Decode(ctx context.Context, job DecodeJob, emit Emit) (Decoded, error) {
	var ref reference
	if json.Unmarshal(job.Reference, &ref) != nil {
		return Decoded{}, events.NewError(events.CodeReferenceMismatch, "the reference is none of this process")
	}
	if !job.Lease.IsZero() && !e.cfg.Clock().Before(job.Lease) && !e.cfg.Guards.NoLease {
		return Decoded{}, events.NewError(events.CodeLeaseOver, "the lease of the held answer is over")
	}
	h, err := e.cfg.Pairing.claim(job.RequestID, ref, e.cfg.Name)
	if err != nil {
		return Decoded{}, fmt.Errorf("decode: %w", err)
	}
	defer h.close()
	defer context.AfterFunc(ctx, h.close)()
	job.Prompt = h.prompt
	out := &output{
		job: job, emit: emit, limit: e.cfg.Facts.limit(), noCount: e.cfg.Guards.NoCount, wait: !e.cfg.Guards.NoHold,
		// Where decode ends at once its text is empty: the one token is prefill's.
		complete: h.complete,
	}
	done, err := h.follow(ctx, out)
	if err != nil {
		return done, e.broken(ctx, err)
	}
	return done, nil
}

// expire is how long a held answer outlives its lease.
const expire = time.Second
