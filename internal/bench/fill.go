package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/lifecycle/partition"
	"github.com/pdgate/pdgate/statemachine"
)

// fillTenant is the tenant of requests that a filler takes through their lives:
// one that the service writes nothing of, so that its chains are the filler's.
const fillTenant = "fill"

// fillLives is how many requests of a partition are on their way, and so about
// how many events an envelope holds.
const fillLives = 64

// filler fills the log with whole lifecycles, without the calls that cause them:
// the state machine decides, partition loops make envelopes, and the journal
// appends them under its compare-and-swap. Nobody else writes meanwhile, so a
// refusal or a silence of the log is an error here.
type filler struct {
	log    *chains
	facts  statemachine.Facts // what does not change from one decision to the next
	sender map[events.Role]*events.WorkerJoined
	epochs load // what the steps need of a load: the workers' epochs
	nodes  []*fillNode

	failed chan error // the first failure
}

// fillAge is how long ago all that is filled in was, by its own account. The
// service keeps what ended a short while ago: of a log that grew over weeks that
// is no more than of a small one, and a fill that takes minutes would leave it a
// million requests to remember.
const fillAge = retained + time.Minute

// chains are the ends of the histories in the log, from one filler to the next.
type chains struct {
	tenant []smallChain  // of fillTenant, by partition
	ended  []endedAt     // when requests of the load ended
	pages  atomic.Uint64 // last generation of the workers' pages: none comes again in one life
}

// endedAt counts the requests that ended since the entry before.
type endedAt struct {
	at time.Time
	n  int
}

// within counts what ended at most d before now.
func (c *chains) within(d time.Duration, now time.Time) (n int) {
	for _, e := range c.ended {
		if now.Sub(e.at) <= d {
			n += e.n
		}
	}
	return n
}

// fillNode is one partition: its loop, the loop's machine and its port.
type fillNode struct {
	f         *filler
	partition int
	journal   *journal.JetStream

	mu       sync.Mutex // guards all below
	loop     *partition.Loop
	machine  *statemachine.Machine
	facts    statemachine.Facts
	lives    map[string]*fillLife
	answered []*fillLife
	left     int // requests that have not begun
	ended    int
	head     smallChain // folded
	overlay  smallChain // of the envelope that is being built
	buf      []byte
}

// fillLife is one request on its way.
type fillLife struct {
	life
	request *statemachine.Request
	step    int // next one
}

// fill takes n requests through their lives, in partitions whose logs it finds
// the ends of. workers are the registered ones.
func (s *site) fill(ctx context.Context, n int, log *chains, workers []events.WorkerView, told func(ended int)) (err error) {
	admin, err := s.connect(ctx, keyring.Admin)
	if err != nil {
		return err
	}
	ends, err := logEnds(ctx, admin, s.b.Partitions)
	if err != nil {
		return err
	}
	nc, err := s.connect(ctx, keyring.LifecycleLog)
	if err != nil {
		return err
	}
	key, err := s.ring.LogKey()
	if err != nil {
		return err
	}
	j, err := journal.OpenJetStream(ctx, nc, journal.Config{Key: key, Partitions: s.b.Partitions, Logger: s.b.Logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	f, err := newFiller(j, n, log, workers, ends)
	if err != nil {
		return err
	}
	return f.run(ctx, n, told)
}

// logEnds are the sequences of the partitions' last messages.
func logEnds(ctx context.Context, nc *nats.Conn, partitions int) ([]uint64, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("end of the log: %w", err)
	}
	st, err := js.Stream(ctx, events.LogStream)
	if err != nil {
		return nil, fmt.Errorf("end of the log: %w", err)
	}
	ends := make([]uint64, partitions)
	for p := range ends {
		m, err := st.GetLastMsgForSubject(ctx, events.LogSubject(p))
		switch {
		case err == nil:
			ends[p] = m.Sequence
		case !errors.Is(err, jetstream.ErrMsgNotFound):
			return nil, fmt.Errorf("end of the log: %w", err)
		}
	}
	return ends, nil
}

func newFiller(j *journal.JetStream, n int, log *chains, workers []events.WorkerView, ends []uint64) (*filler, error) {
	f := &filler{log: log, sender: map[events.Role]*events.WorkerJoined{}, failed: make(chan error, 1)}
	ops := statemachine.Ops{Workers: map[string]*events.WorkerJoined{}}
	for i := range workers {
		w := &workers[i].WorkerJoined
		ops.Workers[w.Worker], f.sender[w.Role] = w, w
	}
	f.facts.Owner = f.sender[events.RolePrefill]
	if f.facts.Owner == nil || f.sender[events.RoleDecode] == nil {
		return nil, errors.New("fill: no registered worker of each role")
	}
	f.epochs.prefillEpoch, f.epochs.decodeEpoch = f.facts.Owner.Epoch, f.sender[events.RoleDecode].Epoch
	f.facts.Known, f.facts.Admission = ops.Admission(loadModel, func(string, uint64) bool { return true })
	partitions := len(ends)
	for p := range partitions {
		x := &fillNode{f: f, partition: p, journal: j, machine: statemachine.NewMachine(statemachine.Guards{}), lives: map[string]*fillLife{},
			head: log.tenant[p], left: n / partitions}
		if p < n%partitions {
			x.left++
		}
		var err error
		// A slow disk is waited for: an envelope that is sent again would be refused
		// once the first one has landed, and nobody follows the log here.
		x.loop, err = partition.New(partition.Config{Partition: p, Writer: "fill." + strconv.FormatUint(ends[p], 10), MaxBytes: min(512<<10, j.MaxPayload()),
			Resend: fillPatience, CommandTimeout: 2 * fillPatience}, x, x)
		if err != nil {
			return nil, err
		}
		x.loop.Resume(ends[p])
		for i := range min(fillLives, x.left) {
			x.answered = append(x.answered, &fillLife{life: life{slot: p*fillLives + i}})
		}
		f.nodes = append(f.nodes, x)
	}
	return f, nil
}

// fillPatience is how long the log may take to acknowledge an envelope.
const fillPatience = time.Minute

// run fills until every request has ended.
func (f *filler) run(ctx context.Context, n int, told func(ended int)) error {
	for _, x := range f.nodes {
		x.enter(func() {})
	}
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	moved, last := time.Now(), 0
	for last < n {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case err := <-f.failed:
			return fmt.Errorf("fill: %w", err)
		case now := <-look.C:
			ended := 0
			for _, x := range f.nodes {
				x.mu.Lock()
				ended += x.ended
				x.mu.Unlock()
			}
			if ended > last {
				moved, last = now, ended
				told(ended)
			} else if now.Sub(moved) > fillPatience {
				return fmt.Errorf("fill: no acknowledgement in %v", fillPatience)
			}
		}
	}
	for p, x := range f.nodes {
		x.mu.Lock()
		f.log.tenant[p] = x.head
		x.mu.Unlock()
	}
	return nil
}

func (f *filler) fail(err error) {
	select {
	case f.failed <- err:
	default:
	}
}

// enter calls what on the loop, and then sends the commands that the answers call
// for: a port must not call back.
func (x *fillNode) enter(what func()) {
	x.mu.Lock()
	defer x.mu.Unlock()
	what()
	all := x.answered
	x.answered = nil
	now := time.Now()
	for _, l := range all {
		if l.step == len(steps) {
			delete(x.lives, l.id)
			x.ended++
			l.step = 0
		}
		if l.step == 0 {
			if x.left == 0 {
				continue
			}
			x.left--
			l.life.id, l.generation, l.request = newIDAt(time.Now().Add(-fillAge), x.partition, len(x.f.nodes)), x.f.log.pages.Add(1), nil
			x.lives[l.id] = l
		}
		x.send(l, now)
	}
}

// send hands the life's next command to the loop; x.mu is held.
func (x *fillNode) send(l *fillLife, now time.Time) {
	s := &steps[l.step]
	c := &events.Command{Type: s.command, Subject: l.id, Role: s.role, Principal: principals[s.role], Data: s.data(&l.life, &x.f.epochs)}
	if a, ok := c.Data.(*events.Admit); ok {
		a.Tenant = fillTenant
	}
	if p, ok := c.Data.(*events.Prefill); ok {
		p.Tenant = fillTenant
	}
	b, err := events.AppendCommand(x.buf[:0], c)
	if err != nil {
		x.f.fail(err)
		return
	}
	x.buf = b
	x.loop.Command(c, l, now)
}

// Publish implements partition.Port.
func (x *fillNode) Publish(token uint64, env *events.Envelope) error {
	return x.journal.Append(env, func(r journal.Reply) {
		if r.Kind != journal.Stored {
			x.f.fail(fmt.Errorf("partition %d: the log did not store an envelope: %w", x.partition, cmp.Or(r.Err, errRefused)))
			return
		}
		x.enter(func() { x.loop.Stored(token, r.Seq, time.Now()) })
	})
}

// errRefused stands for a refusal, which has no error of its own.
var errRefused = errors.New("refused: somebody else writes")

// Answer implements partition.Port.
func (x *fillNode) Answer(to any, a *events.Answer, refused *events.Error) {
	l := to.(*fillLife)
	switch {
	case refused != nil:
		x.f.fail(refused)
	case a.Type != steps[l.step].event:
		x.f.fail(fmt.Errorf("%s became %s", steps[l.step].command, a.Type))
	default:
		l.step++
		x.answered = append(x.answered, l)
	}
}

// Committed implements partition.Port.
func (x *fillNode) Committed(*events.Event, events.Position, []byte, bool) {}

// Alarm implements partition.Port.
func (x *fillNode) Alarm(err error) { x.f.fail(err) }

// Recorded implements partition.Machine: every command is sent once.
func (x *fillNode) Recorded(*events.Command, string) (*events.Answer, bool) { return nil, false }

// Begin implements partition.Machine.
func (x *fillNode) Begin() partition.Draft {
	x.overlay = x.head
	return x
}

// Decide implements partition.Draft.
func (x *fillNode) Decide(c *events.Command, key string, now time.Time) *events.Event {
	now = now.Add(-fillAge)
	l := x.lives[c.Subject]
	x.facts = x.f.facts
	x.facts.Now, x.facts.Sender = now, x.f.sender[c.Role]
	data := x.machine.Decide(l.request, c, &x.facts)
	e := &events.Event{
		Source: "/pdgate/lifecycle/fill", Type: data.EventType(), Subject: c.Subject, Time: events.Micros(now), N: 1, Command: key, Principal: c.From(),
		Tenant: fillTenant, TenantSeq: x.overlay.seq + 1, TenantPrev: x.overlay.hash, Data: data,
	}
	if l.request != nil {
		e.N, e.Prev = l.request.N+1, l.request.Pos
	}
	e.ID = c.Subject + "." + strconv.Itoa(e.N)
	return e
}

// Encoded implements partition.Draft.
func (x *fillNode) Encoded(e *events.Event, hash string) {
	x.overlay = smallChain{e.TenantSeq, hash}
}

// Fold implements partition.Machine.
func (x *fillNode) Fold(e *events.Event, pos events.Position, hash string) *events.Answer {
	x.head = smallChain{e.TenantSeq, hash}
	l := x.lives[e.Subject]
	if l.request == nil {
		l.request = &statemachine.Request{ID: e.Subject, State: events.New}
	}
	if err := statemachine.Fold(l.request, e, pos, hash); err != nil {
		x.f.fail(err)
	}
	return &events.Answer{Subject: e.Subject, State: l.request.State, Type: e.Type, ID: e.ID, Position: pos.String(), Hash: hash}
}
