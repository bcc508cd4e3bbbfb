package engine_test

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/engine/enginetest"
	"github.com/pdgate/pdgate/gpuworker/engine/remote"
	"github.com/pdgate/pdgate/internal/enginefake"
	"github.com/pdgate/pdgate/internal/sglangfake"
	"github.com/pdgate/pdgate/internal/vllmfake"
)

// open makes the engine of one node, and watches it until the test ends.
func open(t *testing.T, kind string, r engine.Remote) engine.Engine {
	t.Helper()
	n, err := remote.NewNode(r.URL, "")
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if r.Facts, err = engine.Probe(t.Context(), kind, n, engine.Overrides{}); err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(engine.Config{Name: kind, Model: "m", Remote: &r})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.(engine.Watched).Watch(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return e
}

func body(who string, tokens int) []byte {
	b, err := json.Marshal(map[string]any{"prompt": string(enginefake.Sentinel(who, tokens)), "temperature": 0})
	if err != nil {
		panic(err)
	}
	return b
}

func TestVLLMConformance(t *testing.T) {
	enginetest.RunExternal(t, enginetest.External{Prompt: body, Right: enginefake.Right, New: func(t *testing.T) enginetest.Nodes {
		var urls [2]string
		for i, role := range []vllmfake.Role{vllmfake.Prefill, vllmfake.Decode} {
			n, err := vllmfake.New(vllmfake.Config{Role: role, ContextTokens: 512})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(n.Close)
			urls[i] = n.URL()
		}
		return enginetest.Nodes{Now: time.Now,
			Prefill: open(t, "vllm", engine.Remote{Name: "p1", Role: events.RolePrefill, URL: urls[0]}),
			Decode:  open(t, "vllm", engine.Remote{Name: "d1", Role: events.RoleDecode, URL: urls[1]}),
		}
	}})
}

func TestSGLangConformance(t *testing.T) {
	enginetest.RunExternal(t, enginetest.External{Prompt: body, Right: enginefake.Right, New: func(t *testing.T) enginetest.Nodes {
		var urls [2]string
		for i, role := range []sglangfake.Role{sglangfake.Prefill, sglangfake.Decode} {
			n, err := sglangfake.New(sglangfake.Config{Role: role, ContextTokens: 512})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(n.Close)
			urls[i] = n.URL()
		}
		p := engine.NewPairing(nil)
		return enginetest.Nodes{Now: time.Now,
			Decode:  open(t, "sglang", engine.Remote{Name: "d1", Role: events.RoleDecode, URL: urls[1], Pairing: p}),
			Prefill: open(t, "sglang", engine.Remote{Name: "p1", Role: events.RolePrefill, URL: urls[0], Pairing: p}),
		}
	}})
}
