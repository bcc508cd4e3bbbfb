package vllmfake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// job is one request in the engine.
type job struct {
	*enginefake.Request
	id     string // internal: what a reference calls it
	public string // of the answer
	max    int    // tokens to generate
	params *params
}

func (n *Node) generate(chat bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		f := n.fault()
		j, err := n.admit(r, body, chat, f)
		if err != nil {
			n.rejected(r.Context(), j)
			n.fail(w, err)
			return
		}
		n.mu.Lock()
		n.running++
		n.mu.Unlock()
		defer func() {
			n.mu.Lock()
			n.running--
			n.mu.Unlock()
		}()
		err = n.run(w, r, j, f)
		if r.Context().Err() != nil {
			n.count(func(s *Stats) { s.Aborted++ })
			return
		}
		if err != nil {
			n.failed(w, j, f, err)
		}
	}
}

// admit is what the server checks before its scheduler has the request. Even
// where it refuses, the job has the params as far as they were read.
func (n *Node) admit(r *http.Request, body []byte, chat bool, f Faults) (*job, error) {
	j := &job{Request: &enginefake.Request{}}
	var raw struct {
		Params *params `json:"kv_transfer_params"`
	}
	if json.Unmarshal(body, &raw) == nil && n.cfg.Role != Unified {
		j.params = raw.Params
	}
	if f.Refuse != 0 {
		return j, &apiError{status: f.Refuse, kind: "InternalServerError", message: "injected refusal"}
	}
	n.mu.Lock()
	dead := n.dead
	n.mu.Unlock()
	if dead {
		return j, errDead
	}
	q, err := enginefake.ParseRequest(body, chat, n.cfg.Template)
	if err != nil {
		return j, badRequest(err.Error())
	}
	j.Request = q
	if q.Model == "" {
		q.Model = n.cfg.Model
	}
	prompt, limit := len(q.Prompt), n.cfg.ContextTokens
	switch {
	case q.Model != n.cfg.Model:
		return j, &apiError{status: http.StatusNotFound, kind: "NotFoundError", message: fmt.Sprintf("The model `%s` does not exist.", q.Model), param: "model"}
	case f.RejectEarly && j.params != nil && j.params.DoRemotePrefill:
		return j, badRequest("injected rejection before the scheduler")
	case prompt == 0:
		return j, badRequest("The decoder prompt cannot be empty")
	case prompt >= limit || q.MaxTokens > limit-prompt:
		return j, badRequest(fmt.Sprintf("This model's maximum context length is %d tokens. However, you requested %d output tokens and your prompt contains at least %d input tokens, for a total of at least %d tokens. Please reduce the length of the input prompt or the number of requested output tokens.", limit, q.MaxTokens, prompt, prompt+q.MaxTokens))
	}
	j.max = q.MaxTokens
	if j.max == 0 && chat {
		j.max = limit - prompt
	} else if j.max == 0 {
		j.max = min(16, limit-prompt)
	}
	kind := map[bool]string{false: "cmpl-", true: "chatcmpl-"}[chat]
	id := r.Header.Get("X-Request-Id") // of two values the first, as the engine reads it
	if id == "" {
		id = token(16)
	}
	j.public = kind + id
	j.id = j.public
	if !chat {
		j.id += "-0"
	}
	if n.cfg.Build != Old {
		j.id += "-" + token(4)
	}
	return j, nil
}

// rejected tells prefill of a decode leg that the scheduler never saw, where the
// build does.
func (n *Node) rejected(ctx context.Context, j *job) {
	if p := j.params; p != nil && p.DoRemotePrefill && p.RequestID != "" && n.cfg.Build != Old {
		n.notify(ctx, p)
	}
}

// run is the engine's part.
func (n *Node) run(w http.ResponseWriter, r *http.Request, j *job, f Faults) error {
	ctx := r.Context()
	switch p := j.params; {
	case p != nil && p.DoRemoteDecode:
		return n.prefill(ctx, w, j, f)
	case p != nil && p.DoRemotePrefill:
		if _, ok := p.blocks(); !ok {
			// The scheduler asserts, and its process is gone.
			n.mu.Lock()
			n.dead = true
			n.mu.Unlock()
			return errDead
		}
		return n.decode(ctx, w, j, f)
	}
	return n.alone(ctx, w, j, f)
}

// hold takes blocks for the prompt and for all that may follow.
func (n *Node) hold(ctx context.Context, owner string, tokens int) (*enginefake.Pool, []int, error) {
	n.mu.Lock()
	n.sweep()
	pool := n.pool
	n.queued++
	n.mu.Unlock()
	ids, err := pool.Acquire(ctx, owner, pool.For(tokens))
	n.mu.Lock()
	n.queued--
	n.mu.Unlock()
	return pool, ids, err
}

// alone is a request without another node.
func (n *Node) alone(ctx context.Context, w http.ResponseWriter, j *job, f Faults) error {
	var gens []*enginefake.Generation
	for range j.N {
		owner := token(8)
		pool, ids, err := n.hold(ctx, owner, len(j.Prompt)+j.max)
		if err != nil {
			return err
		}
		defer pool.Release(owner, ids)
		if err := n.compute(ctx, pool, ids, j.Prompt); err != nil {
			return err
		}
		gens = append(gens, enginefake.NewGeneration(pool.Read(ids, len(j.Prompt)), j.max, j.Request))
	}
	return n.answer(ctx, w, j, f, gens, nil)
}

// compute is the forward pass over the prompt.
func (n *Node) compute(ctx context.Context, pool *enginefake.Pool, ids []int, prompt []byte) error {
	if err := n.Pass(ctx, enginefake.AtPrefill); err != nil {
		return err
	}
	if err := enginefake.Sleep(ctx, n.cfg.Clock, enginefake.Work(len(prompt), n.cfg.PrefillRate)); err != nil {
		return err
	}
	pool.Write(ids, 0, prompt)
	return nil
}

// errLost is a failure between admission and the first token.
var errLost = errors.New("failed before the first token")

// answer sends what the generations say.
func (n *Node) answer(ctx context.Context, w http.ResponseWriter, j *job, f Faults, gens []*enginefake.Generation, reference json.RawMessage) error {
	if f.EmptyStream {
		return errLost
	}
	a := &enginefake.Answer{
		Request: j.Request, ID: j.public, Created: n.cfg.Clock.Now().Unix(), Prompt: len(j.Prompt),
		Choice: func(c map[string]any, g *enginefake.Generation) {
			c["stop_reason"] = nil
			if g.Stop != "" && g.Stop != "\n" {
				c["stop_reason"] = g.Stop
			}
		},
		Body: func(b map[string]any) {
			b["kv_transfer_params"] = reference // nil: null
			b["system_fingerprint"], b["service_tier"] = nil, nil
		},
	}
	if j.Stream {
		return a.Stream(ctx, enginefake.NewSSE(w), gens, n.pace)
	}
	for _, g := range gens {
		for g.Finish == "" {
			if err := n.pace(ctx); err != nil {
				return err
			}
			g.Step()
		}
	}
	a.Write(w, gens)
	return nil
}
