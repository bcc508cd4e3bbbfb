package vllmfake

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// The side channel stands for NIXL: decode reads prefill's blocks over it, says
// when it has read them, and keeps leases alive.

type readRequest struct {
	Engine  string `json:"engine"`
	Request string `json:"request"`
	Blocks  []int  `json:"blocks"`
	Tokens  int    `json:"tokens"`
}

type readAnswer struct {
	Found found  `json:"found"`
	KV    []byte `json:"kv"`
}

func (n *Node) sideRoutes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /handshake", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, n.EngineID())
	})
	mux.HandleFunc("POST /read", func(w http.ResponseWriter, r *http.Request) {
		var q readRequest
		if json.NewDecoder(r.Body).Decode(&q) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		f, kv := n.read(q.Engine, q.Request, q.Blocks, q.Tokens)
		enginefake.WriteJSON(w, http.StatusOK, readAnswer{Found: f, KV: kv})
	})
	mux.HandleFunc("POST /done/{id}", func(_ http.ResponseWriter, r *http.Request) { n.done(r.PathValue("id")) })
	mux.HandleFunc("POST /heartbeat/{id}", func(_ http.ResponseWriter, r *http.Request) { n.extend(r.PathValue("id")) })
	return mux
}

// peer is a prefill node as a reference names it.
type peer struct{ base string }

func (p *params) peer() peer { return peer{fmt.Sprintf("http://%s:%d", p.Host, p.Port)} }

// call has a bound of its own on the machine's clock, so that a peer that is
// gone is a failed load and not a request that waits.
func (p peer) call(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, p.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	res, err := sideClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("side channel: %s", res.Status)
	}
	return b, err
}

var sideClient = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// fetch is a node's read of remote KV.
func (n *Node) fetch(ctx context.Context, p *params, blocks []int, tokens int) (readAnswer, error) {
	var a readAnswer
	id, err := p.peer().call(ctx, http.MethodGet, "/handshake", nil)
	if err == nil && string(id) != p.EngineID {
		err = fmt.Errorf("handshake: another engine")
	}
	if err != nil {
		return a, err
	}
	q, err := json.Marshal(readRequest{Engine: p.EngineID, Request: p.RequestID, Blocks: blocks, Tokens: tokens})
	if err != nil {
		return a, err
	}
	b, err := p.peer().call(ctx, http.MethodPost, "/read", q)
	if err == nil {
		err = json.Unmarshal(b, &a)
	}
	return a, err
}

// notify tells prefill that its blocks are read, or will not be. A client that
// has left does not stop it.
func (n *Node) notify(ctx context.Context, p *params) {
	ctx = context.WithoutCancel(ctx)
	_, _ = p.peer().call(ctx, http.MethodPost, "/done/"+url.PathEscape(p.RequestID), nil) // a prefill that is gone has no blocks
}

// keepAlive extends the lease until ctx ends. The returned channel closes then.
func (n *Node) keepAlive(ctx context.Context, p *params) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n.cfg.Build != Old && p.RequestID != "" {
			select {
			case <-ctx.Done():
				return
			case <-n.cfg.Clock.After(n.cfg.Lease / 6):
				_, _ = p.peer().call(ctx, http.MethodPost, "/heartbeat/"+url.PathEscape(p.RequestID), nil) // the lease decides
			}
		}
	}()
	return done
}
