package main

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/gpuworker"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/telemetry"
	"github.com/pdgate/pdgate/services/disclosure"
	"github.com/pdgate/pdgate/services/gateway"
	"github.com/pdgate/pdgate/services/lifecycle"
	"github.com/pdgate/pdgate/services/lifecycle/client"
	"github.com/pdgate/pdgate/statemachine"
)

// dial opens a NATS connection of one user: to a server elsewhere, or to the
// embedded one.
type dial func(context.Context, keyring.User) (*nats.Conn, error)

// guards are the checks that the incident takes away. Everywhere else they are
// zero: all on.
type guards struct {
	machine statemachine.Guards
	worker  gpuworker.Guards
	gateway gateway.Guards
	scrub   kvpool.ScrubMode
	bigPool bool // give prefill a pool that holds what its engine refuses
}

// send sends a command and waits for its answer.
type send func(context.Context, *events.Command) (*events.Answer, error)

// hooks let a test look into the parts of a stack, and bend what passes between
// them. Everywhere else they are zero: nobody looks.
type hooks struct {
	worker  func(name string, w *gpuworker.Worker, p *kvpool.Pool)                                       // one was made
	engine  func(worker string, e engine.Engine) engine.Engine                                           // what the worker gets in e's place
	command func(ctx context.Context, from string, c *events.Command, next send) (*events.Answer, error) // in a client's place
}

// hooked is a client whose commands pass through a hook.
type hooked struct {
	*client.Client
	from string
	hook func(ctx context.Context, from string, c *events.Command, next send) (*events.Answer, error)
}

// Do stands in for the client's.
func (h hooked) Do(ctx context.Context, c *events.Command) (*events.Answer, error) {
	if h.hook == nil {
		return h.Client.Do(ctx, c)
	}
	return h.hook(ctx, h.from, c, h.Client.Do)
}

// lifecyclePart describes a lifecycle replica.
type lifecyclePart struct {
	name       string
	stateDir   string
	partitions int // of a log that does not exist yet
	replicas   int // of the stream
	queueLimit int
	retention  retention
	timeouts   statemachine.Timeouts
	guards     statemachine.Guards
	quiet      time.Duration
	ready      *telemetry.Readiness // nil: nobody asks
	canary     canaryPart           // every 0: none
}

func (p lifecyclePart) run(ctx context.Context, dial dial, ring *keyring.Ring, log *slog.Logger) error {
	logKey, err := ring.LogKey()
	if err != nil {
		return err
	}
	secret, err := ring.DigestSecret()
	if err != nil {
		return err
	}
	tenants, err := ring.TenantKeys(log.With("part", "lifecycle"))
	if err != nil {
		return err
	}
	grant, err := ring.GrantKey()
	if err != nil {
		return err
	}
	logConn, err := dial(ctx, keyring.LifecycleLog)
	if err != nil {
		return err
	}
	defer logConn.Close()
	bus, err := dial(ctx, keyring.LifecycleBus)
	if err != nil {
		return err
	}
	defer bus.Close()
	if err := os.MkdirAll(p.stateDir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	plain := log
	log = log.With("part", "lifecycle")
	j, err := journal.OpenJetStream(ctx, logConn, journal.Config{Key: logKey, Partitions: p.partitions, Replicas: p.replicas, Logger: log})
	if err != nil {
		return err
	}
	defer j.Close()
	keep, end, err := p.retention.open(ctx, logConn, dial, ring)
	if err != nil {
		return err
	}
	defer end()
	svc, err := lifecycle.New(lifecycle.Config{
		Name: p.name, Journal: j, Retention: keep, SnapshotEvery: pace.snapshots, Bus: bus, Partitions: j.Partitions(), GrantKey: grant, DigestSecret: secret, TenantKeys: tenants, LogKey: logKey,
		StateDir: p.stateDir, Timeouts: p.timeouts, Guards: p.guards, QueueLimit: p.queueLimit, Replicas: p.replicas, BootQuiet: p.quiet, Logger: log,
	})
	if err != nil {
		return err
	}
	p.ready.Watch("lifecycle "+p.name, svc.Ready())
	stages := [][]part{{
		{"tenants' keys", tenants.Run},
		{"disclosures", func(ctx context.Context) error { return disclosure.Keep(ctx, bus, p.replicas, log) }},
	}, {{"service", svc.Run}}}
	if p.canary.every > 0 {
		// The canary leans on the service, so it ends first: what it has found is
		// still recorded.
		stages = append(stages, []part{{"canary", func(ctx context.Context) error { return p.canary.run(ctx, svc, dial, plain) }}})
	}
	return supervise(ctx, stages...)
}

// engineFlags describe the engine, to workers and to the gateway's tokenizer.
type engineFlags struct {
	engine   string
	model    string
	context  int
	maxInput int
	threads  int
}

func (e *engineFlags) add(f *pflag.FlagSet) {
	f.StringVar(&e.engine, "engine", "ref", "engine: ref, faulty (ref with the bug of the public incident), vllm or sglang")
	f.StringVar(&e.model, "model", "", "name of the model that is served (default: ref; of vllm and sglang, what their nodes serve)")
	f.IntVar(&e.context, "context", 0, "longest prompt and completion, in tokens (0: 131072; of vllm and sglang, what their nodes say)")
	f.IntVar(&e.maxInput, "max-input", 0, "longest prompt, in tokens (0: what the prefill pool and the context hold)")
	f.IntVar(&e.threads, "threads", 0, "threads of one engine call (0: one for each CPU)")
}

// config makes the engine's configuration, and has the engine judge it. pool is
// the prefill pool in tokens; 0 where it is not known.
func (e *engineFlags) config(pool int) (engine.Config, error) {
	c := engine.Config{
		Name: e.engine, Model: cmp.Or(e.model, "ref"), ContextTokens: cmp.Or(e.context, engine.DefaultContextTokens), MaxInputTokens: e.maxInput, Threads: e.threads,
	}
	if c.MaxInputTokens == 0 && pool > 0 {
		c.MaxInputTokens = min(pool, c.ContextTokens)
	}
	if c.Threads == 0 {
		c.Threads = runtime.GOMAXPROCS(0)
	}
	_, err := engine.New(c)
	return c, err
}

// tokenizer lets the gateway count as the engine will.
type tokenizer struct{ engine engine.Engine }

func (t tokenizer) Count(ctx context.Context, prompt []byte) (int, error) {
	return t.engine.Count(ctx, prompt)
}

func (t tokenizer) Chat(messages []gateway.Message) ([]byte, []string) {
	turns := make([]engine.Message, len(messages))
	for i, m := range messages {
		turns[i] = engine.Message{Role: m.Role, Content: m.Content}
	}
	return engine.Chat(turns), []string{engine.ChatStop}
}

// gatewayPart describes a gateway.
type gatewayPart struct {
	name    string
	tenants *gateway.Tenants
	engine  engine.Config
	nodes   *external // those of an external engine; nil: the engine is ours
	guards  gateway.Guards
	hooks   hooks
	drain   time.Duration
	admin   *telemetry.Readiness // nil: nobody asks
	ready   func() error         // called when it is subscribed; nil: nobody waits
}

func (p gatewayPart) run(ctx context.Context, l net.Listener, dial dial, ring *keyring.Ring, log *slog.Logger) error {
	defer l.Close()
	secret, err := ring.DigestSecret()
	if err != nil {
		return err
	}
	log = log.With("part", "gateway", "gateway", p.name)
	keys, err := ring.TenantKeys(log)
	if err != nil {
		return err
	}
	cfg := gateway.Config{}
	if p.nodes.on() {
		c, err := p.nodes.counter(log)
		if err != nil {
			return err
		}
		defer c.Close()
		cfg.Relays = map[string]gateway.Relay{p.engine.Model: c}
	} else {
		eng, err := engine.New(p.engine)
		if err != nil {
			return err
		}
		cfg.Models = map[string]gateway.Tokenizer{eng.Info().Model: tokenizer{eng}}
	}
	nc, err := dial(ctx, keyring.Gateway(p.name))
	if err != nil {
		return err
	}
	defer nc.Close()
	store, err := disclosure.NewWriter(nc)
	if err != nil {
		return err
	}
	cl, err := client.New(ctx, client.Config{Conn: nc, Role: events.RoleGateway, Principal: p.name, Logger: log})
	if err != nil {
		return err
	}
	cfg.Name, cfg.Conn, cfg.Client, cfg.DigestSecret, cfg.Tenants = p.name, nc, hooked{cl, p.name, p.hooks.command}, secret, p.tenants
	cfg.TenantKeys, cfg.Disclosures = keys, store
	cfg.Guards, cfg.Timeouts, cfg.Logger = p.guards, gateway.Timeouts{Drain: p.drain}, log
	g, err := gateway.New(cfg)
	if err != nil {
		return err
	}
	p.admin.Watch("gateway "+p.name, g.Ready())
	// One ends the other: a gateway that lost its connection must not go on to
	// accept, and a closed listener leaves nothing to serve.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ran := make(chan error, 1)
	go func() {
		defer cancel()
		ran <- g.Run(ctx)
	}()
	followed := make(chan struct{})
	go func() { // ends with ctx
		defer close(followed)
		followTenants(ctx, keys, p.tenants, log)
	}()
	defer func() { cancel(); <-followed }()
	select {
	case <-g.Ready():
		if p.ready != nil {
			if err := p.ready(); err != nil {
				cancel()
				return errors.Join(err, <-ran)
			}
		}
	case <-ctx.Done():
	}
	err = gateway.Serve(ctx, gateway.NewServer(g.Handler(), log), l, 0, p.drain+7*time.Second)
	cancel()
	if errors.Is(err, http.ErrServerClosed) {
		err = nil
	}
	return errors.Join(err, <-ran)
}

// workerPart describes a worker of either role.
type workerPart struct {
	name        string
	role        events.Role
	engine      engine.Config
	node        *node // of an external engine; nil: the engine is ours
	poolTokens  int   // with a node 0 is what it says
	listen      string
	advertise   string
	concurrency int
	allowRed    bool   // take work whatever the preflight finds
	device      string // empty: host memory
	guards      guards
	hooks       hooks
	ready       *telemetry.Readiness // nil: nobody asks
}

// run starts the worker, and again with an empty pool and a new boot epoch each
// time the lifecycle has taken it for dead: after a long pause, or a network that
// was away.
func (p workerPart) run(ctx context.Context, dial dial, ring *keyring.Ring, log *slog.Logger) error {
	for {
		err := p.live(ctx, dial, ring, log)
		switch {
		case ctx.Err() != nil:
			return err
		case errors.Is(err, gpuworker.ErrGone):
			log.Warn("worker was taken for dead and starts a new life", "part", "worker", "worker_id", p.name)
		case errors.Is(err, engine.ErrRestarted):
			log.Warn("engine restarted, its worker starts a new life", "part", "worker", "worker_id", p.name)
		default:
			return err
		}
	}
}

// live is one life of the worker.
func (p workerPart) live(ctx context.Context, dial dial, ring *keyring.Ring, log *slog.Logger) (err error) {
	identity, err := ring.Identity(p.role, p.name)
	if err != nil {
		return err
	}
	grant, err := ring.GrantPublicKey()
	if err != nil {
		return err
	}
	log = log.With("part", "worker")
	var pairs *engine.Pairs
	if p.node != nil {
		if p.engine, p.poolTokens, err = p.node.config(ctx, p.engine.Model, p.poolTokens, log); err != nil {
			return err
		}
		p.concurrency, pairs = p.node.concurrency(p.concurrency), p.node.pairs
	}
	eng, err := engine.New(p.engine)
	if err != nil {
		return err
	}
	if p.hooks.engine != nil {
		eng = p.hooks.engine(p.name, eng)
	}
	info := eng.Info()
	if p.poolTokens < info.PageTokens {
		return fmt.Errorf("pool of %d tokens: want at least one page of %d", p.poolTokens, info.PageTokens)
	}
	pool, closeDevice, err := openPool(p.device, kvpool.Config{
		Pages: p.poolTokens / info.PageTokens, PageBytes: info.PageBytes(), Epoch: uint64(time.Now().UnixMicro()), Scrub: p.guards.scrub, Logger: log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDevice()) }() // after the worker, which has let go of its pages
	nc, err := dial(ctx, keyring.Worker(p.role, p.name))
	if err != nil {
		return err
	}
	defer nc.Close()
	cl, err := client.New(ctx, client.Config{Conn: nc, Role: p.role, Principal: p.name, Logger: log})
	if err != nil {
		return err
	}
	queue, err := cl.Queue(ctx, info.Model, p.role)
	if err != nil {
		return err
	}
	defer queue.Close() // an item that came too late goes to another worker at once
	w, err := gpuworker.New(gpuworker.Config{
		Name: p.name, Role: p.role, Model: info.Model, Engine: eng, Pool: pool, Pairs: pairs, Lifecycle: hooked{cl, p.name, p.hooks.command}, Queue: workQueue{queue}, Prompts: cl, Output: cl,
		Identity: identity, Listen: p.listen, Advertise: p.advertise, Concurrency: p.concurrency, Guards: p.guards.worker, Logger: log,
		GrantKeys: grantKeys(grant),
		Preflight: func(ctx context.Context) error { return p.preflight(ctx, cl, pool.Epoch(), log) },
	})
	if err != nil {
		return err
	}
	p.ready.Watch("worker "+p.name, w.Ready())
	if p.hooks.worker != nil {
		p.hooks.worker(p.name, w, pool)
	}
	return supervise(ctx,
		[]part{{"notices", func(ctx context.Context) error { return watch(ctx, cl, info.Model, w, log) }}},
		[]part{{"worker", w.Run}},
	)
}

// watch feeds its requests' events to the worker. Lost ones cost time, not
// safety: the worker asks about what it holds.
func watch(ctx context.Context, cl *client.Client, model string, w *gpuworker.Worker, log *slog.Logger) error {
	for {
		err := cl.Watch(ctx, client.WatchFilter{Model: model, Wants: w.Holds}, func(n client.Notice) { w.Notice(n.Event) })
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, nats.ErrConnectionClosed):
			return err // for good: the server no longer knows this user
		}
		log.Warn("notices were lost, subscribing again", "err", err)
	}
}

// workQueue turns the client's queue into the worker's.
type workQueue struct{ q *client.Queue }

func (w workQueue) Next(ctx context.Context) (gpuworker.Item, error) {
	it, err := w.q.Next(ctx)
	if err != nil {
		return nil, err
	}
	return workItem{it}, nil
}

type workItem struct{ it *client.Item }

func (i workItem) Work() *events.Work            { return i.it.Work }
func (i workItem) Ack() error                    { return i.it.Ack() }
func (i workItem) Nak(delay time.Duration) error { return i.it.Nak(delay) }
func (i workItem) Progress() error               { return i.it.Progress() }

// listen opens the gateway's port.
func listen(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("http: listen on %s: address already in use: choose another one with --listen", address)
	}
	if err != nil {
		return nil, fmt.Errorf("http: %w (flag --listen)", err)
	}
	return l, nil
}

// dataPlane is where a worker of this machine listens for pulls: a Unix socket
// under dir, or loopback where the path would be too long for one.
func dataPlane(dir, name string) string {
	path, err := filepath.Abs(filepath.Join(dir, name+".sock"))
	if err != nil || len(path) > 100 {
		return "tcp://127.0.0.1:0"
	}
	return "unix://" + path
}

func grantKeys(k ed25519.PublicKey) func() []ed25519.PublicKey {
	return func() []ed25519.PublicKey { return []ed25519.PublicKey{k} }
}
