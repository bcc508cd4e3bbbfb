package statemachine

import (
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

// trimmedWorld is a log of requests that ended, one after the other, with
// operations between them, and one that is open. It says where the open one begins.
func trimmedWorld(t *testing.T) (w *world, open uint64) {
	w = newWorld(t, Guards{})
	w.do(model+"-b", events.RoleOperator, "alice", &events.Quarantine{Reason: "x"})
	for n := range 6 {
		r := id(n+1, start)
		gen := uint64(n + 1)
		p, g := w.prefillData(), w.grantData()
		p.Pages, g.Pages = runs(0, 7, gen), runs(0, 8, gen)
		w.must(r, events.CmdAdmit)
		w.want("", w.do(r, events.RolePrefill, "p1", p))
		w.want("", w.do(r, events.RoleDecode, "d1", g))
		w.must(r, events.CmdTransferred, events.CmdDecoded)
		w.releaseAll(r)
		w.step(r, events.CmdCancel) // denied, after the end
	}
	w.want("", w.do("p2", events.RoleLifecycle, "lc1", &events.Leave{Epoch: 12}))
	w.do(model+"-b", events.RoleOperator, "alice", &events.Restore{Reason: "y"})
	open = w.seq + 1
	w.must(id(9, start), events.CmdAdmit)
	return w, open
}

func (w *world) trim(below uint64) events.Data {
	w.t.Helper()
	return w.do(events.LogStream, events.RoleLifecycle, "lc1", &events.Trim{BelowSeq: below, Bound: "retention", Origin: "o", TreeSize: 1000, TreeRoot: "r", CompleteUntil: w.seq})
}

// judged is what the checker says of the log from a sequence on.
func (w *world) judged(first uint64) Report {
	c := NewChecker(CheckerConfig{})
	for _, e := range w.log {
		if e.Seq >= first {
			_ = c.Add(e)
		}
	}
	c.Close(w.now)
	return c.Report()
}

// A log that begins anywhere at or below what it says may leave breaks no rule; one
// that begins above it, or says nothing, does.
func TestCheckerOfTrimmedLog(t *testing.T) {
	w, open := trimmedWorld(t)
	if r := w.judged(open - 3); r.OK() || r.Violations[len(r.Violations)-1].Rule != RuleLog || !strings.Contains(r.Violations[len(r.Violations)-1].Message, "no event says") {
		t.Errorf("cut without an event: %+v", r.Violations)
	}
	w.want("", w.trim(open))
	p := w.prefillData()
	p.Pages = runs(0, 7, 9)
	w.want("", w.do(id(9, start), events.RolePrefill, "p1", p))
	for first := uint64(1); first <= open; first++ {
		if r := w.judged(first); !r.OK() {
			t.Errorf("from %d: %v", first, r.Violations)
		}
	}
	if r := w.judged(open + 1); r.OK() {
		t.Error("a log that begins above what may leave is taken")
	}
}

// What a trimmed log still has is judged as strictly as ever.
func TestCheckerFindsHolesOfTrimmedLog(t *testing.T) {
	w, open := trimmedWorld(t)
	w.want("", w.trim(open))
	const first = 12
	for at := range w.log {
		if w.log[at].Seq <= first || w.log[at].Seq >= w.seq { // the first one is no hole, nor is the last
			continue
		}
		x := *w
		x.log = drop(at)(w.log)
		if r := x.judged(first); r.OK() {
			t.Errorf("without message %d: nothing is found", w.log[at].Seq)
		}
	}
}

// Only the service itself trims, forwards, and not above what is signed.
func TestTrimDecided(t *testing.T) {
	w, _ := trimmedWorld(t)
	order := func(role events.Role, subject string, d events.Trim) events.Data {
		return w.m.DecideOps(w.ops, command(subject, role, "lc1", &d), nil)
	}
	good := events.Trim{BelowSeq: 20, Bound: "retention", Origin: "o", TreeSize: 100, TreeRoot: "r", CompleteUntil: 30}
	for _, role := range events.AllRoles() {
		want := events.CodeForbidden
		if role == events.RoleLifecycle {
			want = ""
		}
		w.want(want, order(role, events.LogStream, good))
	}
	w.want(events.CodeMalformed, order(events.RoleLifecycle, "p1", good))
	for name, change := range map[string]func(*events.Trim){
		"above the tree":          func(d *events.Trim) { d.BelowSeq = 32 },
		"nothing":                 func(d *events.Trim) { d.BelowSeq = 1 },
		"a tree without an end":   func(d *events.Trim) { d.CompleteUntil = 0 },
		"an end without a tree":   func(d *events.Trim) { d.TreeSize = 0 },
		"a tree of negative size": func(d *events.Trim) { d.TreeSize = -1 },
	} {
		d := good
		change(&d)
		if _, ok := order(events.RoleLifecycle, events.LogStream, d).(*events.CommandDenied); !ok {
			t.Errorf("%s: taken", name)
		}
	}
	full := good
	full.BelowSeq = 31
	w.want("", order(events.RoleLifecycle, events.LogStream, full))
	unaudited := events.Trim{BelowSeq: 1 << 20, Bound: "retention"}
	w.want("", order(events.RoleLifecycle, events.LogStream, unaudited))

	w.want("", w.do(events.LogStream, events.RoleLifecycle, "lc1", &good))
	for name, d := range map[string]events.Trim{
		"the same again":     good,
		"backwards":          {BelowSeq: 19, Bound: "retention", Origin: "o", TreeSize: 100, TreeRoot: "r", CompleteUntil: 30},
		"another log's tree": {BelowSeq: 25, Bound: "retention", Origin: "other", TreeSize: 100, TreeRoot: "r", CompleteUntil: 30},
	} {
		w.want(events.CodeIllegalState, order(events.RoleLifecycle, events.LogStream, d))
		// The fold has the same guard, for a log that somebody else wrote.
		s := w.ops.Subjects[events.LogStream]
		e := &events.Event{Subject: events.LogStream, N: s.N + 1, Prev: s.Pos, Type: events.TypeLogTrimmed, Time: time.Unix(1, 0),
			Data: &events.LogTrimmed{BelowSeq: d.BelowSeq, Bound: d.Bound, Origin: d.Origin, TreeSize: d.TreeSize, TreeRoot: d.TreeRoot, CompleteUntil: d.CompleteUntil}}
		if err := FoldOps(w.ops.Clone(), e, events.Position{Seq: w.seq + 10}, "h"); err == nil {
			t.Errorf("%s: folded", name)
		}
	}
	if w.ops.Trimmed == nil || w.ops.Trimmed.BelowSeq != 20 {
		t.Errorf("%+v", w.ops.Trimmed)
	}
}
