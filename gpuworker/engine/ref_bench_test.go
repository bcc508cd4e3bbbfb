package engine

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// letters are n bytes in which matches of one to three bytes are frequent. They
// end with the 40 bytes before place 140, so that the next byte is known.
func letters(n int) []byte {
	r := rand.New(rand.NewPCG(1, 1))
	p := make([]byte, n)
	for i := range p {
		p[i] = "etaoin shrdlu\ncmfwyp"[r.IntN(20)]
	}
	copy(p[n-40:], p[100:140])
	return p
}

func BenchmarkPrefill(b *testing.B) {
	for _, n := range []int{12_000, 681_280} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("tokens=%d/threads=%d", n, threads), func(b *testing.B) {
				e := newRef(Config{ContextTokens: n + 1, MaxInputTokens: n, Threads: threads})
				p, kv := letters(n), NewMemory(e.Info(), n)
				for b.Loop() {
					if _, err := e.Prefill(b.Context(), PrefillJob{Prompt: p, Sampling: Sampling{MaxTokens: 1}, KV: kv}); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/token")
			})
		}
	}
}

// BenchmarkAttend is one decode step.
func BenchmarkAttend(b *testing.B) {
	for _, n := range []int{12_000, 681_280, 1_048_576} {
		p := letters(n)
		e := newRef(Config{ContextTokens: n, MaxInputTokens: n})
		s, err := openRef(NewMemory(e.Info(), n), n)
		if err != nil {
			b.Fatal(err)
		}
		if err := s.fill(b.Context(), p, 2); err != nil {
			b.Fatal(err)
		}
		match, err := s.history()
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range []struct {
			name    string
			h       refHistory
			threads int
		}{{"match/threads=1", match, 1}, {"match/threads=2", match, 2}, {"nothing/threads=1", refHistory{1, 2, 3, 4, 5}, 1}} {
			b.Run(fmt.Sprintf("tokens=%d/%s", n, c.name), func(b *testing.B) {
				e.threads = c.threads
				for b.Loop() {
					got, err := e.step(s, &c.h, Sampling{})
					if err != nil || c.h == match && got != p[140] {
						b.Fatal(got, err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/kv")
			})
		}
	}
}
