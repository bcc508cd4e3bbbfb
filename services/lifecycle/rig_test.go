package lifecycle

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
	"github.com/pdgate/pdgate/services/lifecycle/client"
	"github.com/pdgate/pdgate/statemachine"
)

const (
	testModel      = "ref-1.0"
	testTenant     = "acme"
	testLayout     = "ref.v1:64:192"
	testPageTokens = 64
	testTokenBytes = 192
	testPartitions = 4
)

// rig is an installation without workers: the embedded server with its real
// accounts and permissions, and any number of replicas.
type rig struct {
	t      testing.TB
	dir    string
	ring   *keyring.Ring
	broker *broker.Broker
	logs   *logBuffer
	link   *link

	mu       sync.Mutex
	replicas []*replica
	answers  []events.Answer // that somebody was given
}

// logBuffer keeps what was logged, to be shown when a test fails and searched
// for what must never be in it.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

var _ io.Writer = (*logBuffer)(nil)

func newRig(t testing.TB) *rig {
	t.Helper()
	dir := t.TempDir()
	ring, err := keyring.Open(filepath.Join(dir, "keys"), keyring.Names{
		Gateways: []string{"gw1", "gw2"}, Prefill: []string{"p1", "p2"}, Decode: []string{"d1", "d2"},
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, dir: dir, ring: ring, logs: &logBuffer{}, link: &link{}}
	r.startBroker()
	t.Cleanup(func() {
		r.broker.Shutdown()
		if t.Failed() {
			t.Logf("log:\n%s", r.logs.String())
		}
	})
	return r
}

func (r *rig) startBroker() {
	r.t.Helper()
	quiet := slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelWarn}))
	b, err := broker.Start(broker.Config{StoreDir: filepath.Join(r.dir, "nats"), Ring: r.ring, Logger: quiet})
	if err != nil {
		r.t.Fatal(err)
	}
	r.broker = b
	var o nats.Options
	if err := b.InProcess()(&o); err != nil {
		r.t.Fatal(err)
	}
	r.link.set(o.InProcessServer)
}

// stopBroker ends the server as a crash would for its clients: connections break.
func (r *rig) stopBroker() {
	r.link.set(nil)
	r.link.cut()
	r.broker.Shutdown()
}

func (r *rig) logger(who string) *slog.Logger {
	return slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug})).With("who", who)
}

// connect is a connection as one user; the test ends it.
func (r *rig) connect(u keyring.User) *nats.Conn {
	r.t.Helper()
	nc, err := natsclient.Connect(r.t.Context(), natsclient.Config{
		InProcess: nats.InProcessServer(r.link), Ring: r.ring, User: u, Logger: r.logger(string(u)),
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(nc.Close)
	return nc
}

// replica is one running replica of the service.
type replica struct {
	*Service
	rig      *rig
	log, bus *nats.Conn
	journal  *journal.JetStream
	cancel   context.CancelFunc
	done     chan error
}

// start runs a replica and waits until it is ready.
func (r *rig) start(name string, change func(*Config)) *replica {
	r.t.Helper()
	x := r.begin(name, change)
	select {
	case <-x.Ready():
	case err := <-x.done:
		r.t.Fatalf("replica %s ended: %v", name, err)
	case <-time.After(10 * time.Second):
		r.t.Fatalf("replica %s is not ready", name)
	}
	return x
}

func (r *rig) begin(name string, change func(*Config)) *replica {
	r.t.Helper()
	x := r.prepare(name, change)
	x.run()
	return x
}

// prepare is a replica that does not run yet: hooks can be set.
func (r *rig) prepare(name string, change func(*Config)) *replica {
	r.t.Helper()
	x := &replica{rig: r, log: r.connect(keyring.LifecycleLog), bus: r.connect(keyring.LifecycleBus), done: make(chan error, 1)}
	must := func(err error) {
		if err != nil {
			r.t.Helper()
			r.t.Fatal(err)
		}
	}
	logKey, err := r.ring.LogKey()
	must(err)
	secret, err := r.ring.DigestSecret()
	must(err)
	grant, err := r.ring.GrantKey()
	must(err)
	x.journal, err = journal.OpenJetStream(r.t.Context(), x.log, journal.Config{Key: logKey, Partitions: testPartitions, Logger: r.logger(name)})
	must(err)
	cfg := Config{
		Name: name, Journal: x.journal, Bus: x.bus, Partitions: testPartitions,
		GrantKey: grant, DigestSecret: secret, LogKey: logKey, Logger: r.logger(name),
		BootQuiet: 50 * time.Millisecond,
	}
	if change != nil {
		change(&cfg)
	}
	x.Service, err = New(cfg)
	must(err)
	return x
}

func (x *replica) run() {
	ctx, cancel := context.WithCancel(context.WithoutCancel(x.rig.t.Context()))
	x.cancel = cancel
	go func() { x.done <- x.Run(ctx) }()
	x.rig.mu.Lock()
	x.rig.replicas = append(x.rig.replicas, x)
	x.rig.mu.Unlock()
	x.rig.t.Cleanup(func() { x.stop() })
}

// stop ends a replica cleanly, and says how.
func (x *replica) stop() error {
	x.rig.mu.Lock()
	x.rig.replicas = slices.DeleteFunc(x.rig.replicas, func(y *replica) bool { return x == y })
	x.rig.mu.Unlock()
	x.cancel()
	select {
	case err := <-x.done:
		x.done <- err // for the next caller
		x.journal.Close()
		x.log.Close()
		x.bus.Close()
		return err
	case <-time.After(10 * time.Second):
		x.rig.t.Errorf("replica %s does not end", x.cfg.Name)
		return errors.New("hangs")
	}
}

// kill is a crash as seen from outside: nothing leaves the replica any more, and
// its connections break.
func (x *replica) kill() {
	x.silent.Store(true)
	x.log.Close()
	x.bus.Close()
	x.stop()
}

// party is one principal with a client.
type party struct {
	*client.Client
	rig   *rig
	nc    *nats.Conn
	name  string
	role  events.Role
	epoch uint64
}

func (r *rig) party(u keyring.User) *party {
	r.t.Helper()
	nc := r.connect(u)
	c, err := client.New(r.t.Context(), client.Config{Conn: nc, Role: u.Role(), Principal: u.Principal(), Partitions: testPartitions, Timeout: 500 * time.Millisecond, Logger: r.logger("client " + string(u))})
	if err != nil {
		r.t.Fatal(err)
	}
	return &party{Client: c, rig: r, nc: nc, name: u.Principal(), role: u.Role()}
}

// do sends a command and notes its answer for the checker.
func (p *party) do(subject string, d events.CommandData) *events.Answer {
	p.rig.t.Helper()
	ctx, cancel := context.WithTimeout(p.rig.t.Context(), 15*time.Second)
	defer cancel()
	a, err := p.try(ctx, subject, d)
	if err != nil {
		p.rig.t.Fatalf("%s %s %s: %v", p.name, d.CommandType(), subject, err)
	}
	return a
}

// did is do for a command that must be carried out.
func (p *party) did(subject string, d events.CommandData) *events.Answer {
	p.rig.t.Helper()
	a := p.do(subject, d)
	if a.Denied != nil {
		p.rig.t.Fatalf("%s %s %s: denied: %v", p.name, d.CommandType(), subject, a.Denied)
	}
	return a
}

func (p *party) try(ctx context.Context, subject string, d events.CommandData) (*events.Answer, error) {
	a, err := p.Do(ctx, &events.Command{Type: d.CommandType(), Subject: subject, Data: d})
	if err == nil {
		p.rig.mu.Lock()
		p.rig.answers = append(p.rig.answers, *a)
		p.rig.mu.Unlock()
	}
	return a, err
}

// worker registers a worker, and keeps it alive until the test, or stop, ends
// its heartbeats.
func (r *rig) worker(role events.Role, name string) (p *party, stop func()) {
	r.t.Helper()
	p = r.party(keyring.Worker(role, name))
	p.join()
	return p, p.heartbeats()
}

func (p *party) join() {
	p.rig.t.Helper()
	p.epoch = uint64(max(time.Now().UnixMicro(), int64(p.epoch)+1))
	p.did(p.name, p.registration())
	p.rig.known(p)
}

// known waits until every replica has heard of the worker's life: an admission
// is decided on what its replica has followed so far.
func (r *rig) known(p *party) {
	r.t.Helper()
	r.mu.Lock()
	all := slices.Clone(r.replicas)
	r.mu.Unlock()
	for _, x := range all {
		until(r.t, "replica "+x.cfg.Name+" knows "+p.name, func() bool {
			w := x.roster.worker(p.name)
			return w != nil && w.Epoch >= p.epoch
		})
	}
}

func (p *party) registration() *events.Register {
	return &events.Register{
		Model: testModel, Epoch: p.epoch, PublicKey: base64.StdEncoding.EncodeToString(make([]byte, ed25519.PublicKeySize)),
		Address: "tcp://127.0.0.1:7001", Engine: "ref", Version: "1", ContextTokens: 100_000, MaxInputTokens: 50_000,
		PoolPages: 1 << 20, PageTokens: testPageTokens, TokenBytes: testTokenBytes, Layout: testLayout,
	}
}

func (p *party) heartbeats() (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.rig.t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		t := time.NewTicker(250 * time.Millisecond)
		defer t.Stop()
		for {
			_ = p.Heartbeat(events.Heartbeat{Epoch: p.epoch, Model: testModel, FreePages: 1, SentAt: time.Now().UTC()})
			select {
			case <-ctx.Done():
				return
			case <-t.C:
			}
		}
	}()
	var once sync.Once
	stop = func() { once.Do(func() { cancel(); <-done }) }
	p.rig.t.Cleanup(stop)
	return stop
}

// newID is a UUIDv7 of now. The uuid package's own never run backwards, and a
// bubble's clock begins in the year 2000 each time.
func newID(t testing.TB) string {
	t.Helper()
	id := uuid.New()
	ms := time.Now().UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	id[6] = id[6]&0x0f | 0x70
	return id.String()
}

// installation is a rig with replicas and one worker of each role.
type installation struct {
	*rig
	gw, p1, d1 *party
}

func (r *rig) populate() *installation {
	r.t.Helper()
	i := &installation{rig: r, gw: r.party(keyring.Gateway("gw1"))}
	i.p1, _ = r.worker(events.RolePrefill, "p1")
	i.d1, _ = r.worker(events.RoleDecode, "d1")
	return i
}

// admitted is an admission that must not end in a rejection.
func (i *installation) admitted(id string) *events.Answer {
	i.t.Helper()
	a := i.gw.did(id, admit())
	if a.Type != events.TypeAdmitted {
		i.t.Fatalf("%s: %s: %v", id, a.Type, a.Error)
	}
	return a
}

// lifecycle takes one request through its whole life.
func (i *installation) lifecycle(id string) {
	i.t.Helper()
	i.admitted(id)
	pre := i.p1.prefill()
	i.p1.did(id, pre)
	grant := i.d1.grant(1)
	i.d1.did(id, grant)
	i.d1.did(id, i.d1.transfer(id, pre, 1))
	i.p1.did(id, i.p1.release(pre.Pages))
	i.d1.did(id, i.d1.output())
	i.d1.did(id, i.d1.release(grant.Pages))
}

// check reads the whole log and judges it, with every answer that was given.
func (r *rig) check() statemachine.Report {
	r.t.Helper()
	key, err := r.ring.LogKey()
	if err != nil {
		r.t.Fatal(err)
	}
	nc := r.connect(keyring.LifecycleLog)
	defer nc.Close()
	j, err := journal.OpenJetStream(r.t.Context(), nc, journal.Config{Key: key})
	if err != nil {
		r.t.Fatal(err)
	}
	defer j.Close()
	end, err := j.Last(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	x, err := j.Extent(r.t.Context())
	if err == nil {
		err = x.Check(r.t.Context(), j)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	c := statemachine.NewChecker(statemachine.CheckerConfig{Partitions: testPartitions, Key: key})
	r.mu.Lock()
	var answers []events.Answer
	for _, a := range r.answers {
		// What has left the log was there before; the rest is there.
		if at, err := events.ParsePosition(a.Position); err != nil || at.Seq >= x.First {
			answers = append(answers, a)
		}
	}
	r.mu.Unlock()
	done := errors.New("read")
	if end > 0 {
		err = j.Follow(r.t.Context(), x.First, func(env *events.Envelope) error {
			if err := c.Add(env); err != nil {
				return fmt.Errorf("envelope %d: %w", env.Seq, err)
			}
			if env.Seq >= end {
				return done
			}
			return nil
		})
		if now, xerr := j.Extent(r.t.Context()); !errors.Is(err, done) && xerr == nil && now.First != x.First {
			return r.check() // a trim took away what was being read
		}
		if !errors.Is(err, done) {
			r.t.Fatal(err)
		}
	}
	c.CheckAnswers(answers)
	c.Close(time.Now())
	rep := c.Report()
	for _, v := range rep.Violations {
		r.t.Errorf("%v", v)
	}
	return rep
}

// until polls for something that other goroutines bring about.
func until(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		<-tick.C
	}
}
