package engine_test

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/engine/remote"
	"github.com/pdgate/pdgate/internal/sglangfake"
	"github.com/pdgate/pdgate/internal/vllmfake"
)

func sglangNode(t *testing.T, c sglangfake.Config) *sglangfake.Node {
	t.Helper()
	n, err := sglangfake.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// Tokens are counted by a node or not at all: the next one is asked where one
// cannot, and what none counts is unavailable, not guessed.
func TestCounter(t *testing.T) {
	plain, chats := sglangNode(t, sglangfake.Config{}), sglangNode(t, sglangfake.Config{TokenizeChat: true, Template: 5})
	none := sglangNode(t, sglangfake.Config{NoTokenize: true})
	const prompt, chat = `{"prompt":"abcdef","temperature":1}`, `{"messages":[{"role":"user","content":"abcdef"}],"tools":[]}`
	for _, c := range []struct {
		name  string
		nodes []*sglangfake.Node
		body  string
		most  int // 0: it cannot be counted
	}{
		{"a prompt", []*sglangfake.Node{plain}, prompt, 6},
		{"one prompt of a list", []*sglangfake.Node{plain}, `{"prompt":["abcdef"]}`, 6},
		{"the next node", []*sglangfake.Node{none, plain}, prompt, 6},
		{"a build without it", []*sglangfake.Node{none}, prompt, 0},
		{"a chat", []*sglangfake.Node{chats}, chat, 64},
		{"a build for prompts only", []*sglangfake.Node{plain}, chat, 0},
		{"the next node, a chat", []*sglangfake.Node{plain, chats}, chat, 64},
	} {
		var urls []string
		for _, n := range c.nodes {
			urls = append(urls, n.URL())
		}
		x, err := engine.NewCounter(urls, "", "", slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		got, err := x.Count(t.Context(), []byte(c.body))
		x.Close()
		e, _ := errors.AsType[*events.Error](err)
		switch {
		case c.most == 0 && (e == nil || e.Code != events.CodeUnavailable || !strings.Contains(e.Message, "cannot count")):
			t.Errorf("%s: %d, %v", c.name, got, err)
		case c.most > 0 && (err != nil || got < 6 || got > c.most):
			t.Errorf("%s: %d, %v", c.name, got, err)
		}
	}
	if _, err := engine.NewCounter(nil, "", "", nil); err == nil {
		t.Error("a counter without a node")
	}
}

// What a node does not say, and nobody gave, is an error that names the flag;
// limits are the engine's own.
func TestProbe(t *testing.T) {
	ask := func(kind, url string, o engine.Overrides) (engine.Facts, error) {
		n, err := remote.NewNode(url, "")
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		return engine.Probe(t.Context(), kind, n, o)
	}
	vllm := func(c vllmfake.Config) string {
		n, err := vllmfake.New(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		return n.URL()
	}
	old := vllm(vllmfake.Config{Build: vllmfake.Old})
	if _, err := ask("vllm", old, engine.Overrides{}); err == nil || engine.Waits(err) || !strings.Contains(err.Error(), "--pool-tokens") {
		t.Errorf("an old build: %v", err)
	}
	if f, err := ask("vllm", old, engine.Overrides{PoolTokens: 1000}); err != nil || f.PoolTokens != 1000 || f.MaxInputTokens != 1000 {
		t.Errorf("an old build that is told: %+v, %v", f, err)
	}
	if f, err := ask("vllm", vllm(vllmfake.Config{ContextTokens: 1000}), engine.Overrides{}); err != nil || f.ContextTokens != 1000 || f.MaxInputTokens != 999 || f.Model != "fake" || f.PageTokens != 16 {
		t.Errorf("vllm: %+v, %v", f, err)
	}
	// The incident's figures, and ranks of which the smallest counts.
	p := sglangNode(t, sglangfake.Config{Role: sglangfake.Prefill, ContextTokens: 1_048_576, RankTokens: []int{700_000, 681_280}})
	if f, err := ask("sglang", p.URL(), engine.Overrides{}); err != nil || f.MaxInputTokens != 681_273 || f.PoolTokens != 681_280 || f.BootstrapPort != p.BootstrapPort() || f.Mode != "prefill" {
		t.Errorf("sglang: %+v, %v", f, err)
	}
	if _, err := ask("sglang", vllm(vllmfake.Config{}), engine.Overrides{}); err == nil || engine.Waits(err) {
		t.Errorf("a vLLM named as SGLang: %v", err)
	}
	if _, err := ask("vllm", vllm(vllmfake.Config{APIKey: "k"}), engine.Overrides{}); err == nil || engine.Waits(err) || !strings.Contains(err.Error(), "--engine-key-file") {
		t.Errorf("a node with a key: %v", err)
	}
	if _, err := ask("vllm", "http://127.0.0.1:1", engine.Overrides{}); err == nil || !engine.Waits(err) {
		t.Errorf("nobody there: %v", err)
	}
}
