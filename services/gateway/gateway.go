package gateway

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
)

var errTooLong = errors.New("the request took longer than the gateway allows")

// Gateway serves the OpenAI API over lifecycles.
type Gateway struct {
	cfg     Config
	handler http.Handler
	started time.Time
	memory  budget
	foreign atomic.Uint64 // pieces of output from workers that do not hold the request
	keys    events.Keys
	kept    disclosing

	ready  chan struct{}
	halted chan struct{} // closed when open requests must end

	mu       sync.Mutex
	serving  bool // subscribed and not stopping
	open     int  // completion requests
	idle     chan struct{}
	flights  map[string]*flight
	infoView *events.InfoView
	infoErr  error
	infoTime time.Time

	infoMu sync.Mutex // one question at a time
}

// New validates cfg. Nothing is served before Run is ready.
func New(cfg Config) (*Gateway, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	g := &Gateway{
		cfg:     cfg,
		started: cfg.Now(),
		memory:  budget{limit: cfg.Limits.Memory},
		ready:   make(chan struct{}),
		halted:  make(chan struct{}),
		idle:    make(chan struct{}),
		flights: make(map[string]*flight),
		keys:    events.Keys{Secret: cfg.DigestSecret, Tenants: cfg.TenantKeys},
	}
	g.handler = g.routes()
	return g, nil
}

// Handler serves the API. See [NewServer] for the server around it.
func (g *Gateway) Handler() http.Handler { return g.handler }

// Ready is closed when requests can be served.
func (g *Gateway) Ready() <-chan struct{} { return g.ready }

// Stats are gauges for a console.
type Stats struct {
	Requests int    // open completion requests
	Flights  int    // open lifecycles
	Memory   int64  // bytes of bodies, prompts and waiting output
	Foreign  uint64 // pieces of output dropped: their sender does not hold the request
	Withheld uint64 // requests whose personal fields were not stored: only their digests are left
}

// Stats reads the gauges.
func (g *Gateway) Stats() Stats {
	g.mu.Lock()
	defer g.mu.Unlock()
	return Stats{g.open, len(g.flights), g.memory.used.Load(), g.foreign.Load(), g.kept.lost.Load()}
}

// Run subscribes, and serves until ctx ends. It then refuses new requests, lets
// open ones end within Timeouts.Drain, cancels the rest, and returns. It runs
// once.
func (g *Gateway) Run(ctx context.Context) error {
	closed := g.cfg.Conn.StatusChanged(nats.CLOSED)
	defer g.cfg.Conn.RemoveStatusListener(closed)
	var subs []*nats.Subscription
	defer func() {
		for _, s := range subs {
			_ = s.Unsubscribe() // fails only where the connection is gone
		}
	}()
	for subject, handle := range map[string]nats.MsgHandler{
		"pdgate.prompt." + g.cfg.Name + ".>": g.servePrompt,
		"pdgate.output." + g.cfg.Name + ".>": g.takeOutput,
		events.NotifyAll:                     g.takeNotice,
	} {
		s, err := g.cfg.Conn.Subscribe(subject, handle)
		if err != nil {
			return fmt.Errorf("gateway: subscribe %s: %w", subject, err)
		}
		subs = append(subs, s)
		// A burst waits in memory rather than being dropped: what is dropped costs its
		// request.
		if err := s.SetPendingLimits(1<<18, 256<<20); err != nil {
			return fmt.Errorf("gateway: subscribe %s: %w", subject, err)
		}
	}
	// An admission before the server knows the subscriptions would lose its notices.
	flush, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if err := g.cfg.Conn.FlushWithContext(flush); err != nil {
		return fmt.Errorf("gateway: subscribe: %w", err)
	}
	g.mu.Lock()
	g.serving = true
	g.mu.Unlock()
	close(g.ready)

	var err error
	select {
	case <-ctx.Done():
	case <-closed:
		err = errors.New("gateway: the NATS connection was closed")
	}
	g.drain()
	g.kept.wg.Wait() // each within Timeouts.Disclose
	return err
}

// drain refuses new requests and ends the open ones.
func (g *Gateway) drain() {
	g.mu.Lock()
	g.serving = false
	if g.open == 0 {
		close(g.idle)
	}
	g.mu.Unlock()
	t := time.NewTimer(g.cfg.Timeouts.Drain)
	defer t.Stop()
	select {
	case <-g.idle:
	case <-t.C:
		close(g.halted)
		<-g.idle // each one ends within its own timeouts, or when [Serve] closes its connection
	}
}

// enter counts a completion request in. The caller must leave.
func (g *Gateway) enter() *failure {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.serving:
		return newFailure(events.CodeUnavailable, "the gateway is starting or stopping")
	case g.open >= g.cfg.Limits.Requests:
		return newFailure(events.CodeOverloaded, "the gateway serves as many requests as it may")
	}
	g.open++
	return nil
}

func (g *Gateway) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open--; g.open == 0 && !g.serving {
		close(g.idle)
	}
}

// register makes a call's lifecycles known to the subscriptions. It comes before
// the admission: a notification can arrive before the answer.
func (g *Gateway) register(c *call) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, f := range c.flights {
		g.flights[f.id] = f
	}
}

func (g *Gateway) forget(c *call) {
	g.mu.Lock()
	for _, f := range c.flights {
		delete(g.flights, f.id)
	}
	g.mu.Unlock()
	for _, f := range c.flights {
		f.close()
	}
	c.freePrompt()
}

func (g *Gateway) flight(id string) *flight {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.flights[id]
}

// flightOf is flight for an id that need not become a string.
func (g *Gateway) flightOf(id []byte) *flight {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.flights[string(id)]
}
