package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/internal/enginefake"
	"github.com/pdgate/pdgate/internal/sglangfake"
	"github.com/pdgate/pdgate/internal/vllmfake"
)

// newEngines describes a stack over nodes of an external engine. Their lease is
// short: what they may hold is accounted until its end, and a test waits for
// that.
func newEngines(kind string, prefill, decode []string) *system {
	s := newSystem(1)
	s.engine = engine.Config{Name: kind, Model: "fake"}
	s.prefill, s.decode, s.prefillPool, s.decodePool = len(prefill), len(decode), 0, 0
	s.nodes = &external{prefill: prefill, decode: decode, lease: 2 * time.Second, margin: 200 * time.Millisecond}
	if err := s.nodes.open(kind, 0, s.log); err != nil {
		panic(err)
	}
	return s
}

// door is what a client without an API key talks to: it adds tenant t1's.
func (s *system) door() *httptest.Server {
	to, err := url.Parse(s.http)
	if err != nil {
		panic(err)
	}
	p := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Header.Set("Authorization", "Bearer "+s.keys[s.names[0]])
		},
		FlushInterval: -1,
		Transport:     &http.Transport{DisableKeepAlives: true},
		ErrorHandler:  func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	}
	return httptest.NewServer(p)
}

// guardVLLM plays a published fault behind the gate, with change applied to the
// stack, and judges what the clients saw.
func guardVLLM(t *testing.T, sc *vllmfake.Scenario, change func(*system), judge func(*vllmfake.World) error) *record {
	t.Helper()
	w, err := sc.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s := newEngines("vllm", []string{w.Prefill.URL()}, []string{w.Decode.URL()})
	began := w.Clock.Now()
	s.nodes.clock = func() time.Time { return time.Now().Add(w.Clock.Now().Sub(began)) }
	if change != nil {
		change(s)
	}
	return s.run(t, func(ctx context.Context) error {
		door := s.door()
		defer door.Close()
		w.Front, w.Guarded = door.URL, true
		if err := sc.Steps(ctx, w); err != nil {
			return fmt.Errorf("steps: %w", err)
		}
		defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		return judge(w)
	})
}

// TestVLLMAnswers is a good day: prompts and chats, streamed or not.
func TestVLLMAnswers(t *testing.T) {
	sc := &vllmfake.Scenario{Name: "a good day", Steps: func(ctx context.Context, w *vllmfake.World) error {
		for _, stream := range []bool{false, true} {
			c := enginefake.Completion("alice", 200, 24)
			c.Body["stream"] = stream
			w.Call(ctx, c).Wait()
		}
		return nil
	}}
	log := guardVLLM(t, sc, nil, func(w *vllmfake.World) error {
		return errors.Join(w.Reply(0).Is(enginefake.Right("alice", 200, 24)), w.Reply(1).Is(enginefake.Right("alice", 200, 24)))
	})
	for id := range log.byRequest {
		t.Log(log.story(id))
	}
}

// guardSGLang is guardVLLM for the other engine.
func guardSGLang(t *testing.T, sc *sglangfake.Scenario, change func(*system), judge func(*sglangfake.World) error) *record {
	t.Helper()
	w, err := sc.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	s := newEngines("sglang", []string{w.Prefill.URL()}, []string{w.Decode.URL()})
	s.nodes.drain = 20 * time.Second
	if change != nil {
		change(s)
	}
	return s.run(t, func(ctx context.Context) error {
		door := s.door()
		defer door.Close()
		w.Front, w.Guarded = door.URL, true
		if err := sc.Steps(ctx, w); err != nil {
			return fmt.Errorf("steps: %w", err)
		}
		return judge(w)
	})
}

// claimant is an engine that promises more than its node holds, and keeps what
// else the engine is.
type claimant struct {
	engine.Engine
	engine.Watched
	engine.Placed
	engine.Forgetful
	claim int
}

// Info claims a longer input than the node takes.
func (h claimant) Info() engine.Info {
	i := h.Engine.Info()
	i.MaxInputTokens = h.claim
	return i
}

// claimsInput registers prefill workers of sglang with a longer input than
// their node takes.
func claimsInput(most int) func(string, engine.Engine) engine.Engine {
	return func(worker string, e engine.Engine) engine.Engine {
		if worker[0] != 'p' {
			return e
		}
		return claimant{e, e.(engine.Watched), e.(engine.Placed), e.(engine.Forgetful), most}
	}
}
