package bench

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/engine/enginetest"
)

// TestFakeEngine: the fake engine passes what real ones must.
func TestFakeEngine(t *testing.T) {
	enginetest.Run(t, enginetest.Suite{New: func(o enginetest.Options) (engine.Engine, error) {
		cfg := engine.Config{Model: "fake", ContextTokens: o.ContextTokens, MaxInputTokens: o.MaxInputTokens}
		if cfg.ContextTokens == 0 {
			cfg.ContextTokens = engine.DefaultContextTokens
		}
		return newFakeEngine(cfg, Speeds{}, nil), nil
	}})
}

// TestFakeSpeeds: prompts of one worker wait for each other, outputs do not.
func TestFakeSpeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMarks()
		e := newFakeEngine(engine.Config{Model: "fake", ContextTokens: 1000}, Speeds{Prefill: 100, Decode: 10}, m)
		start := time.Now()
		done := make(chan time.Duration, 3)
		for range 3 {
			go func() {
				id := bubbleID()
				kv := engine.NewMemory(e.Info(), 120)
				if _, err := e.Prefill(context.Background(), engine.PrefillJob{RequestID: id, Prompt: make([]byte, 100), KV: kv}); err != nil {
					t.Error(err)
				}
				filled := time.Since(start)
				if _, err := e.Decode(context.Background(), engine.DecodeJob{RequestID: id, PromptTokens: 100, Sampling: engine.Sampling{MaxTokens: 20}, KV: kv},
					func([]byte, int) error { return nil }); err != nil {
					t.Error(err)
				}
				if took := time.Since(start) - filled; took < 1900*time.Millisecond || took > 2*time.Second {
					t.Errorf("20 tokens at 10 a second, the first one at once: %v", took)
				}
				done <- filled
			}()
		}
		for i := range 3 {
			if got, want := <-done, time.Duration(i+1)*time.Second; got != want {
				t.Errorf("prompt %d of 100 tokens at 100 a second is done after %v, want %v", i+1, got, want)
			}
		}
		// Queue ages: the requests came at once and began one after the other.
		if l := m.prefill.Latency(); l.N != 3 || l.Max < 1.99e6 || l.Max > 2.01e6 {
			t.Errorf("ages in the prefill queue: %+v", l)
		}
		if l := m.decode.Latency(); l.N != 3 || l.Max != 0 {
			t.Errorf("ages in the decode queue: %+v", l)
		}
	})
}

// bubbleID is a UUIDv7 of now. Those of the uuid package never run backwards, and
// a bubble's clock does.
func bubbleID() string {
	id := uuid.New()
	ms := time.Now().UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	id[6] = id[6]&0x0f | 0x70
	return id.String()
}

func TestFirstStop(t *testing.T) {
	for _, tt := range []struct {
		out   string
		stops []string
		want  int
		ok    bool
	}{
		{"abcdef", nil, 0, false}, {"abcdef", []string{"", "x"}, 0, false}, {"abcdef", []string{"de"}, 3, true},
		{"abcdef", []string{"f", "bc"}, 1, true}, {"abcdef", []string{"c", "bc"}, 1, true}, {"abcdef", []string{"abcdefg", "d"}, 3, true},
	} {
		if got, ok := firstStop(tt.out, tt.stops); ok != tt.ok || ok && got != tt.want {
			t.Errorf("firstStop(%q, %q) = %d, %v", tt.out, tt.stops, got, ok)
		}
	}
}

func TestStreamText(t *testing.T) {
	for in, want := range map[string]int{
		`{"choices":[{"index":0,"text":"abc","finish_reason":null}]}`: 3, `{"text":""}`: 0, `{"text":"a\"b"}`: 4, `{"text":"ab`: 0, `{}`: 0,
	} {
		if got := textLength([]byte(in)); got != want {
			t.Errorf("%s: %d, want %d", in, got, want)
		}
	}
}
