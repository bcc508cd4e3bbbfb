package lifecycle

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// ask sends the same command to every replica at once and returns what n of them
// answered.
func (p *party) askAll(subject string, d events.CommandData, n int) []*events.Answer {
	p.rig.t.Helper()
	c := &events.Command{Type: d.CommandType(), Subject: subject, Role: p.role, Principal: p.name, Data: d}
	b, err := events.AppendCommand(nil, c)
	if err != nil {
		p.rig.t.Fatal(err)
	}
	inbox := p.nc.NewRespInbox()
	sub, err := p.nc.SubscribeSync(inbox)
	if err != nil {
		p.rig.t.Fatal(err)
	}
	defer sub.Unsubscribe()
	partition := events.PartitionOf(subject, testPartitions)
	if err := p.nc.PublishRequest(events.CommandSubjectAny(p.role, p.name, c.Type, partition), inbox, b); err != nil {
		p.rig.t.Fatal(err)
	}
	var all []*events.Answer
	for range n {
		m, err := sub.NextMsg(5 * time.Second)
		if err != nil {
			p.rig.t.Fatalf("%s %s: answer %d of %d: %v", d.CommandType(), subject, len(all)+1, n, err)
		}
		a, err := events.DecodeAnswer(m.Data)
		if err != nil {
			p.rig.t.Fatalf("%s %s: %v: %s", d.CommandType(), subject, err, m.Data)
		}
		all = append(all, a)
		p.rig.mu.Lock()
		p.rig.answers = append(p.rig.answers, *a)
		p.rig.mu.Unlock()
	}
	return all
}

func position(t testing.TB, a *events.Answer) events.Position {
	t.Helper()
	p, err := events.ParsePosition(a.Position)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A repeated command gets the recorded answer, byte for byte and with the same
// signed grant, from whichever replica it reaches, also when later events have
// moved the request on.
func TestRepeats(t *testing.T) {
	r := newRig(t)
	a, b := r.start("lc1", nil), r.start("lc2", nil)
	i := r.populate()
	id := newID(t)
	pre := i.p1.prefill()
	grant := i.d1.grant(1)
	steps := []struct {
		p *party
		d events.CommandData
	}{
		{i.gw, admit()}, {i.p1, pre}, {i.d1, grant}, {i.d1, i.d1.transfer(id, pre, 1)}, {i.p1, i.p1.release(pre.Pages)},
		{i.d1, i.d1.output()}, {i.d1, i.d1.release(grant.Pages)},
	}
	var first []*events.Answer
	for _, s := range steps {
		first = append(first, s.p.did(id, s.d))
	}
	if first[2].Grant == nil || first[2].KVKey == "" {
		t.Fatal("the grant's answer has no grant")
	}
	g, err := first[2].Grant.Open(a.grantPublic)
	if err != nil {
		t.Fatal(err)
	}
	if g.RequestID != id || g.Event != first[2].Position || g.Owner != "p1" || g.Worker != "d1" || !cmp.Equal(g.Pages, pre.Pages) || g.KVDigest != pre.KVDigest {
		t.Errorf("grant is %+v", g)
	}
	last := position(t, first[len(first)-1])
	until(t, "both replicas have it", func() bool { return a.followed.Load() >= last.Seq && b.followed.Load() >= last.Seq })
	for n, s := range steps {
		for _, again := range s.p.askAll(id, s.d, 2) {
			if diff := cmp.Diff(first[n], again); diff != "" {
				t.Errorf("%s again (-first +again):\n%s", s.d.CommandType(), diff)
			}
		}
	}
	if rep := r.check(); rep.Events != len(steps)+2 {
		t.Errorf("%d events in the log, want %d: repeats were recorded", rep.Events, len(steps)+2)
	}
}

// Commands that reach both replicas at the same moment race into the log; one
// event is recorded, and both give its answer.
func TestDuel(t *testing.T) {
	r := newRig(t)
	a, b := r.start("lc1", nil), r.start("lc2", nil)
	i := r.populate()
	const lifecycles = 30
	var wg sync.WaitGroup
	for range lifecycles {
		id := newID(t)
		wg.Go(func() {
			pre, grant := i.p1.prefill(), i.d1.grant(1)
			for _, s := range []struct {
				p *party
				d events.CommandData
			}{{i.gw, admit()}, {i.p1, pre}, {i.d1, grant}, {i.d1, i.d1.transfer(id, pre, 1)}, {i.d1, i.d1.output()}, {i.p1, i.p1.release(pre.Pages)}, {i.d1, i.d1.release(grant.Pages)}} {
				two := s.p.askAll(id, s.d, 2)
				if two[0].Denied != nil || !cmp.Equal(two[0], two[1]) {
					t.Errorf("%s: two answers:\n%+v\n%+v", s.d.CommandType(), two[0], two[1])
				}
			}
		})
	}
	wg.Wait()
	if rep := r.check(); rep.Events != 7*lifecycles+2 || rep.Open != 0 {
		t.Errorf("report: %+v", rep)
	}
	var refused uint64
	for _, x := range []*replica{a, b} {
		for _, n := range x.nodes {
			n.mu.Lock()
			st := n.loop.Stats()
			refused += st.Refused + st.Overtaken
			n.mu.Unlock()
		}
	}
	if refused == 0 {
		t.Error("the replicas never raced: the test shows nothing")
	}
}

// A replica is killed under load. Nothing that was acknowledged is lost, and the
// other goes on.
func TestKillUnderLoad(t *testing.T) {
	r := newRig(t)
	a := r.start("lc1", nil)
	r.start("lc2", nil)
	until(t, "both replicas know each other", func() bool { return len(a.members.live(time.Now())) == 2 })
	i := r.populate()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var done, after atomic.Int64
	var killed atomic.Bool
	for range 8 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				i.lifecycle(newID(t))
				done.Add(1)
				if killed.Load() {
					after.Add(1)
				}
			}
		})
	}
	until(t, "load runs", func() bool { return done.Load() > 20 })
	a.kill()
	t0 := time.Now()
	killed.Store(true)
	until(t, "the other replica serves every partition", func() bool { return after.Load() > 60 })
	t.Logf("60 lifecycles within %s of the kill", time.Since(t0))
	close(stop)
	wg.Wait()
	rep := r.check()
	if rep.Open != 0 || int64(rep.Requests) != done.Load() {
		t.Errorf("%d lifecycles done; report: %+v", done.Load(), rep)
	}
}

// A replica whose loops hang goes quiet although its connection lives, and the
// other takes its partitions over.
func TestHungReplica(t *testing.T) {
	r := newRig(t)
	a := r.prepare("lc1", nil)
	pass := make(chan struct{}, 1) // the loop hangs while the test has its only token
	pass <- struct{}{}
	a.tickHook = func() { pass <- <-pass }
	a.run()
	<-a.Ready()
	b := r.start("lc2", nil)
	until(t, "both replicas know each other", func() bool { return len(a.members.live(time.Now())) == 2 && len(b.members.live(time.Now())) == 2 })
	all := func(x *replica) bool {
		return !slices.ContainsFunc(x.all(), func(n *node) bool { return !n.mine.Load() })
	}
	<-pass
	until(t, "the other replica serves every partition", func() bool { return all(b) })
	pass <- struct{}{}
	until(t, "the first one is back", func() bool { return !all(b) })
	i := r.populate()
	i.lifecycle(newID(t))
	r.check()
}

// A clean stop hands over: the other replica serves everything at once, and a
// client sees no error.
func TestStopHandsOver(t *testing.T) {
	r := newRig(t)
	a, b := r.start("lc1", nil), r.start("lc2", nil)
	i := r.populate()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var done atomic.Int64
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				i.lifecycle(newID(t))
				done.Add(1)
			}
		})
	}
	until(t, "load runs", func() bool { return done.Load() > 20 })
	t0 := time.Now()
	if err := a.stop(); err != nil {
		t.Error(err)
	}
	if d := time.Since(t0); d > stopTime {
		t.Errorf("a clean stop took %s", d)
	}
	was := done.Load()
	until(t, "load goes on", func() bool { return done.Load() > was+20 })
	cancel()
	wg.Wait()
	for _, n := range b.all() {
		if !n.mine.Load() {
			t.Errorf("partition %d is nobody's", n.partition)
		}
	}
	r.check()
}

// What waits is dispatched again when the work stream's memory is lost with the
// server, and the queue hands it out.
func TestWorkStreamLost(t *testing.T) {
	r := newRig(t)
	r.start("lc1", nil)
	i := r.populate()
	want := map[string]events.Role{}
	for range 10 {
		id := newID(t)
		i.admitted(id)
		want[id] = events.RolePrefill
	}
	pre := newID(t)
	i.admitted(pre)
	i.p1.did(pre, i.p1.prefill())
	want[pre] = events.RoleDecode
	r.stopBroker()
	r.startBroker()
	for _, p := range []*party{i.p1, i.d1} {
		q, err := p.Queue(t.Context(), testModel, p.role)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for slices.Contains(slices.Collect(maps.Values(want)), p.role) {
			it, err := q.Next(ctx)
			if err != nil {
				t.Fatalf("%d items did not come: %v", len(want), err)
			}
			if want[it.Work.RequestID] != p.role || it.Work.Role != p.role {
				t.Errorf("%s got %+v", p.role, it.Work)
			}
			delete(want, it.Work.RequestID)
			if err := it.Ack(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// The endpoints show to NATS's own tools: one instance a partition, one for the
// subjects that all replicas hear, one for queries.
func TestDiscovery(t *testing.T) {
	r := newRig(t)
	r.start("lc1", nil)
	r.start("lc2", nil)
	op := r.party(keyring.Operator)
	type info struct {
		Name      string
		Metadata  map[string]string
		Endpoints []struct {
			Name, Subject string
			QueueGroup    string `json:"queue_group"`
		}
	}
	gather := func(subject string) []info {
		t.Helper()
		inbox := op.nc.NewRespInbox()
		sub, err := op.nc.SubscribeSync(inbox)
		if err != nil {
			t.Fatal(err)
		}
		defer sub.Unsubscribe()
		if err := op.nc.PublishRequest(subject, inbox, nil); err != nil {
			t.Fatal(err)
		}
		var all []info
		for {
			m, err := sub.NextMsg(300 * time.Millisecond)
			if err != nil {
				return all
			}
			var i info
			if err := json.Unmarshal(m.Data, &i); err != nil {
				t.Fatal(err)
			}
			all = append(all, i)
		}
	}
	var all []info
	until(t, "each partition has one instance", func() bool {
		all = gather("$SRV.INFO." + serviceName)
		return len(all) == testPartitions+1+2*2
	})
	serving := map[string]int{}
	subjects := map[string]int{}
	for _, i := range all {
		serving[i.Metadata["partition"]]++
		for _, e := range i.Endpoints {
			subjects[e.Subject]++
			if i.Metadata["partition"] != "none" && e.QueueGroup != "" {
				t.Errorf("%s has queue group %q", e.Subject, e.QueueGroup)
			}
		}
	}
	want := map[string]int{"any": 2, "none": 2, "ops": 1}
	for p := range testPartitions {
		want[fmt.Sprint(p)] = 1
	}
	if diff := cmp.Diff(want, serving); diff != "" {
		t.Errorf("instances by partition (-want +got):\n%s", diff)
	}
	for _, s := range []string{"pdgate.v1.*.*.admit.0", "pdgate.v1.*.*.grant.3", "pdgate.v1.*.*.register.ops", "pdgate.v1.*.*.released.2"} {
		if subjects[s] != 1 {
			t.Errorf("%d endpoints on %s, want 1", subjects[s], s)
		}
	}
	for _, s := range []string{"pdgate.v1.*.*.admit.any.*", "pdgate.v1.*.*.query.get"} {
		if subjects[s] != 2 {
			t.Errorf("%d endpoints on %s, want 2", subjects[s], s)
		}
	}
	if n := len(gather("$SRV.STATS." + serviceName)); n != len(all) {
		t.Errorf("%d instances give statistics, %d information", n, len(all))
	}
}
