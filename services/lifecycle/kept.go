package lifecycle

import (
	"strconv"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine/projection"
)

// maxKept bounds the events that a partition keeps for the read side.
const maxKept = 16 << 10

// kept are a partition's folded events that the follower has not passed: an own
// envelope is folded at its acknowledgement, and the read side takes it in the
// log's order. When the follower is late the oldest go, and the read side reads
// them from the log. The node's lock guards it.
type kept struct {
	envelopes []projection.Envelope // in order; the MACs are not set
	events    int
	floor     uint64 // what is folded up to this sequence is not complete here
}

// add keeps an event that was folded.
func (k *kept) add(e *events.Event, pos events.Position) {
	n := len(k.envelopes)
	if n == 0 || k.envelopes[n-1].Seq != pos.Seq {
		k.envelopes = append(k.envelopes, projection.Envelope{Seq: pos.Seq})
		n++
	}
	last := &k.envelopes[n-1]
	last.Events = append(last.Events, projection.Event{Event: e, Line: pos.Line})
	k.events++
	for k.events > maxKept {
		k.floor = k.envelopes[0].Seq
		k.drop()
	}
}

func (k *kept) drop() {
	k.events -= len(k.envelopes[0].Events)
	k.envelopes[0] = projection.Envelope{}
	if k.envelopes = k.envelopes[1:]; len(k.envelopes) == 0 {
		k.envelopes = nil
	}
}

// take returns the events of the envelope at a sequence that the follower passes;
// complete is false if they are not all here.
func (k *kept) take(seq uint64) (es []projection.Event, complete bool) {
	for len(k.envelopes) > 0 && k.envelopes[0].Seq <= seq {
		if k.envelopes[0].Seq == seq {
			es = k.envelopes[0].Events
		}
		k.drop()
	}
	return es, seq > k.floor
}

// keep keeps a folded event for the read side. The lock is held.
func (n *node) keep(e *events.Event, pos events.Position) {
	if n.shard != nil && n.svc.projection != nil {
		n.kept.add(e, pos)
	}
}

// begin says that what was folded so far, out of a snapshot, is not kept.
func (n *node) begin() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kept.floor = n.loop.Applied()
}

// ack is an own envelope that was folded at its acknowledgement.
type ack struct {
	seq uint64
	mac string
}

// maxAcks bounds the acknowledgements that the follower has not passed. Of what
// goes, the follower opens the messages.
const maxAcks = 16 << 10

// acknowledged notes that an own envelope is folded. The lock is held.
func (n *node) acknowledged(seq uint64, mac string) {
	if len(n.acks) == maxAcks {
		n.acks = n.acks[1:]
	}
	n.acks = append(n.acks, ack{seq, mac})
}

// ack is the own envelope that was acknowledged at a sequence, nil for none. What
// is before it is passed. The lock is held.
func (n *node) ack(seq uint64) *ack {
	for len(n.acks) > 0 && n.acks[0].seq < seq {
		n.acks = n.acks[1:]
	}
	if len(n.acks) == 0 || n.acks[0].seq != seq {
		return nil
	}
	return &n.acks[0]
}

// known says whether the message at a sequence is the own one that is folded.
func (n *node) known(seq uint64, mac string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := n.ack(seq)
	return a != nil && a.mac == mac
}

// otherError says that the log has another message where an own one was
// acknowledged: it lost that one.
type otherError struct {
	partition int
	seq       uint64
}

func (e *otherError) Error() string {
	return "partition " + partitionName(e.partition) + ": message " + strconv.FormatUint(e.seq, 10) + " is not the one that was acknowledged"
}

// passed takes what is kept of the envelope that the follower passes.
func (n *node) passed(seq uint64) ([]projection.Event, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.kept.take(seq)
}
