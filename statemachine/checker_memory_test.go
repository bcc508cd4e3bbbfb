package statemachine

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
)

// The checker's requests are those that Fold makes of events which nobody
// shares, whatever becomes of the lines that it read.
func TestCheckerKeepsNothingOfTheLines(t *testing.T) {
	w := newWorld(t, Guards{})
	id3, id4, id5, id6 := id(3, start), id(4, start), id(5, start), id(6, start)
	admit := w.admitData()
	w.must(id1, whole...)
	w.must(id2, events.CmdAdmit, events.CmdReject)
	w.want("", w.do(id3, events.RoleGateway, "gw1", admit))
	p := w.prefillData()
	p.Pages = append(runs(20, 3, 9), runs(30, 4, 9)...)
	w.want("", w.do(id3, events.RolePrefill, "p1", p))
	w.want(events.CodeReservation, w.do(id3, events.RoleDecode, "d1", &events.GrantTransfer{WorkerEpoch: 21, GrantEpoch: 1, Pages: runs(20, 1, 9), ReservedTokens: 16, Layout: layout}))
	g := w.grantData()
	g.Pages = runs(20, 8, 9)
	w.want("", w.do(id3, events.RoleDecode, "d1", g))
	g.GrantEpoch, g.WorkerEpoch, g.Pages = 2, 22, append(runs(40, 4, 7), runs(50, 4, 7)...)
	w.want("", w.do(id3, events.RoleDecode, "d2", g))
	w.must(id4, events.CmdAdmit, events.CmdFail)
	p.Pages = runs(60, 7, 2)
	w.must(id5, events.CmdAdmit)
	w.want("", w.do(id5, events.RolePrefill, "p1", p))
	w.must(id5, events.CmdFail)
	w.must(id6, events.CmdAdmit)
	_ = w.raw(id6, decodedData(w))
	w.releaseAll(id5)
	w.releaseAll(id1)

	c := NewChecker(CheckerConfig{NoIndex: true})
	want := map[string]*Request{}
	for _, env := range w.log {
		mine := *env
		mine.Lines = bytes.Clone(env.Lines)
		if err := c.Add(&mine); err != nil {
			t.Fatal(err)
		}
		for i := range mine.Lines {
			mine.Lines[i] = '#'
		}
		if env.Partition == events.OpsPartition {
			continue
		}
		e, err := events.Decode(bytes.TrimSuffix(env.Lines, []byte("\n")))
		if err != nil {
			t.Fatal(err)
		}
		r := want[e.Subject]
		if r == nil {
			r = &Request{ID: e.Subject, State: events.New}
			want[e.Subject] = r
		}
		_ = Fold(r, e, events.Position{Seq: env.Seq}, "")
		for id, r := range want {
			q := c.requests[id]
			if q == nil {
				if r.Open() {
					t.Fatalf("%s is not there", id)
				}
				continue
			}
			if diff := cmp.Diff(r, &q.Request); diff != "" {
				t.Fatalf("after %s at %d (-folded +checked):\n%s", e.Type, env.Seq, diff)
			}
		}
	}
	if len(c.requests) != 2 || len(c.ended) != 4 {
		t.Errorf("%d requests are open and %d remembered", len(c.requests), len(c.ended))
	}
	for id, e := range c.ended {
		if id != e.id() || want[id] == nil {
			t.Errorf("%q is remembered as %q", id, e)
		}
	}
	for _, v := range c.Report().Violations {
		if bytes.IndexByte([]byte(v.String()), '#') >= 0 {
			t.Errorf("a violation changed: %s", v)
		}
	}
}

// What is remembered of a closed request is all that judges what comes after.
func TestCheckerJudgesAfterTheEnd(t *testing.T) {
	denial := func(d events.CommandDenied) func(w *world) error {
		return func(w *world) error { return w.raw(id1, &d) }
	}
	for _, x := range []struct {
		name string
		late func(w *world) error
		rule string // "": legal
	}{
		{"denied where it is illegal", denial(events.CommandDenied{Command: events.CmdGrant, State: events.Decoded, Code: events.CodeIllegalState}), ""},
		{"a grant that was used", denial(events.CommandDenied{Command: events.CmdTransferred, State: events.Decoded, Code: events.CodeGrantUsed}), ""},
		{"denied in another state", denial(events.CommandDenied{Command: events.CmdGrant, State: events.Failed, Code: events.CodeIllegalState}), RuleDecision},
		{"judged where it is illegal", denial(events.CommandDenied{Command: events.CmdGrant, State: events.Decoded, Code: events.CodeLeaseOver}), RuleDecision},
		{"an output", func(w *world) error { return w.raw(id1, decodedData(w)) }, RuleFinal},
		{"pages that are free", func(w *world) error {
			return w.raw(id1, &events.RequestReleased{Worker: "p1", WorkerEpoch: 11, Role: events.RolePrefill, Generation: 1, Pages: 7, Drained: true, Scrubbed: true, Reason: "done"})
		}, RuleDecision},
		{"a command that was carried out", func(w *world) error {
			r := w.requests[id1]
			return w.put(0, &events.Event{Subject: id1, N: r.N + 1, Prev: r.Pos, Tenant: tenant, Command: r.Recorded[2].Key,
				Data: &events.CommandDenied{Command: events.CmdGrant, State: events.Decoded, Code: events.CodeIllegalState}})
		}, RuleLog},
		{"another number", func(w *world) error {
			r := w.requests[id1]
			return w.put(0, &events.Event{Subject: id1, N: r.N + 2, Prev: r.Pos, Tenant: tenant, Command: "x",
				Data: &events.CommandDenied{Command: events.CmdGrant, State: events.Decoded, Code: events.CodeIllegalState}})
		}, RuleLog},
		{"another partition", func(w *world) error {
			r := w.requests[id1]
			return w.put(1, &events.Event{Subject: id1, N: r.N + 1, Prev: r.Pos, Command: "x",
				Data: &events.CommandDenied{Command: events.CmdGrant, State: events.Decoded, Code: events.CodeIllegalState}})
		}, RuleLog},
	} {
		t.Run(x.name, func(t *testing.T) {
			w := newWorld(t, Guards{})
			w.must(id1, whole...)
			w.releaseAll(id1)
			for range 2 { // what comes after is remembered as well
				w.now = w.now.Add(time.Second)
				_ = denial(events.CommandDenied{Command: events.CmdCancel, State: events.Decoded, Code: events.CodeIllegalState})(w)
			}
			w.clean()
			_ = x.late(w)
			found := w.check(CheckerConfig{}).Violations
			if x.rule == "" && len(found) > 0 || x.rule != "" && (len(found) != 1 || found[0].Rule != x.rule) {
				t.Errorf("%v, want one breach of %q", found, x.rule)
			}
		})
	}
}
