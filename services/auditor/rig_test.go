package auditor

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
)

func TestMain(m *testing.M) {
	if os.Getenv(victimVar) != "" {
		fmt.Fprintln(os.Stderr, victim())
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}

const patience = 20 * time.Second

// site is a NATS server with a log that the test writes.
type site struct {
	t      *testing.T
	ring   *keyring.Ring
	broker *broker.Broker
	nc     *nats.Conn // lifecycle-log's
	log    *journal.JetStream
	tail   map[int]uint64
	n      int      // events so far
	leaves [][]byte // what the tree must hold
}

// newSite starts one; keys nil makes fresh keys.
func newSite(t *testing.T, ring *keyring.Ring) *site {
	t.Helper()
	s := newServer(t, ring)
	s.openLog()
	return s
}

// newServer is a site whose log does not exist yet.
func newServer(t *testing.T, ring *keyring.Ring) *site { return newServerAt(t, ring, 0) }

// newServerAt is newServer with a port, as [broker.Config] has it.
func newServerAt(t *testing.T, ring *keyring.Ring, port int) *site {
	t.Helper()
	var err error
	if ring == nil {
		if ring, err = keyring.Open(filepath.Join(t.TempDir(), "keys"), keyring.Names{Gateways: []string{"gw1"}}); err != nil {
			t.Fatal(err)
		}
	}
	s := &site{t: t, ring: ring, tail: map[int]uint64{}}
	s.broker, err = broker.Start(broker.Config{StoreDir: t.TempDir(), Port: port, Ring: ring, Durability: broker.FsyncInterval, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.broker.Shutdown)
	return s
}

func (s *site) openLog() {
	s.t.Helper()
	var err error
	s.nc = s.connect(keyring.LifecycleLog)
	s.log, err = journal.OpenJetStream(s.t.Context(), s.nc, journal.Config{Key: s.logKey(), Partitions: 2})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { s.log.Close() })
}

func (s *site) connect(u keyring.User) *nats.Conn {
	s.t.Helper()
	nc, err := natsclient.Connect(s.t.Context(), natsclient.Config{InProcess: s.broker.InProcess(), Ring: s.ring, User: u, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}

func (s *site) logKey() []byte {
	key, err := s.ring.LogKey()
	if err != nil {
		s.t.Fatal(err)
	}
	return key
}

// event is one more event's line.
func (s *site) event() []byte {
	s.n++
	b, err := events.Append(nil, &events.Event{
		ID: fmt.Sprintf("e%d", s.n), Source: "test", Type: events.TypeModelQuarantined, Subject: "ref",
		Time: time.Unix(1_800_000_000, int64(s.n)*1000), Data: &events.ModelQuarantined{Model: "ref", Reason: strings.Repeat("x", s.n%50)},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// append stores one message of n events in a partition.
func (s *site) append(p, n int) uint64 {
	s.t.Helper()
	var lines []byte
	for range n {
		e := s.event()
		s.leaves = append(s.leaves, e)
		lines = append(append(lines, e...), '\n')
	}
	return s.store(p, lines)
}

// store stores lines under a valid MAC.
func (s *site) store(p int, lines []byte) uint64 {
	s.t.Helper()
	got := make(chan journal.Reply, 1)
	err := s.log.Append(&events.Envelope{Partition: p, Expected: s.tail[p], ID: fmt.Sprint("env", s.n), Lines: lines}, func(r journal.Reply) { got <- r })
	if err != nil {
		s.t.Fatal(err)
	}
	select {
	case r := <-got:
		if r.Kind != journal.Stored {
			s.t.Fatalf("append: %+v", r)
		}
		s.tail[p] = r.Seq
		return r.Seq
	case <-time.After(patience):
		s.t.Fatal("append: no reply")
		return 0
	}
}

// fill appends count events, a few in a message, over both partitions.
func (s *site) fill(count int) {
	s.t.Helper()
	for i := 0; count > 0; i++ {
		n := min(count, 1+i%9)
		s.append(i%2, n)
		count -= n
	}
}

// inject stores what no holder of the log key wrote.
func (s *site) inject(subject, payload string) {
	s.t.Helper()
	js, err := jetstream.New(s.nc)
	if err != nil {
		s.t.Fatal(err)
	}
	ack, err := js.Publish(s.t.Context(), subject, []byte(payload))
	if err != nil {
		s.t.Fatal(err)
	}
	if p, err := events.ParseLogSubject(subject); err == nil {
		s.tail[p] = ack.Sequence
	}
	s.leaves = append(s.leaves, audit.NewForeign(ack.Sequence, subject, []byte(payload)).Append(nil))
}

// lose drops all but the last messages of the stream, as only the admin can, and
// undoes the change of the stream's limits.
func (s *site) lose(keep int64) {
	s.t.Helper()
	js, err := jetstream.New(s.connect(keyring.Admin))
	if err != nil {
		s.t.Fatal(err)
	}
	stream, err := js.Stream(s.t.Context(), events.LogStream)
	if err != nil {
		s.t.Fatal(err)
	}
	cfg := stream.CachedInfo().Config
	short := cfg
	short.MaxMsgs, short.Discard = keep, jetstream.DiscardOld
	for _, c := range []jetstream.StreamConfig{short, cfg} {
		if _, err := js.UpdateStream(s.t.Context(), c); err != nil {
			s.t.Fatal(err)
		}
	}
}

// head is the tree that the leaves make, by way of x/mod alone.
func head(leaves [][]byte) tlog.Tree {
	var hashes []tlog.Hash
	reader := tlog.HashReaderFunc(func(at []int64) ([]tlog.Hash, error) {
		var out []tlog.Hash
		for _, i := range at {
			out = append(out, hashes[i])
		}
		return out, nil
	})
	for i, leaf := range leaves {
		more, err := tlog.StoredHashes(int64(i), leaf, reader)
		if err != nil {
			panic(err)
		}
		hashes = append(hashes, more...)
	}
	root, err := tlog.TreeHash(int64(len(leaves)), reader)
	if err != nil {
		panic(err)
	}
	return tlog.Tree{N: int64(len(leaves)), Hash: root}
}

// replica is a running auditor.
type replica struct {
	*Auditor
	s    *site
	url  string
	stop func() error
	done chan struct{}
	err  error
}

func (s *site) config(name, dir string) Config {
	s.t.Helper()
	key, err := s.ring.AuditKey()
	if err != nil {
		s.t.Fatal(err)
	}
	readers, err := s.ring.AuditReaders()
	if err != nil {
		s.t.Fatal(err)
	}
	return Config{
		Name: name, Dir: dir, Conn: s.connect(keyring.Auditor), Domain: broker.AuditDomain, LogKey: s.logKey(), Key: key, Readers: readers,
		Interval: 5 * time.Millisecond, Takeover: 100 * time.Millisecond, Witnesses: 5 * time.Second,
	}
}

// start runs an auditor until the test or stop ends it.
func (s *site) start(cfg Config) *replica {
	s.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { l.Close() })
	cfg.Listener = l
	a, err := New(cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	r := &replica{Auditor: a, s: s, url: "http://" + l.Addr().String(), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = a.Run(ctx)
	}()
	r.stop = func() error {
		cancel()
		return r.wait()
	}
	s.t.Cleanup(func() { _ = r.stop() })
	return r
}

// wait waits for the end of Run.
func (r *replica) wait() error {
	r.s.t.Helper()
	select {
	case <-r.done:
		return r.err
	case <-time.After(patience):
		r.s.t.Fatal("the auditor does not end")
		return nil
	}
}

// until polls until ok, or fails.
func (s *site) until(what string, ok func() bool) {
	s.t.Helper()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(patience); !ok(); <-poll.C {
		if time.Now().After(end) {
			s.t.Fatalf("not in time: %s", what)
		}
	}
}

// signed waits until the replica serves a checkpoint of all leaves, and checks it.
func (r *replica) signedAll() *audit.SignedCheckpoint {
	r.s.t.Helper()
	want := head(r.s.leaves)
	r.s.until(fmt.Sprintf("%d leaves are signed", want.N), func() bool {
		select {
		case <-r.done:
			r.s.t.Fatalf("the auditor ended: %v", r.err)
		default:
		}
		c := r.Auditor.signed.Load()
		return c != nil && c.Tree.N >= want.N
	})
	code, b := get(r.s.t, r.url+"/checkpoint", "")
	if code != http.StatusOK {
		r.s.t.Fatalf("checkpoint: %d %s", code, b)
	}
	_, vkey := get(r.s.t, r.url+"/log.vkey", "")
	v, err := note.NewVerifier(strings.TrimSpace(vkey))
	if err != nil {
		r.s.t.Fatal(err)
	}
	c, err := audit.OpenCheckpoint([]byte(b), audit.KeyPolicy(v))
	if err != nil {
		r.s.t.Fatal(err)
	}
	if c.Tree != want {
		r.s.t.Fatalf("signed %d %s, want %d %s", c.Tree.N, c.Tree.Hash, want.N, want.Hash)
	}
	return c
}

// policy asks for the log's signature alone.
func (r *replica) policy() *audit.Policy { return audit.KeyPolicy(r.verifier) }

func replaceOnce(s, old, new string) string { return strings.Replace(s, old, new, 1) }
