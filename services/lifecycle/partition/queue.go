package partition

import (
	"time"

	"github.com/pdgate/pdgate/events"
)

// queue holds the commands that wait, first come first served, and their
// callers' patience. A command stays until the log settles it or nobody waits
// for it any more.
type queue struct {
	list    []*waiter // list[head:], in order of arrival; those gone are skipped
	head    int
	kept    []*waiter // reused by scan
	free    []*waiter // to be used again
	n       int       // waiters that are not gone
	byKey   map[string]*waiter
	subject map[string]int // waiters that are not gone, by their command's subject
	callers int

	due     []due // due[dueHead:], one a caller, soonest first
	dueHead int
}

// waiter is one command and all who asked for it. It is used again once neither
// the list nor a due refers to it.
type waiter struct {
	command *events.Command
	key     string
	to      []any  // in order of arrival
	first   [1]any // room for the usual one
	gone    bool
	refs    int // from list and due
}

type due struct {
	w  *waiter
	at time.Time
}

// verdict is what scan does with a waiter.
type verdict int

const (
	keep verdict = iota // leave it, go on
	drop                // remove it, go on
	full                // leave it, stop
)

func newQueue() queue { return queue{byKey: map[string]*waiter{}, subject: map[string]int{}} }

// waiting is the number of commands.
func (q *queue) waiting() int { return q.n }

// add queues a command, or joins a caller to the one that is the same, and says
// which. Patience ends in the order of arrival, since it is the same for all.
func (q *queue) add(c *events.Command, key string, to any, patience time.Time, join bool) (joined bool) {
	w := q.byKey[key]
	joined = w != nil && join
	if !joined {
		w = q.fresh()
		w.command, w.key, w.refs = c, key, 1
		w.to = w.first[:0]
		q.byKey[key] = w
		q.list = append(q.list, w)
		q.n++
		q.subject[c.Subject]++
	}
	w.to = append(w.to, to)
	q.callers++
	w.refs++
	q.due = append(q.due, due{w, patience})
	return joined
}

// maxFree bounds the waiters that are kept for use again.
const maxFree = 4096

func (q *queue) fresh() *waiter {
	n := len(q.free)
	if n == 0 {
		return new(waiter)
	}
	w := q.free[n-1]
	q.free = q.free[:n-1]
	return w
}

// release drops one reference to a waiter that is gone.
func (q *queue) release(w *waiter) {
	if w.refs--; w.refs == 0 && len(q.free) < maxFree {
		*w = waiter{}
		q.free = append(q.free, w)
	}
}

// holds says whether the command with that key waits already.
func (q *queue) holds(key string) bool { return q.byKey[key] != nil }

// settle removes the command with that key and returns its callers, which are
// the queue's again at the next scan.
func (q *queue) settle(key string) []any {
	w := q.byKey[key]
	if w == nil {
		return nil
	}
	q.remove(w)
	return w.to
}

func (q *queue) remove(w *waiter) {
	if w.gone {
		return
	}
	w.gone = true
	q.n--
	if q.subject[w.command.Subject]--; q.subject[w.command.Subject] <= 0 {
		delete(q.subject, w.command.Subject)
	}
	q.callers -= len(w.to)
	if q.byKey[w.key] == w {
		delete(q.byKey, w.key)
	}
}

// expire calls f for each caller whose patience has ended. A command without
// callers leaves the queue; its envelope may be on its way, and then it lands.
func (q *queue) expire(now time.Time, f func(to any)) {
	for ; q.dueHead < len(q.due); q.dueHead++ {
		d := q.due[q.dueHead]
		if !d.w.gone {
			if !now.After(d.at) {
				break
			}
			to := d.w.to[0]
			d.w.to = d.w.to[1:]
			q.callers--
			if len(d.w.to) == 0 {
				q.remove(d.w)
			}
			f(to)
		}
		q.due[q.dueHead] = due{}
		if d.w.gone {
			q.release(d.w)
		} else {
			d.w.refs--
		}
	}
	q.due, q.dueHead = shift(q.due, q.dueHead)
}

// scan calls f for each command, oldest first, until f says full. What it went
// over and kept moves up to what it has not seen, so that the next scan begins
// with it.
func (q *queue) scan(f func(*waiter) verdict) {
	kept := q.kept[:0]
	i := q.head
scan:
	for ; i < len(q.list); i++ {
		w := q.list[i]
		if w.gone {
			q.release(w)
			continue
		}
		switch f(w) {
		case keep:
			kept = append(kept, w)
		case drop:
			q.remove(w)
			q.release(w)
		case full:
			break scan
		}
	}
	start := i - len(kept)
	copy(q.list[start:i], kept)
	clear(q.list[q.head:start])
	clear(kept)
	q.kept = kept
	q.list, q.head = shift(q.list, start)
}

// shift moves a queue to the front of its array once half of it is used up.
func shift[T any](s []T, head int) ([]T, int) {
	if head == len(s) {
		return s[:0], 0
	}
	if head < 64 || head < len(s)/2 {
		return s, head
	}
	n := copy(s, s[head:])
	clear(s[n:])
	return s[:n], 0
}
