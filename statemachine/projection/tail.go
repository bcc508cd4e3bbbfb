package projection

import (
	"sync"

	"github.com/pdgate/pdgate/events"
)

// Envelope is one envelope of the log whose events are decoded.
type Envelope struct {
	Seq    uint64
	MAC    string
	Events []Event // those that count; none of operations and of foreign messages
}

// Event is one event of an envelope. It is not changed any more.
type Event struct {
	*events.Event
	Line int
}

// maxWindow bounds the events of a window, and by that its memory.
const maxWindow = 1 << 16

// tail is a window on the end of the log: what the service's follower has passed
// and the writer has not taken. It is bounded: when the writer is slow, or does
// not run, the oldest go, and the writer reads them from the log.
type tail struct {
	wake chan struct{} // holds a token when there may be something to take

	mu     sync.Mutex // guards all below
	window []Envelope // consecutive sequences up to last
	events int        // in window; an envelope without any counts as one
	last   uint64     // sequence that the follower has passed; 0: none
}

func weight(env *Envelope) int { return max(1, len(env.Events)) }

// Offer hands over the log's next envelope, in the log's order; the envelope is
// the projection's from then on. It never waits. What was offered before is
// ignored.
func (p *Projection) Offer(env Envelope) {
	p.tail.pass(env.Seq, func(t *tail) {
		t.window = append(t.window, env)
		t.events += weight(&env)
		for t.events > maxWindow {
			t.drop()
		}
	})
}

// Skip says that the log was followed up to and with seq, without its content:
// Run reads it from the log.
func (p *Projection) Skip(seq uint64) { p.tail.pass(seq, (*tail).clear) }

func (t *tail) pass(seq uint64, with func(*tail)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if seq <= t.last {
		return
	}
	if seq != t.last+1 {
		t.clear()
	}
	with(t)
	t.last = seq
	t.poke()
}

// poke has the writer look.
func (t *tail) poke() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *tail) clear() { t.window, t.events = nil, 0 }

// drop forgets the oldest envelope of the window.
func (t *tail) drop() {
	t.events -= weight(&t.window[0])
	t.window[0] = Envelope{}
	t.window = t.window[1:]
}

// take returns the envelopes after sequence at. behind says that the next one is
// not in the window, and is in the log, or that there is no follower yet.
func (t *tail) take(at uint64) (envs []Envelope, behind bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.behind(at) {
		return nil, true
	}
	for len(t.window) > 0 && t.window[0].Seq <= at {
		t.drop()
	}
	envs = t.window
	t.clear()
	return envs, false
}

// reaches says whether the window goes on after sequence at.
func (t *tail) reaches(at uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.behind(at)
}

func (t *tail) behind(at uint64) bool {
	if t.last == 0 {
		return true
	}
	return at+uint64(len(t.window)) < t.last
}
