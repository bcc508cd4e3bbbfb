package enginefake

import "context"

// Pending is a call on its way.
type Pending struct {
	done  chan struct{}
	reply Reply // once done is closed
}

// Go sends a call and returns at once.
func Go(ctx context.Context, base string, c Call) *Pending {
	p := &Pending{done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.reply = Do(ctx, base, c)
	}()
	return p
}

// Wait waits for the answer, or for whatever ended the call.
func (p *Pending) Wait() *Reply {
	<-p.done
	return &p.reply
}

// Ended says whether Wait would not wait.
func (p *Pending) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}
