package journal_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/events/journal/journaltest"
)

func dial(t *testing.T, s *servers) *nats.Conn {
	t.Helper()
	nc, err := s.connect()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// oneLine wants an error of one line that says each of the words.
func oneLine(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error has more than one line: %q", err)
	}
}

func TestOpenCreatesThenChecks(t *testing.T) {
	s := startServers(t, 1)
	nc := dial(t, s)
	ctx := t.Context()
	open := func(partitions int) (*journal.JetStream, error) {
		return journal.OpenJetStream(ctx, nc, journal.Config{Key: journaltest.Key, Partitions: partitions})
	}
	j, err := open(0)
	if err != nil {
		t.Fatal(err)
	}
	if j.Partitions() != events.DefaultPartitions {
		t.Errorf("a stream is created with %d partitions, want %d", j.Partitions(), events.DefaultPartitions)
	}
	for _, n := range []int{0, events.DefaultPartitions} {
		if _, err := open(n); err != nil {
			t.Errorf("open again with %d partitions: %v", n, err)
		}
	}
	_, err = open(16)
	oneLine(t, err, "partitions is 8, want 16", "configure 8")

	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	st, err := js.Stream(ctx, events.LogStream)
	if err != nil {
		t.Fatal(err)
	}
	if cfg := st.CachedInfo().Config; !cfg.DenyDelete || cfg.DenyPurge {
		t.Errorf("deny delete is %v, deny purge %v: a message can be taken out of the middle, or nothing can ever leave", cfg.DenyDelete, cfg.DenyPurge)
	}
	cfg := st.CachedInfo().Config
	cfg.MaxAge, cfg.Compression = time.Hour, jetstream.S2Compression
	if _, err := js.UpdateStream(ctx, cfg); err != nil {
		t.Fatal(err)
	}
	_, err = open(0)
	var weak *journal.WeakStreamError
	if !errors.As(err, &weak) || len(weak.Differences) != 2 {
		t.Errorf("open a stream with an age limit and compression: got %v, want two differences", err)
	}
	oneLine(t, err, "max age is 1h0m0s, want none", "compression is", "nats stream edit PDGATE --max-age -1")
}

func TestOpenTakesTheStreamsPartitions(t *testing.T) {
	s := startServers(t, 1)
	nc := dial(t, s)
	for _, partitions := range []int{3, 0} {
		j, err := journal.OpenJetStream(t.Context(), nc, journal.Config{Key: journaltest.Key, Partitions: partitions})
		if err != nil {
			t.Fatal(err)
		}
		if j.Partitions() != 3 {
			t.Errorf("configured %d: the log has %d partitions, want 3", partitions, j.Partitions())
		}
	}
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	t.Run("JetStream", func(t *testing.T) {
		ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true})
		if err != nil {
			t.Fatal(err)
		}
		go ns.Start()
		defer ns.Shutdown()
		if !ns.ReadyForConnections(10 * time.Second) {
			t.Fatal("server is not ready")
		}
		nc, err := nats.Connect(ns.ClientURL())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_, err = journal.OpenJetStream(t.Context(), nc, journal.Config{Key: journaltest.Key})
		oneLine(t, err, "has no JetStream", "jetstream {", "embedded")
	})
	t.Run("servers", func(t *testing.T) {
		_, err := journal.OpenJetStream(t.Context(), dial(t, startServers(t, 1)), journal.Config{Key: journaltest.Key, Replicas: 3})
		oneLine(t, err, "3 replicas need a cluster", "fewer replicas")
	})
	t.Run("key", func(t *testing.T) {
		_, err := journal.OpenJetStream(t.Context(), nil, journal.Config{})
		oneLine(t, err, "log key")
	})
	t.Run("connection", func(t *testing.T) {
		nc := dial(t, startServers(t, 1))
		nc.Close()
		_, err := journal.OpenJetStream(t.Context(), nc, journal.Config{Key: journaltest.Key})
		oneLine(t, err, "no connection to NATS")
	})
}

// TestFullDisk fills the server's storage: appends end as a clear error, and
// what was acknowledged stays readable.
func TestFullDisk(t *testing.T) {
	s := startServers(t, 1)
	s.stop()
	s.opts[0].JetStreamMaxStore = 1 << 20
	if err := s.start(); err != nil {
		t.Fatal(err)
	}
	j, err := journal.OpenJetStream(t.Context(), dial(t, s), journal.Config{Key: journaltest.Key})
	if err != nil {
		t.Fatal(err)
	}
	line := []byte(`{"filler":"` + strings.Repeat("x", 100<<10) + `"}` + "\n")
	var tail uint64
	for i := range 20 {
		r := appendOne(t, j, &events.Envelope{Expected: tail, ID: fmt.Sprint(i), Lines: line})
		if r.Kind == journal.Stored {
			tail = r.Seq
			continue
		}
		if r.Kind != journal.Unknown {
			t.Fatalf("a full disk is %+v, want Unknown", r)
		}
		oneLine(t, r.Err, "free disk space", "acknowledged events are safe")
		if tail == 0 {
			t.Fatal("nothing was stored before the disk was full")
		}
		if _, err := j.Read(t.Context(), tail); err != nil {
			t.Errorf("read the last acknowledged envelope: %v", err)
		}
		return
	}
	t.Fatal("the disk never was full")
}

func appendOne(t *testing.T, j journal.Journal, env *events.Envelope) journal.Reply {
	t.Helper()
	got := make(chan journal.Reply, 1)
	if err := j.Append(env, func(r journal.Reply) { got <- r }); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-got:
		return r
	case <-time.After(20 * time.Second):
		t.Fatal("no reply")
	}
	panic("unreachable")
}

func TestAppendErrors(t *testing.T) {
	s := startServers(t, 1)
	nc := dial(t, s)
	j, err := journal.OpenJetStream(t.Context(), nc, journal.Config{Key: journaltest.Key})
	if err != nil {
		t.Fatal(err)
	}
	never := func(r journal.Reply) { t.Errorf("reply %+v to an append that was not sent", r) }
	err = j.Append(&events.Envelope{Lines: make([]byte, j.MaxPayload()+2048)}, never)
	oneLine(t, err, "max_payload")

	// The stream is gone: nobody listens.
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), events.LogStream); err != nil {
		t.Fatal(err)
	}
	r := appendOne(t, j, &events.Envelope{Lines: []byte("x\n")})
	if r.Kind != journal.Unknown {
		t.Errorf("append without a stream: %+v, want Unknown", r)
	}
	oneLine(t, r.Err, "nobody listens")

	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := j.Append(&events.Envelope{Lines: []byte("x\n")}, never); !errors.Is(err, journal.ErrClosed) {
		t.Errorf("append after close: %v, want ErrClosed", err)
	}
	nc.Close()
	if err := j.Follow(context.Background(), 1, func(*events.Envelope) error { return nil }); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("follow on a closed connection: %v, want ErrConnectionClosed", err)
	}
}

// TestInProcess runs over a pipe to an embedded server that listens nowhere.
func TestInProcess(t *testing.T) {
	ns, err := server.NewServer(&server.Options{DontListen: true, JetStream: true, StoreDir: t.TempDir(), SyncAlways: true, NoLog: true, NoSigs: true})
	if err != nil {
		t.Fatal(err)
	}
	go ns.Start()
	defer func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	}()
	if !ns.ReadyForConnections(10 * time.Second) {
		t.Fatal("server is not ready")
	}
	nc, err := nats.Connect("", nats.InProcessServer(ns))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	j, err := journal.OpenJetStream(t.Context(), nc, journal.Config{Key: journaltest.Key})
	if err != nil {
		t.Fatal(err)
	}
	if r := appendOne(t, j, &events.Envelope{ID: "a", Lines: []byte("x\n")}); r.Kind != journal.Stored {
		t.Errorf("append: %+v", r)
	}
}
