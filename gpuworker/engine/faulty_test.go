package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/engine/enginetest"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// node is a worker with no guard but its pool's scrubbing.
type node struct {
	engine.Engine
	pool *kvpool.Pool
}

func newNode(t *testing.T, cfg engine.Config, tokens int, scrub kvpool.ScrubMode) node {
	t.Helper()
	eng, err := engine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	pool, err := kvpool.New(kvpool.Config{Pages: eng.Info().PagesFor(tokens), PageBytes: eng.Info().PageBytes(), Epoch: 1, Scrub: scrub})
	if err != nil {
		t.Fatal(err)
	}
	return node{eng, pool}
}

// handoff is the incident's path: decode reserves for the whole prompt, prefill
// is asked whether it has finished and never whether it refused, the pages it
// wrote are copied, and decode is told the length it has reserved for.
func handoff(t *testing.T, prefill, decode node, id string, prompt []byte, maxTokens int) (string, engine.Prefilled, error) {
	t.Helper()
	dst, err := decode.pool.Alloc(id, decode.Info().PagesFor(len(prompt)+maxTokens))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { <-decode.pool.Free(dst) }()
	src, err := prefill.pool.Alloc(id, prefill.Info().PagesFor(min(len(prompt), prefill.Info().MaxInputTokens)))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { <-prefill.pool.Free(src) }()

	sampling := engine.Sampling{MaxTokens: maxTokens}
	pre, err := prefill.Prefill(t.Context(), engine.PrefillJob{RequestID: id, Prompt: prompt, Sampling: sampling, KV: src})
	if err != nil {
		t.Fatal(err)
	}
	pin, err := prefill.pool.Pin(id, prefill.pool.Epoch(), src.Runs())
	if err != nil {
		t.Fatal(err)
	}
	defer pin.Release()
	n := prefill.Info().PagesFor(pre.PromptTokens)
	staging := make([]byte, n*prefill.Info().PageBytes())
	if err := pin.Gather(staging, 0, n); err != nil {
		t.Fatal(err)
	}
	w, err := decode.pool.BeginWrite(dst)
	if err != nil {
		t.Fatal(err)
	}
	defer w.End()
	if n > 0 {
		if err := w.Scatter(0, staging); err != nil {
			t.Fatal(err)
		}
	}
	var out []byte
	_, err = decode.Decode(t.Context(), engine.DecodeJob{
		RequestID: id, PromptTokens: len(prompt), First: pre.First, Sampling: sampling, KV: dst,
	}, func(b []byte, _ int) error { out = append(out, b...); return nil })
	return string(out), pre, err
}

const marker = "card=4111-"

// incident lets one tenant use decode's pages, and then another send a prompt
// above prefill's limit.
func incident(t *testing.T, seed uint64, cfg engine.Config, scrub kvpool.ScrubMode) (out, one, two string, pre engine.Prefilled, err error) {
	t.Helper()
	cfg.ContextTokens, cfg.MaxInputTokens = 4096, 2048
	prefill := newNode(t, cfg, 4096, scrub)
	decode := newNode(t, engine.Config{ContextTokens: 4096}, 4096, scrub)
	r := rand.New(rand.NewPCG(seed, 7))
	var sb strings.Builder
	for sb.Len() < 2000 {
		fmt.Fprintf(&sb, "%s %s%04d-%04d;\n", enginetest.Prose(r.Uint64(), 5+r.IntN(20)), marker, r.IntN(10000), r.IntN(10000))
	}
	one = sb.String()[:2000]
	if _, _, err := handoff(t, prefill, decode, "one", []byte(one), 40); err != nil {
		t.Fatal(err)
	}
	two = strings.Repeat("sum up my holiday notes ", 200)[:2100+r.IntN(1700)]
	out, pre, err = handoff(t, prefill, decode, "two", []byte(two), 120)
	return out, one, two, pre, err
}

// quotes says whether out holds 10 bytes in a row that only one wrote.
func quotes(out, one, two string) bool {
	for i := 0; i+10 <= len(out); i++ {
		if c := out[i : i+10]; strings.Contains(one, c) && !strings.Contains(two, c) {
			return true
		}
	}
	return false
}

// The bug leaks another tenant's text from unscrubbed pages, in the open and in
// silence; poison turns it into an error before the first byte.
func TestIncident(t *testing.T) {
	for _, c := range []struct {
		name  string
		cfg   engine.Config
		scrub kvpool.ScrubMode
		leaks bool
		want  error
	}{
		{"no scrub", engine.Config{Name: "faulty"}, kvpool.ScrubNone, true, nil},
		{"no scrub, silent", engine.Config{Name: "faulty", Silent: true}, kvpool.ScrubNone, true, nil},
		{"zero scrub", engine.Config{Name: "faulty"}, kvpool.ScrubZero, false, nil},
		{"poison", engine.Config{Name: "faulty"}, kvpool.ScrubPoison, false, engine.ErrPoison},
		{"poison, silent", engine.Config{Name: "faulty", Silent: true}, kvpool.ScrubPoison, false, engine.ErrPoison},
	} {
		t.Run(c.name, func(t *testing.T) {
			const runs = 4
			leaks, cards := 0, 0
			for seed := range uint64(runs) {
				out, one, two, pre, err := incident(t, seed, c.cfg, c.scrub)
				if !errors.Is(err, c.want) || c.want != nil && out != "" {
					t.Fatalf("seed %d: %q %v, want %v", seed, out, err, c.want)
				}
				if pre.PromptTokens != 1 || len(pre.First) != 1 {
					t.Fatalf("seed %d: placeholder %d tokens, first %q", seed, pre.PromptTokens, pre.First)
				}
				if c.cfg.Silent != (pre.Refused == nil) || pre.Refused != nil && pre.Refused.Code != events.CodeContextLength {
					t.Fatalf("seed %d: refused %v", seed, pre.Refused)
				}
				if quotes(out, one, two) {
					leaks++
				}
				if strings.Contains(out, marker) {
					cards++
				}
			}
			t.Logf("quotes the other tenant in %d of %d, with a card number in %d", leaks, runs, cards)
			if c.leaks && leaks < runs || !c.leaks && leaks > 0 {
				t.Errorf("%d leaks", leaks)
			}
		})
	}
}

// ref on the same path refuses: no token, no KV, and decode has nothing to read.
func TestIncidentRefRefuses(t *testing.T) {
	out, _, _, pre, err := incident(t, 1, engine.Config{Name: "ref"}, kvpool.ScrubPoison)
	if pre.Refused == nil || pre.PromptTokens != 0 || out != "" || !errors.Is(err, engine.ErrPoison) {
		t.Errorf("%+v %q %v", pre, out, err)
	}
}
