package lifecycle

import (
	"context"
	"crypto/ed25519"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

var testGrantKey = ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))

// Every query answers, and what memory says of a request is what the read side
// says of it.
func TestQueries(t *testing.T) {
	r := newRig(t)
	x := r.start("lc1", nil)
	i := r.populate()
	op := r.party(keyring.Operator)
	var ids []string
	for n := range 25 {
		id := newID(t)
		ids = append(ids, id)
		switch n % 5 {
		case 0:
			i.lifecycle(id)
		case 1:
			i.admitted(id)
		case 2: // too long: rejected at admission
			a := admit()
			a.PromptTokens = 60_000
			if got := i.gw.did(id, a); got.Type != events.TypeRejected || got.Error == nil || got.Error.Code != events.CodeContextLength {
				t.Fatalf("%+v", got)
			}
		case 3:
			i.admitted(id)
			i.p1.did(id, i.p1.prefill())
			i.d1.did(id, i.d1.grant(1))
		case 4:
			i.admitted(id)
			i.gw.did(id, &events.Cancel{Reason: events.CodeClientGone})
		}
	}
	until(t, "the read side is there", func() bool { return x.projection.Applied() >= x.logSeq.Load() })
	for _, id := range ids {
		v, err := op.Get(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		stored, ok, err := x.projection.Get(t.Context(), id)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		if diff := cmp.Diff(*v, stored); diff != "" {
			t.Errorf("memory and read side differ (-memory +stored):\n%s", diff)
		}
	}

	// Pages of a list: whole, newest first, none twice, also while requests come.
	var listed []string
	q := events.ListQuery{Limit: 7}
	for pages := 0; ; pages++ {
		page, err := op.List(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range page.Requests {
			listed = append(listed, v.RequestID)
		}
		if page.AppliedSeq > page.LogSeq {
			t.Errorf("lag of %d to %d", page.AppliedSeq, page.LogSeq)
		}
		if q.Cursor = page.NextCursor; q.Cursor == "" {
			break
		}
		if pages == 1 {
			i.admitted(newID(t))
		}
	}
	want := slices.Sorted(slices.Values(ids))
	slices.Reverse(want)
	if diff := cmp.Diff(want, listed); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	for _, c := range []struct {
		q    events.ListQuery
		want int
	}{
		{events.ListQuery{State: events.Decoded}, 5},
		{events.ListQuery{State: events.Rejected, Tenant: testTenant}, 5},
		{events.ListQuery{Tenant: "nobody"}, 0},
		{events.ListQuery{Model: testModel, State: events.Cancelled}, 5},
		{events.ListQuery{Until: time.Now().Add(-time.Hour)}, 0},
		{events.ListQuery{Since: time.Now().Add(-time.Hour), State: events.Prefilled}, 5},
	} {
		page, err := op.List(t.Context(), c.q)
		if err != nil {
			t.Fatal(err)
		}
		if len(page.Requests) != c.want {
			t.Errorf("%+v: %d requests, want %d", c.q, len(page.Requests), c.want)
		}
	}

	h, err := op.History(t.Context(), ids[0])
	if err != nil {
		t.Fatal(err)
	}
	var types []events.Type
	for _, b := range h.Events {
		e, err := events.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		types = append(types, e.Type)
	}
	if diff := cmp.Diff([]events.Type{
		events.TypeAdmitted, events.TypePrefilled, events.TypeTransferGranted, events.TypeTransferred,
		events.TypeReleased, events.TypeDecoded, events.TypeReleased,
	}, types); diff != "" {
		t.Errorf("history (-want +got):\n%s", diff)
	}

	var e *events.Error
	if _, err := op.Get(t.Context(), newID(t)); !errors.As(err, &e) || e.Code != events.CodeNotFound {
		t.Errorf("unknown request: %v", err)
	}
	w, err := op.Workers(t.Context())
	if err != nil || len(w.Workers) != 2 || !w.Workers[0].Live || w.Workers[0].Worker != "d1" {
		t.Errorf("workers: %+v %v", w, err)
	}
	info, err := op.Info(t.Context())
	if err != nil || info.Partitions != testPartitions || info.Replica != "lc1" || len(info.GrantKeys) != 1 || len(info.Models) != 1 {
		t.Fatalf("info: %+v %v", info, err)
	}
	if m := info.Models[0]; m.Model != testModel || m.PrefillNodes != 1 || m.DecodeNodes != 1 || m.MaxInputTokens != 50_000 {
		t.Errorf("model: %+v", m)
	}
	r.check()
}

// A quarantined model admits nobody until it is restored, on every replica.
func TestQuarantine(t *testing.T) {
	r := newRig(t)
	a, b := r.start("lc1", nil), r.start("lc2", nil)
	i := r.populate()
	op := r.party(keyring.Operator)
	known := func(want bool) {
		until(t, "both replicas know", func() bool {
			_, x := a.roster.ops.Load().Quarantined[testModel]
			_, y := b.roster.ops.Load().Quarantined[testModel]
			return x == want && y == want
		})
	}
	for range 2 {
		op.did(testModel, &events.Quarantine{Reason: "wrong answers"})
		known(true)
		for range 8 {
			if got := i.gw.did(newID(t), admit()); got.Error == nil || got.Error.Code != events.CodeModelQuarantined {
				t.Fatalf("admitted: %+v", got)
			}
		}
		op.did(testModel, &events.Restore{Reason: "mended"})
		known(false)
		i.lifecycle(newID(t))
	}
	r.check()
}

// A quarantine says what becomes of open requests. Whoever answers tells who
// ordered it and how many are open, also after all replicas restarted.
func TestQuarantineRunning(t *testing.T) {
	for _, running := range []string{events.RunningDrain, events.RunningCancel} {
		t.Run(running, func(t *testing.T) {
			r := newRig(t)
			dir := t.TempDir()
			state := func(name string) func(*Config) {
				return func(c *Config) { c.StateDir = filepath.Join(dir, name) }
			}
			a, b := r.start("lc1", state("lc1")), r.start("lc2", state("lc2"))
			i := r.populate()
			op, canary := r.party(keyring.Operator), r.party(keyring.Canary)
			admitted, prefilled, transferred := newID(t), newID(t), newID(t)
			i.admitted(admitted)
			i.admitted(prefilled)
			pre := i.p1.prefill()
			i.p1.did(prefilled, pre)
			i.admitted(transferred)
			kv := i.p1.prefill()
			i.p1.did(transferred, kv)
			i.d1.did(transferred, i.d1.grant(1))
			i.d1.did(transferred, i.d1.transfer(transferred, kv, 1))
			open := []string{admitted, prefilled, transferred}

			receipt := i.gw.did(newID(t), admit())
			i.gw.did(receipt.Subject, &events.Cancel{Reason: events.CodeClientGone})
			evidence := receipt.Subject + "@" + receipt.Position + ";" + receipt.Hash
			canary.did(testModel, &events.Quarantine{Reason: "foreign sentinel", Running: running, Evidence: evidence})
			status := func() *events.ModelView {
				info, err := op.Info(t.Context())
				if err != nil || len(info.Models) != 1 {
					t.Fatalf("info: %+v %v", info, err)
				}
				return &info.Models[0]
			}
			left := 3
			if running == events.RunningCancel {
				left = 0
				for _, id := range open {
					until(t, "an open request is cancelled", func() bool {
						v, err := op.Get(t.Context(), id)
						return err == nil && v.State == events.Cancelled
					})
				}
			}
			check := func(when string) {
				until(t, when+": the quarantine is told", func() bool { m := status(); return m.Quarantined && m.Open == left })
				q := status().Quarantine
				if q == nil || q.By != "canary.canary" || q.Reason != "foreign sentinel" || q.Running != running || q.Evidence != evidence || q.Since.IsZero() {
					t.Errorf("%s: %+v", when, q)
				}
				got := i.gw.did(newID(t), admit())
				if got.Error == nil || got.Error.Code != events.CodeModelQuarantined || !strings.Contains(got.Error.Message, "foreign sentinel") {
					t.Errorf("%s: admitted: %+v", when, got.Error)
				}
			}
			check("ordered")
			a.stop()
			b.stop()
			r.start("lc1", state("lc1"))
			r.start("lc2", nil)
			check("after a restart")
			if running == events.RunningDrain {
				for _, id := range open {
					if v, err := op.Get(t.Context(), id); err != nil || v.State.Final() {
						t.Errorf("a drained request is %+v, %v", v, err)
					}
				}
				i.d1.did(transferred, i.d1.output())
			}
			if a := canary.do(testModel, &events.Quarantine{Reason: "again"}); a.Denied != nil {
				t.Errorf("%+v", a.Denied)
			}
			op.did(testModel, &events.Restore{Reason: "mended"})
			r.check()
		})
	}
}

// Watch shows every event of the model once it is durable, whichever replica
// wrote it, in each request's order.
func TestWatch(t *testing.T) {
	r := newRig(t)
	r.start("lc1", nil)
	r.start("lc2", nil)
	i := r.populate()
	op := r.party(keyring.Operator)
	got := make(chan client.Notice, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	subs := op.nc.NumSubscriptions()
	go func() {
		done <- op.Watch(ctx, client.WatchFilter{Model: testModel}, func(n client.Notice) { got <- n })
	}()
	until(t, "watch listens", func() bool { return op.nc.NumSubscriptions() > subs })
	if err := op.nc.Flush(); err != nil {
		t.Fatal(err)
	}
	const lifecycles = 10
	for range lifecycles {
		i.lifecycle(newID(t))
	}
	next := map[string]int{}
	for range 7 * lifecycles {
		select {
		case n := <-got:
			next[n.Event.Subject]++
			if n.Event.N != next[n.Event.Subject] || n.Position.IsZero() || events.Hash(n.Raw) == "" {
				t.Errorf("notice %+v, want number %d", n.Event, next[n.Event.Subject])
			}
		case <-time.After(5 * time.Second):
			t.Fatalf("notices are missing: %v", next)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if len(next) != lifecycles {
		t.Errorf("%d requests seen", len(next))
	}
}
