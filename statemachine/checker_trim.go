package statemachine

import "github.com/pdgate/pdgate/events"

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
		c.ops.Subjects, c.ops.Workers, c.ops.Quarantined = map[string]OpsSubject{}, map[string]*events.WorkerJoined{}, map[string]string{}
	}
	c.ops.Subjects[e.Subject] = OpsSubject{N: e.N - 1, Pos: e.Prev}
	if d, ok := e.Data.(*events.WorkerLeft); ok {
		c.ops.Workers[d.Worker] = &events.WorkerJoined{Worker: d.Worker, Epoch: d.Epoch}
	}
}
