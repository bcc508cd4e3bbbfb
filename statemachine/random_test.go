package statemachine

import (
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/pdgate/pdgate/events"
)

// fromRapid lets a world fail a rapid run, which then shrinks it and prints the
// seed.
type fromRapid struct {
	testing.TB
	r *rapid.T
}

func (f fromRapid) Helper()                      {}
func (f fromRapid) Fatalf(s string, args ...any) { f.r.Fatalf(s, args...) }
func (f fromRapid) Errorf(s string, args ...any) { f.r.Errorf(s, args...) }
func (f fromRapid) Logf(s string, args ...any)   { f.r.Logf(s, args...) }

// TestRandomCommands sends commands of all kinds, right and wrong, repeated and
// late, for a few requests over one pool of each worker. After each one: final
// states stay, numbers are dense, holdings are those that events name. At the
// end the checker finds nothing in the log but what workers did wrong by
// themselves, which here they do not.
func TestRandomCommands(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(fromRapid{t, rt}, Guards{})
		ids := []string{id1, id2, id(3, start)}
		pool := map[string]uint64{} // per worker: generation
		epochs := map[string]uint64{"p1": 11, "p2": 12, "d1": 21, "d2": 22}
		for range rapid.IntRange(1, 60).Draw(rt, "commands") {
			one := rapid.SampledFrom(ids).Draw(rt, "request")
			r := w.requests[one]
			before := &Request{ID: one, State: events.New}
			if r != nil {
				before = r.Clone()
			}
			lie := rapid.IntRange(0, 4).Draw(rt, "lie") == 0
			var d events.CommandData
			var role events.Role
			var who string
			prefill := rapid.SampledFrom([]string{"p1", "p2"}).Draw(rt, "prefill worker")
			decode := rapid.SampledFrom([]string{"d1", "d2"}).Draw(rt, "decode worker")
			if r != nil && r.Grant != nil && !lie {
				decode = r.Grant.Worker
			}
			switch rapid.IntRange(0, 11).Draw(rt, "command") {
			case 0, 1:
				role, who, d = events.RoleGateway, "gw1", w.admitData()
				if lie {
					d.(*events.Admit).PromptTokens = 1001
				}
			case 2, 3:
				p := w.prefillData()
				pool[prefill]++
				p.WorkerEpoch, p.Pages = epochs[prefill], runs(uint32(7*slices.Index(ids, one)), 7, pool[prefill])
				if lie {
					p.PromptTokens = rapid.SampledFrom([]int{1, 100}).Draw(rt, "tokens")
				}
				role, who, d = events.RolePrefill, prefill, p
			case 4, 5:
				g := w.grantData()
				pool[decode]++
				g.WorkerEpoch, g.Pages = epochs[decode], runs(uint32(8*slices.Index(ids, one)), 8, pool[decode])
				if r != nil && r.Grant != nil {
					g.GrantEpoch = r.Grant.GrantEpoch + 1
					if slices.ContainsFunc(r.Held, func(h Holding) bool { return h.Worker == decode && h.Role == events.RoleDecode }) {
						g.Pages = r.Grant.Pages // an honest pool does not give the same pages out twice
						if r.Grant.Worker != decode {
							continue
						}
					}
				}
				role, who, d = events.RoleDecode, decode, g
			case 6:
				tr := w.transferData(one)
				tr.WorkerEpoch = epochs[decode]
				if r != nil && r.Grant != nil {
					tr.GrantEpoch = r.Grant.GrantEpoch
				}
				if lie {
					tr.KVDigest = digest("e")
				}
				role, who, d = events.RoleDecode, decode, tr
			case 7:
				dd := w.decodeData()
				dd.WorkerEpoch = epochs[decode]
				if lie {
					dd.FinishReason = "abort"
				}
				role, who, d = events.RoleDecode, decode, dd
			case 8:
				role, who, d = events.RoleLifecycle, "lc1", failData(0)
			case 9:
				role, who, d = events.RoleGateway, "gw1", &events.Cancel{}
			case 10:
				if r == nil || len(r.Held) == 0 {
					continue
				}
				h := rapid.SampledFrom(r.Held).Draw(rt, "holding")
				role, who = h.Role, h.Worker
				d = &events.Release{Worker: h.Worker, WorkerEpoch: h.Epoch, Role: h.Role, Generation: h.Generation, Pages: h.Pages, Drained: true, Scrubbed: true, Reason: "done"}
			case 11:
				w.now = w.now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "ms")) * time.Millisecond)
				continue
			}
			c := command(one, role, who, d)
			if r != nil {
				if a, ok := r.Answer(c.Key()); ok {
					if a.N < 1 || a.N > r.N {
						rt.Fatalf("a recorded answer of number %d of %d", a.N, r.N)
					}
					continue // the service answers from the record
				}
			}
			out := w.do(one, role, who, d)
			r = w.requests[one]
			if r == nil {
				continue
			}
			if before.State.Final() && (r.State != before.State || !cmp.Equal(before.Error, r.Error)) {
				rt.Fatalf("%s: %s became %s", out.EventType(), before.State, r.State)
			}
			if r.N != before.N+1 || r.Tainted != "" {
				rt.Fatalf("number %d after %d, tainted %q", r.N, before.N, r.Tainted)
			}
			if r.State.Final() != r.StateBy.IsZero() {
				rt.Fatalf("state %s has deadline %v", r.State, r.StateBy)
			}
			want := len(before.Held)
			switch g := out.(type) {
			case *events.RequestPrefilled:
				want++
			case *events.TransferGranted:
				if !before.holds(events.RoleDecode, who, epochs[who], generation(g.Pages)) {
					want++
				}
			case *events.RequestReleased:
				want--
			}
			if len(r.Held) != want {
				rt.Fatalf("%s: %d holdings after %d", out.EventType(), len(r.Held), len(before.Held))
			}
			b, err := json.Marshal(r)
			if err != nil {
				rt.Fatal(err)
			}
			var back Request
			if err := json.Unmarshal(b, &back); err != nil {
				rt.Fatal(err)
			}
			if d := cmp.Diff(r, &back); d != "" {
				rt.Fatalf("the snapshot form differs:\n%s", d)
			}
		}
		for _, one := range ids {
			if r := w.requests[one]; r != nil {
				if !r.State.Final() {
					w.must(one, events.CmdFail)
				}
				w.releaseAll(one)
			}
		}
		w.now = w.now.Add(time.Hour)
		w.clean()
	})
}

// FuzzFold folds events as bytes order: types, states, numbers and chains of any
// kind. Nothing panics, and nothing leads out of a final state.
func FuzzFold(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	f.Add([]byte{0, 2, 3, 4, 5, 8, 8, 9})
	f.Add([]byte{0, 1, 1, 0x42, 0x83, 0xc4, 5, 5})
	f.Add([]byte{0x20, 0x40, 0x60, 0x80, 0xa0, 0xc0, 0xe0})
	f.Fuzz(func(t *testing.T, script []byte) {
		var r Request
		for i, b := range script {
			if i > 200 {
				break
			}
			s := r.current()
			from := states[int(b>>4)%len(states)]
			if b&0x10 == 0 {
				from = s
			}
			data := []events.Data{
				&events.RequestAdmitted{Model: model}, &events.RequestRejected{}, &events.RequestPrefilled{Worker: "p1", Pages: runs(0, 1, uint64(b))},
				&events.TransferGranted{Worker: "d1"}, &events.RequestTransferred{}, &events.RequestDecoded{},
				&events.RequestFailed{From: from}, &events.RequestCancelled{From: from},
				&events.RequestReleased{Worker: "p1", Role: events.RolePrefill, Generation: uint64(b >> 4), Pages: 1},
				&events.CommandDenied{State: from}, &events.WorkerJoined{}, (*events.RequestDecoded)(nil), nil,
			}[int(b&0xf)%13]
			e := &events.Event{Subject: "r", N: r.N + 1, Prev: r.Pos, Command: fmt.Sprint(b % 3), Data: data}
			if !emptyData(data) {
				e.Type = data.EventType()
			}
			switch b >> 5 {
			case 5:
				e.N += int(b & 3)
			case 6:
				e.Prev.Seq++
			case 7:
				e.Type = events.AllTypes()[int(b)%len(events.AllTypes())]
			}
			before := r.Clone()
			pos := events.Position{Seq: r.Pos.Seq + uint64(b%2), Line: int(b)}
			err := Fold(&r, e, pos, "h")
			if before.State.Final() && r.State != before.State {
				t.Fatalf("%s became %s", before.State, r.State)
			}
			if err != nil && r.State != before.State && before.State != "" {
				t.Fatalf("an error moved %s to %s: %v", before.State, r.State, err)
			}
			if before.Tainted != "" && r.Tainted != before.Tainted {
				t.Fatalf("the first taint is gone: %q", r.Tainted)
			}
			if len(r.Recorded) > maxRecorded {
				t.Fatalf("%d answers are kept", len(r.Recorded))
			}
		}
	})
}

// FuzzCheckerAdd feeds bytes as an envelope: nothing panics, and what cannot be
// read is never called clean.
func FuzzCheckerAdd(f *testing.F) {
	w := newWorld(f, Guards{})
	w.must(id1, whole...)
	for _, e := range w.log {
		f.Add(e.Lines)
	}
	f.Add([]byte("{}\n"))
	f.Fuzz(func(t *testing.T, lines []byte) {
		c := NewChecker(CheckerConfig{})
		err := c.Add(&events.Envelope{Seq: 1, ID: "e", Lines: lines})
		c.Close(start.Add(24 * time.Hour))
		if r := c.Report(); err != nil && r.OK() {
			t.Fatal("unreadable, and clean")
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	for _, s := range situations[3:6] {
		w := newWorld(b, Guards{})
		w.must(id1, s.steps...)
		r := w.requests[id1]
		next := map[string]events.CommandType{"prefilled": events.CmdGrant, "prefilled, granted": events.CmdTransferred, "transferred": events.CmdDecoded}[s.name]
		c := command(id1, events.RoleDecode, "d1", w.payload(next, events.RoleDecode))
		f := w.gather(r, c)
		b.Run(string(next), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if w.m.Decide(r, c, f).EventType() == denied {
					b.Fatal("denied")
				}
			}
		})
		b.Run(string(next)+", denied", func(b *testing.B) {
			late := *c
			late.Role = events.RoleGateway
			b.ReportAllocs()
			for b.Loop() {
				if w.m.Decide(r, &late, f).EventType() != denied {
					b.Fatal("not denied")
				}
			}
		})
	}
}

func BenchmarkFold(b *testing.B) {
	w := newWorld(b, Guards{})
	w.must(id1, whole[:4]...)
	r := w.requests[id1]
	e, pos := at(r, decodedData(w))
	b.ReportAllocs()
	for b.Loop() {
		c := *r
		if err := Fold(&c, e, pos, "h"); err != nil {
			b.Fatal(err)
		}
	}
}
