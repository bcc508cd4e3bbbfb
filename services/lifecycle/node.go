package lifecycle

import (
	"encoding/json"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/services/lifecycle/partition"
)

// node joins one pure partition loop to the journal, the bus and the clock. It
// is the loop's Port.
type node struct {
	svc       *Service
	partition int
	mine      atomic.Bool   // this replica is preferred
	endpoints micro.Service // while mine; owned by the membership loop

	mu    sync.Mutex
	loop  *partition.Loop // guarded by mu, and so is the shard
	shard *shard          // nil for operations
	ops   *opsShard       // nil for requests
	kept  kept            // for the read side; guarded by mu
	acks  []ack           // that the follower has not passed, in order; guarded by mu
	news  []news          // folded and not announced yet; empty while mu is free
	told  int             // bytes of the last announcement: the next one's buffer
}

func (s *Service) newNode(p int) (*node, error) {
	n := &node{svc: s, partition: p}
	var m partition.Machine
	if p == events.OpsPartition {
		n.ops = newOpsShard(s)
		m = n.ops
	} else {
		n.shard = newShard(s, p)
		m = n.shard
	}
	loop, err := partition.New(partition.Config{Partition: p, Writer: s.writer, MaxBytes: s.cfg.maxEnvelope()}, m, n)
	if err != nil {
		return nil, err
	}
	n.loop = loop
	return n, nil
}

// submit hands a command from the bus to the loop.
func (n *node) submit(c *events.Command, to *caller, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loop.Command(c, to, now)
	n.svc.wake()
}

// order hands one of the service's own commands to the loop; nobody waits for
// the answer. The lock is held.
func (n *node) order(c *events.Command, now time.Time) {
	if c != nil {
		n.loop.Command(c, nil, now)
	}
}

// follow takes one envelope from the journal.
func (n *node) follow(env *events.Envelope, now time.Time) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if a := n.ack(env.Seq); a != nil && a.mac != env.MAC {
		return &otherError{n.partition, env.Seq}
	}
	err := n.loop.Followed(env, now)
	n.announce()
	return err
}

// tick passes time: silences, deadlines, forgetting. It says whether commands
// wait.
func (n *node) tick(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loop.Tick(now)
	if n.shard != nil {
		n.shard.wheel.advance(now, func(id string) { n.overdue(id, now) })
		n.shard.evict(now)
	}
	waiting := n.loop.Stats().Waiting > 0
	if !waiting && n.shard != nil {
		// Nobody waits, so no next envelope gives back what the last one reserved. If
		// it still lands, its admissions count by being folded.
		n.shard.draft.unreserve()
	}
	return waiting
}

func (n *node) applied() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.loop.Applied()
}

func (n *node) waiting() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.loop.Stats().Waiting
}

// Publish sends an envelope to the log. The lock is held: the reply comes on the
// journal's goroutine, never from inside Append.
func (n *node) Publish(token uint64, env *events.Envelope) error {
	if n.svc.silent.Load() {
		return nil // a killed process sends nothing; tests only
	}
	var mac string // set before the lock is given up
	err := n.svc.cfg.Journal.Append(env, func(r journal.Reply) {
		now := n.svc.now()
		n.mu.Lock()
		defer n.mu.Unlock()
		switch r.Kind {
		case journal.Stored:
			n.svc.saw(r.Seq)
			before := n.loop.Applied()
			n.loop.Stored(token, r.Seq, now)
			if before < r.Seq && n.loop.Applied() == r.Seq {
				n.acknowledged(r.Seq, mac)
			}
			n.announce()
		case journal.Refused:
			n.loop.Refused(token, r.Hint, now)
		default:
			n.loop.Unknown(token, r.Err, now)
		}
	})
	mac = env.MAC
	return err
}

// Answer gives one caller its answer. The lock is held, so a grant is made from
// the state that the answer was folded from.
func (n *node) Answer(to any, a *events.Answer, err *events.Error) {
	c, ok := to.(*caller)
	if !ok || c == nil {
		if err != nil {
			n.svc.log.Warn("own command was not recorded", "partition", partitionName(n.partition), "code", err.Code)
		}
		return
	}
	if n.shard != nil && err == nil && c.reply != "" {
		if g, under := n.shard.grantFor(a); g != nil {
			n.svc.signSoon(signing{c, *a, g, under})
			return
		}
	}
	n.svc.respond(c, a, err)
}

// Committed notes an event for the announcement of its envelope, after it is
// durable and folded, and dispatches the work that it calls for: the replica
// that wrote it does, once. What it did not get to before a crash, gateways and
// workers ask for, and the partition's next replica dispatches. The lock is held.
func (n *node) Committed(e *events.Event, pos events.Position, line []byte, own bool) {
	n.keep(e, pos)
	if !own || n.shard == nil || n.svc.silent.Load() {
		return
	}
	x := n.shard.find(e.Subject)
	if x == nil || x.r.Model == "" || e.N == 0 {
		return
	}
	n.tell(x.r.Model, pos, line)
	if e.Type == events.TypeAdmitted || e.Type == events.TypePrefilled {
		if w := n.svc.workOf(x.r); w != nil {
			x.sent = n.svc.now()
			n.svc.work.publish(w, e.ID)
		}
	}
}

// Alarm reports what a person must look at.
func (n *node) Alarm(err error) {
	n.svc.alarm("the log is not as it should be", "partition", partitionName(n.partition), "err", err)
}

func encodeError(e *events.Error) []byte {
	b, err := json.Marshal(e)
	if err != nil {
		panic(err) // two strings and a number
	}
	return b
}
