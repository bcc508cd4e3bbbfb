package lifecycle

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine/projection"
)

// Service is one replica.
type Service struct {
	cfg         Config
	log         *slog.Logger
	source      string      // of events: "/pdgate/lifecycle/<name>"
	writer      string      // of envelopes: no other life of any replica has it
	policy      string      // digest of the admission policy
	keys        events.Keys // of the requests' digests
	grantPublic ed25519.PublicKey
	metrics     *metrics
	tracer      trace.Tracer
	now         func() time.Time
	unique      func() string         // a name that nobody else has
	publish     func(*nats.Msg) error // to the bus, without waiting
	noticeLimit int                   // bytes of one message of notices

	nodes   []*node // by partition number
	opsNode *node
	roster  *roster
	counts  *counts
	members *members
	work    *dispatcher
	signer  *signer // set by Run; nil: whoever answers signs

	projection *projection.Projection // set by Run
	kept       generations
	trim       trimState
	slowTurns  chan struct{}
	slowDone   sync.WaitGroup
	kickChores chan struct{}

	ready     chan struct{} // closed when commands are served
	following atomic.Bool   // what the log held at the start is folded
	followed  atomic.Uint64 // sequence that the follower has handled
	logSeq    atomic.Uint64 // highest sequence seen anywhere
	idle      atomic.Bool   // no command waits: the tick loop is slow
	awake     chan struct{} // makes it fast again
	ticked    atomic.Int64  // when the tick loop last went round; unix nanoseconds
	envelopes atomic.Uint64 // followed since the last snapshot

	// Tests only.
	silent    atomic.Bool              // as if the process were killed: nothing leaves any more
	tickHook  func()                   // called by the tick loop: may make it hang
	trimStep  func(point string) error // called before each commit point of a trim: an error ends the trim there
	trimRound func()                   // called before each round of trims
	unbound   string                   // the name of a bound of trims that is left out
}

// New checks the configuration. Nothing runs and nothing is read before Run.
func New(cfg Config) (*Service, error) {
	if cfg.Bus == nil {
		return nil, errors.New("lifecycle: Bus is missing")
	}
	s, err := newService(cfg, cfg.Bus.PublishMsg, nuid.Next)
	if err != nil {
		return nil, err
	}
	if limit := int(cfg.Bus.MaxPayload()); limit > 0 { // 0: never connected so far
		s.noticeLimit = min(s.noticeLimit, limit)
	}
	return s, nil
}

func newService(cfg Config, publish func(*nats.Msg) error, unique func() string) (*Service, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Service{
		cfg: cfg, log: cfg.Logger.With("replica", cfg.Name), source: "/pdgate/lifecycle/" + cfg.Name,
		writer: cfg.Name + "." + unique(), unique: unique, publish: publish, noticeLimit: cfg.maxEnvelope(), policy: cfg.policy(), keys: events.Keys{Secret: cfg.DigestSecret, Tenants: cfg.TenantKeys},
		grantPublic: cfg.GrantKey.Public().(ed25519.PublicKey), tracer: otel.Tracer(scope), now: time.Now,
		roster: newRoster(), counts: newCounts(), members: newMembers(cfg.Name),
		slowTurns: make(chan struct{}, slowQueries), kickChores: make(chan struct{}, 1), awake: make(chan struct{}, 1), ready: make(chan struct{}),
	}
	s.kept.path, s.kept.olderPath = s.statePath(snapshotName), s.statePath(snapshotOlder)
	if s.metrics, err = newMetrics(); err != nil {
		return nil, fmt.Errorf("lifecycle: instruments: %w", err)
	}
	for p := range cfg.Partitions {
		n, err := s.newNode(p)
		if err != nil {
			return nil, fmt.Errorf("lifecycle: %w", err)
		}
		s.nodes = append(s.nodes, n)
	}
	if s.opsNode, err = s.newNode(events.OpsPartition); err != nil {
		return nil, fmt.Errorf("lifecycle: %w", err)
	}
	return s, nil
}

// Ready is closed when the replica has read the log and serves commands.
func (s *Service) Ready() <-chan struct{} { return s.ready }

// Leads says whether this replica does what is to be done once for all replicas:
// it is the one that operations prefer. While replicas come or go, two may, or
// none.
func (s *Service) Leads() bool { return s.opsNode.mine.Load() }

func itoa(n int) string { return strconv.Itoa(n) }

// saw notes a sequence that the log has.
func (s *Service) saw(seq uint64) {
	for {
		was := s.logSeq.Load()
		if seq <= was || s.logSeq.CompareAndSwap(was, seq) {
			return
		}
	}
}

func (s *Service) caughtUp() bool { return s.following.Load() }

// alarm is an error of the log itself: a person must look.
func (s *Service) alarm(msg string, args ...any) { s.log.Error(msg, append(args, "alarm", true)...) }

// opsChanged makes chores and queues look at the workers now.
func (s *Service) opsChanged() {
	select {
	case s.kickChores <- struct{}{}:
	default:
	}
	if s.work != nil {
		select {
		case s.work.kick <- struct{}{}:
		default:
		}
	}
}

// all lists every node, operations included.
func (s *Service) all() []*node { return append([]*node{s.opsNode}, s.nodes...) }

// stopTime bounds a clean stop.
const stopTime = 2 * time.Second

// Run serves until ctx ends; a clean stop is no error. It returns when every
// goroutine of the replica has ended.
//
// A stop hands over first: the others are told, endpoints drain, and commands
// that wait are settled by the log, all while the loops still run. A crash skips
// this and costs the others one second of silence before they take over.
func (s *Service) Run(ctx context.Context) error {
	err := s.run(ctx)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil // stopped before it was up
	}
	return fmt.Errorf("lifecycle: %w", err)
}

func (s *Service) run(ctx context.Context) (err error) {
	if s.cfg.StateDir != "" {
		if err := os.MkdirAll(s.cfg.StateDir, 0o700); err != nil {
			return fmt.Errorf("state directory: %w", err)
		}
	}
	if err := s.checkLog(ctx); err != nil {
		return err
	}
	if s.projection, err = projection.Open(ctx, projection.Config{Path: s.statePath("requests.db"), Begin: s.begins, Logger: s.log}); err != nil {
		return err
	}
	defer s.projection.Close()
	if err := s.projection.Check(ctx, s.macAt); err != nil {
		return err
	}
	from, err := s.restore(ctx)
	if err != nil {
		return err
	}
	if s.work, err = newDispatcher(s); err != nil {
		return err
	}
	s.signer = newSigner(s)

	// The loops outlive ctx by the hand-over.
	loops, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	var wg sync.WaitGroup
	run := func(name string, f func(context.Context) error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f(loops); err != nil && loops.Err() == nil {
				stop(fmt.Errorf("%s: %w", name, err))
			}
		}()
	}
	unobserve, err := s.observe()
	if err != nil {
		return fmt.Errorf("instruments: %w", err)
	}
	defer unobserve()
	s.roster.listen(s.now())
	s.projection.Skip(from) // the follower goes on from there
	run("read side", func(ctx context.Context) error { s.readSide(ctx); return nil })
	run("follow log", func(ctx context.Context) error { return s.follow(ctx, from) })
	run("tick", s.ticks)
	run("grants", s.signer.run)
	run("chores", func(ctx context.Context) error { s.chores(ctx); return nil })
	run("work queues", func(ctx context.Context) error { s.work.run(ctx); return nil })
	run("snapshots", s.snapshots)
	run("trim", func(ctx context.Context) error { s.trims(ctx); return nil })

	err = s.serve(ctx, loops)
	if ctx.Err() != nil && loops.Err() == nil {
		s.settle(loops)
	}
	failed := context.Cause(loops)
	stop(nil)
	wg.Wait()
	s.slowDone.Wait()
	if failed != nil {
		return failed
	}
	if err != nil {
		return err
	}
	if err := s.snapshot(context.WithoutCancel(ctx)); err != nil {
		// The log has everything; the next start reads more of it.
		s.log.Warn("snapshot is not written", "err", err)
	}
	return nil
}

// settle waits until the log has settled what waits, for a bounded time. What it
// does not reach, the callers ask another replica for.
func (s *Service) settle(ctx context.Context) {
	deadline := time.NewTimer(stopTime / 2)
	defer deadline.Stop()
	t := time.NewTicker(5 * time.Millisecond)
	defer t.Stop()
	for {
		n := s.unanswered()
		if n == 0 {
			break
		}
		select {
		case <-deadline.C:
			s.log.Warn("stop with commands that the log has not settled", "commands", n)
			return
		case <-t.C:
		}
	}
	// Answers may still be in the connection's buffer. A lost bus ends the wait.
	_ = s.flush(ctx, stopTime/4)
}

// unanswered counts the commands that wait for the log or for a signature.
func (s *Service) unanswered() int {
	n := 0
	for _, x := range s.all() {
		n += x.waiting()
	}
	return n + int(s.signer.open.Load()) // last: a command waits here once it waits there no more
}

// flush waits until the server has read what was published.
func (s *Service) flush(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return s.cfg.Bus.FlushWithContext(ctx)
}

// nodeAt is the node of a log subject; nil for a subject that is no partition.
func (s *Service) nodeAt(p int) *node {
	switch {
	case p == events.OpsPartition:
		return s.opsNode
	case p >= 0 && p < len(s.nodes):
		return s.nodes[p]
	}
	return nil
}

// statePath is a file in the state directory, "" without one.
func (s *Service) statePath(name string) string {
	if s.cfg.StateDir == "" {
		return ""
	}
	return filepath.Join(s.cfg.StateDir, name)
}
