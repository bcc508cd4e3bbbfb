package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
)

// trimState is what is shown of the log's beginning.
type trimState struct {
	mu    sync.Mutex
	first uint64 // sequence of the log's first message
	bound bound  // what holds the next trim back
}

func (t *trimState) set(first uint64, b bound) (was bound) {
	t.mu.Lock()
	defer t.mu.Unlock()
	was = t.bound
	t.first, t.bound = first, b
	return was
}

func (t *trimState) get() (first uint64, b bound) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.first, t.bound
}

// trims lets the log's beginning leave, now and then, and the read side's with it.
// The replica that is preferred
// for operations does it; two that both think so record one trim after the other,
// and take off the stream what has left already.
func (s *Service) trims(ctx context.Context) {
	t := time.NewTicker(s.cfg.Retention.Every)
	defer t.Stop()
	begun, pruned := s.now(), uint64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if below := s.trimmedBelow(); s.caughtUp() && below > pruned {
			if err := s.pruneRows(ctx, below); err != nil {
				s.log.Warn("rows of what has left the log are kept", "err", err)
			} else {
				pruned = below
			}
		}
		// Others must have had the time to say what they need.
		if !s.cfg.Retention.on() || !s.caughtUp() || !s.opsNode.mine.Load() || s.now().Sub(begun) < deadAfter || s.silent.Load() {
			continue
		}
		if s.trimRound != nil {
			s.trimRound()
		}
		if err := s.trimOnce(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("log is not trimmed", "err", err)
		}
	}
}

// Commit points of a trim, and what a crash before each leaves:
//
//   - event: nothing happened.
//   - purge: the log says what may leave, and it is all there. The next round, of
//     whichever replica, goes on.
//   - step: a part has left, always the oldest. Likewise.
//   - done: nothing is left to do.
const (
	stepEvent = "event"
	stepPurge = "purge"
	stepPart  = "step"
	stepDone  = "done"
)

// pauseBetween lets the stream's other users have it between two steps.
const pauseBetween = 20 * time.Millisecond

// trimOnce is one round: record what may leave, and let leave what is recorded.
func (s *Service) trimOnce(ctx context.Context) error {
	b, x, err := s.lowest(ctx)
	if err != nil {
		return err
	}
	was := s.trim.set(x.First, b.bound)
	if was.name != b.name && b.name != boundAge && b.name != boundBytes {
		s.log.Info("trims are held back", "bound", b.name, "why", b.why, "seq", b.keep, "first", x.First)
	}
	done := s.trimmedBelow()
	if b.keep > done && b.keep >= max(x.First, done)+s.cfg.Retention.Least {
		if err := s.at(stepEvent); err != nil {
			return err
		}
		if err := s.recordTrim(ctx, b); err != nil {
			return err
		}
		// The bounds again, now that time has passed: a hold may have come.
		if b, x, err = s.lowest(ctx); err != nil {
			return err
		}
	}
	// Operations keep their last message like every partition: the event itself.
	below := min(s.trimmedBelow(), b.keep, s.opsNode.applied())
	if below <= x.First {
		return nil
	}
	if err := s.at(stepPurge); err != nil {
		return err
	}
	for from := x.First; from < below; {
		from = min(from+s.cfg.Retention.Step, below)
		if err := s.cfg.Retention.Trimmer.Trim(ctx, from); err != nil {
			return err
		}
		s.trim.set(from, b.bound)
		if err := s.at(stepPart); err != nil {
			return err
		}
		if from < below {
			if err := pause(ctx, pauseBetween); err != nil {
				return err
			}
		}
	}
	s.log.Info("log is trimmed", "below", below, "messages", below-x.First, "bound", b.name, "complete_until", b.signed.CompleteUntil)
	return s.at(stepDone)
}

// pruneRows lets the read side go with the log. Every replica has one, whoever trims.
func (s *Service) pruneRows(ctx context.Context, below uint64) error {
	at, err := s.timeAt(ctx, below, s.followed.Load())
	if err == nil {
		s.projection.Prune(at)
	}
	return err
}

func (s *Service) at(point string) error {
	if s.trimStep == nil {
		return nil
	}
	return s.trimStep(point)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// trimmedBelow is what the log says may have left.
func (s *Service) trimmedBelow() uint64 {
	s.opsNode.mu.Lock()
	defer s.opsNode.mu.Unlock()
	if t := s.opsNode.ops.ops.Trimmed; t != nil {
		return t.BelowSeq
	}
	return 0
}

// recordTrimTime is how long the log may take to record a trim.
const recordTrimTime = 10 * time.Second

var errTrimNotRecorded = errors.New("the log did not record the trim in time: the next round asks again")

// recordTrim orders a trim and waits until it is durable and folded here.
func (s *Service) recordTrim(ctx context.Context, b *decided) error {
	d := &events.Trim{BelowSeq: b.keep, Bound: b.name}
	if b.signed.Size > 0 {
		d.Origin, d.TreeSize, d.TreeRoot, d.CompleteUntil = b.signed.Origin, b.signed.Size, b.signed.Root, b.signed.CompleteUntil
	}
	c := s.order(events.LogStream, d)
	if c == nil {
		return fmt.Errorf("trim below %d cannot be encoded", b.keep)
	}
	s.opsNode.mu.Lock()
	s.opsNode.order(c, s.now())
	s.opsNode.mu.Unlock()
	s.wake()
	for end := s.now().Add(recordTrimTime); s.trimmedBelow() < b.keep; {
		s.opsNode.mu.Lock()
		a, settled := s.opsNode.ops.Recorded(c, c.Key())
		s.opsNode.mu.Unlock()
		switch {
		case settled && a.Denied != nil && s.trimmedBelow() < b.keep:
			return fmt.Errorf("trim below %d is denied: %w", b.keep, a.Denied)
		case s.now().After(end):
			return errTrimNotRecorded
		}
		if err := pause(ctx, busyTick); err != nil {
			return err
		}
	}
	return nil
}
