package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
)

// evidenceWait is how long a start waits for a log that does not hold what a
// snapshot has seen: a replica of the log that lags, or was just elected, may
// answer without the newest messages.
const evidenceWait = 3 * time.Second

// checkLog asks, before anything is read from the log or derived from it anew,
// whether it is the one that this installation has written, whole. Three mistakes
// go unseen otherwise, and are covered up by what is written next:
//
//   - another log key. Every message seems foreign, and what is appended is
//     foreign to whoever holds the right one.
//   - another digest secret. Nothing that was digested can be compared any more.
//   - a log without its end, as a store that cuts off damaged files leaves it. A
//     snapshot proves what was there: it is sealed under the log key, and names
//     the position that it reaches and what is stored there.
//
// Each ends the start. Only a person can say which copy is right.
func (s *Service) checkLog(ctx context.Context) error {
	x, err := s.extent(ctx)
	if err != nil {
		return err
	}
	if err := s.checkKey(ctx, x); err != nil {
		return err
	}
	for _, name := range []string{snapshotName, snapshotOlder} {
		path := s.statePath(name)
		if path == "" {
			return nil
		}
		r, err := openSnapshot(path, s.cfg.LogKey)
		if err != nil {
			continue // there is none, or it proves nothing
		}
		head := r.head
		if err := r.Close(); err != nil {
			return err
		}
		if head.followed < x.First {
			return nil // what it stands at has left the log
		}
		return s.holds(ctx, path, head)
	}
	return nil
}

// keySample is how many messages at the log's beginning must all be foreign for the
// key to be called wrong. Somebody may have injected one, and where the log is
// trimmed it may be the first.
const keySample = 16

func (s *Service) checkKey(ctx context.Context, x *journal.Extent) error {
	var foreign *journal.ForeignError
	for seq := max(x.First, 1); seq <= x.Last && seq < x.First+keySample; seq++ {
		_, err := s.macAt(ctx, seq)
		if err == nil {
			return nil
		}
		if !errors.As(err, &foreign) && !errors.Is(err, journal.ErrNotFound) {
			return err
		}
	}
	if foreign != nil {
		return fmt.Errorf("the log key (log-mac.key) is not the one that this log was written with: its first messages are foreign; restore the key from its backup: %w", foreign)
	}
	return nil
}

// holds asks whether the log has what a snapshot stands at.
func (s *Service) holds(ctx context.Context, path string, head snapshotHead) error {
	var foreign *journal.ForeignError
	if head.secret != secretCheck(s.cfg.DigestSecret) {
		return errors.New("the digest secret (digest-secret.key) is not the one that this log's digests were made with; restore the key from its backup")
	}
	var missing time.Time // when the log first said so
	for {
		mac, err := s.macAt(ctx, head.followed)
		switch now := s.now(); {
		case err == nil && mac == head.mac:
			return nil
		case errors.Is(err, journal.ErrNotFound) && missing.IsZero():
			missing = now
		case errors.Is(err, journal.ErrNotFound) && now.Sub(missing) < evidenceWait:
		case err == nil, errors.As(err, &foreign), errors.Is(err, journal.ErrNotFound):
			return fmt.Errorf("the log does not hold what %s proves was recorded at position %d: its end was lost, or it is another log; restore the stream from its backup, or remove that file to go on without what is lost", path, head.followed)
		default:
			return err
		}
		t := time.NewTimer(100 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// secretCheck is what a snapshot keeps of the digest secret.
func secretCheck(secret []byte) string { return events.Digest(secret, "snapshot check", nil) }
