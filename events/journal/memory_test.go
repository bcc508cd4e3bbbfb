package journal_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/events/journal/journaltest"
)

func openMemory(t *testing.T, l *journal.MemoryLog) *journal.Memory {
	t.Helper()
	m, err := l.Open(journal.Config{Key: journaltest.Key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func env(expected uint64, id string) *events.Envelope {
	return &events.Envelope{Expected: expected, ID: id, Lines: []byte(id + "\n")}
}

// TestFaults shows each fault: what the writer hears, and what the log holds.
func TestFaults(t *testing.T) {
	full := errors.New("disk full")
	for _, c := range []struct {
		name  string
		mode  journal.Mode
		fault journal.Fault
		reply journal.Reply // zero Kind and nil Err: silence
		in    bool          // the log
	}{
		{"none", journal.Single, journal.Fault{}, journal.Reply{Kind: journal.Stored, Seq: 2}, true},
		{"drop", journal.Single, journal.Fault{Drop: true}, journal.Reply{}, false},
		{"lose reply", journal.Replicated, journal.Fault{LoseReply: true}, journal.Reply{}, true},
		{"unavailable", journal.Single, journal.Fault{Unavailable: full}, journal.Reply{Err: full}, false},
		{"refuse, single", journal.Single, journal.Fault{Refuse: true}, journal.Reply{Kind: journal.Refused, Hint: 1, Code: 10071}, false},
		{"refuse, replicated", journal.Replicated, journal.Fault{Refuse: true}, journal.Reply{Kind: journal.Refused, Code: 10164}, false},
		{"store, then refuse", journal.Replicated, journal.Fault{StoreThenRefuse: true}, journal.Reply{Kind: journal.Refused, Code: 10164}, true},
		{"stale hint", journal.Single, journal.Fault{Refuse: true, Hint: 7}, journal.Reply{Kind: journal.Refused, Hint: 7, Code: 10071}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := journal.NewMemoryLog(c.mode, 0)
			m := openMemory(t, l)
			appendOne(t, m, env(0, "first"))
			l.SetFault(func(*events.Envelope) journal.Fault { return c.fault })
			got := make(chan journal.Reply, 2)
			if err := m.Append(env(1, "second"), func(r journal.Reply) { got <- r }); err != nil {
				t.Fatal(err)
			}
			l.SetFault(nil)
			// Replies come in order: the one to another partition is the last.
			other := env(0, "other")
			other.Partition = 1
			appendOne(t, m, other)
			close(got)
			if d := cmp.Diff(c.reply, <-got, cmp.Comparer(func(a, b error) bool { return errors.Is(a, b) })); d != "" {
				t.Errorf("reply (-want +got):\n%s", d)
			}
			e, err := m.Read(t.Context(), 2)
			if in := err == nil && e.ID == "second"; in != c.in {
				t.Errorf("in the log: %v, want %v", in, c.in)
			}
		})
	}
}

func TestHoldReply(t *testing.T) {
	l := journal.NewMemoryLog(journal.Single, 0)
	m := openMemory(t, l)
	l.SetFault(func(e *events.Envelope) journal.Fault { return journal.Fault{HoldReply: e.ID == "held"} })
	got := make(chan journal.Reply, 1)
	if err := m.Append(env(0, "held"), func(r journal.Reply) { got <- r }); err != nil {
		t.Fatal(err)
	}
	appendOne(t, m, env(1, "next"))
	if len(got) > 0 {
		t.Fatal("a held reply came")
	}
	l.Release()
	if r := <-got; r.Kind != journal.Stored || r.Seq != 1 {
		t.Errorf("released reply is %+v", r)
	}
}

func TestDisconnect(t *testing.T) {
	l := journal.NewMemoryLog(journal.Single, 0)
	cut, other := openMemory(t, l), openMemory(t, l)
	cut.Disconnect()
	if err := cut.Append(env(0, "lost"), func(r journal.Reply) { t.Errorf("reply %+v over a cut connection", r) }); err != nil {
		t.Fatal(err)
	}
	appendOne(t, other, env(0, "first"))
	if _, err := cut.Read(t.Context(), 1); err == nil {
		t.Error("read over a cut connection")
	}
	if _, err := cut.Last(t.Context()); err == nil {
		t.Error("last sequence over a cut connection")
	}
	ctx, cancel := context.WithCancel(t.Context())
	seen := make(chan string, 1)
	done := make(chan error, 1)
	go func() {
		done <- cut.Follow(ctx, 1, func(e *events.Envelope) error { seen <- e.ID; return nil })
	}()
	if len(seen) > 0 {
		t.Error("follow over a cut connection")
	}
	cut.Reconnect()
	if id := <-seen; id != "first" {
		t.Errorf("followed %q after the reconnect", id)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("follow returned %v", err)
	}
}

func TestMemoryPartitions(t *testing.T) {
	l := journal.NewMemoryLog(journal.Single, 3)
	_, err := l.Open(journal.Config{Key: journaltest.Key, Partitions: 8})
	oneLine(t, err, "partitions is 3, want 8")
}

// fakeReader serves History from a map.
type fakeReader map[uint64]string

func (f fakeReader) Read(_ context.Context, seq uint64) (*events.Envelope, error) {
	s, ok := f[seq]
	if !ok {
		return nil, journal.ErrNotFound
	}
	return &events.Envelope{Seq: seq, Lines: []byte(s)}, nil
}

func TestHistoryRefuses(t *testing.T) {
	pos := events.Position{Seq: 9, Line: 0}
	if _, err := journal.History(t.Context(), fakeReader{}, pos); !errors.Is(err, journal.ErrNotFound) {
		t.Errorf("missing message: %v", err)
	}
	for name, lines := range map[string]string{
		"no such line":     "",
		"no final newline": "x",
		"not an event":     "{}\n",
	} {
		rs, err := journal.History(t.Context(), fakeReader{9: lines}, pos)
		if !errors.Is(err, journal.ErrHistory) {
			t.Errorf("%s: got %d records, %v; want ErrHistory", name, len(rs), err)
		}
	}
	rs, err := journal.History(t.Context(), fakeReader{}, events.Position{})
	if len(rs) != 0 || err != nil {
		t.Errorf("history of nothing: %v %v", rs, err)
	}
	if _, err := journal.History(t.Context(), fakeReader{9: loopLine(t)}, pos); !errors.Is(err, journal.ErrHistory) || !strings.Contains(err.Error(), "as the one before") {
		t.Errorf("an event that names itself as the one before: %v", err)
	}
}

// keeper hands out its own buffer.
type keeper []byte

func (k keeper) Read(context.Context, uint64) (*events.Envelope, error) {
	return &events.Envelope{Seq: 10, Lines: k}, nil
}

// A history keeps its lines and not the envelopes that they came in.
func TestHistoryCopiesLines(t *testing.T) {
	b, err := events.Append(nil, &events.Event{
		ID: "01890a5d-ac96-774b-bcce-b302099a8057.1", Source: "/pdgate/lifecycle/lc1", Subject: "01890a5d-ac96-774b-bcce-b302099a8057",
		Type: events.TypeCancelled, N: 1, Data: &events.RequestCancelled{Reason: events.CodeClientGone, From: events.Admitted},
	})
	if err != nil {
		t.Fatal(err)
	}
	lines := keeper(append(bytes.Clone(b), '\n'))
	rs, err := journal.History(t.Context(), lines, events.Position{Seq: 10})
	if err != nil || len(rs) != 1 {
		t.Fatalf("%d records, %v", len(rs), err)
	}
	clear(lines)
	if !bytes.Equal(rs[0].Line, b) {
		t.Error("the record lies in the envelope's memory")
	}
}

// loopLine is an event whose prev is its own position.
func loopLine(t *testing.T) string {
	t.Helper()
	b, err := events.Append(nil, &events.Event{
		ID: "01890a5d-ac96-774b-bcce-b302099a8057.2", Source: "/pdgate/lifecycle/lc1", Subject: "01890a5d-ac96-774b-bcce-b302099a8057",
		Type: events.TypeCancelled, N: 2, Principal: "gateway.gw1", Command: "5b1c5b1c5b1c5b1c5b1c5b1c5b1c5b1c",
		Prev: events.Position{Seq: 9}, Tenant: "acme", TenantSeq: 1,
		Data: &events.RequestCancelled{Reason: events.CodeClientGone, From: events.Admitted},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}
