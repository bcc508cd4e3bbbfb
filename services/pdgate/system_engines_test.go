package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
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

// TestEnginesPassThrough sends what the gateway does not understand, and gets
// back what it does not either: tools, log probabilities, choices, in pieces or
// not, with our ids around and the engine's inside left behind.
func TestEnginesPassThrough(t *testing.T) {
	chat := func(stream bool) enginefake.Call {
		c := enginefake.Call{Path: "/v1/chat/completions", Body: map[string]any{
			"model": "fake", "messages": []any{map[string]any{"role": "user", "content": "alice keeps to alice"}}, "max_tokens": 24, "stream": stream,
			"tools":       []any{map[string]any{"type": "function", "function": map[string]any{"name": "find", "parameters": map[string]any{}}}},
			"tool_choice": map[string]any{"type": "function", "function": map[string]string{"name": "find"}},
		}}
		if stream {
			c.Body["stream_options"] = map[string]any{"include_usage": true}
		}
		return c
	}
	logprobs := enginefake.Completion("alice", 200, 24)
	logprobs.Body["logprobs"], logprobs.Body["n"], logprobs.Body["seed"] = 1, 2, 7
	sc := &vllmfake.Scenario{Steps: func(ctx context.Context, w *vllmfake.World) error {
		for _, c := range []enginefake.Call{chat(false), chat(true), logprobs} {
			w.Call(ctx, c).Wait()
		}
		return nil
	}}
	guardVLLM(t, sc, nil, func(w *vllmfake.World) error {
		var errs []error
		for i := range 3 {
			r := w.Reply(i)
			raw := string(r.Raw)
			switch {
			case r.Status != http.StatusOK || r.Message != "" || r.Output < 1 || r.Prompt < 1:
				errs = append(errs, fmt.Errorf("call %d: %d %s", i, r.Status, raw))
			case i < 2 && (!strings.Contains(raw, `"tool_calls"`) || !strings.Contains(raw, `"name":"find"`) || r.FinishFirst() != "tool_calls"):
				errs = append(errs, fmt.Errorf("call %d: no tool call: %s", i, raw))
			case i == 2 && (len(r.Text) != 2 || strings.Count(raw, `"token_logprobs"`) != 2):
				errs = append(errs, fmt.Errorf("call %d: no log probabilities: %s", i, raw))
			case strings.Contains(raw, "kv_transfer_params") || !strings.Contains(raw, `cmpl-`) || strings.Count(raw, "[DONE]") != i%2:
				errs = append(errs, fmt.Errorf("call %d: %s", i, raw))
			}
		}
		seeds := map[string]bool{}
		for _, g := range w.Decode.Generations()[2:] {
			var b struct {
				Seed json.Number `json:"seed"`
				Salt string      `json:"cache_salt"`
				N    int         `json:"n"`
			}
			if err := json.Unmarshal(g.Body, &b); err != nil || b.Salt == "" || b.N != 0 {
				errs = append(errs, fmt.Errorf("decode's body: %s", g.Body))
			}
			seeds[b.Seed.String()] = true
		}
		if !seeds["7"] || !seeds["8"] {
			errs = append(errs, fmt.Errorf("seeds %v", seeds))
		}
		return errors.Join(errs...)
	})
}

// TestF30_SGLangCachesAreDividedByTenant: what goes to the engines names a part
// of the prefix cache that is the tenant's own.
func TestF30_SGLangCachesAreDividedByTenant(t *testing.T) {
	sglangRow(t, "F30", nil, func(w *sglangfake.World) error {
		salts := map[string]bool{}
		for _, g := range w.Prefill.Generations() {
			var b struct {
				Salt string `json:"cache_salt"`
			}
			if err := json.Unmarshal(g.Body, &b); err != nil {
				return err
			}
			salts[b.Salt] = true
		}
		return errors.Join(answered(w, 0, "alice"), answered(w, 1, "alice"), enginefake.Equal("salts", len(salts), 2))
	})
}
