package engine

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Pairing is what the SGLang workers of one process share: where decode has
// room, and the answers that wait for their claim.
type Pairing struct {
	pairs *Pairs

	mu      sync.Mutex
	places  map[string]*place // by decode worker
	held    map[string]*claim // by request
	line    []*int            // what each who waits for room needs, first come, first served
	changed chan struct{}     // closed and replaced when a place or the line has changed
}

// place is one decode node.
type place struct {
	name     string
	engine   *sglang
	pairing  *Pairing
	capacity int // tokens
	used     int // by legs that are open; guarded by Pairing.mu
	gone     bool
}

// claim is a held answer that waits.
type claim struct {
	ref   reference
	held  *held
	timer *time.Timer
}

// NewPairing makes a pairing. pairs may be nil.
func NewPairing(pairs *Pairs) *Pairing {
	return &Pairing{pairs: pairs, places: make(map[string]*place), held: make(map[string]*claim), changed: make(chan struct{})}
}

func (p *Pairing) tell() {
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *Pairing) join(name string, to *place) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.places[name]; old != nil {
		old.gone = true
	}
	to.pairing = p
	p.places[name] = to
	p.tell()
}

// leave takes a decode node off the list, unless a later life has taken its
// place.
func (p *Pairing) leave(name string, e *sglang) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if to := p.places[name]; to != nil && to.engine == e {
		to.gone = true
		delete(p.places, name)
		p.tell()
	}
}

// reserve finds a decode node with room for so many tokens: decode sets aside
// pages for the whole request when it is called, and one that is called with
// more than it has freezes. It waits where there is none, in line: a large request
// is not starved by small ones.
func (p *Pairing) reserve(ctx context.Context, prefill string, tokens int) (*place, error) {
	mine := &tokens
	p.mu.Lock()
	p.line = append(p.line, mine)
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.line = slices.DeleteFunc(p.line, func(t *int) bool { return t == mine })
		p.tell()
	}()
	for {
		p.mu.Lock()
		var best *place
		fits, barred := false, 0
		for _, to := range p.places {
			switch {
			case tokens > to.capacity:
			case p.pairs.Barred(prefill, to.name):
				barred++
			default:
				fits = true
				if free := to.capacity - to.used; free >= tokens && (best == nil || free > best.capacity-best.used) {
					best = to
				}
			}
		}
		if best != nil && p.line[0] == mine {
			best.used += tokens
			p.mu.Unlock()
			return best, nil
		}
		none := len(p.places) == 0
		changed := p.changed
		p.mu.Unlock()
		switch {
		case none:
			return nil, events.NewError(events.CodeNoWorker, "no decode node is alive in this process")
		case !fits && barred > 0:
			return nil, events.NewError(events.CodeTransferFailed, "the prefill node is quarantined with every decode node that could take the request")
		case !fits:
			return nil, events.NewError(events.CodeOverloaded, "no decode node of this process is large enough for the request")
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (p *Pairing) giveBack(to *place, tokens int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	to.used -= tokens
	p.tell()
}

// hold keeps a proven answer for its claim, and gives it up when nobody came.
func (p *Pairing) hold(requestID string, ref reference, h *held, lease time.Duration) {
	c := &claim{ref: ref, held: h}
	p.mu.Lock()
	old := p.held[requestID]
	p.held[requestID] = c
	c.timer = time.AfterFunc(lease+expire, func() { p.remove(requestID, c) })
	p.mu.Unlock()
	if old != nil {
		old.timer.Stop()
		old.held.close()
	}
}

func (p *Pairing) remove(requestID string, c *claim) {
	p.mu.Lock()
	if p.held[requestID] == c {
		delete(p.held, requestID)
	}
	p.mu.Unlock()
	c.held.close()
}

// drop gives up the answer that is held for a request, if nobody claimed it.
func (p *Pairing) drop(requestID string) {
	p.mu.Lock()
	c := p.held[requestID]
	delete(p.held, requestID)
	p.mu.Unlock()
	if c != nil {
		c.timer.Stop()
		c.held.close()
	}
}

// elsewhere says whether another decode worker than the named one holds the
// request's answer.
func (p *Pairing) elsewhere(requestID, name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.held[requestID]
	return c != nil && c.held.to.name != name && !c.held.to.gone
}

// claim takes the answer that the reference stands for. It is there once.
func (p *Pairing) claim(requestID string, ref reference, name string) (*held, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.held[requestID]
	switch {
	case c == nil:
		return nil, events.NewError(events.CodeGrantUsed, "no answer is held for this reference: it was claimed, or given up")
	case c.ref != ref:
		return nil, events.NewError(events.CodeReferenceMismatch, "the reference is another attempt's")
	case c.held.to.name != name:
		return nil, events.NewError(events.CodeWrongWorker, "the answer comes from another decode node")
	}
	delete(p.held, requestID)
	c.timer.Stop()
	return c.held, nil
}

// Stats counts.
func (p *Pairing) Stats() (held, reserved int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, to := range p.places {
		reserved += to.used
	}
	return len(p.held), reserved
}
