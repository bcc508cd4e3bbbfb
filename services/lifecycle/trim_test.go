package lifecycle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
)

// trimming lets everything leave that no bound keeps, at once.
func (r *rig) trimming(dir string) func(*Config) {
	r.t.Helper()
	return func(c *Config) {
		r.t.Helper()
		trim, err := journal.OpenTrimmer(r.t.Context(), r.connect(keyring.LifecycleTrim), broker.AuditDomain)
		if err != nil {
			r.t.Fatal(err)
		}
		c.StateDir = dir
		c.Retention = Retention{Age: time.Nanosecond, Trimmer: trim, Unaudited: true, Every: 5 * time.Millisecond, Step: 7, Least: 1}
		c.SnapshotEvery, c.FetchWait = time.Hour, 100*time.Millisecond
	}
}

// keep makes both snapshots of the present state.
func (x *replica) keep() {
	x.rig.t.Helper()
	for range 2 {
		end := x.logSeq.Load()
		until(x.rig.t, "the log is followed", func() bool { return x.followed.Load() >= end && x.projection.Applied() >= end })
		if err := x.snapshot(x.rig.t.Context()); err != nil {
			x.rig.t.Fatal(err)
		}
	}
}

func (x *replica) first() uint64 {
	x.rig.t.Helper()
	e, err := x.cfg.Journal.Extent(x.rig.t.Context())
	if err != nil {
		x.rig.t.Fatal(err)
	}
	if err := e.Check(x.rig.t.Context(), x.cfg.Journal); err != nil {
		x.rig.t.Error(err)
	}
	return e.First
}

// lifecycles takes requests through their lives until every partition has some.
func (i *installation) lifecycles(n int) {
	for k := 0; k < n; k++ {
		i.lifecycle(newID(i.t))
	}
	for p := range testPartitions {
		i.lifecycle(i.idIn(p))
	}
}

// idIn is a request id of a partition.
func (i *installation) idIn(p int) string {
	for {
		if id := newID(i.t); events.PartitionOf(id, testPartitions) == p {
			return id
		}
	}
}

// A start on a trimmed log gives what a start on the whole one gave: requests,
// tenants' chains, workers that registered in what has left.
func TestTrimmedStart(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	x := r.start("lc1", r.trimming(dir))
	i := r.populate()
	op := r.party(keyring.Operator)
	op.did("another-model", &events.Quarantine{Reason: "before the trim"})
	i.lifecycles(12)
	old := newID(t)
	i.lifecycle(old)
	i.traffic(12)
	open := x.oldest()
	x.keep()
	for { // ids fall where they fall: a partition without news would hold the trim back
		b, _, err := x.lowest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if b.name != boundPartition || b.keep >= open {
			break
		}
		i.lifecycles(4)
	}
	until(t, "the log is trimmed up to the oldest open request", func() bool { return x.first() == open })
	want := x.memory()
	if len(want.Open) == 0 || len(want.Ops.Workers) != 2 || want.Ops.Trimmed == nil || want.Ops.Trimmed.BelowSeq != open ||
		want.Ops.Trimmed.Bound != boundOpen && want.Ops.Trimmed.Bound != boundPartition { // its envelope may be its partition's last
		t.Fatalf("%d open, %+v", len(want.Open), want.Ops.Trimmed)
	}
	x.kill()
	y := r.start("lc1", r.trimming(dir))
	if diff := cmp.Diff(want, y.memory(), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("start on the trimmed log (-before +after):\n%s", diff)
	}
	if y.roster.worker("p1") == nil || y.roster.ops.Load().Quarantined["another-model"].Reason == "" {
		t.Error("a worker or a quarantine left with the log")
	}
	// What ended before is known by its recorded answer, and nothing is taken for new.
	if a := i.gw.do(old, admit()); a.Denied != nil || a.Type != events.TypeAdmitted {
		t.Errorf("the recorded answer is lost: %+v", a)
	}
	i.traffic(6)
	rep := r.check()
	if rep.Events == 0 {
		t.Error("nothing was checked")
	}
}

// oldest is the first event of the oldest open request.
func (x *replica) oldest() uint64 {
	least := uint64(1 << 62)
	for _, n := range x.nodes {
		least = min(least, n.oldestOpen().keep)
	}
	return least
}

// Each bound holds a trim back; taken away, what it keeps is lost.
func TestTrimBounds(t *testing.T) {
	const patient = 40 // rounds that a bound is watched for
	type site struct {
		*installation
		x   *replica
		dir string
	}
	signed := func(tree SignedTree) func(*Config) {
		return func(c *Config) {
			c.Retention.Unaudited = false
			c.Retention.Signed = func(context.Context) (*SignedTree, error) { return &tree, nil }
		}
	}
	for name, tt := range map[string]struct {
		config func(*Config)
		setup  func(t *testing.T, s *site) (keep uint64) // what must stay in the log
		harm   func(t *testing.T, s *site) bool
	}{
		boundSigned: {
			config: signed(SignedTree{Origin: "o", Size: 9, Root: "r", CompleteUntil: 20}),
			setup:  func(t *testing.T, s *site) uint64 { s.lifecycles(8); s.x.keep(); return 21 },
			harm: func(t *testing.T, s *site) bool { // the state machine has the same guard
				until(t, "the trim is denied", func() bool { return s.denials() > 0 })
				return s.x.first() == 1
			},
		},
		boundHold: {
			config: signed(SignedTree{Origin: "o", Size: 900, Root: "r", CompleteUntil: 40, LegalHold: true}),
			setup:  func(t *testing.T, s *site) uint64 { s.lifecycles(8); s.x.keep(); return 1 },
			harm:   func(t *testing.T, s *site) bool { return s.leaves(t, 1) },
		},
		boundSnapshot: {
			setup: func(t *testing.T, s *site) uint64 { s.lifecycles(8); return 1 },
			harm: func(t *testing.T, s *site) bool {
				if !s.leaves(t, 1) {
					return false
				}
				s.x.kill()
				y := s.prepare("lc1", s.trimming(s.dir))
				y.run()
				err := <-y.done
				y.done <- err
				return err != nil && strings.Contains(err.Error(), "no snapshot to go on from") && strings.Contains(err.Error(), filepath.Join(s.dir, snapshotName))
			},
		},
		boundOpen: {
			setup: func(t *testing.T, s *site) uint64 {
				id := newID(t)
				at, err := events.ParsePosition(s.admitted(id).Position)
				if err != nil {
					t.Fatal(err)
				}
				s.p1.did(id, s.p1.prefill())
				s.lifecycles(8)
				s.x.keep()
				return at.Seq
			},
			harm: func(t *testing.T, s *site) bool {
				keep := s.x.oldest()
				if !s.leaves(t, keep) {
					return false
				}
				h, err := s.party(keyring.Operator).History(t.Context(), s.x.memory().Open[0])
				return err == nil && h.Earlier != ""
			},
		},
		boundPartition: {
			setup: func(t *testing.T, s *site) uint64 {
				id := s.idIn(0)
				s.lifecycle(id)
				keep := s.x.nodes[0].applied()
				for p := 1; p < testPartitions; p++ {
					for range 3 {
						s.lifecycle(s.idIn(p))
					}
				}
				s.x.keep()
				return keep
			},
			harm: func(t *testing.T, s *site) bool {
				if !s.leaves(t, s.x.nodes[0].applied()) {
					return false
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				_, err := s.gw.try(ctx, s.idIn(0), admit())
				return err != nil // refused for ever
			},
		},
		boundAge: {
			config: func(c *Config) { c.Retention.Age = time.Hour },
			setup:  func(t *testing.T, s *site) uint64 { s.lifecycles(8); s.x.keep(); return 1 },
		},
	} {
		for _, without := range []bool{false, true} {
			if without && tt.harm == nil {
				continue
			}
			what := name
			if without {
				what = "without " + name
			}
			t.Run(what, func(t *testing.T) {
				r := newRig(t)
				s := &site{dir: t.TempDir()}
				s.x = r.prepare("lc1", func(c *Config) {
					r.trimming(s.dir)(c)
					if tt.config != nil {
						tt.config(c)
					}
				})
				if without {
					s.x.unbound = name
				}
				rounds := 0
				var mu sync.Mutex
				s.x.trimRound = func() { mu.Lock(); rounds++; mu.Unlock() }
				s.x.run()
				<-s.x.Ready()
				s.installation = r.populate()
				keep := tt.setup(t, s)
				if without {
					if !tt.harm(t, s) {
						t.Error("nothing is lost without it: the test shows nothing")
					}
					return
				}
				mu.Lock()
				from := rounds
				mu.Unlock()
				until(t, "rounds have passed", func() bool { mu.Lock(); defer mu.Unlock(); return rounds >= from+patient })
				if first := s.x.first(); first > keep {
					t.Errorf("the log begins at %d, and %s is to keep %d", first, name, keep)
				}
				if _, b := s.x.trim.get(); b.name != name || name != boundAge && b.why == "" {
					t.Errorf("held back by %+v, want %s", b, name)
				}
				r.check()
			})
		}
	}
}

// leaves waits until a sequence has left the log.
func (i *installation) leaves(t *testing.T, seq uint64) bool {
	t.Helper()
	x := i.replicas[0]
	until(t, "it leaves", func() bool {
		e, err := x.cfg.Journal.Extent(t.Context())
		return err == nil && e.First > seq
	})
	return true
}

// denials counts those in operations.
func (i *installation) denials() (n int) {
	x := i.replicas[0]
	x.opsNode.mu.Lock()
	defer x.opsNode.mu.Unlock()
	n = len(x.opsNode.ops.unknown.byKey)
	for _, rec := range x.opsNode.ops.ops.Subjects[events.LogStream].Recorded {
		if rec.Denied != nil {
			n++
		}
	}
	return n
}

var errCrash = errors.New("crash")

// A crash at any point of a trim loses nothing, and the next start goes on.
func TestTrimCrash(t *testing.T) {
	for _, point := range []string{stepEvent, stepPurge, stepPart, stepDone} {
		t.Run(point, func(t *testing.T) {
			r := newRig(t)
			dir := t.TempDir()
			x := r.prepare("lc1", r.trimming(dir))
			crashed := make(chan struct{})
			var once sync.Once
			x.trimStep = func(at string) error {
				if at != point {
					return nil
				}
				once.Do(func() { x.silent.Store(true); close(crashed) })
				return errCrash
			}
			x.run()
			<-x.Ready()
			i := r.populate()
			i.lifecycles(12)
			x.keep()
			want := x.memory()
			<-crashed
			x.kill()
			r.stopBroker()
			r.startBroker()
			y := r.start("lc1", r.trimming(dir))
			got := y.memory()
			for id, q := range want.Requests {
				if g := got.Requests[id]; g == nil || g.N < q.N {
					t.Errorf("request %s is lost, or a part of it", id)
				}
			}
			y.keep()
			least := func() uint64 {
				b, _, err := y.lowest(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				return b.keep
			}
			until(t, "it is trimmed", func() bool { return y.first() > 1 && y.first() == y.trimmedBelow() && y.trimmedBelow()+1 >= least() })
			r.check()
		})
	}
}

// Appends of several partitions race with trims of one message at a time, right
// behind them.
func TestTrimRace(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	x := r.start("lc1", func(c *Config) {
		r.trimming(dir)(c)
		c.Retention.Every, c.Retention.Step = time.Millisecond, 1
	})
	i := r.populate()
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() {
		for ctx.Err() == nil {
			if err := x.snapshot(ctx); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	})
	var load sync.WaitGroup
	for p := range testPartitions {
		load.Go(func() {
			for n := 0; n < 40 || x.first() < 100 && n < 400; n++ {
				i.lifecycle(i.idIn(p))
			}
		})
	}
	load.Wait()
	stop()
	all.Wait()
	if x.first() < 50 {
		t.Errorf("the log begins at %d: nothing raced", x.first())
	}
	if rep := r.check(); rep.Open != 0 {
		t.Errorf("%+v", rep)
	}
}

// A replica whose snapshots do not reach the log's beginning takes another one's;
// alone it says what to do.
func TestSnapshotIsFetched(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	x := r.start("lc1", r.trimming(dir))
	i := r.populate()
	i.lifecycles(12)
	x.keep()
	until(t, "the log is trimmed", func() bool { return x.first() > 1 })
	other := t.TempDir()
	for name, state := range map[string]string{"lc2": "", "lc3": other} {
		y := r.start(name, func(c *Config) { c.StateDir, c.FetchWait = state, 10*time.Second })
		until(t, "all have the same log", func() bool { return y.followed.Load() == x.followed.Load() })
		if diff := cmp.Diff(x.memory(), y.memory(), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-first +it):\n%s", name, diff)
		}
		if err := y.stop(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(other, snapshotName)); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(other, "*.fetched*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	x.kill()
	z := r.begin("lc4", func(c *Config) { c.StateDir, c.FetchWait = t.TempDir(), 100*time.Millisecond })
	err := <-z.done
	z.done <- err
	if err == nil || !strings.Contains(err.Error(), "start another replica that has one, or restore") {
		t.Errorf("%v", err)
	}
}

// The newest snapshot is damaged: the one before it is what the log still reaches.
// Without that one there is no start.
func TestSecondSnapshot(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	x := r.start("lc1", r.trimming(dir))
	i := r.populate()
	i.lifecycles(12)
	x.keep()
	until(t, "the log is trimmed", func() bool { return x.first() > 1 })
	i.lifecycles(2)
	if err := x.snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := x.memory()
	x.kill()
	damage := func(name string) {
		path := filepath.Join(dir, name)
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	damage(snapshotName)
	y := r.start("lc1", func(c *Config) { c.StateDir, c.FetchWait, c.SnapshotEvery = dir, time.Millisecond, time.Hour })
	if got := y.memory(); cmp.Diff(want.Requests, got.Requests, cmpopts.EquateEmpty()) != "" {
		t.Errorf("%d requests from the second snapshot and the log, want %d", len(got.Requests), len(want.Requests))
	}
	if y.kept.floor() != 0 {
		t.Error("one snapshot counts for two")
	}
	y.kill()
	damage(snapshotName)
	z := r.begin("lc1", func(c *Config) { c.StateDir, c.FetchWait = dir, time.Millisecond })
	err := <-z.done
	z.done <- err
	if err == nil || !strings.Contains(err.Error(), "no snapshot to go on from") {
		t.Errorf("started on nothing: %v", err)
	}
}

// A crash between the two renames of a snapshot leaves the one that was there under
// the older one's name, and a start finds it.
func TestCrashBetweenNames(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	x := r.start("lc1", r.trimming(dir))
	i := r.populate()
	i.lifecycles(8)
	x.keep()
	until(t, "the log is trimmed", func() bool { return x.first() > 1 })
	want := x.memory()
	x.kill()
	if err := os.Rename(filepath.Join(dir, snapshotName), filepath.Join(dir, snapshotOlder)); err != nil {
		t.Fatal(err)
	}
	y := r.start("lc1", func(c *Config) { c.StateDir, c.FetchWait, c.SnapshotEvery = dir, time.Millisecond, time.Hour })
	if diff := cmp.Diff(want.Requests, y.memory().Requests, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// A replica that lives and keeps no snapshot holds all trims back, until it stops.
func TestTrimWaitsForAll(t *testing.T) {
	r := newRig(t)
	x := r.start("lc1", r.trimming(t.TempDir()))
	y := r.start("lc2", nil)
	i := r.populate()
	i.lifecycles(8)
	x.keep()
	until(t, "the other one is heard", func() bool { seq, who := x.members.floor(99, time.Now()); return seq == 0 && who == "lc2" })
	if b, _, err := x.lowest(t.Context()); err != nil || b.keep != 0 || b.name != boundSnapshot || !strings.Contains(b.why, "lc2") {
		t.Errorf("%+v, %v", b, err)
	}
	if err := y.stop(); err != nil {
		t.Fatal(err)
	}
	until(t, "the log is trimmed", func() bool { return x.first() > 1 })
	r.check()
}

// Two replicas that both believe to trim record and purge beside each other, and
// neither takes more than is recorded.
func TestTrimDuel(t *testing.T) {
	r := newRig(t)
	slow := func(dir string) func(*Config) { // rounds come from the test
		return func(c *Config) { r.trimming(dir)(c); c.Retention.Every = time.Hour }
	}
	both := []*replica{r.start("lc1", slow(t.TempDir())), r.start("lc2", slow(t.TempDir()))}
	i := r.populate()
	for range 6 {
		i.lifecycles(2)
		for _, x := range both {
			x.keep()
		}
		until(t, "both know what the other one has", func() bool {
			for _, x := range both {
				if seq, _ := x.members.floor(x.needs(), time.Now()); seq == 0 || seq+3 < min(both[0].needs(), both[1].needs()) {
					return false
				}
			}
			return true
		})
		var all sync.WaitGroup
		for _, x := range both {
			for range 2 {
				all.Go(func() {
					if err := x.trimOnce(t.Context()); err != nil && !errors.Is(err, errTrimNotRecorded) {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		if first := both[0].first(); first > both[0].trimmedBelow() {
			t.Errorf("the log begins at %d, and may from %d on", first, both[0].trimmedBelow())
		}
	}
	if both[0].first() < 20 {
		t.Errorf("the log begins at %d", both[0].first())
	}
	if rep := r.check(); rep.Open != 0 {
		t.Errorf("%+v", rep)
	}
}

// A replica that was away while what it had not read was trimmed ends, and says why.
func TestFollowerLeftBehind(t *testing.T) {
	r := newRig(t)
	x := r.start("lc1", r.trimming(t.TempDir()))
	i := r.populate()
	i.lifecycles(8)
	x.keep()
	until(t, "the log is trimmed", func() bool { return x.first() > 5 })
	away := r.prepare("lc2", nil)
	err := away.follow(t.Context(), 2)
	if err == nil || !strings.Contains(err.Error(), "were trimmed before this replica had read them") {
		t.Errorf("%v", err)
	}
	away.journal.Close()
}

// A log that lost its beginning without an event that lets it is an error at once.
func TestCutLog(t *testing.T) {
	r := newRig(t)
	x := r.start("lc1", nil)
	i := r.populate()
	i.lifecycles(4)
	if err := x.stop(); err != nil {
		t.Fatal(err)
	}
	trim, err := journal.OpenTrimmer(t.Context(), r.connect(keyring.LifecycleTrim), broker.AuditDomain)
	if err != nil {
		t.Fatal(err)
	}
	if err := trim.Trim(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	y := r.begin("lc1", nil)
	err = <-y.done
	y.done <- err
	var cut *journal.CutError
	if !errors.As(err, &cut) || cut.First != 5 || cut.Below != 0 {
		t.Errorf("%v", err)
	}
}

// The read side says where it begins, lets go of what the log let go of, and points
// to the audit log.
func TestReadSideOfTrimmedLog(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	x := r.start("lc1", r.trimming(dir))
	i := r.populate()
	old := newID(t)
	i.lifecycle(old)
	i.lifecycles(8)
	op := r.party(keyring.Operator)
	if v, err := op.List(t.Context(), events.ListQuery{}); err != nil || v.FromSeq != 0 || !v.Since.IsZero() {
		t.Errorf("%+v, %v", v, err)
	}
	half := newID(t)
	i.admitted(half)
	pre := i.p1.prefill()
	i.p1.did(half, pre)
	i.gw.did(half, &events.Cancel{Reason: events.CodeClientGone})
	i.p1.did(half, i.p1.release(pre.Pages))
	i.lifecycles(1)
	x.keep()
	until(t, "rows go with the log", func() bool {
		_, ok, err := x.projection.Get(t.Context(), old)
		return err == nil && !ok
	})
	v, err := op.List(t.Context(), events.ListQuery{})
	if err != nil || v.Since.IsZero() {
		t.Errorf("%+v, %v", v, err)
	}
	_, err = x.stored(t.Context(), old) // memory has forgotten it by then
	var e *events.Error
	if !errors.As(err, &e) || e.Code != events.CodeNotFound || !strings.Contains(e.Message, "pdgate export --request") {
		t.Errorf("%v", err)
	}
	if _, err = x.stored(t.Context(), newID(t)); !errors.As(err, &e) || strings.Contains(e.Message, "export") {
		t.Errorf("a request that never was: %v", err)
	}
	if err := x.stop(); err != nil {
		t.Fatal(err)
	}
	// Made anew, it begins where the log does.
	if err := os.Remove(filepath.Join(dir, "requests.db")); err != nil {
		t.Fatal(err)
	}
	y := r.start("lc1", func(c *Config) { c.StateDir, c.SnapshotEvery = dir, time.Hour })
	until(t, "the read side is made anew", func() bool { return y.projection.Applied() >= y.logSeq.Load() })
	if v, err := op.List(t.Context(), events.ListQuery{}); err != nil || v.FromSeq != y.first() {
		t.Errorf("it begins at %d, and the log at %d: %v", v.FromSeq, y.first(), err)
	}
}

// The history of a request that has left in part is what remains, and a pointer.
func TestHistoryThatLeft(t *testing.T) {
	r := newRig(t)
	x := r.start("lc1", r.trimming(t.TempDir()))
	i := r.populate()
	id := newID(t)
	i.lifecycle(id)
	op := r.party(keyring.Operator)
	whole, err := op.History(t.Context(), id)
	if err != nil || whole.Earlier != "" {
		t.Fatalf("%+v, %v", whole, err)
	}
	i.lifecycles(8)
	x.keep()
	until(t, "it leaves", func() bool { return x.first() > 30 })
	got, err := op.History(t.Context(), id)
	if err != nil || got.Earlier == "" || len(got.Events) >= len(whole.Events) {
		t.Errorf("%+v, %v", got, err)
	}
}
