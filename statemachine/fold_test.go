package statemachine

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pdgate/pdgate/events"
)

// at makes the next event of r, with the data of a history that is otherwise
// right.
func at(r *Request, d events.Data) (*events.Event, events.Position) {
	return &events.Event{
		Subject: r.ID, N: r.N + 1, Prev: r.Pos, Tenant: r.Tenant, Time: start, Type: d.EventType(), Data: d,
		Command: fmt.Sprint("c", r.N),
	}, events.Position{Seq: r.Pos.Seq + 1}
}

// TestFoldIllegal shows every kind of illegal event: it is an error, it taints
// the request, it changes no state, and its place in the log counts.
func TestFoldIllegal(t *testing.T) {
	done := &events.RequestDecoded{Worker: "d1", FinishReason: events.FinishStop}
	for _, c := range []struct {
		name  string
		after []events.CommandType
		data  events.Data
		edit  func(e *events.Event)
	}{
		{"decoded after rejected", []events.CommandType{events.CmdAdmit, events.CmdReject}, done, nil},
		{"decoded after prefilled", whole[:2], done, nil},
		{"failed after decoded", whole, &events.RequestFailed{From: events.Transferred}, nil},
		{"a gap", whole[:1], done, func(e *events.Event) { e.N++ }},
		{"a number again", whole[:1], done, func(e *events.Event) { e.N-- }},
		{"another prev", whole[:4], done, func(e *events.Event) { e.Prev.Line++ }},
		{"another subject", whole[:4], done, func(e *events.Event) { e.Subject = id2 }},
		{"no data", whole[:4], done, func(e *events.Event) { e.Data = nil }},
		{"nil data", whole[:4], done, func(e *events.Event) { e.Data = (*events.RequestDecoded)(nil) }},
		{"another type's data", whole[:4], done, func(e *events.Event) { e.Data = &events.RequestFailed{From: events.Transferred} }},
		{"unknown type", whole[:4], done, func(e *events.Event) { e.Type = "request.decoded.v2" }},
		{"operations", whole[:4], &events.WorkerLeft{}, nil},
		{"failed from elsewhere", whole[:4], &events.RequestFailed{From: events.Admitted}, nil},
		{"cancelled from elsewhere", whole[:4], &events.RequestCancelled{From: events.Admitted}, nil},
		{"denied elsewhere", whole[:4], &events.CommandDenied{State: events.Admitted}, nil},
		{"release of nothing", whole[:4], &events.RequestReleased{Worker: "p9", Role: events.RolePrefill}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Guards{})
			w.must(id1, c.after...)
			r := w.requests[id1]
			before := r.Clone()
			e, pos := at(r, c.data)
			if c.edit != nil {
				c.edit(e)
			}
			if err := Fold(r, e, pos, "h"); err == nil {
				t.Fatal("taken")
			}
			if r.Tainted == "" {
				t.Error("not tainted")
			}
			if r.Pos != pos || r.Hash != "h" || r.N != max(before.N, e.N) {
				t.Errorf("the event's place does not count: %d at %s", r.N, r.Pos)
			}
			if d := cmp.Diff(before, r, cmpopts.IgnoreFields(Request{}, "Tainted", "N", "Pos", "Hash")); d != "" {
				t.Errorf("changed:\n%s", d)
			}
			// It may end, and give its pages back; nothing else.
			if r.State == events.Transferred {
				w.want(events.CodeIllegalState, w.m.Decide(r, command(id1, events.RoleDecode, "d1", w.decodeData()), w.gather(r, command(id1, events.RoleDecode, "d1", w.decodeData()))))
				e, pos := at(r, &events.RequestFailed{From: events.Transferred})
				if err := Fold(r, e, pos, "h"); err != nil || r.State != events.Failed {
					t.Errorf("a tainted request cannot end: %s, %v", r.State, err)
				}
			}
		})
	}
}

// TestFoldCaller shows what says something of the caller and nothing of the log:
// nothing changes.
func TestFoldCaller(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:2]...)
	r := w.requests[id1]
	before := r.Clone()
	e, pos := at(r, &events.RequestFailed{From: events.Prefilled})
	if err := Fold(r, e, r.Pos, "h"); !errors.Is(err, ErrFolded) {
		t.Errorf("folded again: %v", err)
	}
	e.N = 0
	if err := Fold(r, e, pos, "h"); !errors.Is(err, ErrNoHistory) {
		t.Errorf("outside of any history: %v", err)
	}
	if Fold(nil, e, pos, "h") == nil || Fold(r, nil, pos, "h") == nil {
		t.Error("nil is taken")
	}
	if d := cmp.Diff(before, r); d != "" {
		t.Errorf("changed:\n%s", d)
	}
}

// TestFoldDeadlines checks that every state has a deadline until it is final.
func TestFoldDeadlines(t *testing.T) {
	w := newWorld(t, Guards{})
	w.timeouts = Timeouts{Request: time.Minute, Prefill: 20 * time.Second, Decode: 40 * time.Second}
	for _, s := range []struct {
		c    events.CommandType
		want time.Duration // after start
	}{
		{events.CmdAdmit, 20 * time.Second},
		{events.CmdPrefilled, 40 * time.Second}, // 10 s in, a lease of 30 s
		{events.CmdGrant, 40 * time.Second},
		{events.CmdTransferred, time.Minute}, // 30 s in: 40 s more would pass the request's own
		{events.CmdDecoded, 0},
	} {
		w.must(id1, s.c)
		want := start.Add(s.want)
		if s.want == 0 {
			want = time.Time{}
		}
		if got := w.requests[id1].StateBy; !got.Equal(want) {
			t.Errorf("after %s: %s, want %s", s.c, got, want)
		}
		w.now = w.now.Add(10 * time.Second)
	}
	// A client's own timeout shortens, and never lengthens.
	for ms, want := range map[int64]time.Duration{0: time.Minute, 5000: 5 * time.Second, 1 << 40: time.Minute} {
		w := newWorld(t, Guards{})
		w.timeouts = Timeouts{Request: time.Minute}
		admitWith(id1, func(d *events.Admit) { d.TimeoutMS = ms })(w)
		if got := w.requests[id1].Deadline.Sub(start); got != want {
			t.Errorf("timeout_ms %d: %s, want %s", ms, got, want)
		}
	}
}

// TestRecordedAnswers checks that a repeated command finds its answer, and that
// a denial counts only where it was given.
func TestRecordedAnswers(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit)
	early := command(id1, events.RoleDecode, "d1", w.grantData())
	w.want(events.CodeIllegalState, w.step(id1, events.CmdGrant))
	r := w.requests[id1]
	a, ok := r.Answer(early.Key())
	if !ok || a.Denied == nil || a.Denied.Code != events.CodeIllegalState || a.Met != events.Admitted || a.Pos != r.Pos || a.Hash != r.Hash {
		t.Fatalf("recorded %+v, %v", a, ok)
	}
	w.must(id1, events.CmdPrefilled)
	if a, ok := r.Answer(early.Key()); ok {
		t.Fatalf("the denial counts in another state: %+v", a)
	}
	w.must(id1, events.CmdGrant)
	granted := r.Pos
	w.must(id1, events.CmdTransferred, events.CmdDecoded)
	if a, ok := r.Answer(early.Key()); !ok || a.Type != events.TypeTransferGranted || a.Pos != granted || a.State != events.Prefilled {
		t.Errorf("the grant's answer is gone: %+v, %v", a, ok)
	}
}

// TestRecordedIsBounded floods a request with denials: they are dropped, and
// what was carried out is kept.
func TestRecordedIsBounded(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit)
	admit := command(id1, events.RoleGateway, "gw1", w.admitData()).Key()
	for i := range 3 * maxRecorded {
		w.want(events.CodeTokenCountMismatch, prefillWith(func(_ *world, d *events.Prefill) { d.PromptTokens = 1000 + i })(w))
	}
	r := w.requests[id1]
	if len(r.Recorded) != maxRecorded {
		t.Errorf("%d answers are kept", len(r.Recorded))
	}
	if _, ok := r.Answer(admit); !ok {
		t.Error("the admission's answer was dropped before a denial's")
	}
	w.must(id1, whole[1:]...)
	w.clean()
}

// TestGrantsAreBounded lets a worker ask for grant after grant, each into pages
// of its own: what the request holds and answers stays small, and what was
// carried out before finds its answer.
func TestGrantsAreBounded(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:2]...)
	ask := func(epoch int) events.Data {
		d := w.grantData()
		d.GrantEpoch, d.Pages = epoch, runs(0, 8, uint64(epoch))
		return w.do(id1, events.RoleDecode, "d1", d)
	}
	for i := range maxGrants {
		w.want("", ask(i+1))
	}
	for i := range 2 * maxRecorded {
		w.want(events.CodeGrantEpoch, ask(maxGrants+1+i))
	}
	r := w.requests[id1]
	if len(r.Held) != maxGrants+1 || len(r.Recorded) != maxRecorded {
		t.Errorf("%d holdings and %d answers are kept", len(r.Held), len(r.Recorded))
	}
	if _, ok := r.Answer(command(id1, events.RoleGateway, "gw1", w.admitData()).Key()); !ok {
		t.Error("the admission's answer is gone")
	}
}

// TestHoldings checks who holds pages after two grants to two reservations.
func TestHoldings(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:3]...)
	g := w.grantData()
	g.WorkerEpoch, g.GrantEpoch, g.Pages = 22, 2, runs(40, 8, 7)
	w.want("", w.do(id1, events.RoleDecode, "d2", g))
	// The first grant is void, its reservation still held.
	w.want(events.CodeWrongWorker, w.step(id1, events.CmdTransferred))
	want := []Holding{
		{"p1", 11, events.RolePrefill, 1, 7},
		{"d1", 21, events.RoleDecode, 1, 8},
		{"d2", 22, events.RoleDecode, 7, 8},
	}
	if d := cmp.Diff(want, w.requests[id1].Held); d != "" {
		t.Error(d)
	}
	// A third one to the same reservation holds nothing more.
	g.GrantEpoch = 3
	w.want("", w.do(id1, events.RoleDecode, "d2", g))
	if d := cmp.Diff(want, w.requests[id1].Held); d != "" {
		t.Error(d)
	}
	copied := w.requests[id1].Clone()
	w.want("", w.do(id1, events.RoleDecode, "d1", releaseData(events.RoleDecode)))
	if d := cmp.Diff([]Holding{want[0], want[2]}, w.requests[id1].Held); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(want, copied.Held); d != "" {
		t.Errorf("the clone changed: %s", d)
	}
	w.must(id1, events.CmdFail)
	w.releaseAll(id1)
	w.now = start.Add(time.Hour)
	w.clean()
}

func TestSnapshotForm(t *testing.T) {
	for _, s := range situations {
		w := newWorld(t, Guards{})
		w.must(id1, s.steps...)
		w.step(id1, events.CmdDecoded)
		r := w.requests[id1]
		if r == nil {
			continue
		}
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var back Request
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(r, &back); d != "" {
			t.Errorf("%s:\n%s", s.name, d)
		}
		if s.name == "decoded" {
			golden(t, "testdata/request.json", string(b)+"\n")
		}
		b, err = json.Marshal(w.ops)
		if err != nil {
			t.Fatal(err)
		}
		var ops Ops
		if err := json.Unmarshal(b, &ops); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(w.ops, &ops); d != "" {
			t.Errorf("operations:\n%s", d)
		}
	}
	var r Request
	if json.Unmarshal([]byte(`{"id":"x","pos":"1"}`), &r) == nil {
		t.Error("a damaged position is taken")
	}
}
