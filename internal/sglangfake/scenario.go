package sglangfake

import (
	"context"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// Scenario is one published fault as a client meets it. Its steps talk to
// [World.Front] and to the nodes only, so they are the same whatever stands
// between: [Naive], which shows the fault, or a gate that must not.
type Scenario struct {
	Row  string // of docs/failures.md
	Name string
	// Config changes the nodes' configurations.
	Config func(prefill, decode *Config)
	// Steps are what happens. They make calls by [World.Call].
	Steps func(context.Context, *World) error
	// Unguarded is nil if the clients and the nodes show the fault.
	Unguarded func(*World) error
}

// World is a prefill node, a decode node, and something in front of them.
type World struct {
	enginefake.Play
	Prefill, Decode *Node

	naive *enginefake.Server
	proxy *Naive
}

// Open starts the nodes of a scenario. The caller sets Front and ends with Close.
func (s *Scenario) Open() (*World, error) {
	w := &World{Play: enginefake.Play{Clock: enginefake.NewManual()}}
	p := Config{Role: Prefill, ContextTokens: 512, PoolTokens: 2048, Clock: w.Clock}
	d := Config{Role: Decode, ContextTokens: 512, PoolTokens: 2048, Clock: w.Clock}
	if s.Config != nil {
		s.Config(&p, &d)
	}
	var err error
	if w.Prefill, err = New(p); err != nil {
		return nil, err
	}
	if w.Decode, err = New(d); err != nil {
		w.Prefill.Close()
		return nil, err
	}
	return w, nil
}

// RunNaive plays a scenario through [Naive]. The caller closes the world.
func (s *Scenario) RunNaive(ctx context.Context) (*World, error) {
	w, err := s.Open()
	if err != nil {
		return nil, err
	}
	w.proxy = &Naive{Prefill: w.Prefill.URL(), Decode: w.Decode.URL(), Bootstrap: w.Prefill.BootstrapPort()}
	if w.naive, err = enginefake.Serve(w.proxy, nil); err != nil {
		w.Close()
		return nil, err
	}
	w.Front = w.naive.URL()
	if err = s.Steps(ctx, w); err == nil {
		err = s.Unguarded(w)
	}
	return w, err
}

// Close ends the nodes.
func (w *World) Close() {
	w.Prefill.Close()
	w.Decode.Close()
	if w.naive != nil {
		w.naive.Close()
		w.proxy.Wait()
	}
	w.End()
}

// held waits until k requests are held at a stage of a node.
func held(ctx context.Context, n *Node, s enginefake.Stage, k int) error {
	return enginefake.Until(ctx, string(s), func() bool { return n.Waiting(s) == k })
}

// completion is a prompt of promptTokens that names who.
func completion(who string) enginefake.Call {
	return enginefake.Completion(who, promptTokens, outputTokens)
}

// right is what the model says to it.
func right(who string) string { return enginefake.Right(who, promptTokens, outputTokens) }
