package vllmfake

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

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
	// Naive has the mistake in it that the report names, if it is the proxy's.
	Naive Naive
	// Steps are what happens. They collect replies by [World.Call].
	Steps func(context.Context, *World) error
	// Unguarded is nil if the clients and the nodes show the fault.
	Unguarded func(*World) error
}

// World is a prefill node, a decode node, and something in front of them.
type World struct {
	Clock           *enginefake.Manual
	Prefill, Decode *Node
	Front           string // the base URL that clients talk to
	Guarded         bool   // Front is a gate: steps wait for what it must do
	// Replies are the clients' answers, by call.
	Replies []enginefake.Reply

	calls sync.WaitGroup
	front *enginefake.Server
}

// Open starts the nodes of a scenario. The caller sets Front and ends with Close.
func (s *Scenario) Open() (*World, error) {
	w := &World{Clock: enginefake.NewManual()}
	p := Config{Role: Prefill, ContextTokens: 512, Blocks: 128, Clock: w.Clock}
	d := Config{Role: Decode, ContextTokens: 512, Blocks: 128, Clock: w.Clock}
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
	proxy := s.Naive
	proxy.Prefill, proxy.Decode = w.Prefill.URL(), w.Decode.URL()
	if w.front, err = enginefake.Serve(&proxy, nil); err != nil {
		w.Close()
		return nil, err
	}
	w.Front = w.front.URL()
	err = s.Steps(ctx, w)
	w.calls.Wait()
	if err == nil {
		err = s.Unguarded(w)
	}
	return w, err
}

// Close ends the nodes.
func (w *World) Close() {
	w.Prefill.Close()
	w.Decode.Close()
	if w.front != nil {
		w.front.Close()
	}
	w.calls.Wait()
}

// Call starts a client's request. The returned function waits for its end.
func (w *World) Call(ctx context.Context, c enginefake.Call) (wait func()) {
	w.Replies = append(w.Replies, enginefake.Reply{})
	at, done := len(w.Replies)-1, make(chan struct{})
	out := make(chan enginefake.Reply, 1)
	w.calls.Go(func() {
		defer close(done)
		out <- enginefake.Do(ctx, w.Front, c)
	})
	return sync.OnceFunc(func() {
		<-done
		w.Replies[at] = <-out
	})
}

// Ask is Call that waits.
func (w *World) Ask(ctx context.Context, c enginefake.Call) { w.Call(ctx, c)() }

// completion asks for 24 tokens after who's sentinel of n tokens.
func completion(who string, n int) enginefake.Call {
	return enginefake.Call{Body: map[string]any{"model": "fake", "prompt": string(enginefake.Sentinel(who, n)), "max_tokens": 24}}
}

// right is what the model says to [completion].
func right(who string, n int) string {
	return string(enginefake.Continue(enginefake.Sentinel(who, n), 24))
}

// want200 says what a client sees that thinks all is well.
func want200(r *enginefake.Reply, finish, text string) error {
	if r.Err != nil || r.Status != 200 || r.FinishFirst() != finish || r.First() != text {
		return fmt.Errorf("status %d, finish %q, text %q, %v; want 200, %q, %q", r.Status, r.FinishFirst(), r.First(), r.Err, finish, text)
	}
	return nil
}

// wantForeign is 200 with another's words in it.
func wantForeign(r *enginefake.Reply, who string) error {
	if err := want200(r, enginefake.FinishLength, r.First()); err != nil {
		return err
	}
	if !strings.Contains(r.First(), who) {
		return fmt.Errorf("the answer %q does not name %s", r.First(), who)
	}
	return nil
}

// wantWrong is 200 with an answer that is nobody's.
func wantWrong(r *enginefake.Reply, right string) error {
	if err := want200(r, enginefake.FinishLength, r.First()); err != nil {
		return err
	}
	if r.First() == right || r.First() == "" {
		return errors.New("the answer is right")
	}
	return nil
}

func expect(name string, got, want int) error {
	if got != want {
		return fmt.Errorf("%s: %d, want %d", name, got, want)
	}
	return nil
}
