package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
	"github.com/pdgate/pdgate/internal/telemetry"
	"github.com/pdgate/pdgate/services/gateway"
	"github.com/pdgate/pdgate/statemachine"
)

// stack is every part in one process, around an embedded NATS server: what `up`
// and `incident` run.
type stack struct {
	dir          string // keys, log, state; created when missing
	natsHost     string
	natsPort     int // as broker.Config.Port
	durability   broker.Durability
	listen       string // of the gateway
	audit        string // address of the auditor's read API; empty: no auditor
	engine       engine.Config
	nodes        *external // those of an external engine; nil: the engine is ours
	lifecycles   int       // replicas; 0: 1
	gateways     int       // 0: 1
	prefill      int       // number of workers
	decode       int
	prefillPool  int // tokens, each
	decodePool   int
	concurrency  int    // of each worker; 0: its own default
	device       string // of the workers' pools; empty: host memory
	queueLimit   int
	retention    retention
	canary       canaryPart // every 0: none
	allowRed     bool       // workers take work whatever their preflight finds
	tenants      func(dir string) (*gateway.Tenants, error)
	timeouts     statemachine.Timeouts // zero fields: lifecycle's defaults
	guards       guards
	hooks        hooks
	drain        time.Duration
	readyTimeout time.Duration
	admin        []part               // how the process is watched
	ready        *telemetry.Readiness // what /ready waits for; nil: nobody asks
	log          *slog.Logger
}

// endpoints say where a running stack is.
type endpoints struct {
	http  string   // base URL of the first gateway
	audit string   // of the auditor; empty: there is none
	all   []string // base URLs of all gateways
	nats  string   // empty: in process only
	ring  *keyring.Ring
	dial  dial
}

func (s *stack) names() keyring.Names {
	var n keyring.Names
	for i := range max(1, s.gateways) {
		n.Gateways = append(n.Gateways, fmt.Sprintf("gw%d", i+1))
	}
	for i := range s.prefill {
		n.Prefill = append(n.Prefill, fmt.Sprintf("p%d", i+1))
	}
	for i := range s.decode {
		n.Decode = append(n.Decode, fmt.Sprintf("d%d", i+1))
	}
	return n
}

// errUsed ends a stack whose user is done.
var errUsed = errors.New("no longer used")

// run starts everything, and calls use once requests are answered. It stops
// when use returns, when ctx ends, which use hears of through its own context,
// or when a part ends.
func (s *stack) run(ctx context.Context, use func(context.Context, endpoints) error) error {
	ring, err := keyring.Open(filepath.Join(s.dir, "keys"), s.names())
	if err != nil {
		return err
	}
	b, err := broker.Start(broker.Config{
		StoreDir: filepath.Join(s.dir, "jetstream"), Host: s.natsHost, Port: s.natsPort, Durability: s.durability,
		Models: []string{s.engine.Model}, Ring: ring, Logger: s.log,
	})
	if err != nil {
		return explainBroker(err)
	}
	defer b.Shutdown()
	tenants, err := s.tenants(s.dir)
	if err != nil {
		return err
	}
	sockets, err := runDir(s.dir)
	if err != nil {
		return err
	}
	dial := func(ctx context.Context, u keyring.User) (*nats.Conn, error) {
		return natsclient.Connect(ctx, natsclient.Config{InProcess: b.InProcess(), Ring: ring, User: u, Logger: s.log})
	}
	var lives, gates, workers []part
	var e endpoints
	for i := range max(1, s.lifecycles) {
		life := lifecyclePart{
			name: fmt.Sprintf("lc%d", i+1), stateDir: filepath.Join(s.dir, "lifecycle"), queueLimit: s.queueLimit, retention: s.retention,
			timeouts: s.timeouts, guards: s.guards.machine, ready: s.ready,
		}
		if i > 0 {
			life.stateDir += fmt.Sprintf("-%d", i+1)
		}
		if s.lifecycles < 2 {
			life.quiet = time.Millisecond // nobody else can be on this directory
		}
		lives = append(lives, part{"lifecycle", func(ctx context.Context) error {
			life.canary = s.canary
			life.canary.gateway = e.http // known when parts are started
			return life.run(ctx, dial, ring, s.log)
		}})
	}
	e = endpoints{nats: b.ClientURL(), ring: ring, dial: dial}
	if s.audit != "" {
		l, err := listenAudit(s.audit)
		if err != nil {
			return err
		}
		defer l.Close()
		e.audit = "http://" + l.Addr().String()
		keeper := auditorPart{name: "au1", dir: filepath.Join(s.dir, "auditor", "au1")}
		lives = append(lives, part{"auditor", func(ctx context.Context) error { return keeper.beside(ctx, l, dial, ring, s.log) }})
	}
	subscribed := make(chan struct{}, len(s.names().Gateways))
	for _, name := range s.names().Gateways {
		l, err := listen(s.listen)
		if err != nil {
			return err
		}
		defer l.Close()
		e.all = append(e.all, "http://"+l.Addr().String())
		gate := gatewayPart{name: name, tenants: tenants, engine: s.engine, nodes: s.nodes, guards: s.guards.gateway, hooks: s.hooks, drain: s.drain, admin: s.ready,
			ready: func() error { subscribed <- struct{}{}; return nil }}
		gates = append(gates, part{"gateway", func(ctx context.Context) error { return gate.run(ctx, l, dial, ring, s.log) }})
	}
	e.http = e.all[0]
	add := func(role events.Role, names []string, pool int) {
		for i, name := range names {
			w := workerPart{name: name, role: role, engine: s.engine, poolTokens: pool, listen: dataPlane(sockets, name), concurrency: s.concurrency, allowRed: s.allowRed, device: s.device, guards: s.guards, hooks: s.hooks, ready: s.ready}
			if s.nodes.on() {
				w.node = s.nodes.node(name, role, s.nodes.of(role)[i])
			}
			workers = append(workers, part{string(role) + " worker " + name, func(ctx context.Context) error { return w.run(ctx, dial, ring, s.log) }})
		}
	}
	add(events.RolePrefill, s.names().Prefill, s.prefillPool)
	add(events.RoleDecode, s.names().Decode, s.decodePool)
	user := part{"user", func(ctx context.Context) error {
		if err := s.waitReady(ctx, e.all, subscribed); err != nil {
			return err
		}
		if err := use(ctx, e); err != nil || ctx.Err() != nil {
			return err
		}
		return errUsed
	}}
	err = supervise(ctx, append([]part{{"nats", b.Wait}}, s.admin...), lives, workers, append(gates, user))
	if errors.Is(err, errUsed) {
		return nil
	}
	return err
}

// waitReady asks the gateways' own /ready until they can admit.
func (s *stack) waitReady(ctx context.Context, urls []string, subscribed <-chan struct{}) error {
	timeout := s.readyTimeout
	if timeout == 0 {
		timeout = 30 * time.Second
	}
	wait, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for range urls {
		select {
		case <-subscribed:
		case <-wait.Done():
			return s.notReady(ctx, "the gateway has not started")
		}
	}
	// A client of its own: the default one keeps connections of others alive.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		last, ok := ask(wait, client, urls[0]+"/ready")
		if !ok && strings.Contains(last, `"code":"`+string(events.CodeModelQuarantined)+`"`) {
			// It outlives a restart, and only a running stack can restore it.
			s.log.Warn("the model is quarantined: clients get 503 until it is restored", "fix", "pdgate model status, pdgate model restore")
			ok = true
		}
		if ok {
			if urls = urls[1:]; len(urls) == 0 {
				return nil
			}
			continue
		}
		t := time.NewTimer(10 * time.Millisecond)
		select {
		case <-t.C:
		case <-wait.Done():
			t.Stop()
			return s.notReady(ctx, last)
		}
	}
}

// ask says whether url answers 200, and otherwise what it says.
func ask(ctx context.Context, client *http.Client, url string) (string, bool) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error(), false
	}
	resp, err := client.Do(req)
	if err != nil {
		return err.Error(), false
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	return string(b), resp.StatusCode == http.StatusOK
}

func (s *stack) notReady(ctx context.Context, last string) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.New("not ready in time: " + last)
}
