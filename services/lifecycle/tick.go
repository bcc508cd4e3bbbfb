package lifecycle

import (
	"context"
	"time"
)

// The loops' waits are short while commands are about, and only deadlines pass
// otherwise.
const (
	busyTick = 5 * time.Millisecond
	idleTick = wheelTick
)

// ticks passes time to the nodes.
func (s *Service) ticks(ctx context.Context) error {
	t := time.NewTimer(busyTick)
	defer t.Stop()
	nodes := s.all()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		case <-s.awake:
			t.Reset(busyTick)
			continue
		}
		now := s.now()
		busy := false
		for _, n := range nodes {
			busy = n.tick(now) || busy
		}
		// A command that comes between the look and the store finds idle unset and
		// is looked at after one idle tick: only its retries are that much later.
		s.idle.Store(!busy)
		if busy {
			t.Reset(busyTick)
		} else {
			t.Reset(idleTick)
		}
		if s.tickHook != nil {
			s.tickHook()
		}
		s.ticked.Store(now.UnixNano())
	}
}

// wake makes the tick loop fast: a command waits.
func (s *Service) wake() {
	if s.idle.Load() && s.idle.CompareAndSwap(true, false) {
		select {
		case s.awake <- struct{}{}:
		default:
		}
	}
}
