package sglangfake

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// Naive is a proxy as the public examples write it: both legs at once under one
// room, and decode's answer, whatever it and prefill's are. Only tests run it.
type Naive struct {
	Prefill, Decode string // base URLs
	Bootstrap       int    // prefill's bootstrap port

	legs sync.WaitGroup // of prefill
}

// ServeHTTP implements [http.Handler].
func (p *Naive) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var body map[string]any
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	body["bootstrap_host"], body["bootstrap_port"], body["bootstrap_room"] = "127.0.0.1", p.Bootstrap, rand.Int64()
	b, err := json.Marshal(body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	// Prefill's leg ends with the client's leaving, and not with decode's answer.
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	stop := context.AfterFunc(r.Context(), cancel)
	p.legs.Go(func() {
		defer cancel()
		if res, err := send(ctx, p.Prefill+r.URL.Path, b); err == nil {
			_, _ = io.Copy(io.Discard, res.Body) // nobody looks at it
			_ = res.Body.Close()
		}
	})
	res, err := send(r.Context(), p.Decode+r.URL.Path, b)
	if err != nil {
		enginefake.Relay(w, http.StatusBadGateway, nil)
		return
	}
	enginefake.RelayStream(w, res)
	stop()
}

// Wait waits for the prefill legs that are under way.
func (p *Naive) Wait() { p.legs.Wait() }

func send(ctx context.Context, url string, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	return enginefake.Client.Do(req)
}
