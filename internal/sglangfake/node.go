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
	*enginefake.Host

	cfg Config

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
	if n.Host, err = enginefake.NewHost(n.routes(), n.sideRoutes(), cfg.Inject, n.halt, n.boot); err != nil {
		return nil, err
	}
	return n, nil
}

func (n *Node) boot() {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &life{
		id: token(8), jobs: map[string]*job{}, rooms: map[int64]*room{}, started: n.cfg.Clock.Now(),
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

// BootstrapPort is disaggregation_bootstrap_port.
func (n *Node) BootstrapPort() int { return n.SidePort() }

// halt ends what the life does besides serving.
func (n *Node) halt() {
	n.mu.Lock()
	l := n.life
	n.mu.Unlock()
	l.end()
	l.work.Wait()
}

// SetFaults replaces the faults.
func (n *Node) SetFaults(f Faults) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.faults = f
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
	key := func(h http.HandlerFunc) http.HandlerFunc { return enginefake.RequireKey(n.cfg.APIKey, h) }
	mux.HandleFunc("POST /generate", key(n.serve(generateRoute)))
	mux.HandleFunc("POST /v1/completions", key(n.serve(completionsRoute)))
	mux.HandleFunc("POST /v1/chat/completions", key(n.serve(chatRoute)))
	mux.HandleFunc("POST /abort_request", key(n.abortRequest))
	mux.HandleFunc("GET /server_info", key(n.serverInfo))
	mux.HandleFunc("GET /get_server_info", key(n.serverInfo))
	mux.HandleFunc("GET /v1/models", key(n.models))
	mux.HandleFunc("GET /v1/loads", key(n.loads))
	mux.HandleFunc("GET /health", n.health)
	if !n.cfg.NoMetrics {
		mux.HandleFunc("GET /metrics", n.metrics)
	}
	if !n.cfg.NoTokenize {
		mux.HandleFunc("POST /tokenize", key(n.tokenize))
		mux.HandleFunc("POST /v1/tokenize", key(n.tokenize))
	}
	return mux
}
