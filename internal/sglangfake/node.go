package sglangfake

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"sync"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// Node is one engine: an HTTP server for clients, and a side channel that is the
// bootstrap server of a prefill node and the memory of a decode node.
type Node struct {
	enginefake.Gates

	cfg   Config
	front *enginefake.Server
	side  *enginefake.Server

	power    sync.Mutex     // held while the node goes up or down; before mu
	closed   bool           // under power
	restarts sync.WaitGroup // those that the injector asked for

	mu       sync.Mutex
	faults   Faults // under mu
	*life           // of the current start; the pointer under mu
	counts   Stats  // the counters of it; under mu
	running  int    // under mu
	prefixes []prefix
	logMu    sync.Mutex // one line at a time
}

// life is what a restart loses.
type life struct {
	id      string
	ctx     context.Context
	end     context.CancelFunc
	work    sync.WaitGroup     // writers and drains
	pools   []*enginefake.Pool // by DP rank
	jobs    map[string]*job    // by rid; under Node.mu
	rooms   map[int64]*room    // under Node.mu
	slots   []slot             // under Node.mu
	used    []bool             // slots in use; under Node.mu
	started time.Time
}

// Stats is what a node has and did since its last start.
type Stats struct {
	Pages    int // of all ranks
	Free     int
	Held     int // of requests and drains
	Draining int // requests whose pages wait for a writer's end

	Running      int // requests
	Waiting      int // requests that wait for the other node
	Transferring int // requests whose transfer has begun
	Writers      int // transfers that may still write, of a prefill node

	Prefills        int // finished prefill legs
	Decodes         int // finished decode legs
	Written         int // transfers that arrived, of a decode node
	FailedTransfers int
	Aborted         int  // requests whose client left, or that were aborted
	Frozen          bool // see Faults.OverCommit
}

// New starts a node.
func New(cfg Config) (*Node, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, faults: cfg.Faults}
	n.boot()
	if n.side, err = enginefake.Serve(n.sideRoutes(), nil); err != nil {
		return nil, err
	}
	if n.front, err = enginefake.Serve(n.routes(), cfg.Inject); err != nil {
		n.side.Close()
		return nil, err
	}
	cfg.Inject.OnRestart(func() {
		n.restarts.Go(func() { _ = n.Restart() }) // a node that does not come back is down, and seen to be
	})
	return n, nil
}

func (n *Node) boot() {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &life{
		id: token(8), jobs: map[string]*job{}, rooms: map[int64]*room{}, started: n.cfg.Clock.Now(),
		slots: make([]slot, n.cfg.MetadataSlots), used: make([]bool, n.cfg.MetadataSlots),
	}
	l.ctx, l.end = context.WithCancel(context.Background())
	for _, t := range n.cfg.RankTokens {
		// Page 0 takes what padded tokens write, as in the engine.
		l.pools = append(l.pools, enginefake.NewPool(t/n.cfg.PageSize, n.cfg.PageSize, 1))
	}
	n.life, n.counts, n.running, n.prefixes = l, Stats{}, 0, nil
}

func token(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// URL is the address for clients.
func (n *Node) URL() string { return n.front.URL() }

// BootstrapPort is disaggregation_bootstrap_port.
func (n *Node) BootstrapPort() int { return n.side.Port() }

// Close ends the node for good.
func (n *Node) Close() {
	n.power.Lock()
	n.closed = true
	n.crash()
	n.power.Unlock()
	n.restarts.Wait()
}

// Crash cuts all connections. Requests get no answer, and nobody can reach the
// node until [Node.Restart].
func (n *Node) Crash() {
	n.power.Lock()
	defer n.power.Unlock()
	n.crash()
}

func (n *Node) crash() {
	n.mu.Lock()
	l := n.life
	n.mu.Unlock()
	l.end()
	n.front.Crash()
	n.side.Crash()
	l.work.Wait()
}

// Cut resets the connections of clients that wait for an answer. The node goes on.
func (n *Node) Cut() { n.front.Cut() }

// Restart brings the node back on the same ports with an empty pool.
func (n *Node) Restart() error {
	n.power.Lock()
	defer n.power.Unlock()
	if n.closed {
		return nil
	}
	n.crash()
	n.boot()
	if err := n.side.Start(); err != nil {
		return err
	}
	return n.front.Start()
}

// SetFaults replaces the faults.
func (n *Node) SetFaults(f Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = f
}

func (n *Node) fault() Faults {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.faults
}

// Requests are the requests that clients sent, in order.
func (n *Node) Requests() []enginefake.Seen { return n.front.Requests() }

// Generations are those of them that asked for a generation.
func (n *Node) Generations() []enginefake.Seen {
	var out []enginefake.Seen
	for _, r := range n.Requests() {
		switch r.Path {
		case "/generate", "/v1/completions", "/v1/chat/completions":
			out = append(out, r)
		}
	}
	return out
}

// Stats counts.
func (n *Node) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.counts
	for _, p := range n.pools {
		s.Pages, s.Free = s.Pages+p.Blocks(), s.Free+p.Free()
	}
	s.Held, s.Running = s.Pages-s.Free, n.running
	for _, r := range n.rooms {
		switch {
		case r.writing != nil && !r.over():
			s.Writers++
			s.Transferring++
		case r.state == transferring && !r.over():
			s.Transferring++
		}
	}
	return s
}

// Fill writes text over all free pages and leaves them free: other requests, that
// have been here before.
func (n *Node) Fill(text []byte) {
	n.mu.Lock()
	pools := n.pools
	n.mu.Unlock()
	for _, p := range pools {
		owner := "fill-" + token(4)
		ids, ok := p.Alloc(owner, p.Free())
		if !ok {
			continue
		}
		for at := 0; at < len(ids)*n.cfg.PageSize && len(text) > 0; at += len(text) {
			p.Write(ids, at, text)
		}
		p.Release(owner, ids)
	}
}

func (n *Node) count(f func(*Stats)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(&n.counts)
}

func (n *Node) pace(ctx context.Context) error {
	return enginefake.Sleep(ctx, n.cfg.Clock, enginefake.Work(1, n.cfg.DecodeRate))
}

func (n *Node) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /generate", n.authorized(n.serve(generateRoute)))
	mux.HandleFunc("POST /v1/completions", n.authorized(n.serve(completionsRoute)))
	mux.HandleFunc("POST /v1/chat/completions", n.authorized(n.serve(chatRoute)))
	mux.HandleFunc("POST /abort_request", n.authorized(n.abortRequest))
	mux.HandleFunc("GET /server_info", n.authorized(n.serverInfo))
	mux.HandleFunc("GET /get_server_info", n.authorized(n.serverInfo))
	mux.HandleFunc("GET /v1/models", n.authorized(n.models))
	mux.HandleFunc("GET /v1/loads", n.authorized(n.loads))
	mux.HandleFunc("GET /health", n.health)
	if !n.cfg.NoMetrics {
		mux.HandleFunc("GET /metrics", n.metrics)
	}
	if !n.cfg.NoTokenize {
		mux.HandleFunc("POST /tokenize", n.authorized(n.tokenize))
		mux.HandleFunc("POST /v1/tokenize", n.authorized(n.tokenize))
	}
	return mux
}
