package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/internal/keyring"
)

// A replica without a snapshot that a trimmed log goes on from takes one of another
// replica. The seal on the file is under the log key, so nobody else's is taken,
// and none that changed on its way.
const (
	snapshotOffer = "pdgate.replica.snapshot.offer" // any replica that has one answers
	snapshotRead  = "pdgate.replica.snapshot.read." // and the replica's name
	snapshotGroup = "pdgate-snapshot"

	headerReplica  = "Pdgate-Replica"
	headerPosition = "Pdgate-Position"
	headerSize     = "Pdgate-Size"

	fetchChunk = 256 << 10
	fetchWait  = 15 * time.Second // for a replica that has one
)

// snapshotPiece asks for a piece of the snapshot that stands at a position; 0: of
// the newest.
type snapshotPiece struct {
	At     uint64 `json:"at"`
	Offset int64  `json:"offset"`
}

// serveSnapshots lets other replicas read this one's.
func (s *Service) serveSnapshots() ([]*nats.Subscription, error) {
	if s.cfg.StateDir == "" {
		return nil, nil
	}
	var subs []*nats.Subscription
	for subject, group := range map[string]string{snapshotOffer: snapshotGroup, snapshotRead + s.cfg.Name: ""} {
		sub, err := s.cfg.Bus.QueueSubscribe(subject, group, s.snapshotPiece)
		if err != nil {
			return subs, fmt.Errorf("subscribe to %s: %w", subject, err)
		}
		subs = append(subs, sub)
	}
	return subs, nil
}

// snapshotPiece answers another replica, and nobody else: only replicas listen
// where the answer goes.
func (s *Service) snapshotPiece(m *nats.Msg) {
	var q snapshotPiece
	if !strings.HasPrefix(m.Reply, keyring.LifecycleBus.InboxPrefix()+".") || json.Unmarshal(m.Data, &q) != nil || s.silent.Load() {
		return
	}
	f, at, err := s.kept.open(q.At)
	if err != nil {
		return // the asker asks somebody else
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || q.Offset < 0 || q.Offset > info.Size() {
		return
	}
	b := make([]byte, min(fetchChunk, info.Size()-q.Offset))
	if _, err := f.ReadAt(b, q.Offset); err != nil {
		s.log.Warn("snapshot cannot be handed over", "err", err)
		return
	}
	s.send(&nats.Msg{Subject: m.Reply, Data: b, Header: nats.Header{
		headerReplica: {s.cfg.Name}, headerPosition: {strconv.FormatUint(at, 10)}, headerSize: {strconv.FormatInt(info.Size(), 10)},
	}})
}

var errNoSnapshot = errors.New("no replica hands one over")

// fetch takes over another replica's snapshot.
func (s *Service) fetch(ctx context.Context, first uint64) (uint64, *snapshotState, error) {
	s.log.Warn("no snapshot reaches the log's beginning: other replicas are asked for one", "first", first)
	var last error
	for end := s.now().Add(s.cfg.FetchWait); s.now().Before(end); {
		at, st, err := s.fetchOnce(ctx, first)
		if err == nil {
			return at, st, nil
		}
		if ctx.Err() != nil {
			return 0, nil, ctx.Err()
		}
		last = err
		if err := pause(ctx, beatEvery); err != nil {
			return 0, nil, err
		}
	}
	where := s.statePath(snapshotName)
	if where == "" {
		where = "a snapshot"
	}
	return 0, nil, fmt.Errorf("the log begins at %d, since what is before was trimmed, and this replica has no snapshot to go on from: start another replica that has one, or restore %s from a backup: %w", first, where, last)
}

func (s *Service) fetchOnce(ctx context.Context, first uint64) (uint64, *snapshotState, error) {
	dir := s.cfg.StateDir
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "pdgate"); err != nil {
			return 0, nil, err
		}
		defer os.RemoveAll(dir)
	}
	// Under a name of its own until it is known to be sound.
	path := filepath.Join(dir, snapshotName+".fetched")
	defer os.Remove(path)
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, nil, err
	}
	if err := errors.Join(s.download(ctx, f), f.Close()); err != nil {
		return 0, nil, err
	}
	at, st, err := s.readSnapshot(ctx, path)
	if err != nil {
		return 0, nil, err
	}
	if at < first {
		return 0, nil, fmt.Errorf("it stands at %d, and the log begins at %d", at, first)
	}
	if s.cfg.StateDir == "" {
		return at, st, nil
	}
	copied, err := os.Open(path)
	if err != nil {
		return 0, nil, err
	}
	defer copied.Close()
	if err := s.kept.write(at, func(w io.Writer) error { _, err := io.Copy(w, copied); return err }); err != nil {
		return 0, nil, err
	}
	s.log.Info("snapshot is taken over from another replica", "seq", at)
	return at, st, nil
}

// download writes another replica's newest snapshot to f.
func (s *Service) download(ctx context.Context, f io.Writer) error {
	q := snapshotPiece{}
	subject := snapshotOffer
	for {
		b, err := json.Marshal(q)
		if err != nil {
			return err
		}
		try, cancel := context.WithTimeout(ctx, apiTimeout)
		m, err := s.cfg.Bus.RequestWithContext(try, subject, b)
		cancel()
		if err != nil {
			return fmt.Errorf("%w: %w", errNoSnapshot, err)
		}
		size, err := strconv.ParseInt(m.Header.Get(headerSize), 10, 64)
		at, bad := strconv.ParseUint(m.Header.Get(headerPosition), 10, 64)
		name := m.Header.Get(headerReplica)
		if err != nil || bad != nil || name == "" || q.At != 0 && q.At != at || len(m.Data) == 0 {
			return fmt.Errorf("%w: its answer is not understood", errNoSnapshot)
		}
		if _, err := f.Write(m.Data); err != nil {
			return err
		}
		q.At, q.Offset, subject = at, q.Offset+int64(len(m.Data)), snapshotRead+name
		if q.Offset >= size {
			return nil
		}
	}
}
