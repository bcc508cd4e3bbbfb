package enginefake

import (
	"context"
	"time"
)

// Play is what the scenarios of all engines have: a clock, something in front of
// the nodes, and the clients' calls.
type Play struct {
	Clock   *Manual
	Front   string        // the base URL that clients talk to
	Guarded bool          // Front is a gate: steps wait for what it must do
	Waited  time.Duration // how long the clock was moved on for an answer
	Calls   []*Pending
}

// Call starts a client's request.
func (p *Play) Call(ctx context.Context, c Call) *Pending {
	call := Go(ctx, p.Front, c)
	p.Calls = append(p.Calls, call)
	return call
}

// Reply is a client's answer, by call. It waits for it.
func (p *Play) Reply(i int) *Reply { return p.Calls[i].Wait() }

// End waits for all calls.
func (p *Play) End() {
	for _, c := range p.Calls {
		c.Wait()
	}
}
