package bench

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
	"github.com/pdgate/pdgate/services/lifecycle/partition"
)

// journalInFlight is how many messages of raw publishing are on their way, and
// how many commands the partitions have waiting.
const journalInFlight = 4000

// journal appends through partition loops and the JetStream journal, in one
// process with the server, as `pdgate up` does.
func (b *bench) journal(ctx context.Context) error {
	inFlight := b.Concurrency
	if inFlight == 0 {
		inFlight = journalInFlight
	}
	var cases []*Case
	for _, fsync := range b.Fsync {
		cases = append(cases, b.add(newCase("journal", "appends", map[string]string{"fsync": onOff(fsync), "in flight": strconv.Itoa(inFlight)},
			"partition loops and journal", "raw asynchronous publish", "events/s",
			"a small fixed machine decides; queue, codec, MAC, compare-and-swap, follower and fold are the service's",
			fmt.Sprintf("the ceiling publishes one event of the same size a message, %d on their way, to the same server", inFlight))))
	}
	for round := range b.Rounds {
		for i, fsync := range b.Fsync {
			b.Progress("journal: round %d of %d, fsync %s", round+1, b.Rounds, onOff(fsync))
			p, c, err := b.appends(ctx, round, fsync, inFlight)
			if err != nil {
				return fmt.Errorf("fsync %s: %w", onOff(fsync), err)
			}
			cases[i].add(p, c)
		}
	}
	return nil
}

// appends measures both sides on one fresh server.
func (b *bench) appends(ctx context.Context, round int, fsync bool, inFlight int) (p, c Sample, err error) {
	dir, remove, err := b.sub("journal")
	if err != nil {
		return p, c, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	ring, err := keyring.Open(filepath.Join(dir, "keys"), siteNames)
	if err != nil {
		return p, c, err
	}
	s, err := broker.Start(broker.Config{StoreDir: filepath.Join(dir, "jetstream"), Durability: durability(fsync), Ring: ring, Logger: b.Logger})
	if err != nil {
		return p, c, err
	}
	defer s.Shutdown()
	return alternate(round,
		func() (Sample, error) { return b.appendsOf(ctx, s, ring, inFlight) },
		func() (Sample, error) { return b.rawOf(ctx, s, ring, inFlight) })
}

// inProcess measures f, whose result counts operations, with this process's CPU.
func inProcess(f func() (count int, seconds float64, err error)) (Sample, error) {
	quiesce()
	before := usage()
	n, seconds, err := f()
	if err != nil {
		return Sample{}, err
	}
	if n == 0 {
		return Sample{}, errTooShort
	}
	after := usage()
	return Sample{Value: float64(n) / seconds, Count: n, Seconds: seconds,
		CPU: map[string]float64{"process": micros(after.CPU-before.CPU) / float64(n)}, PeakMB: map[string]float64{"process": float64(after.PeakRSS >> 20)}}, nil
}

func (b *bench) rawOf(ctx context.Context, s *broker.Broker, ring *keyring.Ring, inFlight int) (Sample, error) {
	nc, err := natsclient.Connect(ctx, natsclient.Config{InProcess: s.InProcess(), Ring: ring, User: keyring.Admin, Logger: b.Logger})
	if err != nil {
		return Sample{}, err
	}
	defer nc.Close()
	failed := make(chan error, 1)
	// The stall wait is 200 ms by default, after which a publish is refused: here a
	// full window is what is wanted.
	js, err := raw(ctx, nc, jetstream.WithPublishAsyncMaxPending(inFlight), jetstream.WithPublishAsyncErrHandler(func(_ jetstream.JetStream, _ *nats.Msg, err error) {
		select {
		case failed <- err:
		default:
		}
	}))
	if err != nil {
		return Sample{}, err
	}
	payload := make([]byte, eventBytes())
	return inProcess(func() (int, float64, error) {
		start := time.Now()
		n := 0
		for ; n%64 != 0 || time.Since(start) < b.Duration; n++ {
			if _, err := js.PublishAsync(rawSubject, payload, jetstream.WithStallWait(stalled)); err != nil {
				return 0, 0, fmt.Errorf("publish: %w", err)
			}
		}
		select {
		case <-js.PublishAsyncComplete():
		case err := <-failed:
			return 0, 0, fmt.Errorf("publish: %w", err)
		case <-time.After(stalled):
			return 0, 0, errors.New("publish: acknowledgements are missing")
		}
		return n, time.Since(start).Seconds(), nil
	})
}

func (b *bench) appendsOf(ctx context.Context, s *broker.Broker, ring *keyring.Ring, inFlight int) (_ Sample, err error) {
	nc, err := natsclient.Connect(ctx, natsclient.Config{InProcess: s.InProcess(), Ring: ring, User: keyring.LifecycleLog, Logger: b.Logger})
	if err != nil {
		return Sample{}, err
	}
	defer nc.Close()
	key, err := ring.LogKey()
	if err != nil {
		return Sample{}, err
	}
	j, err := journal.OpenJetStream(ctx, nc, journal.Config{Key: key, Partitions: b.Partitions, Logger: b.Logger})
	if err != nil {
		return Sample{}, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	a, err := newAppender(j, b.Partitions, inFlight)
	if err != nil {
		return Sample{}, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- a.run(running) }()
	var latency *Latency
	sample, err := inProcess(func() (int, float64, error) {
		start := time.Now()
		a.begin()
		t := time.NewTimer(b.Duration)
		defer t.Stop()
		select {
		case <-t.C:
		case err := <-ended:
			ended <- err
			return 0, 0, errors.Join(errors.New("the log's follower ended"), err)
		}
		a.ending.Store(true)
		if err := a.settle(ctx); err != nil {
			return 0, 0, err
		}
		return a.count(), time.Since(start).Seconds(), nil
	})
	stop()
	err = errors.Join(err, <-ended, a.failure())
	if err == nil {
		latency = a.latency()
	}
	sample.Latency = latency
	return sample, err
}

// appender is the load on the partition loops: each client sends its request's
// next command when the last one is answered.
type appender struct {
	journal *journal.JetStream
	nodes   []*appendNode
	ending  atomic.Bool
	failed  atomic.Pointer[error]
}

// appendNode joins one loop to the journal, as the service does.
type appendNode struct {
	a         *appender
	partition int

	mu       sync.Mutex // guards all below
	loop     *partition.Loop
	machine  *smallMachine
	clients  []*appendClient
	answered []*appendClient // since the lock was taken
	turn     []*appendClient // answered before: reused
	ids      *rand.ChaCha8   // of the requests: the system's source costs a call each
	waiting  int
	count    int
	latency  Recorder
}

type appendClient struct {
	command events.Command
	step    int
	sent    time.Time
}

func newAppender(j *journal.JetStream, partitions, inFlight int) (*appender, error) {
	a := &appender{journal: j}
	for p := range partitions {
		n := &appendNode{a: a, partition: p, machine: newSmallMachine()}
		var seed [32]byte
		_, _ = crand.Read(seed[:]) // never fails
		n.ids = rand.NewChaCha8(seed)
		var err error
		if n.loop, err = partition.New(partition.Config{Partition: p, Writer: "bench", MaxBytes: min(512<<10, j.MaxPayload()), QueueLimit: maxInFlight}, n.machine, n); err != nil {
			return nil, err
		}
		for range max(1, inFlight/partitions) {
			n.clients = append(n.clients, &appendClient{})
		}
		a.nodes = append(a.nodes, n)
	}
	return a, nil
}

// run follows the log, and passes time, until ctx ends.
func (a *appender) run(ctx context.Context) error {
	var ticking sync.WaitGroup
	defer ticking.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ticking.Go(func() {
		t := time.NewTicker(5 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-t.C:
				for _, n := range a.nodes {
					n.enter(func() { n.loop.Tick(now) })
				}
			}
		}
	})
	err := a.journal.Follow(ctx, 1, func(env *events.Envelope) (err error) {
		if env.Partition >= 0 {
			n := a.nodes[env.Partition]
			n.enter(func() { err = n.loop.Followed(env, time.Now()) })
		}
		return err
	}, a.known)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// known passes over what a loop has folded at its acknowledgement.
func (a *appender) known(partition int, seq uint64, _ string) bool {
	if partition < 0 {
		return false
	}
	n := a.nodes[partition]
	n.mu.Lock()
	defer n.mu.Unlock()
	return seq <= n.loop.Applied()
}

// begin sends every client's first command.
func (a *appender) begin() {
	for _, n := range a.nodes {
		n.enter(func() { n.answered = append(n.answered, n.clients...); n.waiting = 0 })
	}
}

// enter calls f on the loop, and then sends what the answers call for: a port
// must not call back.
func (n *appendNode) enter(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
	if len(n.answered) == 0 {
		return
	}
	// One look at the clock ends the waits of all that one envelope answered, after
	// the last of them was.
	now := time.Now()
	for len(n.answered) > 0 {
		n.answered, n.turn = n.turn[:0], n.answered
		for _, c := range n.turn {
			if !c.sent.IsZero() {
				n.latency.Add(now.Sub(c.sent))
			}
			if !n.a.ending.Load() {
				n.next(c, now)
			}
		}
	}
}

func (n *appendNode) next(c *appendClient, now time.Time) {
	if c.step == 0 {
		c.command.Subject = uuid.Must(uuid.NewV7FromReader(n.ids)).String()
	}
	t := smallSteps[c.step].command
	// A copy: the loop keeps the command until the log has it.
	cmd := c.command
	cmd.Type, cmd.Role, cmd.Principal, cmd.Raw = t, events.RoleGateway, siteGateway, commandBytes
	c.sent = now
	n.waiting++
	n.loop.Command(&cmd, c, now)
}

// commandBytes stand for a command's payload, which only its key depends on.
var commandBytes = make([]byte, 200)

// Publish implements partition.Port.
func (n *appendNode) Publish(token uint64, env *events.Envelope) error {
	return n.a.journal.Append(env, func(r journal.Reply) {
		n.enter(func() {
			now := time.Now()
			switch r.Kind {
			case journal.Stored:
				n.loop.Stored(token, r.Seq, now)
			case journal.Refused:
				n.loop.Refused(token, r.Hint, now)
			default:
				n.loop.Unknown(token, r.Err, now)
			}
		})
	})
}

// Answer implements partition.Port.
func (n *appendNode) Answer(to any, _ *events.Answer, refused *events.Error) {
	c := to.(*appendClient)
	n.waiting--
	if refused != nil {
		n.a.fail(refused)
		return
	}
	n.count++
	c.step = (c.step + 1) % len(smallSteps)
	n.answered = append(n.answered, c)
}

// Committed implements partition.Port.
func (n *appendNode) Committed(*events.Event, events.Position, []byte, bool) {}

// Alarm implements partition.Port.
func (n *appendNode) Alarm(err error) { n.a.fail(err) }

func (a *appender) fail(err error) { a.failed.CompareAndSwap(nil, &err) }

func (a *appender) failure() error {
	if p := a.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// settle waits until nothing waits.
func (a *appender) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*stalled)
	defer cancel()
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for {
		waiting := 0
		for _, n := range a.nodes {
			n.mu.Lock()
			waiting += n.waiting
			n.mu.Unlock()
		}
		if waiting == 0 || a.failure() != nil {
			return a.failure()
		}
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("%d commands are not settled: %w", waiting, context.Cause(ctx))
		}
	}
}

func (a *appender) count() (n int) {
	for _, x := range a.nodes {
		x.mu.Lock()
		n += x.count
		x.mu.Unlock()
	}
	return n
}

func (a *appender) latency() *Latency {
	var all Recorder
	for _, x := range a.nodes {
		x.mu.Lock()
		all.d = append(all.d, x.latency.d...)
		x.mu.Unlock()
	}
	return all.Latency()
}
