package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
)

// ErrDenyPurge means that the stream was created with deny_purge, which a server
// lets nobody take back.
var ErrDenyPurge = errors.New("journal: stream " + events.LogStream + " denies purges for good, so nothing can leave it: with everything stopped, make a backup (nats stream backup), delete the stream, and restore it with deny_purge false in the backup's configuration; or run without retention")

// Trimmer takes the beginning off the stream. It is no part of [Journal]: its
// connection is that of the only user, besides the admin, that may.
type Trimmer struct{ stream jetstream.Stream }

// OpenTrimmer finds the stream, which must exist, in the JetStream domain under which
// the connection sees it. The connection stays the caller's.
func OpenTrimmer(ctx context.Context, nc *nats.Conn, domain string) (*Trimmer, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	js, err := newJetStream(nc, domain)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	for {
		s, err := tryStream(ctx, js)
		switch {
		case err == nil && s.CachedInfo().Config.DenyPurge:
			return nil, ErrDenyPurge
		case err == nil:
			return &Trimmer{s}, nil
		case ctx.Err() != nil || !silent(err):
			return nil, explain(err, nc, Config{})
		}
	}
}

func tryStream(ctx context.Context, js jetstream.JetStream) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	return js.Stream(ctx, events.LogStream)
}

// Trim takes everything below a sequence off the stream. It may be said again, and
// by several at once: what has left has left. After an error, and after a crash
// at any time, some of it may have left, and always the oldest.
func (t *Trimmer) Trim(ctx context.Context, below uint64) error {
	if below < 2 {
		return nil // 0 would be: everything
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	if err := t.stream.Purge(ctx, jetstream.WithPurgeSequence(below)); err != nil {
		return fmt.Errorf("journal: trim below %d: %w", below, err)
	}
	return nil
}
