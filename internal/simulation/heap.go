package simulation

import (
	"container/heap"
	"time"
)

// delivery is something that happens at its time.
type delivery struct {
	at time.Time
	n  int // among those of one time: first made, first done
	f  func()
}

type deliveries []delivery

func (d deliveries) Len() int { return len(d) }
func (d deliveries) Less(i, j int) bool {
	if !d[i].at.Equal(d[j].at) {
		return d[i].at.Before(d[j].at)
	}
	return d[i].n < d[j].n
}
func (d deliveries) Swap(i, j int) { d[i], d[j] = d[j], d[i] }
func (d *deliveries) Push(x any)   { *d = append(*d, x.(delivery)) }
func (d *deliveries) Pop() any {
	old := *d
	n := len(old) - 1
	x := old[n]
	old[n] = delivery{}
	*d = old[:n]
	return x
}

// after has f happen in d.
func (w *world) after(d time.Duration, f func()) {
	w.made++
	heap.Push(&w.due, delivery{w.now.Add(max(d, 0)), w.made, f})
}

// life is one life of one process. What reaches a dead one is lost; what reaches
// one that stands still waits.
type life struct {
	name  string
	dead  bool
	still time.Time // until then
}

// on has f happen in d, to a process that is alive then.
func (w *world) on(l *life, d time.Duration, f func()) {
	w.after(d, func() { w.let(l, f) })
}

func (w *world) let(l *life, f func()) {
	switch {
	case l.dead:
	case l.still.After(w.now):
		w.on(l, l.still.Sub(w.now)+time.Microsecond, f)
	default:
		f()
	}
}

// every has f happen again and again while the process is alive.
func (w *world) every(l *life, least, most time.Duration, f func()) {
	w.on(l, w.between(least, most), func() {
		f()
		w.every(l, least, most, f)
	})
}
