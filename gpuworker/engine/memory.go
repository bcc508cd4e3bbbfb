package engine

import (
	"context"
	"fmt"
)

// Memory is a KV of its own, outside any pool.
type Memory struct {
	words     []uint64
	pageWords int
}

// NewMemory makes zeroed memory for the tokens.
func NewMemory(info Info, tokens int) *Memory {
	w := info.PageTokens * info.TokenBytes / 8
	return &Memory{words: make([]uint64, info.PagesFor(tokens)*w), pageWords: w}
}

// Pages implements [KV].
func (m *Memory) Pages() int { return len(m.words) / m.pageWords }

// Page implements [KV].
func (m *Memory) Page(i int) []uint64 {
	lo, hi := i*m.pageWords, (i+1)*m.pageWords
	return m.words[lo:hi:hi]
}

// PagesFor is the number of pages that hold the tokens.
func (i Info) PagesFor(tokens int) int { return (tokens + i.PageTokens - 1) / i.PageTokens }

// PageBytes is the size of a page.
func (i Info) PageBytes() int { return i.PageTokens * i.TokenBytes }

// Complete is the monolithic run: prefill and decode in one plain memory, no
// pool, no hand-off. What the two legs answer together must equal it byte for
// byte. A refusal is returned as its *events.Error.
func Complete(ctx context.Context, eng Engine, prompt []byte, sampling Sampling) ([]byte, Decoded, error) {
	n, err := eng.Count(ctx, prompt)
	if err != nil {
		return nil, Decoded{}, fmt.Errorf("count: %w", err)
	}
	kv := NewMemory(eng.Info(), n+max(0, sampling.MaxTokens))
	pre, err := eng.Prefill(ctx, PrefillJob{Prompt: prompt, Sampling: sampling, KV: kv})
	if err != nil {
		return nil, Decoded{}, fmt.Errorf("prefill: %w", err)
	}
	if pre.Refused != nil {
		return nil, Decoded{}, pre.Refused
	}
	var out []byte
	job := DecodeJob{PromptTokens: pre.PromptTokens, First: pre.First, Reference: pre.Reference, Sampling: sampling, KV: kv}
	dec, err := eng.Decode(ctx, job, func(text []byte, _ int) error {
		out = append(out, text...)
		return nil
	})
	if err != nil {
		return out, dec, fmt.Errorf("decode: %w", err)
	}
	return out, dec, nil
}
