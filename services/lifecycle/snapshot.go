package lifecycle

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// A snapshot is what memory held at one point of the log, so that a start need
// not read the log from its beginning. It is a cache: whatever is odd about a
// file, the log is read instead. One that is sound and names a position that the
// log does not have is no cache but evidence, see checkLog.
//
// The file is one JSON object and, after a newline, its HMAC under the log key
// in base64url. It names the position that the follower had reached and that
// envelope's MAC, which another log does not have there.
const (
	snapshotName     = "lifecycle.snapshot"
	snapshotFormat   = 1
	snapshotAfter    = 10_000 // envelopes
	snapshotShare    = 30     // a snapshot takes one part in so many of the time, however large memory is
	snapshotContext  = "pdgate lifecycle snapshot\x00"
	snapshotMostEnds = 2048 // ended requests of a partition that are kept whole
)

type snapshotFile struct {
	Format     int                 `json:"format"`
	Followed   uint64              `json:"followed"`
	MAC        string              `json:"mac"`              // of the envelope at Followed
	Secret     string              `json:"secret,omitempty"` // a digest that tells one digest secret from another
	OpsApplied uint64              `json:"ops_applied"`
	Ops        *statemachine.Ops   `json:"ops"`
	Partitions []snapshotPartition `json:"partitions"`
}

type snapshotPartition struct {
	Applied uint64           `json:"applied"`
	Open    []snapshotEntry  `json:"open"`
	Closed  []snapshotEntry  `json:"closed"` // in the order they ended
	Gone    []byte           `json:"gone"`   // ids of 16 bytes, oldest first
	Tenants map[string]chain `json:"tenants"`
	Horizon time.Time        `json:"horizon,omitzero"`
}

type snapshotEntry struct {
	Request *statemachine.Request `json:"request"`
	Since   time.Time             `json:"since"`
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
		if s.caughtUp() && n > 0 && due {
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
	f := snapshotFile{Format: snapshotFormat, Followed: s.followed.Load(), Secret: secretCheck(s.cfg.DigestSecret)}
	if f.Followed == 0 {
		return nil // nothing is recorded
	}
	// At a stop the log may be away: a snapshot is not worth waiting for it.
	ctx, cancel := context.WithTimeout(ctx, stopTime/2)
	defer cancel()
	var err error
	if f.MAC, err = s.macAt(ctx, f.Followed); err != nil {
		return fmt.Errorf("read position: %w", err)
	}
	s.opsNode.mu.Lock()
	f.OpsApplied, f.Ops = s.opsNode.loop.Applied(), s.opsNode.ops.ops.Clone()
	s.opsNode.mu.Unlock()
	for _, n := range s.nodes {
		n.mu.Lock()
		f.Partitions = append(f.Partitions, n.shard.copy(n.loop.Applied()))
		n.mu.Unlock()
	}
	body, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	body = append(body, '\n')
	return writeAtomic(s.statePath(snapshotName), append(body, snapshotMAC(s.cfg.LogKey, body[:len(body)-1])...))
}

func snapshotMAC(key, body []byte) string {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(snapshotContext))
	m.Write(body)
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// copy is the shard's state; the node's lock is held. Payloads are shared: they
// are never written to after they were folded.
func (s *shard) copy(applied uint64) snapshotPartition {
	p := snapshotPartition{Applied: applied, Tenants: make(map[string]chain, len(s.tenants)), Horizon: s.horizon}
	for t, c := range s.tenants {
		p.Tenants[t] = c
	}
	for _, x := range s.open {
		p.Open = append(p.Open, snapshotEntry{x.r.Clone(), x.since})
	}
	for _, k := range s.going {
		p.Gone = append(p.Gone, k[:]...)
	}
	for i, id := range s.endings {
		if i < len(s.endings)-snapshotMostEnds {
			k := compact(id)
			p.Gone = append(p.Gone, k[:]...)
			continue
		}
		x := s.closed[id]
		p.Closed = append(p.Closed, snapshotEntry{x.r.Clone(), x.since})
	}
	return p
}

// writeAtomic replaces a file whole. A crash before the rename leaves the old
// one, a crash after it the new one. What a crash leaves beside it has always the
// same name, and is written over: crashes fill no disk.
func writeAtomic(path string, b []byte) error {
	tmp, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // gone after the rename
	_, err = tmp.Write(b)
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

// restore loads the snapshot, if there is one that is sound and of this log, and
// returns the sequence that it reaches; 0 without one.
func (s *Service) restore(ctx context.Context) (uint64, error) {
	path := s.statePath(snapshotName)
	if path == "" {
		return 0, nil
	}
	f, err := s.readSnapshot(ctx, path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return 0, nil
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err != nil:
		s.log.Warn("snapshot is not used, the log is read from the start", "cause", err)
		return 0, nil
	}
	s.opsNode.mu.Lock()
	s.opsNode.ops.ops = f.Ops
	s.opsNode.loop.Resume(f.OpsApplied)
	s.roster.publish(f.Ops, nil, s.now())
	s.opsNode.mu.Unlock()
	n := 0
	for i, p := range f.Partitions {
		x := s.nodes[i]
		x.mu.Lock()
		x.shard.load(p)
		x.loop.Resume(p.Applied)
		x.mu.Unlock()
		n += len(p.Open)
		s.saw(p.Applied)
	}
	s.log.Info("snapshot is loaded", "seq", f.Followed, "open", n)
	return f.Followed, nil
}

var errSnapshot = errors.New("file is damaged, or of another installation")

// readSnapshot reads and checks the file whole before anything of it is used.
func (s *Service) readSnapshot(ctx context.Context, path string) (*snapshotFile, error) {
	f, err := s.openSnapshot(path)
	if err != nil {
		return nil, err
	}
	switch {
	case len(f.Partitions) != len(s.nodes):
		return nil, fmt.Errorf("%d partitions, the log has %d", len(f.Partitions), len(s.nodes))
	case f.Ops == nil:
		return nil, errSnapshot
	}
	for i, p := range f.Partitions {
		if len(p.Gone)%16 != 0 {
			return nil, errSnapshot
		}
		for _, e := range append(p.Open[:len(p.Open):len(p.Open)], p.Closed...) {
			if e.Request == nil || events.PartitionOf(e.Request.ID, len(s.nodes)) != i {
				return nil, errSnapshot
			}
		}
	}
	mac, err := s.macAt(ctx, f.Followed)
	if err != nil {
		return nil, fmt.Errorf("log at %d: %w", f.Followed, err)
	}
	if mac != f.MAC {
		return nil, errors.New("it is of another log")
	}
	return f, nil
}

// parseSnapshot checks a file's seal and format.
func parseSnapshot(key, b []byte) (*snapshotFile, error) {
	i := bytes.LastIndexByte(b, '\n')
	if i < 0 || !hmac.Equal(b[i+1:], []byte(snapshotMAC(key, b[:i]))) {
		return nil, errSnapshot
	}
	f := new(snapshotFile)
	if err := json.Unmarshal(b[:i], f); err != nil {
		return nil, err
	}
	if f.Format != snapshotFormat {
		return nil, fmt.Errorf("format %d, this build has %d", f.Format, snapshotFormat)
	}
	return f, nil
}

// load takes over what copy gave; the node's lock is held.
func (s *shard) load(p snapshotPartition) {
	s.horizon = p.Horizon
	s.tenants = p.Tenants
	if s.tenants == nil {
		s.tenants = map[string]chain{}
	}
	for _, e := range p.Open {
		x := &entry{r: e.Request, since: e.Since, deadline: timer{id: e.Request.ID}}
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
	for _, e := range p.Closed {
		s.closed[e.Request.ID] = &entry{r: e.Request, since: e.Since, deadline: timer{id: e.Request.ID}}
		s.endings = append(s.endings, e.Request.ID)
	}
	for i := 0; i+16 <= len(p.Gone); i += 16 {
		k := [16]byte(p.Gone[i:])
		s.gone[k] = true
		s.going = append(s.going, k)
	}
}
