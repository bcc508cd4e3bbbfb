package simulation

import (
	"time"

	"github.com/pdgate/pdgate/events"
)

// ackWait is the silence after which an item goes to another worker. It is
// shorter than the product's, so that it happens within a run.
const ackWait = 5 * time.Second

// queue is the work queue of one role: each item goes to one worker at a time,
// until one acknowledges it.
type queue struct {
	w     *world
	role  events.Role
	items []*item
	ids   map[string]bool // message ids: an item that comes twice counts once
	idle  []*worker       // those that wait for an item, each once
}

// item is one message; a delivery of it is told from others by its number.
type item struct {
	payload []byte
	busy    time.Time // with a worker until then
	number  int
	gone    bool
}

func (q *queue) publish(id string, payload []byte) {
	if q.ids[id] {
		return
	}
	q.ids[id] = true
	q.items = append(q.items, &item{payload: payload})
	q.wake()
}

// depth counts items, waiting and with workers.
func (q *queue) depth() int { return len(q.items) }

// want says that the worker waits for an item.
func (q *queue) want(x *worker) {
	for _, y := range q.idle {
		if y == x {
			return
		}
	}
	q.idle = append(q.idle, x)
	q.wake()
}

// wake hands waiting items to waiting workers.
func (q *queue) wake() {
	for _, it := range q.items {
		if it.busy.After(q.w.now) {
			continue
		}
		x := q.pick()
		if x == nil {
			return
		}
		it.number++
		q.lend(it, ackWait)
		n := it.number
		q.w.seen["delivery"]++
		if n > 1 {
			q.w.seen["redelivery"]++
		}
		if q.w.chance(q.w.odds.lost) {
			continue // the delivery is lost; the worker asks again
		}
		q.w.on(x.life, q.w.delay(), func() { x.take(&lease{q, it, n}) })
	}
}

// pick takes one of the waiting workers that are alive.
func (q *queue) pick() *worker {
	for len(q.idle) > 0 {
		i := q.w.rnd.IntN(len(q.idle))
		x := q.idle[i]
		q.idle = append(q.idle[:i:i], q.idle[i+1:]...)
		if !x.life.dead {
			return x
		}
	}
	return nil
}

// lend keeps an item from others for a while.
func (q *queue) lend(it *item, d time.Duration) {
	it.busy = q.w.now.Add(d)
	q.w.after(d+time.Millisecond, q.wake)
}

// lease is one delivery of one item to one worker.
type lease struct {
	q      *queue
	it     *item
	number int
}

func (l *lease) work() *events.Work {
	work, err := events.DecodeWork(l.it.payload)
	if err != nil {
		l.q.w.breach(RuleRefused, "work item: %v", err)
		return nil
	}
	return work
}

// tell sends the queue word of the delivery. Word of an older one counts for
// nothing but an acknowledgement.
func (l *lease) tell(f func()) {
	w := l.q.w
	if w.chance(w.odds.lost) {
		return
	}
	w.after(w.delay(), func() {
		if !l.it.gone {
			f()
		}
	})
}

func (l *lease) ack() {
	l.tell(func() {
		l.it.gone = true
		for i, it := range l.q.items {
			if it == l.it {
				l.q.items = append(l.q.items[:i:i], l.q.items[i+1:]...)
				break
			}
		}
	})
}

func (l *lease) nak(d time.Duration) {
	l.tell(func() {
		if l.it.number == l.number {
			l.q.lend(l.it, d)
		}
	})
}

func (l *lease) progress() {
	l.tell(func() {
		if l.it.number == l.number {
			l.q.lend(l.it, ackWait)
		}
	})
}
