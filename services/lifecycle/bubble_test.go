package lifecycle

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// Tests in a bubble run the real server, the real replicas and the real clients
// on a clock that stands still until all of them wait: an hour takes as long as
// what happens in it. Whatever goroutine is left at the end fails the test.

// bubble runs f in a bubble. nats.go keeps timers in a pool of the process, and a
// timer that was made in a bubble is of no use outside of it; two collections
// empty the pool.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	empty := func() { runtime.GC(); runtime.GC() }
	empty()
	defer empty()
	synctest.Test(t, f)
}

// history is what is recorded of a request, oldest first.
func (p *party) history(id string) []*events.Event {
	p.rig.t.Helper()
	h, err := p.History(p.rig.t.Context(), id)
	if err != nil {
		p.rig.t.Fatal(err)
	}
	var all []*events.Event
	for _, b := range h.Events {
		e, err := events.Decode(b)
		if err != nil {
			p.rig.t.Fatal(err)
		}
		all = append(all, e)
	}
	return all
}

func types(all []*events.Event) (ts []events.Type) {
	for _, e := range all {
		ts = append(ts, e.Type)
	}
	return ts
}

// Every state's deadline is met to a tick, by one event, with two replicas at
// work; hours later nothing more has happened, and memory is empty.
func TestDeadlines(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		a, b := r.start("lc1", nil), r.start("lc2", nil)
		i := r.populate()
		waiting, leased, decoding := newID(t), newID(t), newID(t)
		i.admitted(waiting)
		i.admitted(leased)
		pre := i.p1.prefill()
		i.p1.did(leased, pre)
		i.admitted(decoding)
		pre2, grant := i.p1.prefill(), i.d1.grant(1)
		i.p1.did(decoding, pre2)
		i.d1.did(decoding, grant)
		i.d1.did(decoding, i.d1.transfer(decoding, pre2, 1))
		i.p1.did(decoding, i.p1.release(pre2.Pages))

		time.Sleep(6 * time.Minute)
		for _, c := range []struct {
			id    string
			stage string
			due   func(all []*events.Event) time.Time
		}{
			{waiting, "admitted", func(all []*events.Event) time.Time { return all[0].Data.(*events.RequestAdmitted).PrefillBy }},
			{leased, "prefilled", func(all []*events.Event) time.Time { return all[1].Data.(*events.RequestPrefilled).Lease }},
			{decoding, "transferred", func(all []*events.Event) time.Time { return all[3].Data.(*events.RequestTransferred).DecodeBy }},
		} {
			all := i.gw.history(c.id)
			last := all[len(all)-1]
			d, ok := last.Data.(*events.RequestFailed)
			if !ok || d.Error.Code != events.CodeDeadline || d.Stage != c.stage {
				t.Errorf("%s: last event is %s %+v", c.stage, last.Type, last.Data)
				continue
			}
			if late := last.Time.Sub(c.due(all)); late < 0 || late > 3*wheelTick {
				t.Errorf("%s: deadline fired %s late", c.stage, late)
			}
		}
		i.p1.did(leased, i.p1.release(pre.Pages))
		i.d1.did(decoding, i.d1.release(grant.Pages))
		time.Sleep(time.Second) // either replica may be asked, and follows
		events := map[string]int{}
		for _, id := range []string{waiting, leased, decoding} {
			events[id] = len(i.gw.history(id))
		}
		time.Sleep(30 * time.Minute)
		for id, n := range events {
			if got := len(i.gw.history(id)); got != n {
				t.Errorf("%s has %d events, had %d: %v", id, got, n, types(i.gw.history(id)))
			}
		}
		for _, x := range []*replica{a, b} {
			if m := x.memory(); len(m.Requests) != 0 || len(m.Waiting) != 0 {
				t.Errorf("%s still has %d requests", x.cfg.Name, len(m.Requests))
			}
		}
		r.check()
		r.end()
	})
}

// Deadlines fire once, whichever replica is preferred, and so do they when the
// preferred one is dead.
func TestDeadlineOnce(t *testing.T) { bubble(t, deadlineOnce) }

func deadlineOnce(t *testing.T) {
	short := func(c *Config) { c.Timeouts.Prefill = 300 * time.Millisecond }
	r := newRig(t)
	a, b := r.start("lc1", short), r.start("lc2", short)
	i := r.populate()
	var ids []string
	for range 12 {
		id := newID(t)
		i.admitted(id)
		ids = append(ids, id)
	}
	final := func(x *replica, id string) bool { v := x.view(id); return v != nil && v.State == events.Failed }
	for _, id := range ids {
		until(t, "deadline of "+id, func() bool { return final(a, id) && final(b, id) })
	}
	// The other replica's turn comes 2 s later: it must find nothing to do.
	time.Sleep(standbyLag + 500*time.Millisecond)
	a.kill()
	dead := newID(t)
	i.admitted(dead)
	ids = append(ids, dead)
	until(t, "deadline after the takeover", func() bool { return final(b, dead) })
	for _, id := range ids {
		h, err := i.gw.History(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if len(h.Events) != 2 {
			t.Errorf("%s has %d events, want admitted and failed: %s", id, len(h.Events), h.Events)
			continue
		}
		e, err := events.Decode(h.Events[1])
		if err != nil {
			t.Fatal(err)
		}
		if d, ok := e.Data.(*events.RequestFailed); !ok || d.Error.Code != events.CodeDeadline || d.Stage != "admitted" || e.Principal != "lifecycle.lifecycle" {
			t.Errorf("%s: %s", id, h.Events[1])
		}
	}
	r.check()
	r.end()
}

// end stops everything inside of the bubble, where goroutines must end.
func (r *rig) end() {
	r.t.Helper()
	r.mu.Lock()
	all := append([]*replica(nil), r.replicas...)
	r.mu.Unlock()
	for _, x := range all {
		if err := x.stop(); err != nil {
			r.t.Errorf("replica %s: %v", x.cfg.Name, err)
		}
	}
}

// A worker whose heartbeats end is declared lost, once, and all that hung on its
// life ends or moves on: KV that went with it, decoding that went with it, grants
// to it, and the pages it held.
func TestWorkersLost(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start("lc1", nil)
		r.start("lc2", nil)
		gw := r.party(keyring.Gateway("gw1"))
		p1, stopP1 := r.worker(events.RolePrefill, "p1")
		d1, stopD1 := r.worker(events.RoleDecode, "d1")
		d2, _ := r.worker(events.RoleDecode, "d2")
		p2, _ := r.worker(events.RolePrefill, "p2")
		i := &installation{rig: r, gw: gw, p1: p1, d1: d1}

		ready := func(p *party) (string, *events.Prefill) {
			id := newID(t)
			i.admitted(id)
			pre := p.prefill()
			pre.LeaseMS = 300_000
			p.did(id, pre)
			return id, pre
		}
		kvGone, _ := ready(p1)
		granted, grantedPre := ready(p2)
		d1.did(granted, d1.grant(1))
		decoding, decodingPre := ready(p2)
		d1.did(decoding, d1.grant(1))
		d1.did(decoding, d1.transfer(decoding, decodingPre, 1))

		stopP1()
		stopD1()
		time.Sleep(lostAfter - 2*time.Second)
		if n := len(gw.history(kvGone)); n != 2 {
			t.Errorf("something happened before the worker is lost: %v", types(gw.history(kvGone)))
		}
		time.Sleep(5 * time.Second)
		want := func(id string, ts ...events.Type) {
			t.Helper()
			if diff := cmp.Diff(ts, types(gw.history(id))); diff != "" {
				t.Errorf("history (-want +got):\n%s", diff)
			}
		}
		want(kvGone, events.TypeAdmitted, events.TypePrefilled, events.TypeFailed, events.TypeReleased)
		want(granted, events.TypeAdmitted, events.TypePrefilled, events.TypeTransferGranted, events.TypeReleased)
		want(decoding, events.TypeAdmitted, events.TypePrefilled, events.TypeTransferGranted, events.TypeTransferred, events.TypeFailed, events.TypeReleased)
		failed := gw.history(decoding)[4].Data.(*events.RequestFailed)
		if failed.Error.Code != events.CodeWorkerLost || failed.Stage != "transferred" {
			t.Errorf("%+v", failed)
		}
		released := gw.history(granted)[3].Data.(*events.RequestReleased)
		if released.Worker != "d1" || released.Reason != "worker_lost" || released.Role != events.RoleDecode {
			t.Errorf("%+v", released)
		}

		// The granted one is in the queue again, and another worker takes it on.
		q, err := d2.Queue(t.Context(), testModel, events.RoleDecode)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		var grant *events.GrantTransfer
		seen := map[string]int{}
		for grant == nil {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			it, err := q.Next(ctx)
			cancel()
			if err != nil {
				t.Fatalf("the request is not dispatched again: %v; seen %v", err, seen)
			}
			seen[it.Work.Event]++
			if it.Work.RequestID == granted && it.Work.GrantEpoch == 1 {
				grant = d2.grant(2)
				d2.did(granted, grant)
			}
			if err := it.Ack(); err != nil {
				t.Fatal(err)
			}
		}
		d2.did(granted, d2.transfer(granted, grantedPre, 2))
		p2.did(granted, p2.release(grantedPre.Pages))
		p2.did(decoding, p2.release(decodingPre.Pages))
		d2.did(granted, d2.output())

		// A restart ends what hung on the life before.
		restarted, _ := ready(p2)
		time.Sleep(time.Millisecond)
		p2.join()
		time.Sleep(5 * time.Second)
		want(restarted, events.TypeAdmitted, events.TypePrefilled, events.TypeFailed, events.TypeReleased)
		if d := gw.history(restarted)[3].Data.(*events.RequestReleased); d.Reason != "worker_restarted" {
			t.Errorf("%+v", d)
		}
		d2.did(granted, d2.release(grant.Pages))
		if rep := r.check(); rep.Open != 0 {
			t.Errorf("report: %+v", rep)
		}
		r.end()
	})
}

// An item that a worker took and lost is dispatched again, and a queue that is
// merely long is not.
func TestLostItems(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start("lc1", func(c *Config) { c.Timeouts.Prefill = 9 * time.Minute })
		i := r.populate()
		q, err := i.p1.Queue(t.Context(), testModel, events.RolePrefill)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		next := func(within time.Duration) *client.Item {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			it, err := q.Next(ctx)
			if err != nil {
				return nil
			}
			return it
		}
		lost := newID(t)
		i.admitted(lost)
		it := next(time.Second)
		if it == nil || it.Work.RequestID != lost || it.Deliveries != 1 {
			t.Fatalf("item: %+v", it)
		}
		if err := it.Ack(); err != nil { // and forgets it
			t.Fatal(err)
		}
		t0 := time.Now()
		it = next(time.Minute)
		if it == nil || it.Work.RequestID != lost {
			t.Fatalf("the lost item does not come again: %+v", it)
		}
		if d := time.Since(t0); d < staleAfter-time.Second || d > staleAfter+2*sweepEvery {
			t.Errorf("it came after %s", d)
		}
		// Held without a sign of progress it goes to another; with one it does not.
		t0 = time.Now()
		it = next(time.Minute)
		if it == nil || it.Deliveries != 2 || time.Since(t0) < workAckWait-time.Second {
			t.Fatalf("redelivery: %+v after %s", it, time.Since(t0))
		}
		for range 6 {
			time.Sleep(10 * time.Second)
			if err := it.Progress(); err != nil {
				t.Fatal(err)
			}
		}
		if other := next(time.Second); other != nil {
			t.Errorf("an item in progress is delivered again: %+v", other)
		}
		if err := it.Nak(5 * time.Second); err != nil {
			t.Fatal(err)
		}
		t0 = time.Now()
		if it = next(time.Minute); it == nil || time.Since(t0) < 5*time.Second-time.Millisecond {
			t.Errorf("given back for 5 s, it came after %s: %+v", time.Since(t0), it)
		}
		if it != nil {
			_ = it.Term()
		}
		i.gw.did(lost, &events.Cancel{Reason: events.CodeClientGone})

		// A long queue that nobody works on holds one item a request, for minutes.
		var ids []string
		for range 20 {
			id := newID(t)
			i.admitted(id)
			ids = append(ids, id)
		}
		time.Sleep(2 * time.Minute)
		seen := map[string]int{}
		for it := next(5 * time.Second); it != nil; it = next(5 * time.Second) {
			seen[it.Work.RequestID]++
			if err := it.Ack(); err != nil {
				t.Fatal(err)
			}
			i.gw.did(it.Work.RequestID, &events.Cancel{Reason: events.CodeClientGone})
		}
		for _, id := range ids {
			if seen[id] != 1 {
				t.Errorf("%s was in the queue %d times", id, seen[id])
			}
		}
		r.check()
		r.end()
	})
}
