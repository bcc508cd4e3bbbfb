package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/statemachine/projection"
)

// follow feeds the nodes from the log. It ends with ctx, or with an error that
// only a person can mend.
func (s *Service) follow(ctx context.Context, from uint64) error {
	end, err := s.end(ctx)
	if err != nil {
		return err
	}
	s.saw(end)
	s.followed.Store(from)
	if from >= end {
		s.following.Store(true)
	}
	for _, n := range s.all() {
		n.begin()
	}
	// pass counts a message as followed, and offers the read side what is in it.
	pass := func(n *node, seq uint64, mac string) {
		es, complete := []projection.Event(nil), true
		if n != nil {
			es, complete = n.passed(seq)
		}
		if complete {
			s.projection.Offer(projection.Envelope{Seq: seq, MAC: mac, Events: es})
		} else {
			s.projection.Skip(seq)
		}
		s.saw(seq)
		s.followed.Store(seq)
		s.envelopes.Add(1)
		if seq >= end {
			s.following.Store(true)
		}
	}
	// An own envelope was folded at its acknowledgement, and is not opened again.
	known := func(partition int, seq uint64, mac string) bool {
		n := s.nodeAt(partition)
		if n == nil || !n.known(seq, mac) {
			return false
		}
		pass(n, seq, mac)
		return true
	}
	var last *gap
	for {
		err := s.cfg.Journal.Follow(ctx, from+1, func(env *events.Envelope) error {
			n := s.nodeAt(env.Partition)
			if n != nil {
				if err := n.follow(env, s.now()); err != nil {
					return &gap{n, env.Seq, err}
				}
			}
			pass(n, env.Seq, env.MAC)
			return nil
		}, known)
		if ctx.Err() != nil {
			return nil
		}
		var left *journal.GapError
		if errors.As(err, &left) {
			if x, failed := s.extent(ctx); failed == nil && left.To <= x.First && x.Check(ctx, s.cfg.Journal) == nil {
				return fmt.Errorf("messages %d to %d were trimmed before this replica had read them: it was away for too long, and starts again from another one's snapshot", left.From, left.To-1)
			}
			return err
		}
		var g *gap
		if !errors.As(err, &g) {
			return err
		}
		// A message was missed, or this replica folded what the log does not have.
		// The first is mended by following again; the same gap twice is the second.
		if last != nil && last.seq == g.seq {
			return fmt.Errorf("%w; the log lost acknowledged messages, or is not the one that was followed: stop the writers and restore the stream from its backup", g.err)
		}
		last = g
		s.log.Warn("follow the log again", "cause", g.err)
		from = min(g.node.applied(), g.seq-1)
	}
}

// gap carries a partition's complaint through the journal's follower.
type gap struct {
	node *node
	seq  uint64
	err  error
}

func (g *gap) Error() string { return g.err.Error() }

// end is the log's last sequence at the start: when it is folded, the replica has
// caught up. The log may be away for a while; nothing can be served before it is
// back.
func (s *Service) end(ctx context.Context) (seq uint64, err error) {
	err = s.insist(ctx, func(ctx context.Context) error {
		seq, err = s.cfg.Journal.Last(ctx)
		return err
	})
	return seq, err
}

// extent is what the log holds. It is asked again until it answers.
func (s *Service) extent(ctx context.Context) (x *journal.Extent, err error) {
	err = s.insist(ctx, func(ctx context.Context) error {
		x, err = s.cfg.Journal.Extent(ctx)
		return err
	})
	return x, err
}

// begins is the log's first sequence, for the read side. A log that was cut is
// alarming, and read from where it begins all the same.
func (s *Service) begins(ctx context.Context) (uint64, error) {
	x, err := s.extent(ctx)
	if err != nil {
		return 0, err
	}
	if err := x.Check(ctx, s.cfg.Journal); err != nil {
		s.alarm("the log is not whole", "err", err)
	}
	return x.First, nil
}

// macAt is the MAC of the envelope at a sequence: what tells one log from
// another. A log that does not answer is asked again until ctx ends; only "no
// such message" is an answer.
func (s *Service) macAt(ctx context.Context, seq uint64) (string, error) {
	var env *events.Envelope
	err := s.insist(ctx, func(ctx context.Context) (err error) {
		env, err = s.cfg.Journal.Read(ctx, seq)
		return err
	})
	if err != nil {
		return "", err
	}
	return env.MAC, nil
}

// insist asks the log until it answers or ctx ends.
func (s *Service) insist(ctx context.Context, ask func(context.Context) error) error {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		try, cancel := context.WithTimeout(ctx, apiTimeout)
		err := ask(try)
		cancel()
		var foreign *journal.ForeignError
		if err == nil || errors.Is(err, journal.ErrNotFound) || errors.As(err, &foreign) || errors.Is(err, nats.ErrConnectionClosed) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.log.Warn("log does not answer", "err", err)
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		case <-t.C:
		}
	}
}

// read reads the log and opens every message.
func (s *Service) read(ctx context.Context, next uint64, handle func(*events.Envelope) error) error {
	return s.cfg.Journal.Follow(ctx, next, handle)
}

// readSide keeps the read side fed. Nothing is decided from it, so its trouble (a
// full disk) is logged and tried again, and stops nobody.
func (s *Service) readSide(ctx context.Context) {
	for wait := time.Second; ; wait = min(2*wait, time.Minute) {
		err := s.projection.Run(ctx, s.read)
		if ctx.Err() != nil {
			return
		}
		s.log.Error("read side stands still: lists are out of date", "seq", s.projection.Applied(), "err", err)
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}
