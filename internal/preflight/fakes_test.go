package preflight

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/internal/sglangfake"
	"github.com/pdgate/pdgate/internal/vllmfake"
)

func sglangNode(t *testing.T, cfg sglangfake.Config) string {
	t.Helper()
	n, err := sglangfake.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n.URL()
}

func vllmNode(t *testing.T, cfg vllmfake.Config) string {
	t.Helper()
	n, err := vllmfake.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n.URL()
}

// longestAccepted asks an engine itself: the longest prompt that it does not
// refuse, between two lengths.
func longestAccepted(t *testing.T, url string, low, high int) int {
	t.Helper()
	client := newHTTP()
	for low+1 < high {
		mid := (low + high) / 2
		body := `{"model":"fake","max_tokens":1,"prompt":"` + strings.Repeat("x", mid) + `"}`
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/completions", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		cancel()
		if resp.StatusCode == http.StatusOK {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// TestLengthRule: the longest input that preflight works out is the one that the
// engine accepts, whether its pool or its context is the tighter limit.
func TestLengthRule(t *testing.T) {
	for name, cfg := range map[string]sglangfake.Config{
		"pool":    {ContextTokens: 2048, PoolTokens: 1024},
		"context": {ContextTokens: 1024, PoolTokens: 4096},
	} {
		url := sglangNode(t, cfg)
		r, err := Node(t.Context(), url)
		if err != nil || !r.Nodes[0].LongestInput.Known() {
			t.Fatalf("%s: %v %+v", name, err, r)
		}
		if got, want := longestAccepted(t, url, 1, 4096), int(r.Nodes[0].LongestInput.Int()); got != want {
			t.Errorf("%s: the engine accepts %d tokens, preflight says %d", name, got, want)
		}
	}
}

// TestFakeFleets judges stateful engines in the incident's proportions.
func TestFakeFleets(t *testing.T) {
	const context = 16 << 10
	prefill := sglangfake.Config{Role: sglangfake.Prefill, Version: "0.5.22", ContextTokens: context, PoolTokens: 10_640}
	decode := sglangfake.Config{Role: sglangfake.Decode, Version: "0.5.22", ContextTokens: context, PoolTokens: 2 * context, APIKey: ""}
	repaired, buggy := prefill, prefill
	repaired.PoolTokens, buggy.PoolTokens, buggy.Version = 2*context, 2*context, "0.5.19"
	locked := decode
	locked.APIKey = secret
	ranks := repaired
	ranks.RankTokens = []int{2 * context, 10_640}
	for name, c := range map[string]struct {
		prefill, decode string
		level           Level
		check, words    string
	}{
		"incident":          {sglangNode(t, prefill), sglangNode(t, decode), Red, checkInput, "the public incident's configuration"},
		"repaired":          {sglangNode(t, repaired), sglangNode(t, decode), Green, checkInput, "all that decode and context allow"},
		"one small rank":    {sglangNode(t, ranks), sglangNode(t, decode), Red, checkInput, "the public incident's configuration"},
		"buggy version":     {sglangNode(t, buggy), sglangNode(t, decode), Red, "sglang-placeholder", "0.5.19"},
		"wants a key":       {sglangNode(t, repaired), sglangNode(t, locked), Red, checkNode, "wants credentials"},
		"vllm":              {vllmNode(t, vllmfake.Config{Role: vllmfake.Prefill}), vllmNode(t, vllmfake.Config{Role: vllmfake.Decode}), Green, checkInput, ""},
		"vllm, small pool":  {vllmNode(t, vllmfake.Config{Role: vllmfake.Prefill, Blocks: 128}), vllmNode(t, vllmfake.Config{Role: vllmfake.Decode}), Red, checkInput, "prompts of 2,049 to 4,096"},
		"vllm, old build":   {vllmNode(t, vllmfake.Config{Role: vllmfake.Prefill, Build: vllmfake.Old}), vllmNode(t, vllmfake.Config{Role: vllmfake.Decode}), Unknown, checkNode, "hybrid"},
		"vllm, block sizes": {vllmNode(t, vllmfake.Config{Role: vllmfake.Prefill, BlockSize: 32}), vllmNode(t, vllmfake.Config{Role: vllmfake.Decode}), Red, checkPage, "prefill 32 tokens, decode 16"},
		"two engines":       {vllmNode(t, vllmfake.Config{Role: vllmfake.Prefill}), sglangNode(t, decode), Red, checkEngine, "prefill is vllm, decode is sglang"},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Fleet(t.Context(), Config{Prefill: []string{c.prefill}, Decode: []string{c.decode}, Timeout: time.Minute})
			if err != nil || !found(r, c.level, c.check, c.words) {
				t.Errorf("%v\n%s", err, text(t, r))
			}
			if c.level == Green && found(r, Red, checkInput, "") {
				t.Errorf("red too:\n%s", text(t, r))
			}
		})
	}
}

// TestCrashedNode: a node that was there is not.
func TestCrashedNode(t *testing.T) {
	n, err := sglangfake.New(sglangfake.Config{Role: sglangfake.Prefill})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	n.Crash()
	r, err := Node(t.Context(), n.URL())
	if err != nil || r.Worst() != Red || len(r.Findings) != 1 {
		t.Errorf("%v\n%s", err, text(t, r))
	}
}
