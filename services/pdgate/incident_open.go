package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// openServer is the path without pdgate: a prefill pool, a decode pool, and a
// queue between them that asks whether prefill has finished. Nobody asks whether
// it refused; freed pages keep their bytes; decode believes the length that the
// router reserved for. These are the same engine and the same pools that run
// behind pdgate.
type openServer struct {
	engine  engine.Engine
	prefill *kvpool.Pool
	decode  *kvpool.Pool
	devices []func() error // close them

	mu   sync.Mutex
	held []*kvpool.Allocation // decode's pages of the batch that runs
	next int
	rec  *openRecord // nil: nothing is recorded
}

func newOpenServer(s *scene, threads int, device string) (*openServer, error) {
	eng, err := engine.New(s.engine(threads))
	if err != nil {
		return nil, err
	}
	o := &openServer{engine: eng}
	for _, p := range []struct {
		pool   **kvpool.Pool
		tokens int
	}{{&o.prefill, s.prefillTokens}, {&o.decode, s.decodeTokens}} {
		var done func() error
		*p.pool, done, err = openPool(device, kvpool.Config{
			Pages: eng.Info().PagesFor(p.tokens), PageBytes: eng.Info().PageBytes(), Epoch: 1, Scrub: kvpool.ScrubNone,
		})
		if err != nil {
			return nil, errors.Join(err, o.close())
		}
		o.devices = append(o.devices, done)
	}
	return o, nil
}

// ServeHTTP answers /v1/completions.
func (o *openServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Prompt    string `json:"prompt"`
		MaxTokens int    `json:"max_tokens"`
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		http.Error(w, "body is not JSON", http.StatusBadRequest)
		return
	}
	text, err := o.complete(r.Context(), []byte(req.Prompt), req.MaxTokens)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"object": "text_completion", "choices": []any{map[string]any{"index": 0, "text": text, "finish_reason": "length"}},
	})
}

// complete is one request's way through both nodes. Its decode pages stay with
// the batch until endBatch.
func (o *openServer) complete(ctx context.Context, prompt []byte, maxTokens int) (string, error) {
	o.mu.Lock()
	o.next++
	id, n := fmt.Sprintf("request-%d", o.next), o.next-1
	o.mu.Unlock()
	info := o.engine.Info()
	rec := o.rec.request(n, len(prompt), maxTokens)
	dst, err := o.decode.Alloc(id, info.PagesFor(len(prompt)+maxTokens))
	if err != nil {
		return "", err
	}
	o.mu.Lock()
	o.held = append(o.held, dst)
	o.mu.Unlock()
	src, err := o.prefill.Alloc(id, info.PagesFor(min(len(prompt), info.MaxInputTokens)))
	if err != nil {
		return "", err
	}
	defer func() {
		o.prefill.Free(src)
		rec.released(o.prefill, events.RolePrefill, src)
	}()
	sampling := engine.Sampling{MaxTokens: maxTokens}
	pre, err := o.engine.Prefill(ctx, engine.PrefillJob{RequestID: id, Prompt: prompt, Sampling: sampling, KV: src})
	if err != nil {
		return "", err
	}
	rec.refused(pre.Refused)
	rec.prefilled(o.prefill, src, pre.PromptTokens)
	rec.granted(o.prefill, o.decode, dst)
	// Finished? Yes. pre.Refused is not looked at: this is the bug's other half.
	if err := o.handOff(id, src, dst, info.PagesFor(pre.PromptTokens)); err != nil {
		return "", err
	}
	rec.transferred(o.decode, info.PagesFor(pre.PromptTokens)*info.PageBytes())
	var out []byte
	res, err := o.engine.Decode(ctx, engine.DecodeJob{RequestID: id, PromptTokens: len(prompt), First: pre.First, Sampling: sampling, KV: dst},
		func(text []byte, _ int) error { out = append(out, text...); return nil })
	if err == nil {
		rec.decoded(o.decode, len(prompt), res.CompletionTokens)
	}
	return string(out), err
}

// handOff copies what prefill wrote: for a placeholder, one page.
func (o *openServer) handOff(id string, src, dst *kvpool.Allocation, pages int) error {
	pin, err := o.prefill.Pin(id, o.prefill.Epoch(), src.Runs())
	if err != nil {
		return err
	}
	defer pin.Release()
	write, err := o.decode.BeginWrite(dst)
	if err != nil {
		return err
	}
	defer write.End()
	const chunk = 1024 // pages at a time
	buf := make([]byte, min(chunk, pages)*o.prefill.PageBytes())
	for from := 0; from < pages; from += chunk {
		to := min(from+chunk, pages)
		b := buf[:(to-from)*o.prefill.PageBytes()]
		if err := errors.Join(pin.Gather(b, from, to), write.Scatter(from, b)); err != nil {
			return err
		}
	}
	return nil
}

// close gives the devices back.
func (o *openServer) close() error {
	o.endBatch()
	var errs []error
	for _, done := range o.devices {
		errs = append(errs, done())
	}
	return errors.Join(errs...)
}

// endBatch gives decode's pages back, as they are.
func (o *openServer) endBatch() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, a := range o.held {
		<-o.decode.Free(a)
		o.rec.releasedOf(o.decode, a)
	}
	o.held = nil
}
