package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/preflight"
)

// preflightTime bounds the question; without an answer nothing can be compared.
const preflightTime = 10 * time.Second

// rosterView is what a worker asks the lifecycle about its fleet.
type rosterView interface {
	Workers(context.Context) (*events.WorkersView, error)
}

// preflight compares this worker with those of the other role, and judges the node
// of an external engine that it fronts. A RED finding ends its life before it takes
// work. Of two workers that do not fit each other and
// start at once, the one that was recorded later sees the other.
func (p workerPart) preflight(ctx context.Context, roster rosterView, epoch uint64, log *slog.Logger) error {
	all, err := registered(ctx, roster, p.name, epoch)
	if err != nil {
		return fmt.Errorf("preflight: %w", err)
	}
	r := preflight.Worker(p.name, all)
	if p.node != nil {
		n, err := preflight.Node(ctx, p.node.url)
		switch {
		case err != nil:
			return fmt.Errorf("preflight: %w", err)
		case n.Nodes[0].Problem != "": // what the worker needs, it has read with the engine's key
			log.Warn("preflight cannot look at the engine", "worker_id", p.name, "about", n.Nodes[0].Node, "problem", n.Nodes[0].Problem)
		default:
			r.Findings = append(r.Findings, n.Findings...)
		}
	}
	for _, f := range append(r.Of(preflight.Unknown), r.Of(preflight.Amber)...) {
		log.Warn("preflight", "worker_id", p.name, "level", string(f.Level), "about", f.Node, "finding", f.Text, "fix", f.Fix)
	}
	for _, f := range r.Of(preflight.Red) {
		if !p.allowRed {
			return fmt.Errorf("preflight: RED %s: %s; fix: %s, or start it with --allow-red", f.Node, f.Text, f.Fix)
		}
		log.Warn("preflight is red, and allowed to be", "worker_id", p.name, "about", f.Node, "finding", f.Text, "fix", f.Fix)
	}
	return nil
}

// registered is the roster as soon as it shows this life: it then shows every
// worker that was recorded before.
func registered(ctx context.Context, roster rosterView, name string, epoch uint64) ([]events.WorkerView, error) {
	ctx, cancel := context.WithTimeout(ctx, preflightTime)
	defer cancel()
	for {
		v, err := roster.Workers(ctx)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(v.Workers, func(w events.WorkerView) bool { return w.Worker == name && w.Epoch >= epoch }) {
			return v.Workers, nil
		}
		t := time.NewTimer(20 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("the roster does not show this worker: %w", ctx.Err())
		}
	}
}
