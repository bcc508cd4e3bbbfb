package lifecycle

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
)

// The follower gets each envelope's events once, and is told when some of them had
// to go.
func TestKept(t *testing.T) {
	k := kept{floor: 10}
	add := func(seq uint64, n int) {
		for i := range n {
			k.add(&events.Event{N: i + 1}, events.Position{Seq: seq, Line: i})
		}
	}
	want := func(seq uint64, n int, complete bool) {
		t.Helper()
		es, ok := k.take(seq)
		if len(es) != n || ok != complete {
			t.Errorf("at %d: %d events, complete %v; want %d, %v", seq, len(es), ok, n, complete)
		}
		for i, e := range es {
			if e.N != i+1 || e.Line != i {
				t.Errorf("at %d: event %d on line %d, want %d on %d", seq, e.N, e.Line, i+1, i)
			}
		}
	}
	add(12, 3)
	add(15, 2)
	want(10, 0, false) // out of the snapshot
	want(11, 0, true)  // another partition's: not asked for, and nothing is lost
	want(12, 3, true)
	want(12, 0, true)
	want(15, 2, true)
	add(20, maxKept/2)
	add(21, maxKept/2)
	add(22, 1)
	want(20, 0, false)
	want(21, maxKept/2, true)
	want(22, 1, true)
	if k.events != 0 || k.envelopes != nil {
		t.Errorf("%d events are left", k.events)
	}
}

// Only the message that was acknowledged is passed over unopened, and another one
// in its place is no gap to be shrugged off.
func TestKnownIsTheAcknowledgedMessage(t *testing.T) {
	n := &node{partition: 3}
	n.acknowledged(5, "a")
	n.acknowledged(7, "b")
	n.acknowledged(9, "c")
	for _, c := range []struct {
		seq  uint64
		mac  string
		want bool
	}{{4, "x", false}, {5, "a", true}, {6, "b", false}, {7, "x", false}, {7, "b", true}, {8, "c", false}} {
		if got := n.known(c.seq, c.mac); got != c.want {
			t.Errorf("known(%d, %q) is %v", c.seq, c.mac, got)
		}
	}
	var other *otherError
	for range 2 { // followed again, it is the same error
		if err := n.follow(&events.Envelope{Partition: 3, Seq: 9, MAC: "x"}, time.Time{}); !errors.As(err, &other) {
			t.Errorf("another message where an own one was acknowledged: %v", err)
		}
	}
	for i := range uint64(maxAcks + 1) {
		n.acknowledged(10+i, "d")
	}
	if len(n.acks) != maxAcks {
		t.Errorf("%d acknowledgements are kept", len(n.acks))
	}
}

// reads counts what is handed over by follows that open every message: the read
// side's own.
type reads struct {
	*journal.JetStream
	n *atomic.Int64
}

func (r reads) Follow(ctx context.Context, next uint64, handle func(*events.Envelope) error, known ...journal.Known) error {
	if len(known) > 0 {
		return r.JetStream.Follow(ctx, next, handle, known...)
	}
	return r.JetStream.Follow(ctx, next, func(env *events.Envelope) error {
		r.n.Add(1)
		return handle(env)
	})
}

// There is one follower a replica: the read side takes the log's events from it,
// whichever replica wrote them, and reads the log by itself only to catch up.
func TestReadSideIsFed(t *testing.T) {
	r := newRig(t)
	var n [2]atomic.Int64
	var all []*replica
	for i, name := range []string{"lc1", "lc2"} {
		all = append(all, r.start(name, func(c *Config) { c.Journal = reads{c.Journal.(*journal.JetStream), &n[i]} }))
	}
	i := r.populate()
	applied := func() {
		t.Helper()
		until(t, "the read sides are there", func() bool {
			seq := max(all[0].logSeq.Load(), all[1].logSeq.Load())
			for _, x := range all {
				if x.followed.Load() < seq || x.projection.Applied() < seq {
					return false
				}
			}
			return true
		})
	}
	for range 2 { // the second ends the catching up
		i.lifecycle(newID(t))
		applied()
	}
	before := [2]int64{n[0].Load(), n[1].Load()}
	var ids []string
	for range 20 {
		ids = append(ids, newID(t))
		i.lifecycle(ids[len(ids)-1])
	}
	applied()
	for k, x := range all {
		if got := n[k].Load(); got != before[k] {
			t.Errorf("the read side of %s read %d envelopes from the log by itself", x.cfg.Name, got-before[k])
		}
		for _, id := range ids {
			if v, ok, err := x.projection.Get(t.Context(), id); err != nil || !ok || v.State != events.Decoded || v.Events < 6 {
				t.Errorf("%s: %s is %+v, %v", x.cfg.Name, id, v, err)
			}
		}
	}
}
