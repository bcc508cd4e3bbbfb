package vllmfake

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// prefill is a leg with do_remote_decode: its blocks stay behind under a lease.
func (n *Node) prefill(ctx context.Context, w http.ResponseWriter, j *job, f Faults) error {
	owner := j.id + "/" + token(4)
	pool, ids, err := n.hold(ctx, owner, len(j.Prompt))
	if err != nil {
		return err
	}
	offered := false
	defer func() {
		if !offered {
			pool.Release(owner, ids)
		}
	}()
	if err := n.compute(ctx, pool, ids, j.Prompt); err != nil {
		return err
	}
	g := enginefake.NewGeneration(pool.Read(ids, len(j.Prompt)), j.max, j.Request)
	if f.Abort {
		g.Finish = enginefake.FinishAbort
	}
	g.All()
	var reference json.RawMessage
	if g.Finish == enginefake.FinishLength || g.Finish == enginefake.FinishStop {
		reference, offered = n.offer(j.id, owner, ids, len(j.Prompt)), true
	}
	if f.NullReference {
		reference = nil
	}
	// A client that leaves here aborts nothing: the request has finished.
	if err := n.Pass(ctx, enginefake.AtAnswer); err != nil {
		return err
	}
	return n.answer(ctx, w, j, f, []*enginefake.Generation{g}, reference)
}

// errLoad is a failed load under the policy fail.
var errLoad = errors.New("load of remote KV failed")

// decode is a leg with do_remote_prefill. Each of n choices loads for itself.
func (n *Node) decode(ctx context.Context, w http.ResponseWriter, j *job, f Faults) error {
	var gens []*enginefake.Generation
	for range j.N {
		owner := token(8)
		queued, stop := context.WithCancel(ctx)
		beats := n.keepAlive(queued, j.params)
		pool, ids, err := n.hold(ctx, owner, len(j.Prompt)+j.max)
		if err == nil {
			err = n.load(ctx, pool, ids, j, f)
		}
		stop()
		<-beats
		if len(ids) > 0 && (!f.LeakOnAbort || ctx.Err() == nil) {
			defer pool.Release(owner, ids)
		}
		switch {
		case errors.Is(err, errLoad) && f.FailedReceive:
			return n.failedReceive(ctx, w, j, f)
		case err != nil:
			return err
		}
		if err := n.Pass(ctx, enginefake.AtDecode); err != nil {
			return err
		}
		gens = append(gens, enginefake.NewGeneration(pool.Read(ids, len(j.Prompt)), j.max, j.Request))
	}
	err := n.answer(ctx, w, j, f, gens, nil)
	if err == nil {
		n.count(func(s *Stats) { s.Decodes++ })
	}
	return err
}

// load fills the blocks from another node's, or by computing the prompt.
func (n *Node) load(ctx context.Context, pool *enginefake.Pool, ids []int, j *job, f Faults) error {
	if err := n.Pass(ctx, enginefake.AtTransfer); err != nil {
		if !f.LeakOnAbort {
			n.notify(ctx, j.params) // what has begun is read to its end
		}
		return err
	}
	blocks, _ := j.params.blocks()
	tokens := min(len(j.Prompt), len(blocks)*n.cfg.BlockSize)
	got, err := n.fetch(ctx, j.params, blocks, tokens)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case f.FailLoads || f.FailedReceive || err != nil:
		n.count(func(s *Stats) { s.FailedTransfers++ })
		if n.cfg.LoadFailure == Fail {
			return errLoad
		}
		if f.RecomputeWrong {
			pool.Write(ids, 0, enginefake.Noise(len(j.Prompt)))
			return nil
		}
		return n.recompute(ctx, pool, ids, j)
	case got.Found == foundUnknown || got.Found == foundExpired:
		return n.recompute(ctx, pool, ids, j)
	case got.Found == foundBroken || f.BrokenPair:
		n.count(func(s *Stats) { s.FailedTransfers++ })
		got.KV = enginefake.Noise(tokens)
	case f.CorruptLoads:
		// The tail too: that is what the next token is chosen by.
		for at := n.cfg.BlockSize - 1; at < len(got.KV); at += n.cfg.BlockSize {
			got.KV[at] ^= 1
		}
		got.KV = bytes.Clone(got.KV)
		got.KV[len(got.KV)-1] ^= 2
	}
	pool.Write(ids, 0, got.KV)
	n.notify(ctx, j.params)
	return nil
}

func (n *Node) recompute(ctx context.Context, pool *enginefake.Pool, ids []int, j *job) error {
	n.count(func(s *Stats) { s.Recomputed++ })
	return n.compute(ctx, pool, ids, j.Prompt)
}

// failedReceive is vllm#52276: the choice is there, its content is empty, and
// what a reasoning parser made of garbage is beside it.
func (n *Node) failedReceive(ctx context.Context, w http.ResponseWriter, j *job, f Faults) error {
	garbage := enginefake.NewGeneration(nil, 0, j.Request)
	garbage.Finish = enginefake.FinishStop
	a := &enginefake.Answer{
		Request: j.Request, ID: j.public, Created: n.cfg.Clock.Now().Unix(), Prompt: len(j.Prompt),
		Choice: func(c map[string]any, _ *enginefake.Generation) {
			for _, k := range []string{"message", "delta"} {
				if m, ok := c[k].(map[string]any); ok {
					m["content"], m["reasoning_content"] = "", string(enginefake.Noise(24))
				}
			}
		},
		Body: func(b map[string]any) { b["kv_transfer_params"] = nil },
	}
	if j.Stream {
		return a.Stream(ctx, enginefake.NewSSE(w), []*enginefake.Generation{garbage}, n.pace)
	}
	a.Write(w, []*enginefake.Generation{garbage})
	return nil
}
