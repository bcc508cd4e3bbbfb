package lifecycle

import "time"

// wheelSlots times wheelTick is one turn of the wheel: deadlines within it cost
// one look, later ones one look a turn.
const (
	wheelSlots = 1024
	wheelTick  = 50 * time.Millisecond
)

// timer is one deadline in a wheel. The zero timer is in none.
type timer struct {
	id         string
	due        int64 // tick
	prev, next *timer
}

// wheel is a hashed timing wheel: deadlines of one partition's requests, set
// and removed in constant time. It fires no earlier than asked and at most one
// tick late, as often as advance is called. It reads no clock. The partition's
// lock guards it.
type wheel struct {
	slots [wheelSlots]*timer // heads of doubly linked lists
	now   int64              // last tick that was looked at
	size  int
}

func tickOf(t time.Time) int64 { return t.UnixNano() / int64(wheelTick) }

// set puts t into the wheel for a deadline, or moves it.
func (w *wheel) set(t *timer, at time.Time) {
	w.remove(t)
	t.due = tickOf(at) + 1 // the end of the tick: never early
	if t.due <= w.now {
		t.due = w.now + 1 // over already: next time
	}
	head := &w.slots[t.due%wheelSlots]
	t.next = *head
	if t.next != nil {
		t.next.prev = t
	}
	t.prev, *head = nil, t
	w.size++
}

// remove takes t out of the wheel, if it is in it.
func (w *wheel) remove(t *timer) {
	head := &w.slots[t.due%wheelSlots]
	if t.prev == nil && *head != t {
		return
	}
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		*head = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	t.prev, t.next = nil, nil
	w.size--
}

// advance moves the wheel to now and calls fire for each timer that is over; it
// is out of the wheel then, and fire may set it again. A clock that is set back
// fires nothing until it has caught up; one that jumps ahead costs one turn.
func (w *wheel) advance(now time.Time, fire func(id string)) {
	to := now.UnixNano() / int64(wheelTick)
	if w.now == 0 {
		w.now = to - wheelSlots // the first look sees every slot
	}
	from := max(w.now+1, to-wheelSlots+1)
	if to <= w.now {
		return
	}
	w.now = to
	for tick := from; tick <= to; tick++ {
		for t := w.slots[tick%wheelSlots]; t != nil; {
			next := t.next
			if t.due <= to {
				w.remove(t)
				fire(t.id)
				// fire may have taken next out as well; a slot is short, so begin again.
				if next != nil && next.prev == nil && w.slots[tick%wheelSlots] != next {
					next = w.slots[tick%wheelSlots]
				}
			}
			t = next
		}
	}
}
