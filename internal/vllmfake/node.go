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

	cfg   Config
	pool  *enginefake.Pool // replaced by Restart, under mu
	front *enginefake.Server
	side  *enginefake.Server

	power    sync.Mutex     // held while the node goes up or down; before mu
	closed   bool           // under power
	restarts sync.WaitGroup // those that the injector asked for

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

// URL is the address for clients.
func (n *Node) URL() string { return n.front.URL() }

// EngineID is the engine id of this life.
func (n *Node) EngineID() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.engine
}

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
	n.front.Crash()
	n.side.Crash()
}

// Cut resets the connections of clients that wait for an answer. The node goes on.
func (n *Node) Cut() { n.front.Cut() }

// Restart brings the node back on the same ports with another engine id and an
// empty pool.
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
		if r.Path == "/v1/completions" || r.Path == "/v1/chat/completions" {
			out = append(out, r)
		}
	}
	return out
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

// Fill writes text over n.Free blocks and frees them again: other traffic, that
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
	mux.HandleFunc("POST /v1/completions", n.authorized(n.generate(false)))
	mux.HandleFunc("POST /v1/chat/completions", n.authorized(n.generate(true)))
	mux.HandleFunc("GET /v1/models", n.authorized(n.models))
	mux.HandleFunc("POST /tokenize", n.authorized(n.tokenize))
	mux.HandleFunc("GET /version", n.version)
	mux.HandleFunc("GET /health", n.health)
	mux.HandleFunc("GET /load", n.serverLoad)
	mux.HandleFunc("GET /metrics", n.metrics)
	return mux
}
