package enginefake_test

import (
	"strings"
	"testing"

	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/internal/enginefake"
)

// The fakes say what the ref engine says to the same prompt.
func TestAnswersAsRef(t *testing.T) {
	eng, err := engine.New(engine.Config{ContextTokens: 2048})
	if err != nil {
		t.Fatal(err)
	}
	prompts := []string{
		string(enginefake.Sentinel("alice", 500)),
		"The bank's code is 4711. My code is 4712. The bank's code is",
		strings.Repeat("one two three\nfour five six\n", 9) + "one two thr",
		"no repetition",
	}
	for _, p := range prompts {
		kv := engine.NewMemory(eng.Info(), 2048)
		pre, err := eng.Prefill(t.Context(), engine.PrefillJob{Prompt: []byte(p), Sampling: engine.Sampling{MaxTokens: 32}, KV: kv})
		if err != nil || pre.Refused != nil {
			t.Fatal(err, pre.Refused)
		}
		var text []byte
		_, err = eng.Decode(t.Context(), engine.DecodeJob{PromptTokens: len(p), First: pre.First, Sampling: engine.Sampling{MaxTokens: 32}, KV: kv},
			func(piece []byte, _ int) error { text = append(text, piece...); return nil })
		if err != nil {
			t.Fatal(err)
		}
		if got := string(enginefake.Continue([]byte(p), 32)); got != string(text) {
			t.Errorf("after %q: %q, the ref engine says %q", p, got, text)
		}
	}
}

// A sentinel's answer names who, whatever the length it is cut at.
func TestSentinelAnswersNameWho(t *testing.T) {
	for n := 60; n < 260; n++ {
		if got := enginefake.Right("alice", n, 24); !strings.Contains(got, "alice") || strings.Contains(got, "bob") {
			t.Errorf("%d tokens: %q", n, got)
		}
	}
	if got := string(enginefake.Continue(enginefake.Noise(200), 24)); strings.ContainsAny(got, "abcdefghijklmnopqrstuvwxyz") {
		t.Errorf("noise says %q", got)
	}
}
