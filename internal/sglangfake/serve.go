package sglangfake

import (
	"context"
	"errors"
	"io"
	"net/http"

	"github.com/pdgate/pdgate/internal/enginefake"
)

func (n *Node) serve(at route) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		j, err := n.parse(body, at)
		n.begin(r.Context(), j)
		defer n.end(j)
		n.logReceived(j)
		var gens []*enginefake.Generation
		if err == nil {
			gens, err = n.run(j, w)
		}
		if r.Context().Err() != nil { // the client has left
			n.count(func(s *Stats) { s.Aborted++ })
			return
		}
		if err != nil && errors.Is(context.Cause(j.ctx), errAborted) {
			n.count(func(s *Stats) { s.Aborted++ })
			err = &abortion{message: "Abort in waiting queue or transfer"}
			if j.faults.AbortAsLength {
				gens, err = []*enginefake.Generation{ended(j, enginefake.FinishLength)}, nil
			}
		}
		if err == nil && gens == nil {
			return // streamed already
		}
		n.logFinished(j, gens, err)
		if err != nil {
			n.abort(w, j, err)
			return
		}
		n.reply(w, j, gens)
	}
}

// ended is a choice without a token.
func ended(j *job, finish string) *enginefake.Generation {
	g := enginefake.NewGeneration(nil, 0, j.Request)
	g.Finish = finish
	return g
}

func (n *Node) begin(ctx context.Context, j *job) {
	ctx, j.cancel = context.WithCancelCause(ctx)
	j.ctx = ctx
	n.mu.Lock()
	defer n.mu.Unlock()
	j.life, j.faults, j.arrived = n.life, n.faults, n.cfg.Clock.Now()
	n.jobs[j.rid] = j
	n.running++
}

func (n *Node) end(j *job) {
	j.cancel(nil)
	n.mu.Lock()
	defer n.mu.Unlock()
	if j.life.jobs[j.rid] == j {
		delete(j.life.jobs, j.rid)
	}
	n.running--
}

// run is the engine's part. It returns no generations where it has streamed them.
func (n *Node) run(j *job, w http.ResponseWriter) ([]*enginefake.Generation, error) {
	if s := j.faults.Refuse; s != 0 {
		return nil, &abortion{status: s, kind: "InternalServerError", message: "injected refusal", early: true}
	}
	if err := n.admit(j); err != nil {
		return nil, err
	}
	n.mu.Lock()
	full := n.cfg.MaxQueued > 0 && n.counts.Waiting >= n.cfg.MaxQueued
	frozen := n.counts.Frozen
	n.mu.Unlock()
	switch {
	case frozen:
		return nil, n.freeze(j)
	case full:
		return nil, refuse(http.StatusServiceUnavailable, "ServiceUnavailableError", "The request queue is full.")
	case n.cfg.Role == Prefill:
		g, err := n.prefill(j)
		if err == nil && j.rejected != nil && n.cfg.Incident == Reported {
			err = j.rejected
		}
		if err != nil {
			return nil, err
		}
		return []*enginefake.Generation{g}, nil
	}
	return n.decode(j, w)
}

// pages is how many a request takes.
func (n *Node) pages(tokens int) int { return (tokens + n.cfg.PageSize - 1) / n.cfg.PageSize }

// waits runs f as a wait for the other node.
func (n *Node) waits(f func() error) error {
	n.count(func(s *Stats) { s.Waiting++ })
	defer n.count(func(s *Stats) { s.Waiting-- })
	return f()
}

// freeze blocks a request of a node that can go nowhere.
func (n *Node) freeze(j *job) error {
	n.count(func(s *Stats) { s.Frozen = true })
	select {
	case <-j.ctx.Done():
	case <-j.life.ctx.Done():
	}
	return context.Canceled
}
