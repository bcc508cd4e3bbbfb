package simulation

import (
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/services/lifecycle"
	"github.com/pdgate/pdgate/statemachine"
)

// model is what everybody serves.
const model = "ref-sim"

// timeouts are shorter than the product's, so that they end within a run.
var timeouts = statemachine.Timeouts{
	Request: 25 * time.Second, Prefill: 9 * time.Second, Decode: 9 * time.Second,
	Lease: 20 * time.Second, Skew: 2 * time.Second, Fresh: 10 * time.Second,
}

// slack is how late an end may be recorded: the log may have been out of reach.
const slack = 12 * time.Second

// replica is one lifecycle replica, over all of its lives.
type replica struct {
	w    *world
	name string
	life *life
	core *lifecycle.Core
	next int          // index in the log of the message to follow
	mine map[int]bool // partitions that it believes to be preferred for
	busy bool         // a message of the log is on its way
}

func (r *replica) boot() {
	w := r.w
	r.life = &life{name: r.name}
	r.next, r.busy, r.mine = 0, false, map[int]bool{}
	l := r.life
	core, err := lifecycle.NewCore(lifecycle.CoreConfig{
		Config: lifecycle.Config{
			Name: r.name, Journal: &writer{w, l}, Partitions: w.partitions, GrantKey: w.grantKey,
			DigestSecret: w.secret, LogKey: w.logKey, Timeouts: timeouts, Guards: w.cfg.Guards.Machine, QueueLimit: w.queueLimit,
		},
		Now:    func() time.Time { return w.now },
		Send:   func(m *nats.Msg) { r.sent(m) },
		Unique: func() string { w.names++; return fmt.Sprintf("u%d", w.names) },
		Queued: func(_ string, role events.Role) int { return w.queues[role].depth() },
	}, uint64(len(w.log.all)))
	if err != nil {
		panic(err)
	}
	r.core = core
	w.say("%s starts", r.name)
	r.follow()
	w.every(l, 15*time.Millisecond, 70*time.Millisecond, core.Tick)
	w.every(l, 800*time.Millisecond, 1200*time.Millisecond, core.Chores)
	w.every(l, 4*time.Second, 6*time.Second, func() { core.Sweep(noTime) })
	w.every(l, 100*time.Millisecond, 600*time.Millisecond, r.look)
}

// follow brings the replica its next message of the log.
func (r *replica) follow() {
	w := r.w
	if r.busy || r.next >= len(w.log.all) {
		return
	}
	r.busy = true
	l, core := r.life, r.core
	w.on(l, w.delay(), func() {
		r.busy = false
		env := w.log.all[r.next]
		r.next++
		switch {
		case w.chance(0.01): // the follower starts over a little earlier
			r.next = max(0, r.next-1-w.rnd.IntN(4))
		case w.chance(0.02) && r.next < len(w.log.all) && w.log.all[r.next].Partition == env.Partition:
			// It loses one, which the one after it proves. That it loses none
			// otherwise is the journal's promise.
			env = w.log.all[r.next]
			r.next++
		}
		if err := core.Follow(env); err != nil {
			w.seen["gap"]++
			r.next = int(min(core.Applied(env.Partition), env.Seq-1))
		}
		r.follow()
	})
}

// look claims and gives up partitions, by what the replica believes of the
// others; a belief may be old, so two may claim one, or nobody.
func (r *replica) look() {
	w := r.w
	if !r.core.CaughtUp() {
		return
	}
	var live []*replica
	for _, o := range w.replicas {
		if o == r || !o.life.dead && !o.life.still.After(w.now) && o.core.CaughtUp() || w.chance(0.1) {
			live = append(live, o)
		}
	}
	for p := events.OpsPartition; p < w.partitions; p++ {
		mine := live[(p+1)%len(live)] == r
		if mine != r.mine[p] {
			r.mine[p] = mine
			r.core.Prefer(p, mine)
		}
	}
}

// crashReplica ends a replica's life between two of its steps, and has it come
// back.
func (w *world) crashReplica(l *life) {
	if l.dead {
		return
	}
	l.dead = true
	w.say("%s crashes", l.name)
	w.seen["replica crash"]++
	for _, r := range w.replicas {
		if r.life == l {
			w.after(w.between(10*time.Millisecond, 4*time.Second), r.boot)
		}
	}
}

// sent takes what leaves a replica, in wire form.
func (r *replica) sent(m *nats.Msg) {
	w := r.w
	switch {
	case strings.HasPrefix(m.Subject, "_INBOX."):
		r.answered(m)
	case strings.HasPrefix(m.Subject, "pdgate.notify."):
		w.notify(m)
	case strings.HasPrefix(m.Subject, "pdgate.work."):
		role := events.Role(m.Subject[strings.LastIndexByte(m.Subject, '.')+1:])
		id, payload := m.Header.Get(nats.MsgIdHdr), m.Data
		w.deliver("work item "+id, func() { w.queues[role].publish(id, payload) })
	default:
		w.breach(RuleRefused, "a replica sends to %s", m.Subject)
	}
}

// answered carries an answer, which counts from here on: whatever becomes of it,
// it was given.
func (r *replica) answered(m *nats.Msg) {
	w := r.w
	var a *events.Answer
	var refusal *events.Error
	if code := m.Header[micro.ErrorHeader]; len(code) > 0 && m.Header[micro.ErrorCodeHeader][0] != "409" {
		refusal = events.NewError(events.Code(code[0]), "refused")
	} else {
		var err error
		if a, err = events.DecodeAnswer(m.Data); err != nil {
			w.breach(RuleRefused, "answer: %v", err)
			return
		}
		w.answers = append(w.answers, *a)
	}
	inbox := m.Subject
	w.deliver("answer "+inbox, func() {
		if c := w.calls[inbox]; c != nil {
			w.let(c.life, func() { c.answer(a, refusal) })
		}
	})
}

// notify carries events to all who listen.
func (w *world) notify(m *nats.Msg) {
	err := events.ReadNotice(m.Header.Get(events.HeaderPosition), m.Data, func(pos events.Position, line []byte) {
		e, err := events.Decode(line)
		if err != nil {
			w.breach(RuleRefused, "notification: %v", err)
			return
		}
		for _, x := range w.workers {
			w.deliver("", func() { w.let(x.life, func() { x.notice(e) }) })
		}
		for _, g := range w.gateways {
			w.deliver("", func() { w.let(g.life, func() { g.notice(e, line, pos.String()) }) })
		}
	})
	if err != nil {
		w.breach(RuleRefused, "notification: %v", err)
	}
}
