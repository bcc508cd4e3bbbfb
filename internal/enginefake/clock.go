package enginefake

import (
	"context"
	"sync"
	"time"
)

// Clock is a fake's time.
type Clock interface {
	Now() time.Time
	After(time.Duration) <-chan time.Time
}

// System is the machine's clock.
type System struct{}

// Now implements [Clock].
func (System) Now() time.Time { return time.Now() }

// After implements [Clock].
func (System) After(d time.Duration) <-chan time.Time { return time.After(d) }

// Manual is a clock that only [Manual.Advance] moves.
type Manual struct {
	mu     sync.Mutex
	now    time.Time
	timers map[chan time.Time]time.Time
}

// NewManual starts a clock at a fixed time.
func NewManual() *Manual {
	return &Manual{now: time.Date(2026, 9, 1, 12, 0, 0, 0, time.UTC), timers: map[chan time.Time]time.Time{}}
}

// Now implements [Clock].
func (c *Manual) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// After implements [Clock].
func (c *Manual) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	ch := make(chan time.Time, 1)
	if d <= 0 {
		ch <- c.now
	} else {
		c.timers[ch] = c.now.Add(d)
	}
	return ch
}

// Pending is how many timers have not fired.
func (c *Manual) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// Advance moves the clock and fires what has come due.
func (c *Manual) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
	for ch, at := range c.timers {
		if !at.After(c.now) {
			ch <- c.now
			delete(c.timers, ch)
		}
	}
}

// Sleep waits on the clock.
func Sleep(ctx context.Context, c Clock, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-c.After(d):
		return nil
	}
}

// Work is how long n tokens take at a rate of tokens a second; a rate of zero
// takes no time.
func Work(n int, rate float64) time.Duration {
	if rate <= 0 {
		return 0
	}
	return time.Duration(float64(n) / rate * float64(time.Second))
}
