package gateway

import (
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
)

// maxSources bounds how many workers' output is kept for one request before the
// log says whose counts. A fifth is thrown away: the request then misses pieces
// and fails, it never shows the wrong ones.
const maxSources = 4

// flight is one lifecycle that this gateway opened: what the log says of it, and
// what arrived for it. A flight belongs to a call; a call with n > 1 has n.
type flight struct {
	id       string
	choice   int
	key      []byte // of the request's digests
	sampling []byte
	call     *call

	// Written by the goroutine of the call alone.
	asked  bool // an admission was sent and may have landed
	ending bool // the command that ends it was sent

	mu        sync.Mutex
	state     events.State
	receipt   string // of the last event that changed the state
	worker    string // the decode worker that the log names; "" before transferred
	decoded   *events.RequestDecoded
	decodedAt time.Time
	err       *failure // how it ended, by the log
	lost      *failure // what went missing on the way here
	outputs   map[string]*output
	sent      bool // output was taken
	closed    bool // the call is over: nothing is kept any more
}

// output is what one worker sent.
type output struct {
	next   uint32 // index of the next piece
	tokens uint64
	text   []byte // arrived and not taken yet; counted in the budget
	sum    events.Digester
	broken string // why it cannot be whole any more
}

// order ranks states along the walk, so that nothing moves a flight back.
func order(s events.State) int {
	switch s {
	case events.Admitted:
		return 1
	case events.Prefilled:
		return 2
	case events.Transferred:
		return 3
	case events.Rejected, events.Decoded, events.Failed, events.Cancelled:
		return 4
	}
	return 0
}

// observe folds one durable event, from a notification or a history. Events may
// come twice and in any order.
func (f *flight) observe(e *events.Event, raw []byte, position string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var to events.State
	switch d := e.Data.(type) {
	case *events.RequestAdmitted:
		to = events.Admitted
	case *events.RequestPrefilled:
		to = events.Prefilled
	case *events.RequestTransferred:
		to = events.Transferred
		if !f.state.Final() {
			f.source(d.Worker)
		}
	case *events.RequestDecoded:
		to = events.Decoded
		if !f.state.Final() {
			// transferred may have been lost on the way; decoded is legal only from there,
			// by the same worker.
			f.source(d.Worker)
			f.decoded, f.decodedAt = d, f.call.g.cfg.Now()
		}
	case *events.RequestRejected:
		to = events.Rejected
		f.fail(recorded(&d.Error))
	case *events.RequestFailed:
		to = events.Failed
		f.fail(recorded(&d.Error))
	case *events.RequestCancelled:
		to = events.Cancelled
		f.fail(cancelled(d.Reason))
	}
	f.advance(to, position+";"+events.Hash(raw))
}

// answered folds the answer to a command, which is as durable as a notification.
func (f *flight) answered(a *events.Answer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	receipt := a.Position + ";" + a.Hash
	if a.Denied != nil {
		if f.receipt == "" {
			f.receipt = receipt
		}
		return
	}
	if a.Error != nil && a.State.Final() {
		f.fail(recorded(a.Error))
	} else if a.State == events.Cancelled {
		f.fail(newFailure(events.CodeCancelled, "the request was cancelled"))
	}
	f.advance(a.State, receipt)
}

func (f *flight) fail(err *failure) {
	if !f.state.Final() {
		f.err = err
	}
}

func (f *flight) advance(to events.State, receipt string) {
	if order(to) <= order(f.state) {
		return
	}
	f.state, f.receipt = to, receipt
	if to.Final() {
		if to != events.Decoded {
			f.discard("")
		}
		if f.call.open.Add(-1) == 0 {
			f.call.freePrompt()
		}
	}
	f.call.signal()
}

// source fixes whose output counts, and throws the others' away.
func (f *flight) source(worker string) {
	if f.worker == "" {
		f.worker = worker
		if !f.call.g.cfg.Guards.NoOrigin {
			f.discard(worker)
		}
	}
}

// discard throws output away; except, if not empty, is the worker that holds the
// request.
func (f *flight) discard(except string) {
	for w, o := range f.outputs {
		if w != except {
			if except != "" {
				f.call.g.foreign.Add(uint64(o.next))
			}
			f.call.g.memory.give(int64(len(o.text)))
			delete(f.outputs, w)
		}
	}
}

// arrived takes one piece of output from a worker.
func (f *flight) arrived(worker string, c events.OutputChunk) {
	g := f.call.g
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.state.Final() && f.state != events.Decoded {
		return
	}
	if g.cfg.Guards.NoOrigin {
		worker = f.anyWorker(worker)
	} else if f.worker != "" && worker != f.worker {
		g.foreign.Add(1)
		return
	}
	o := f.outputs[worker]
	if o == nil {
		if len(f.outputs) == maxSources {
			g.foreign.Add(1)
			return
		}
		o = &output{sum: events.NewDigester(f.key, events.KindOutput)}
		f.outputs[worker] = o
	}
	switch {
	case o.broken != "" || c.Index < o.next: // a repeat changes nothing
		return
	case c.Index > o.next:
		o.broken = "a piece of output went missing"
	case int64(len(o.text)+len(c.Text)) > g.cfg.Limits.Output:
		o.broken = "more output is waiting than the gateway keeps"
	case !g.memory.take(int64(len(c.Text))):
		o.broken = "the gateway has no room for more output"
	default:
		o.next++
		o.tokens += uint64(c.Tokens)
		o.text = append(o.text, c.Text...)
		o.sum.Write(c.Text)
	}
	if f.worker != "" || g.cfg.Guards.NoHold {
		f.call.signal()
	} // else nothing of it may be shown, and it must not put off the poll that finds a lost transferred
}

// anyWorker is whoever came first.
func (f *flight) anyWorker(worker string) string {
	for w := range f.outputs {
		return w
	}
	return worker
}

// counted is the output that counts; nil if none arrived.
func (f *flight) counted() *output {
	if o := f.outputs[f.worker]; o != nil {
		return o
	}
	if g := f.call.g.cfg.Guards; g.NoHold || g.NoOrigin {
		for _, o := range f.outputs {
			return o
		}
	}
	return nil
}

// progress is where a flight stands.
type progress struct {
	open   bool // its first output may be sent
	done   bool // decoded, and everything arrived
	err    *failure
	finish events.FinishReason
	tokens int
}

// look judges the flight. Everything that is sent is judged first.
func (f *flight) look(now time.Time) progress {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.judge(now)
}

// take judges the flight, and hands over what may be sent.
func (f *flight) take(now time.Time) ([]byte, progress) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.judge(now)
	o := f.counted()
	if p.err != nil || !p.open || o == nil || len(o.text) == 0 {
		return nil, p
	}
	text := o.text
	o.text = nil
	f.sent = true
	f.call.g.memory.give(int64(len(text)))
	return text, p
}

func (f *flight) judge(now time.Time) (p progress) {
	if f.err != nil {
		p.err = f.err
		return p
	}
	if f.lost != nil {
		p.err = f.lost
		return p
	}
	guards := &f.call.g.cfg.Guards
	o := f.counted()
	if o == nil {
		o = &output{sum: events.NewDigester(f.key, events.KindOutput)}
	}
	if o.broken != "" && !guards.NoWhole && f.worker != "" {
		return f.lose(o.broken)
	}
	if f.decoded != nil {
		whole := o.tokens == uint64(f.decoded.CompletionTokens) && o.sum.String() == f.decoded.OutputDigest
		switch {
		case whole || guards.NoWhole:
			p.done, p.finish, p.tokens = true, f.decoded.FinishReason, f.decoded.CompletionTokens
		case o.tokens > uint64(f.decoded.CompletionTokens):
			return f.lose("more output arrived than was decoded")
		case now.Sub(f.decodedAt) >= f.call.g.cfg.Timeouts.Output:
			return f.lose("the output that arrived is not the one that was decoded")
		}
	}
	arrived := f.sent || len(o.text) > 0
	p.open = arrived && (f.worker != "" || guards.NoHold) || p.done
	return p
}

func (f *flight) lose(why string) progress {
	f.lost = newFailure(events.CodeOutputLost, why)
	f.lost.lost = true
	return progress{err: f.lost}
}

// part is what a worker may have of the request: nothing once it has ended, and
// no prompt once it is prefilled. Nobody needs it then, and request ids are no
// secret among workers. An engine that keeps its KV reads the body for decode,
// too.
func (f *flight) part(name string) []byte {
	f.mu.Lock()
	final := f.closed || f.state.Final() || f.lost != nil
	waits := order(f.state) <= order(events.Admitted) || f.call.relay
	f.mu.Unlock()
	switch {
	case final:
		return nil
	case name == events.PartSampling:
		return f.sampling
	case waits:
		return f.call.promptBytes()
	}
	return nil
}

func (f *flight) stands() (events.State, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state, f.receipt
}

// close gives back what the flight holds. A message that found the flight before
// it was forgotten may still come.
func (f *flight) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.discard("")
}
