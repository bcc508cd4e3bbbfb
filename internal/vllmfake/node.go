package vllmfake

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// Node is one engine: an HTTP server for clients, and a side channel over which
// other nodes read its KV.
type Node struct {
	enginefake.Gates
	*enginefake.Host

	cfg  Config
	pool *enginefake.Pool // replaced by Restart, under mu

	mu      sync.Mutex
	faults  Faults           // under mu
	engine  string           // engine id of this life; under mu
	started time.Time        // of this life; under mu
	dead    bool             // the engine core has died; under mu
	sent    map[string]*sent // by internal request id; under mu
	counts  Stats            // the counters of it; under mu
	running int              // under mu
	queued  int              // under mu
	logMu   sync.Mutex       // one line at a time
}

// Stats is what a node has and did since its last start.
type Stats struct {
	Blocks    int // size of the pool
	Free      int
	Held      int // of running requests
	Stranded  int // of finished prefills that nobody has read, within their lease
	PastLease int // the same, with the lease over

	Running      int // requests
	Queued       int // requests that wait for blocks
	Transferring int // requests held before or in a transfer

	Prefills        int // finished prefill legs
	Decodes         int // finished decode legs
	Recomputed      int // decode legs that computed the prompt themselves
	FailedTransfers int // vllm:nixl_num_failed_transfers_total
	Expired         int // vllm:nixl_num_kv_expired_reqs_total
	Extended        int // heartbeats that extended a lease
	Aborted         int // requests whose client left
}

// New starts a node.
func New(cfg Config) (*Node, error) {
	cfg, err := cfg.filled()
	if err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, faults: cfg.Faults}
	n.boot()
	if n.Host, err = enginefake.NewHost(n.routes(), n.sideRoutes(), cfg.Inject, func() {}, n.boot); err != nil {
		return nil, err
	}
	return n, nil
}

// boot begins a life: another engine id, an empty pool.
func (n *Node) boot() {
	n.mu.Lock()
	defer n.mu.Unlock()
	// Block 0 is the null block, as in the engine.
	n.pool = enginefake.NewPool(n.cfg.Blocks, n.cfg.BlockSize, 1)
	n.engine, n.started, n.dead = token(16), n.cfg.Clock.Now(), false
	n.sent, n.counts, n.running, n.queued = map[string]*sent{}, Stats{}, 0, 0
}

func token(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails
	return hex.EncodeToString(b)
}

// EngineID is the engine id of this life.
func (n *Node) EngineID() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.engine
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

// Stats counts.
func (n *Node) Stats() Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sweep()
	s := n.counts
	s.Blocks, s.Free = n.pool.Blocks(), n.pool.Free()
	now := n.cfg.Clock.Now()
	for _, r := range n.sent {
		switch {
		case r.gone != held:
		case now.Before(r.until):
			s.Stranded += len(r.blocks)
		default:
			s.PastLease += len(r.blocks)
		}
	}
	s.Held = s.Blocks - s.Free - s.Stranded - s.PastLease
	s.Running, s.Queued, s.Transferring = n.running, n.queued, n.Waiting(enginefake.AtTransfer)
	return s
}

// Fill writes text over all free blocks and leaves them free: other traffic, that
// takes blocks whose content somebody still refers to.
func (n *Node) Fill(text []byte) {
	n.mu.Lock()
	n.sweep()
	pool := n.pool
	n.mu.Unlock()
	owner := "fill-" + token(4)
	ids, ok := pool.Alloc(owner, pool.Free())
	if !ok {
		return
	}
	for at := 0; at < len(ids)*n.cfg.BlockSize && len(text) > 0; at += len(text) {
		pool.Write(ids, at, text)
	}
	pool.Release(owner, ids)
}

func (n *Node) count(f func(*Stats)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f(&n.counts)
}

func (n *Node) logf(format string, args ...any) {
	n.logMu.Lock()
	defer n.logMu.Unlock()
	fmt.Fprintf(n.cfg.Log, format+"\n", args...)
}

// pace waits for one token's time.
func (n *Node) pace(ctx context.Context) error {
	return enginefake.Sleep(ctx, n.cfg.Clock, enginefake.Work(1, n.cfg.DecodeRate))
}

func (n *Node) routes() http.Handler {
	mux := http.NewServeMux()
	key := func(h http.HandlerFunc) http.HandlerFunc { return enginefake.RequireKey(n.cfg.APIKey, h) }
	mux.HandleFunc("POST /v1/completions", key(n.generate(false)))
	mux.HandleFunc("POST /v1/chat/completions", key(n.generate(true)))
	mux.HandleFunc("GET /v1/models", key(n.models))
	mux.HandleFunc("POST /tokenize", key(n.tokenize))
	mux.HandleFunc("GET /version", n.version)
	mux.HandleFunc("GET /health", n.health)
	mux.HandleFunc("GET /load", n.serverLoad)
	mux.HandleFunc("GET /metrics", n.metrics)
	return mux
}
