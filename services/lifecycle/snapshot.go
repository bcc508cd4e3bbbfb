package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// A snapshot is what memory held at one point of the log, so that a start need
// not read the log from its beginning. While the log has its beginning, a snapshot
// is a cache: whatever is odd about a file, the log is read instead. On a trimmed
// log it is what a start stands on, so there are two, see generations. One that is
// sound and names a position that the log does not have is evidence, see checkLog.
const (
	snapshotAfter    = 10_000 // envelopes
	snapshotShare    = 100    // a snapshot takes one part in so many of the time, however large memory is
	snapshotMostEnds = 2048   // ended requests of a partition that are kept whole
)

// snapshotPartition is one partition's state at one point of the log.
type snapshotPartition struct {
	applied uint64
	horizon time.Time
	tenants map[string]chain
	open    []snapshotEntry
	closed  []snapshotEntry // in the order they ended
	gone    [][16]byte      // ids, oldest first
	ended   []string        // ids that follow gone, and are not compact yet; only in what is written

	requests []statemachine.Request // what the entries to write point into
}

type snapshotEntry struct {
	r     *statemachine.Request
	since time.Time
	first uint64
}

// snapshots writes one now and then.
func (s *Service) snapshots(ctx context.Context) error {
	if s.cfg.StateDir == "" {
		return nil
	}
	t := time.NewTicker(time.Second)
	defer t.Stop()
	last := s.now()
	var took time.Duration
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		n := s.envelopes.Load()
		now := s.now()
		due := n >= snapshotAfter && now.Sub(last) >= snapshotShare*took || now.Sub(last) >= s.cfg.SnapshotEvery
		if s.caughtUp() && (n > 0 || s.kept.uneven()) && due {
			last = now
			if err := s.snapshot(ctx); err != nil && ctx.Err() == nil {
				s.log.Warn("snapshot is not written", "err", err)
			}
			took = s.now().Sub(now)
		}
	}
}

// snapshot writes the present state. Partitions are copied one after the other,
// each under its own lock: a partition may be further than the follower was when
// it began, and then skips what it knows already.
func (s *Service) snapshot(ctx context.Context) error {
	if s.cfg.StateDir == "" || !s.caughtUp() {
		return nil
	}
	s.envelopes.Store(0)
	h := snapshotHead{followed: s.followed.Load(), secret: secretCheck(s.cfg.DigestSecret), partitions: len(s.nodes)}
	if h.followed == 0 {
		return nil // nothing is recorded
	}
	// At a stop the log may be away: a snapshot is not worth waiting for it.
	ctx, cancel := context.WithTimeout(ctx, stopTime/2)
	defer cancel()
	var err error
	if h.mac, err = s.macAt(ctx, h.followed); err != nil {
		return fmt.Errorf("read position: %w", err)
	}
	return s.kept.write(h.followed, func(w io.Writer) error {
		return sealed(w, s.cfg.LogKey, func(f *form) error {
			formHead(f, &h)
			s.opsNode.mu.Lock()
			applied, ops := s.opsNode.loop.Applied(), s.opsNode.ops.ops.Clone()
			s.opsNode.mu.Unlock()
			number(f, &applied)
			formOps(f, ops)
			var p snapshotPartition
			for _, n := range s.nodes {
				n.mu.Lock()
				n.shard.copy(&p, n.loop.Applied())
				n.mu.Unlock()
				formPartition(f, &p)
			}
			return nil
		})
	})
}

// copy puts the shard's state into p, over what it held; the node's lock is held,
// and what is encoded later needs it no more. Requests are copied flat: payloads
// are never written to after they were folded, and what a fold takes out of Held
// or Recorded it takes out of a copy. So are endings and going only appended to,
// and cut off at the front.
func (s *shard) copy(p *snapshotPartition, applied uint64) {
	p.applied, p.horizon = applied, s.horizon
	if p.tenants == nil {
		p.tenants = make(map[string]chain, len(s.tenants))
	}
	clear(p.tenants)
	for t, c := range s.tenants {
		p.tenants[t] = c
	}
	shrunk := max(0, len(s.endings)-snapshotMostEnds)
	p.gone, p.ended = s.going, s.endings[:shrunk]
	kept := s.endings[shrunk:]
	p.requests = slices.Grow(p.requests[:0], len(s.open)+len(kept)) // entries point into it
	add := func(to []snapshotEntry, x *entry) []snapshotEntry {
		p.requests = append(p.requests, *x.r)
		return append(to, snapshotEntry{&p.requests[len(p.requests)-1], x.since, x.first})
	}
	p.open, p.closed = p.open[:0], p.closed[:0]
	for _, x := range s.open {
		p.open = add(p.open, x)
	}
	for _, id := range kept {
		p.closed = add(p.closed, s.closed[id])
	}
}

// restore loads the newest snapshot that is sound, of this log, and reached by it,
// and returns the sequence that it stands at. Without one that is 0, and the log
// must have its beginning.
func (s *Service) restore(ctx context.Context) (uint64, error) {
	x, err := s.extent(ctx)
	if err != nil {
		return 0, err
	}
	if err := x.Check(ctx, s.cfg.Journal); err != nil {
		return 0, err
	}
	followed, st, err := s.newest(ctx, x.First)
	if err == nil && st == nil && x.First > 1 {
		followed, st, err = s.fetch(ctx, x.First)
	}
	if err != nil || st == nil {
		return 0, err
	}
	s.opsNode.mu.Lock()
	s.opsNode.ops.ops = &st.ops
	s.opsNode.loop.Resume(st.opsApplied)
	s.roster.publish(&st.ops, nil, s.now())
	s.forgetKeys(st.ops.Erased)
	s.opsNode.mu.Unlock()
	open := 0
	for i := range st.partitions {
		p, n := &st.partitions[i], s.nodes[i]
		n.mu.Lock()
		n.shard.load(p)
		n.loop.Resume(p.applied)
		n.mu.Unlock()
		open += len(p.open)
		s.saw(p.applied)
	}
	s.log.Info("snapshot is loaded", "seq", followed, "open", open)
	return followed, nil
}

// newest reads the newest snapshot of the state directory that a start can stand
// on; nil: there is none. The sound ones count as kept.
func (s *Service) newest(ctx context.Context, first uint64) (uint64, *snapshotState, error) {
	for s.cfg.StateDir != "" {
		at, st, err := s.readSnapshot(ctx, s.statePath(snapshotName))
		if err == nil && at < first {
			err = fmt.Errorf("it stands at %d, and the log begins at %d", at, first)
		}
		if err == nil {
			s.kept.found(at, s.older(ctx, at))
			return at, st, nil
		}
		if ctx.Err() != nil {
			return 0, nil, ctx.Err()
		}
		missing := errors.Is(err, os.ErrNotExist)
		// The older one takes the newer one's place, which the next one that is
		// written would push onto it otherwise.
		moved := os.Rename(s.statePath(snapshotOlder), s.statePath(snapshotName))
		if moved != nil && !errors.Is(moved, os.ErrNotExist) {
			return 0, nil, fmt.Errorf("snapshot: %w", moved)
		}
		switch {
		case moved == nil && !missing:
			s.log.Warn("snapshot is not used, the one before it is", "cause", err)
		case moved != nil && missing:
			return 0, nil, nil
		case moved != nil:
			s.log.Warn("snapshot is not used, the log is read from the start", "cause", err)
			return 0, nil, nil
		}
	}
	return 0, nil, nil
}

// older is the position of the second copy, 0 if it is of no use.
func (s *Service) older(ctx context.Context, newest uint64) uint64 {
	r, err := openSnapshot(s.statePath(snapshotOlder), s.cfg.LogKey)
	if err != nil {
		return 0
	}
	head := r.head
	if r.Close() != nil || head.followed > newest || head.partitions != len(s.nodes) {
		return 0
	}
	if mac, err := s.macAt(ctx, head.followed); err != nil || mac != head.mac {
		return 0
	}
	return head.followed
}

// load takes over what copy gave; the node's lock is held.
func (s *shard) load(p *snapshotPartition) {
	s.horizon, s.tenants = p.horizon, p.tenants
	for _, e := range p.open {
		x := &entry{r: e.r, since: e.since, deadline: timer{id: e.r.ID}, first: e.first}
		s.open[x.r.ID] = x
		if !x.r.State.Final() {
			waiting := 0
			if x.r.State == events.Admitted {
				waiting = 1
			}
			s.svc.counts.add(x.r.Tenant, 1, x.r.Model, waiting)
			if !x.r.StateBy.IsZero() {
				s.wheel.set(&x.deadline, x.r.StateBy)
			}
		}
	}
	for _, e := range p.closed {
		s.closed[e.r.ID] = &entry{r: e.r, since: e.since, deadline: timer{id: e.r.ID}, first: e.first}
		s.endings = append(s.endings, e.r.ID)
	}
	for _, k := range p.gone {
		s.gone[k] = true
	}
	s.going = p.gone
}
