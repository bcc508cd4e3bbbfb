package statemachine

import (
	"strings"

	"github.com/pdgate/pdgate/events"
)

// What is below the first envelope that a log still has cannot be judged. It is
// taken for granted as far as what follows builds on it, and [Checker.Close] wants
// an event that lets it leave.

// left says whether a sequence, which something else names, is before the log's
// beginning.
func (c *Checker) left(seq uint64) bool { return seq > 0 && seq < c.first }

// assume takes over what an event of operations says of the history before it, if
// that has left: a trim keeps the whole history of every open request, and of
// operations nothing.
func (c *Checker) assume(e *events.Event) {
	if _, ok := c.ops.Subjects[e.Subject]; ok || !c.left(e.Prev.Seq) {
		return
	}
	if c.ops.Subjects == nil {
		c.ops.Subjects, c.ops.Workers, c.ops.Quarantined = map[string]OpsSubject{}, map[string]*events.WorkerJoined{}, map[string]Quarantine{}
	}
	c.ops.Subjects[e.Subject] = OpsSubject{N: e.N - 1, Pos: e.Prev}
	if d, ok := e.Data.(*events.WorkerLeft); ok {
		c.ops.Workers[d.Worker] = &events.WorkerJoined{Worker: d.Worker, Epoch: d.Epoch}
	}
}

// half is the end of a history whose beginning has left.
type half struct {
	n   int
	pos events.Position
}

// halved says whether the event is of a history whose beginning has left: the
// request had ended when the log was trimmed, and no state is known that the rest
// could be judged in. That the rest has no hole is judged.
func (c *Checker) halved(e *events.Event, pos events.Position) bool {
	h, known := c.halves[e.Subject]
	switch {
	case e.N < 2, !known && !c.left(e.Prev.Seq):
		return false
	case known && (e.N != h.n+1 || e.Prev != h.pos):
		c.violate(KindHistoryGap, e.Subject, pos, "number %d with prev %q follows number %d at %q", e.N, e.Prev, h.n, h.pos)
	}
	if c.halves == nil {
		c.halves = map[string]half{}
	}
	c.halves[strings.Clone(e.Subject)] = half{e.N, pos}
	return true
}
