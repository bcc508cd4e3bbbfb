package gateway

import "sync/atomic"

// budget bounds the bytes that clients make the gateway hold.
type budget struct {
	limit int64
	used  atomic.Int64
}

func (b *budget) take(n int64) bool {
	if b.used.Add(n) > b.limit {
		b.used.Add(-n)
		return false
	}
	return true
}

func (b *budget) give(n int64) { b.used.Add(-n) }

// lease is one holder's part of the budget. It has one owner at a time.
type lease struct {
	from *budget
	held int64
}

// set makes the lease n bytes. Growing can be refused; shrinking cannot.
func (l *lease) set(n int64) bool {
	if d := n - l.held; d > 0 && !l.from.take(d) {
		return false
	} else if d < 0 {
		l.from.give(-d)
	}
	l.held = n
	return true
}
