package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
)

// Bounds of a trim, as events, logs and metrics name them.
const (
	boundAge       = "retention"
	boundBytes     = "retention_bytes"
	boundSigned    = "signed_tree"
	boundHold      = "legal_hold"
	boundSnapshot  = "snapshot"
	boundOpen      = "open_request"
	boundPartition = "partition"
)

// bound is one reason why the log must keep what is from a sequence on.
type bound struct {
	name string
	keep uint64 // the first sequence that must stay; 0: nothing may leave
	why  string
}

// decided is the lowest bound, and the signed tree that was relied on.
type decided struct {
	bound
	signed SignedTree
}

// lowest is how far the log may be trimmed now. Every bound only grows while
// nothing is lost, but for a legal hold: an old answer trims less.
func (s *Service) lowest(ctx context.Context) (*decided, *journal.Extent, error) {
	x, err := s.cfg.Journal.Extent(ctx)
	if err != nil {
		return nil, nil, err
	}
	if below := s.trimmedBelow(); x.First > max(below, 1) {
		err := &journal.CutError{First: x.First, Below: below}
		s.alarm("the log is not whole", "err", err)
		return nil, nil, err
	}
	d := &decided{}
	if d.bound, err = s.retained(ctx, x); err != nil {
		return nil, nil, err
	}
	if d.keep <= x.First {
		return d, x, nil // nobody wants anything to leave
	}
	lower := func(b bound) {
		if b.keep < d.keep && b.name != s.unbound {
			d.bound = b
		}
	}
	signed, err := s.signedBound(ctx, &d.signed)
	if err != nil {
		return nil, nil, err
	}
	lower(signed)
	seq, who := s.members.floor(s.needs(), s.now())
	why := "replica " + who + " has two snapshots, and a read side, that reach no further; one is written every " + s.cfg.SnapshotEvery.String()
	if seq == 0 {
		why = "replica " + who + " has not written two snapshots yet, or has no state directory; one is written every " + s.cfg.SnapshotEvery.String()
	}
	lower(bound{boundSnapshot, seq, why})
	for _, n := range s.nodes {
		lower(n.lastMessage())
		lower(n.oldestOpen())
	}
	return d, x, nil
}

// needs is the sequence from which on this replica needs the log: both its
// snapshots, and its read side, are that far.
func (s *Service) needs() uint64 { return min(s.kept.floor(), s.projection.Applied()) }

// signedBound is what the auditor has, and whether anything may leave at all.
func (s *Service) signedBound(ctx context.Context, t *SignedTree) (bound, error) {
	r := &s.cfg.Retention
	if r.Signed == nil {
		return bound{boundSigned, math.MaxUint64, ""}, nil
	}
	signed, err := r.Signed(ctx)
	if err != nil {
		return bound{}, fmt.Errorf("read the last signed tree: %w", err)
	}
	switch {
	case signed == nil && r.Unaudited:
		return bound{boundSigned, math.MaxUint64, ""}, nil
	case signed == nil:
		return bound{boundSigned, 0, "no auditor keeps the log: start one, or say --retain-without-audit"}, nil
	}
	*t = *signed
	switch {
	case signed.LegalHold && s.unbound != boundHold:
		return bound{boundHold, 0, "a legal hold is set: pdgate auditor --legal-hold off lifts it"}, nil
	case signed.Size == 0:
		return bound{boundSigned, 0, "the auditor has signed nothing yet"}, nil
	case signed.CompleteUntil > s.logSeq.Load():
		s.alarm("the signed tree is of another log, or this one lost its end", "complete_until", signed.CompleteUntil, "log_seq", s.logSeq.Load())
		return bound{boundSigned, 0, "the signed tree is ahead of this log"}, nil
	}
	return bound{boundSigned, signed.CompleteUntil + 1, "the auditor has signed no more"}, nil
}

// lastMessage keeps the partition's last one: a server that has none takes 0 for
// it, and refuses every append that names it.
func (n *node) lastMessage() bound {
	if seq := n.applied(); seq > 0 {
		return bound{boundPartition, seq, "partition " + partitionName(n.partition) + " has nothing newer"}
	}
	return bound{boundPartition, math.MaxUint64, ""}
}

// oldestOpen keeps the whole history of every request that is open, or holds pages.
func (n *node) oldestOpen() bound {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := bound{boundOpen, math.MaxUint64, ""}
	for id, x := range n.shard.open {
		if x.first < b.keep {
			b.keep, b.why = x.first, "request "+id+" is open since"
		}
	}
	return b
}

// retained is what the operator lets leave: what is too old, or too much.
func (s *Service) retained(ctx context.Context, x *journal.Extent) (bound, error) {
	b := bound{boundBytes, x.First, "the stream is no larger"}
	r := &s.cfg.Retention
	if r.Bytes > 0 && x.Bytes > uint64(r.Bytes) && x.Messages > 0 {
		// Of messages as long as they are on average.
		excess := float64(x.Bytes-uint64(r.Bytes)) / float64(x.Bytes) * float64(x.Messages)
		b.keep = min(x.First+uint64(excess), x.Last)
	}
	if r.Age > 0 {
		seq, err := s.seqAt(ctx, s.now().Add(-r.Age), x)
		if err != nil {
			return b, err
		}
		if seq >= b.keep || r.Bytes == 0 {
			b = bound{boundAge, seq, "the rest is younger"}
		}
	}
	return b, nil
}

// seqAt is the first sequence whose events are not before a time. Times are by the
// writers' clocks, and about in order.
func (s *Service) seqAt(ctx context.Context, t time.Time, x *journal.Extent) (uint64, error) {
	from, to := max(x.First, 1), x.Last+1
	for from < to {
		mid := from + (to-from)/2
		at, err := s.timeAt(ctx, mid, x.Last)
		if err != nil {
			return 0, err
		}
		if at.Before(t) {
			from = mid + 1
		} else {
			to = mid
		}
	}
	return from, nil
}

var errFound = errors.New("found")

// timeAt is the time of the first event at or behind a sequence; that of none is
// now.
func (s *Service) timeAt(ctx context.Context, seq, last uint64) (time.Time, error) {
	var foreign *journal.ForeignError
	for ; seq <= last; seq++ {
		env, err := s.cfg.Journal.Read(ctx, seq)
		switch {
		case errors.As(err, &foreign), errors.Is(err, journal.ErrNotFound):
			continue
		case err != nil:
			return time.Time{}, err
		}
		var at time.Time
		_ = events.Split(env.Lines, func(_ int, line []byte) error {
			e, err := events.Decode(line)
			if err != nil {
				return nil // the next one may do
			}
			at = e.Time
			return errFound
		})
		if !at.IsZero() {
			return at, nil
		}
	}
	return s.now(), nil
}
