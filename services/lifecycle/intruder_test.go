package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/keyring"
)

// aim makes the server publish to a subject that the worker itself may not
// publish to: the answer to a pull goes to the reply subject.
func (p *party) aim(subject string) {
	p.rig.t.Helper()
	pull := "$JS.API.CONSUMER.MSG.NEXT." + events.WorkStream + "." + events.WorkConsumer(testModel, p.role)
	if err := p.nc.PublishRequest(pull, subject, []byte(`{"batch":1,"no_wait":true}`)); err != nil {
		p.rig.t.Fatal(err)
	}
	if err := p.nc.Flush(); err != nil {
		p.rig.t.Fatal(err)
	}
}

// A worker cannot invent a replica: partitions would be given to nobody.
func TestReplicaIsNotInvented(t *testing.T) {
	r := newRig(t)
	x := r.start("lc1", nil)
	i := r.populate()
	bus := r.connect(keyring.LifecycleBus)
	heard, err := bus.SubscribeSync(events.ReplicaSubject("*"))
	if err != nil {
		t.Fatal(err)
	}
	if err := bus.Flush(); err != nil {
		t.Fatal(err)
	}
	// The consumer is made a moment after the registration.
	until(t, "the server speaks as a replica", func() bool {
		i.d1.aim(events.ReplicaSubject("ghost"))
		for {
			m, err := heard.NextMsg(50 * time.Millisecond)
			if err != nil {
				return false
			}
			if m.Subject == events.ReplicaSubject("ghost") {
				return true
			}
		}
	})
	// It reached the replica as well, before this word does.
	if err := bus.Publish(events.ReplicaSubject("lc2"), []byte(wordBeat)); err != nil {
		t.Fatal(err)
	}
	until(t, "a replica's own word counts", func() bool { return slices.Contains(x.members.live(time.Now()), "lc2") })
	if live := x.members.live(time.Now()); slices.Contains(live, "ghost") {
		t.Errorf("members: %v", live)
	}
}

// A worker that aims the answer to a pull at JetStream's API takes nothing from
// the queues: what waits is still there for whoever it is meant for.
func TestWorkIsNotTakenAway(t *testing.T) {
	r := newRig(t)
	r.start("lc1", nil)
	i := r.populate()
	id := newID(t)
	i.admitted(id)
	q, err := i.p1.Queue(t.Context(), testModel, events.RolePrefill)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	it, err := q.Next(ctx) // the queues are there
	if err != nil {
		t.Fatal(err)
	}
	consumer := events.WorkStream + "." + events.WorkConsumer(testModel, events.RolePrefill)
	for _, prefix := range []string{"$JS.API.", "$JS." + events.WorkDomain + ".API."} {
		for _, verb := range []string{"STREAM.PURGE." + events.WorkStream, "STREAM.DELETE." + events.WorkStream, "CONSUMER.DELETE." + consumer, "CONSUMER.MSG.NEXT." + consumer} {
			i.d1.aim(prefix + verb)
		}
	}
	if err := it.Nak(0); err != nil {
		t.Fatal(err)
	}
	if it, err = q.Next(ctx); err != nil || it.Work.RequestID != id || it.Deliveries != 2 {
		t.Errorf("item %+v, %v", it, err)
	}
	r.check()
}

// A work queue's consumer that is gone is made again, and what was in the queue is
// still worked on.
func TestDeletedConsumer(t *testing.T) {
	bubble(t, func(t *testing.T) {
		r := newRig(t)
		r.start("lc1", nil)
		i := r.populate()
		id := newID(t)
		i.admitted(id)
		time.Sleep(time.Second)
		js, err := jetstream.NewWithDomain(r.connect(keyring.LifecycleBus), events.WorkDomain)
		if err != nil {
			t.Fatal(err)
		}
		// No user may delete it, so the server is told to when nobody asks it for work.
		name := events.WorkConsumer(testModel, events.RolePrefill)
		c, err := js.Consumer(t.Context(), events.WorkStream, name)
		if err != nil {
			t.Fatal(err)
		}
		cfg := c.CachedInfo().Config
		cfg.InactiveThreshold = time.Second
		if _, err := js.UpdateConsumer(t.Context(), events.WorkStream, cfg); err != nil {
			t.Fatal(err)
		}
		time.Sleep(3 * time.Second)
		if _, err := js.Consumer(t.Context(), events.WorkStream, name); !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Fatalf("the consumer is still there: %v", err)
		}
		time.Sleep(staleAfter + 2*sweepEvery)
		q, err := i.p1.Queue(t.Context(), testModel, events.RolePrefill)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		it, err := q.Next(ctx)
		if err != nil || it.Work.RequestID != id {
			t.Errorf("item %+v, %v", it, err)
		}
		r.end()
	})
}

// Denials about names that somebody invents leave nothing in memory, and a
// repeated one is recorded once.
func TestInventedNamesAreNotKept(t *testing.T) {
	r := newRig(t)
	x := r.start("lc1", nil)
	i := r.populate()
	op := r.party(keyring.Operator)
	var last *events.Answer
	for k := range 20 {
		last = i.d1.do(fmt.Sprintf("nobody%d", k), i.d1.registration())
		if last.Denied == nil || last.Denied.Code != events.CodeForbidden {
			t.Fatalf("%+v", last)
		}
		if a := op.do(fmt.Sprintf("no-model-%d", k), &events.Restore{Reason: "test"}); a.Denied == nil {
			t.Fatalf("%+v", a)
		}
	}
	if again := i.d1.do("nobody19", i.d1.registration()); again.Position != last.Position || again.ID != last.ID {
		t.Errorf("recorded twice: %+v, at first %+v", again, last)
	}
	x.opsNode.mu.Lock()
	n := len(x.opsNode.ops.ops.Subjects)
	x.opsNode.mu.Unlock()
	if n != 2 {
		t.Errorf("%d names are kept, want those of the two workers", n)
	}
	r.check()
}

// An epoch far ahead would shut the worker's later lives out.
func TestEpochAheadIsRefused(t *testing.T) {
	r := newRig(t)
	r.start("lc1", nil)
	i := r.populate()
	ahead := i.p1.registration()
	ahead.Epoch = 1<<64 - 1
	if a := i.p1.do("p1", ahead); a.Denied == nil || a.Denied.Code != events.CodeWorkerEpoch {
		t.Errorf("%+v", a)
	}
	i.p1.join()
	r.check()
}

// A worker whose registration has not reached this replica yet is denied. What it
// says then ends the request all the same once the registration is there, and not
// only at the deadline: its words are the same, and so is the command.
func TestEarlyWordIsHeardLater(t *testing.T) {
	r := newRig(t)
	r.start("lc1", nil)
	i := r.populate()
	p2 := r.party(keyring.Worker(events.RolePrefill, "p2"))
	p2.epoch = uint64(time.Now().UnixMicro())
	refused, failed := newID(t), newID(t)
	words := map[string]events.CommandData{
		refused: &events.Reject{WorkerEpoch: p2.epoch, Error: *events.ContextExceeded("prompt", 9, 8)},
		failed:  &events.Fail{WorkerEpoch: p2.epoch, Stage: "prefill", Error: *events.NewError(events.CodePrefillFailed, "no")},
	}
	for id, d := range words {
		i.admitted(id)
		if a := p2.do(id, d); a.Denied == nil || a.Denied.Code != events.CodeWorkerUnknown {
			t.Fatalf("%+v", a)
		}
	}
	p2.did("p2", p2.registration())
	for id, d := range words {
		a := p2.did(id, d)
		if again := p2.did(id, d); again.Position != a.Position || !a.State.Final() {
			t.Errorf("%+v, repeated %+v", a, again)
		}
	}
	r.check()
}

// bare is a replica without a bus, for what only its memory shows.
func bare(t *testing.T) *Core {
	t.Helper()
	key := []byte("thirty-two bytes of a test's key")
	m, err := journal.NewMemoryLog(journal.Single, testPartitions).Open(journal.Config{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	c, err := NewCore(CoreConfig{
		Config: Config{Name: "lc1", Journal: m, Partitions: testPartitions, GrantKey: testGrantKey, DigestSecret: key, LogKey: key},
		Now:    time.Now, Send: func(*nats.Msg) {}, Unique: func() string { return "u" },
		Queued: func(string, events.Role) int { return 0 },
	}, 0)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The sender of an event that counts for nothing is not told that it was carried
// out.
func TestVoidEventIsNoSuccess(t *testing.T) {
	c := bare(t)
	id := newID(t)
	s := c.s.nodeOf(events.CmdAdmit, id).shard
	fold := func(n int, prev events.Position, d events.Data) *events.Answer {
		e := &events.Event{ID: fmt.Sprintf("%s.%d", id, n), N: n, Subject: id, Type: d.EventType(), Time: time.Now(), Prev: prev, Data: d}
		return s.Fold(e, events.Position{Seq: uint64(n)}, "hash")
	}
	if a := fold(1, events.Position{}, &events.RequestAdmitted{Model: testModel, Deadline: time.Now().Add(time.Minute), PrefillBy: time.Now().Add(time.Minute)}); a.Denied != nil {
		t.Fatalf("%+v", a)
	}
	if a := fold(2, events.Position{Seq: 1}, &events.RequestTransferred{GrantEpoch: 1, Worker: "d1", WorkerEpoch: 1}); a.Err() == nil {
		t.Errorf("a transfer of what was not prefilled: %+v", a)
	}
	if a := c.s.opsNode.ops.Fold(&events.Event{ID: "p1.2", N: 2, Subject: "p1", Type: events.TypeWorkerJoined, Data: &events.WorkerJoined{Worker: "p1"}}, events.Position{Seq: 1}, "hash"); a.Err() == nil {
		t.Errorf("a registration out of its history: %+v", a)
	}
}

// What an envelope reserved that never landed is given back although nothing
// else comes to the partition.
func TestReservationsEnd(t *testing.T) {
	c := bare(t)
	n := c.s.nodes[0]
	d := n.shard.Begin()
	d.Encoded(&events.Event{Tenant: testTenant, Data: &events.RequestAdmitted{Model: testModel}}, "hash")
	if open, _ := c.s.counts.of(testTenant, testModel); open != 1 {
		t.Fatalf("%d open while the envelope is out", open)
	}
	n.tick(time.Now())
	if open, waiting := c.s.counts.of(testTenant, testModel); open != 0 || waiting != 0 {
		t.Errorf("%d open, %d waiting", open, waiting)
	}
}

// A clock that was set back makes no id new that was forgotten: neither here nor
// after a start from the snapshot.
func TestForgottenStaysForgotten(t *testing.T) {
	r := newRig(t)
	x := r.start("lc1", nil)
	i := r.populate()
	id := newID(t)
	i.lifecycle(id)
	n := x.nodeOf(events.CmdAdmit, id)
	n.mu.Lock()
	n.shard.evict(time.Now().Add(retain + time.Minute))
	n.mu.Unlock()
	again := admit()
	again.MaxTokens++
	if a := i.gw.do(id, again); a.Denied == nil || a.Denied.Code != events.CodeStaleRequestID {
		t.Errorf("admitted again: %+v", a)
	}
	fresh := newID(t)
	for events.PartitionOf(fresh, testPartitions) != n.partition {
		fresh = newID(t)
	}
	i.admitted(fresh)
	var p, read snapshotPartition
	n.mu.Lock()
	n.shard.copy(&p, n.loop.Applied())
	n.mu.Unlock()
	f := readForm(bytes.NewReader(written(t, func(f *form) { formPartition(f, &p) })))
	if formPartition(f, &read); f.err != nil {
		t.Fatal(f.err)
	}
	restored := newShard(x.Service, n.partition)
	restored.load(&read)
	if !restored.forgotten(id) || restored.forgotten(fresh) {
		t.Error("the snapshot forgets what was forgotten, or too much")
	}
	r.check()
}
