package auditor

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
)

// Events, foreign messages, undecodable ones and lost ones all become leaves, and
// the signed root is what anybody computes from them.
func TestEverythingIsALeaf(t *testing.T) {
	s := newSite(t, nil)
	s.fill(20)
	seq, err := s.log.Last(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.lose(2)
	gap := audit.Gap{From: 1, To: seq - 2}
	kept := s.tailLines(2)
	s.leaves = append([][]byte{gap.Append(nil)}, kept...)
	s.inject(events.LogSubject(0), "not ours")
	s.inject("pdgate.log.elsewhere", "")
	s.n++
	torn := slices.Concat(s.event(), []byte("\n{\"specversion\":\n"))
	at := s.store(1, torn)
	s.leaves = append(s.leaves, audit.NewForeign(at, events.LogSubject(1), torn).Append(nil))
	s.fill(600)
	r := s.start(s.config("a1", t.TempDir()))
	c := r.signedAll()
	if end, _ := s.log.Last(t.Context()); c.CompleteUntil != end {
		t.Errorf("complete until %d, the stream ends at %d", c.CompleteUntil, end)
	}
	i := int64(0)
	for leaf, err := range r.store.tiles.Leaves(0, c.Tree.N, c.Tree.N) {
		if err != nil {
			t.Fatal(err)
		}
		if string(leaf) != string(s.leaves[i]) {
			t.Fatalf("leaf %d is %s, want %s", i, leaf, s.leaves[i])
		}
		if _, err := audit.ParseLeaf(leaf); err != nil {
			t.Errorf("leaf %d: %v", i, err)
		}
		i++
	}
	// Idle: nothing is signed, nothing written.
	was, err := os.Stat(filepath.Join(r.cfg.Dir, stateFile))
	if err != nil {
		t.Fatal(err)
	}
	s.fill(1)
	r.signedAll()
	if is, _ := os.Stat(filepath.Join(r.cfg.Dir, stateFile)); is.ModTime().Equal(was.ModTime()) {
		t.Error("a commit wrote no state")
	}
	if err := r.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// tailLines are the event lines of the last n messages.
func (s *site) tailLines(n uint64) [][]byte {
	s.t.Helper()
	end, err := s.log.Last(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	var out [][]byte
	for seq := end - n + 1; seq <= end; seq++ {
		env, err := s.log.Read(s.t.Context(), seq)
		if err != nil {
			s.t.Fatal(err)
		}
		m, err := read(env, [32]byte{}, 2)
		if err != nil {
			s.t.Fatal(err)
		}
		out = append(out, m.leaves...)
	}
	return out
}

var errKilled = errors.New("killed")

// The process is stopped at every commit point in turn. What the next one signs is
// what an uninterrupted run signs, and continues whatever was signed before.
func TestKill(t *testing.T) {
	ring := newSite(t, nil).ring
	var key string
	points := map[string]bool{}
	for n := 0; ; n++ {
		if testing.Short() && n%5 != 0 {
			continue
		}
		ended := t.Run(fmt.Sprint("step ", n), func(t *testing.T) {
			s := newSite(t, ring)
			s.fill(700)
			y := &tenancy{s, map[string]map[int]audit.Head{}}
			for range 20 {
				y.add("acme", "globex")
			}
			dir := t.TempDir()
			cfg := s.config("a1", dir)
			cfg.Batch, cfg.Origin, cfg.headsAfter = 300, "example.com/log", 1 // heads are saved with each commit
			step, point := 0, ""
			cfg.step = func(p string) error {
				if step++; step > n {
					point = p
					return errKilled
				}
				return nil
			}
			r := s.start(cfg)
			s.until("killed, or all is signed", func() bool {
				select {
				case <-r.done:
					return true
				default:
				}
				c := r.Auditor.signed.Load()
				return c != nil && c.Tree.N == int64(len(s.leaves))
			})
			err := r.stop()
			if err != nil && !errors.Is(err, errKilled) {
				t.Fatal(err)
			}
			cfg.step = nil
			before := signedNow(t, s)
			r = s.start(cfg)
			r.signedAll()
			if before != nil && before.Size > 0 {
				old, err := r.open([]byte(before.Checkpoint))
				if err != nil {
					t.Fatal(err)
				}
				if want := head(s.leaves[:old.Tree.N]); old.Tree != want {
					t.Errorf("before the kill at %q a fork was signed: %v, want %v", point, old.Tree, want)
				}
			}
			// One that dies after a commit goes on, and the second half comes then.
			s.fill(100)
			y.add("acme", "initech")
			c := r.signedAll()
			if at := s.receipts(r, c.Tree.N-1); at == nil {
				t.Errorf("killed at %q: the last event has no receipt", point)
			}
			key = point
			points[point] = true
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			// Saved before the kill or read from the tiles, the heads are what they are.
			for tenant, want := range y.ends {
				got := map[int]audit.Head{}
				for _, end := range r.heads.of(tenant) {
					got[end.Partition] = end
				}
				if !maps.Equal(got, want) {
					t.Errorf("killed at %q: heads of %s: %v, want %v", point, tenant, got, want)
				}
			}
		})
		if !ended {
			return
		}
		if key == "" { // ran through without a kill
			if n < 15 || !points["heads"] && !testing.Short() {
				t.Errorf("%d commit points only: %v", n, slices.Sorted(maps.Keys(points)))
			}
			return
		}
		key = ""
	}
}

// receipts proves the event at leaf index by way of its position.
func (s *site) receipts(r *replica, index int64) *audit.SignedCheckpoint {
	s.t.Helper()
	end, err := s.log.Last(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	env, err := s.log.Read(s.t.Context(), end)
	if err != nil {
		s.t.Fatal(err)
	}
	m, err := read(env, [32]byte{}, 2)
	if err != nil {
		s.t.Fatal(err)
	}
	line := len(m.leaves) - 1
	p, f := r.proof(s.t.Context(), receipt{events.Position{Seq: end, Line: line}, events.Hash(m.leaves[line])})
	if f != nil {
		s.t.Fatalf("receipt: %+v", f)
	}
	if p.Index != index {
		s.t.Errorf("the last event is leaf %d, want %d", p.Index, index)
	}
	c, err := p.Verify(r.policy(), m.leaves[line])
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func signedNow(t *testing.T, s *site) *Signed {
	t.Helper()
	g, err := openRegister(t.Context(), s.connect(keyring.Auditor), 1)
	if err != nil {
		t.Fatal(err)
	}
	rec, _, err := g.get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

// Two replicas build one tree. The one that does not sign compares, and takes over
// when no signature comes.
func TestReplicas(t *testing.T) {
	s := newSite(t, nil)
	s.fill(300)
	a := s.start(s.config("a1", t.TempDir()))
	a.signedAll()
	b := s.start(s.config("a2", t.TempDir()))
	b.signedAll()
	s.fill(300)
	a.signedAll()
	b.signedAll()
	if got := signedNow(t, s); got.Signer != "a1" {
		t.Errorf("%s signed, want the one that did before", got.Signer)
	}
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	s.fill(100)
	b.signedAll()
	if got := signedNow(t, s); got.Signer != "a2" {
		t.Errorf("%s signed, want the one that is left", got.Signer)
	}
	again := s.start(a.cfg)
	s.fill(50)
	again.signedAll()
	b.signedAll()
	if got := signedNow(t, s); got.Signer != "a2" {
		t.Errorf("%s signed; who comes back waits its turn", got.Signer)
	}
}

// forge signs another tree with the log's key, and puts it where the last one stands.
func (s *site) forge(r *replica, tree tlog.Tree, complete uint64) {
	s.t.Helper()
	g, err := openRegister(s.t.Context(), s.connect(keyring.Auditor), 1)
	if err != nil {
		s.t.Fatal(err)
	}
	rec, rev, err := g.get(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	c := audit.Checkpoint{Origin: rec.Origin, Tree: tree, CompleteUntil: complete}
	b, err := audit.SignCheckpoint(&c, r.signer)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := g.swap(s.t.Context(), &Signed{Origin: rec.Origin, Size: tree.N, CompleteUntil: complete, Signer: "other", Checkpoint: string(b)}, rev); err != nil {
		s.t.Fatal(err)
	}
}

// A signed tree that the own tiles do not bear out ends every replica, the one that
// signs included, and nothing more is signed.
func TestFork(t *testing.T) {
	for name, size := range map[string]int64{"another root": 200, "the same size": 250, "more leaves of the same stream": 260} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, nil)
			s.fill(250)
			leader := s.start(s.config("a1", t.TempDir()))
			c := leader.signedAll()
			other := s.start(s.config("a2", t.TempDir()))
			other.signedAll()
			s.forge(leader, tlog.Tree{N: size, Hash: tlog.Hash{1}}, c.CompleteUntil)
			if err := other.wait(); !errors.Is(err, ErrFork) {
				t.Errorf("the replica that follows: %v, want ErrFork", err)
			}
			s.fill(10)
			if err := leader.wait(); !errors.Is(err, ErrFork) {
				t.Errorf("the replica that signs: %v, want ErrFork", err)
			}
			if got := signedNow(t, s); got.Signer != "other" {
				t.Errorf("%s signed after the fork", got.Signer)
			}
			// Nor does a restart help.
			if err := s.start(leader.cfg).wait(); !errors.Is(err, ErrFork) {
				t.Errorf("restarted: %v, want ErrFork", err)
			}
		})
	}
}

// The guard before each signature stands by itself.
func TestProve(t *testing.T) {
	s := newSite(t, nil)
	s.fill(300)
	r := s.start(s.config("a1", t.TempDir()))
	r.signedAll()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	st := r.committed.Load()
	old := head(s.leaves[:100])
	for name, tt := range map[string]struct {
		last tlog.Tree
		good bool
	}{
		"continues":   {old, true},
		"first":       {tlog.Tree{}, true},
		"a fork":      {tlog.Tree{N: 100, Hash: tlog.Hash{1}}, false},
		"the same":    {st.head(), false},
		"a larger":    {tlog.Tree{N: 301, Hash: old.Hash}, false},
		"another one": {tlog.Tree{N: 299, Hash: old.Hash}, false},
	} {
		r.last = &checkpoint{Checkpoint: audit.Checkpoint{Tree: tt.last}}
		if err := r.prove(st); (err == nil) != tt.good || err != nil && !errors.Is(err, ErrFork) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What the stream lost after it was signed is a fork for who builds anew, and no
// matter for who holds the tiles.
func TestTrimmed(t *testing.T) {
	s := newSite(t, nil)
	s.fill(300)
	dir := t.TempDir()
	r := s.start(s.config("a1", dir))
	r.signedAll()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	s.lose(3)
	s.fill(20)
	s.start(s.config("a1", dir)).signedAll()
	if err := s.start(s.config("a2", t.TempDir())).wait(); !errors.Is(err, ErrFork) {
		t.Errorf("built from a trimmed stream: %v, want ErrFork", err)
	}
}

// trim takes what is below a sequence off the stream, as lifecycle does: the log
// says so first.
func (s *site) trim(below uint64) {
	s.t.Helper()
	s.n++
	line, err := events.Append(nil, &events.Event{
		ID: fmt.Sprint(events.LogStream, ".1"), Source: "test", Type: events.TypeLogTrimmed, Subject: events.LogStream, N: 1,
		Time: time.Unix(1_800_000_000, 0), Data: &events.LogTrimmed{BelowSeq: below, Bound: "retention"},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	s.leaves = append(s.leaves, line)
	s.store(events.OpsPartition, append(line, '\n'))
	trim, err := journal.OpenTrimmer(s.t.Context(), s.connect(keyring.LifecycleTrim), broker.AuditDomain)
	if err == nil {
		err = trim.Trim(s.t.Context(), below)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// What was trimmed is in the tiles of who had it. A replica that lags behind it, a
// fresh one, and a rebuild write no gap in its place: they stop, and say what to do.
func TestTrimmedByTheLog(t *testing.T) {
	s := newSite(t, nil)
	s.fill(100)
	lagging := t.TempDir()
	r := s.start(s.config("a2", lagging))
	r.signedAll()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s.fill(200)
	r = s.start(s.config("a1", dir))
	r.signedAll()
	s.trim(50)
	s.fill(10)
	r.signedAll()
	for name, d := range map[string]string{"a2": lagging, "a3": t.TempDir()} {
		err := s.start(s.config(name, d)).wait()
		if !errors.Is(err, ErrDirectory) || !strings.Contains(err.Error(), "begins at 50, since it was trimmed") || !strings.Contains(err.Error(), "copy the directory of another one") {
			t.Errorf("%s: %v", name, err)
		}
	}
	a, err := New(s.config("rebuild", t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Rebuild(t.Context()); !errors.Is(err, ErrDirectory) || !strings.Contains(err.Error(), "nothing can be built from its first message on") {
		t.Errorf("rebuild: %v", err)
	}
	// With another one's directory it goes on.
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	s.fill(5)
	r = s.start(s.config("a2", dir))
	r.signedAll()
}

// Before anything is signed, the tree may begin with what left earlier.
func TestTrimmedBeforeTheAuditor(t *testing.T) {
	s := newSite(t, nil)
	s.fill(100)
	s.trim(11)
	gap := audit.Gap{From: 1, To: 10}
	kept := 0
	for i := range uint64(10) { // what left: messages of 1, 2, … 9 and 1 events
		kept += 1 + int(i)%9
	}
	s.leaves = append([][]byte{gap.Append(nil)}, s.leaves[kept:]...)
	s.start(s.config("a1", t.TempDir())).signedAll()
}

// A type of a later version is no leaf at all: builds would disagree on it.
func TestUnknownType(t *testing.T) {
	s := newSite(t, nil)
	s.fill(10)
	r := s.start(s.config("a1", t.TempDir()))
	r.signedAll()
	line := s.event()
	line = []byte(string(line[:0]) + replaceOnce(string(line), "model.quarantined.v1", "model.quarantined.v9") + "\n")
	s.store(0, line)
	if err := r.wait(); !errors.Is(err, ErrVersion) {
		t.Errorf("%v, want ErrVersion", err)
	}
	if got := signedNow(t, s); got.Size != 10 {
		t.Errorf("%d leaves are signed, want 10", got.Size)
	}
}

// The legal hold stands in what lifecycle reads, and stays until it is lifted.
func TestHold(t *testing.T) {
	s := newSite(t, nil)
	s.fill(10)
	dir := t.TempDir()
	for _, tt := range []struct {
		hold Hold
		want bool
	}{{HoldKeep, false}, {HoldOn, true}, {HoldKeep, true}, {HoldOff, false}} {
		cfg := s.config("a1", dir)
		cfg.Hold = tt.hold
		r := s.start(cfg)
		s.fill(5)
		c := r.signedAll()
		if got := signedNow(t, s); got.LegalHold != tt.want || got.CompleteUntil != c.CompleteUntil {
			t.Errorf("hold %q: %+v", tt.hold, got)
		}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// A hold that another replica sets while this one signs stays, and costs this one
// no more than a second try.
func TestHoldMeanwhile(t *testing.T) {
	s := newSite(t, nil)
	s.fill(10)
	cfg := s.config("a1", t.TempDir())
	cfg.Takeover = time.Hour
	r := s.start(cfg)
	r.signedAll()
	other := s.config("a2", t.TempDir())
	other.Hold, other.Takeover = HoldOn, time.Hour
	s.start(other).signedAll()
	s.fill(10)
	r.signedAll()
	if got := signedNow(t, s); got.Signer != "a1" || !got.LegalHold {
		t.Errorf("%+v", got)
	}
}

func TestRebuild(t *testing.T) {
	s := newSite(t, nil)
	s.fill(600)
	dir := t.TempDir()
	r := s.start(s.config("a1", dir))
	want := r.signedAll()
	s.fill(5) // signed or not: a rebuild goes as far as the signature
	build := func(dir string) (audit.Checkpoint, error) {
		a, err := New(s.config("rebuild", dir))
		if err != nil {
			t.Fatal(err)
		}
		return a.Rebuild(t.Context())
	}
	got, err := build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if got.Tree != head(s.leaves[:got.Tree.N]) || got.Tree.N < want.Tree.N {
		t.Errorf("rebuilt %v, want %v or its continuation", got.Tree, want.Tree)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := build(dir); !errors.Is(err, ErrDirectory) {
		t.Errorf("rebuild over a tree: %v, want ErrDirectory", err)
	}
	if got := signedNow(t, s); got.Signer != "a1" {
		t.Errorf("a rebuild signed: %+v", got)
	}
}

// An auditor may start before the first lifecycle replica, and does not make the
// log itself.
func TestWaitsForLog(t *testing.T) {
	s := newServer(t, nil)
	cfg := s.config("a1", t.TempDir())
	waits := make(chan struct{})
	cfg.Logger = slog.New(slog.NewTextHandler(writer(func(line string) {
		if strings.Contains(line, "waits for the log") {
			close(waits)
		}
	}), nil))
	r := s.start(cfg)
	select {
	case <-waits:
	case <-time.After(patience):
		t.Fatal("the auditor does not say that it waits")
	}
	s.openLog()
	s.fill(20)
	r.signedAll()
}

type writer func(line string)

func (w writer) Write(b []byte) (int, error) { w(string(b)); return len(b), nil }

// Run ends with its context.
func TestStop(t *testing.T) {
	s := newSite(t, nil)
	cfg := s.config("a1", t.TempDir())
	ready := make(chan string, 1)
	cfg.Ready = func(head string) { ready <- head }
	r := s.start(cfg)
	select {
	case <-ready:
	case <-time.After(patience):
		t.Fatal("an empty log is never caught up")
	}
	began := time.Now()
	if err := r.stop(); err != nil || time.Since(began) > 10*time.Second {
		t.Errorf("stop: %v after %v", err, time.Since(began))
	}
}
