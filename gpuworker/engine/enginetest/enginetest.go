// Package enginetest is the conformance suite of [engine.Engine]: what the
// worker, the hand-off and the gateway rest on, whatever computes.
//
// Each check is a function that returns an error, so that a test can also see a
// check fail on an engine that is known to be wrong.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
)

// Options are what a check asks of the engine it gets.
type Options struct {
	ContextTokens  int // 0: the engine's default
	MaxInputTokens int // 0: ContextTokens
	Threads        int // 0: one
}

// Suite is an engine under test.
type Suite struct {
	New func(Options) (engine.Engine, error)

	// Answers maps prompts to what the engine must say up to a newline. Empty:
	// nothing is known of the model.
	Answers map[string]string
}

// Check is one property.
type Check struct {
	Name string
	Run  func(context.Context, Suite) error
}

// Checks lists all properties.
func Checks() []Check {
	return []Check{
		{"info", info}, {"answers", answers}, {"handoff equals monolithic", handoff},
		{"threads do not matter", threads}, {"count equals prefill", count},
		{"max tokens", maxTokens}, {"stop sequences", stops}, {"cancel", cancel},
		{"emit error", emitError}, {"refuses oversize", oversize}, {"refuses small memory", small},
		{"poison before output", poison}, {"concurrent", concurrent},
	}
}

// Run runs every check.
func Run(t *testing.T, s Suite) {
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Run(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
}

// Prose is text of a small vocabulary, so that many short suffixes collide. The
// same seed gives the same text.
func Prose(seed uint64, n int) []byte {
	words := strings.Fields("the a of and to in is page cache token key value model server request answer tenant prompt decode prefill block pool lease grant epoch owner state queue worker error")
	r := rand.New(rand.NewPCG(seed, 1))
	var b []byte
	for len(b) < n {
		b = append(b, words[r.IntN(len(words))]...)
		b = append(b, " \n"[r.IntN(12)/11])
	}
	return b[:n]
}

// Legs runs prefill and decode in two memories, with a copy of the prompt's
// pages between them: a correct hand-off.
func Legs(ctx context.Context, prefill, decode engine.Engine, prompt []byte, sampling engine.Sampling) (string, engine.Decoded, error) {
	pre, kv, err := prefillAlone(ctx, prefill, prompt, sampling)
	if err != nil {
		return "", engine.Decoded{}, err
	}
	out := engine.NewMemory(decode.Info(), pre.PromptTokens+sampling.MaxTokens)
	for i := range kv.Pages() {
		copy(out.Page(i), kv.Page(i))
	}
	var text []byte
	dec, err := decode.Decode(ctx, job(pre, sampling, out), func(b []byte, _ int) error {
		text = append(text, b...)
		return nil
	})
	return string(text), dec, err
}

func job(pre engine.Prefilled, sampling engine.Sampling, kv engine.KV) engine.DecodeJob {
	return engine.DecodeJob{PromptTokens: pre.PromptTokens, First: pre.First, Reference: pre.Reference, Sampling: sampling, KV: kv}
}

func prefillAlone(ctx context.Context, eng engine.Engine, prompt []byte, sampling engine.Sampling) (engine.Prefilled, *engine.Memory, error) {
	n, err := eng.Count(ctx, prompt)
	if err != nil {
		return engine.Prefilled{}, nil, err
	}
	kv := engine.NewMemory(eng.Info(), n)
	pre, err := eng.Prefill(ctx, engine.PrefillJob{Prompt: prompt, Sampling: sampling, KV: kv})
	if err == nil && pre.Refused != nil {
		err = pre.Refused
	}
	return pre, kv, err
}

func info(_ context.Context, s Suite) error {
	eng, err := s.New(Options{ContextTokens: 1000, MaxInputTokens: 600})
	if err != nil {
		return err
	}
	i := eng.Info()
	if i.Name == "" || i.Version == "" || i.Model == "" || i.Layout == "" {
		return fmt.Errorf("a name is missing: %+v", i)
	}
	if i.ContextTokens != 1000 || i.MaxInputTokens != 600 || i.PageTokens < 1 || i.TokenBytes < 1 || i.PageBytes()%8 != 0 {
		return fmt.Errorf("sizes: %+v", i)
	}
	return nil
}

func answers(ctx context.Context, s Suite) error {
	eng, err := s.New(Options{})
	if err != nil {
		return err
	}
	for prompt, want := range s.Answers {
		got, _, err := engine.Complete(ctx, eng, []byte(prompt), engine.Sampling{MaxTokens: 60, Stop: []string{"\n"}})
		if err != nil || string(got) != want {
			return fmt.Errorf("%q: %q, want %q, error %v", prompt, got, want, err)
		}
	}
	return nil
}

func handoff(ctx context.Context, s Suite) error {
	r := rand.New(rand.NewPCG(3, 3))
	for i := range 16 {
		p := Prose(uint64(i), 1+r.IntN(3000))
		if i%3 == 0 {
			for j := range p {
				p[j] = byte(r.Uint32())
			}
		}
		a, err := s.New(Options{Threads: 1 + i%2})
		if err != nil {
			return err
		}
		b, err := s.New(Options{Threads: 1 + i%4})
		if err != nil {
			return err
		}
		sampling := engine.Sampling{MaxTokens: 1 + r.IntN(100), Seed: int64(i)}
		if i%2 == 1 {
			sampling.Temperature = 20
		}
		mono, mdec, err := engine.Complete(ctx, a, p, sampling)
		if err != nil {
			return err
		}
		got, dec, err := Legs(ctx, a, b, p, sampling)
		if err != nil || got != string(mono) || dec != mdec {
			return fmt.Errorf("prompt %d: %q %+v %v, monolithic %q %+v", i, got, dec, err, mono, mdec)
		}
	}
	return nil
}

func threads(ctx context.Context, s Suite) error {
	p := Prose(9, 20_000)
	var want string
	for _, n := range []int{1, 2, 3, 7} {
		eng, err := s.New(Options{Threads: n})
		if err != nil {
			return err
		}
		got, _, err := engine.Complete(ctx, eng, p, engine.Sampling{MaxTokens: 30})
		if err != nil {
			return err
		}
		if want == "" {
			want = string(got)
		}
		if string(got) != want {
			return fmt.Errorf("%d threads: %q, one thread %q", n, got, want)
		}
	}
	return nil
}

func count(ctx context.Context, s Suite) error {
	eng, err := s.New(Options{})
	if err != nil {
		return err
	}
	for _, n := range []int{1, 63, 64, 65, 1000} {
		p := Prose(uint64(n), n)
		pre, _, err := prefillAlone(ctx, eng, p, engine.Sampling{MaxTokens: 1})
		if err != nil {
			return err
		}
		if c, err := eng.Count(ctx, p); err != nil || c != pre.PromptTokens {
			return fmt.Errorf("%d bytes: count %d, prefill %d, error %v", n, c, pre.PromptTokens, err)
		}
	}
	return nil
}

func maxTokens(ctx context.Context, s Suite) error {
	eng, err := s.New(Options{})
	if err != nil {
		return err
	}
	p := Prose(4, 700)
	whole, _, err := engine.Complete(ctx, eng, p, engine.Sampling{MaxTokens: 70})
	if err != nil {
		return err
	}
	for _, n := range []int{1, 2, 64, 70} {
		got, dec, err := engine.Complete(ctx, eng, p, engine.Sampling{MaxTokens: n})
		want := engine.Decoded{PromptTokens: 700, CompletionTokens: n, FinishReason: events.FinishLength}
		if err != nil || !strings.HasPrefix(string(whole), string(got)) || dec != want {
			return fmt.Errorf("%d tokens: %q %+v %v", n, got, dec, err)
		}
	}
	return nil
}

// stops cuts one known output at each of its own pieces.
func stops(ctx context.Context, s Suite) error {
	eng, err := s.New(Options{})
	if err != nil {
		return err
	}
	p := Prose(4, 700)
	whole, _, err := engine.Complete(ctx, eng, p, engine.Sampling{MaxTokens: 50})
	if err != nil {
		return err
	}
	for lo := 0; lo < len(whole); lo += 3 {
		for _, n := range []int{1, 2, 9} {
			if lo+n > len(whole) {
				continue
			}
			stop := string(whole[lo : lo+n])
			want, _, _ := strings.Cut(string(whole), stop)
			got, dec, err := Legs(ctx, eng, eng, p, engine.Sampling{MaxTokens: 50, Stop: []string{stop, "\xff\xfe"}})
			if err != nil || got != want || dec.FinishReason != events.FinishStop || dec.CompletionTokens > 50 {
				return fmt.Errorf("stop %q: %q %+v %v, want %q", stop, got, dec, err, want)
			}
		}
	}
	return nil
}

// cancel cancels from within an emit: nothing more may come.
func cancel(ctx context.Context, s Suite) error {
	eng, err := s.New(Options{})
	if err != nil {
		return err
	}
	p := Prose(5, 2000)
	sampling := engine.Sampling{MaxTokens: 500}
	pre, _, err := prefillAlone(ctx, eng, p, sampling)
	if err != nil {
		return err
	}
	kv := engine.NewMemory(eng.Info(), 2500)
	if _, err := eng.Prefill(ctx, engine.PrefillJob{Prompt: p, Sampling: sampling, KV: kv}); err != nil {
		return err
	}
	cctx, stop := context.WithCancel(ctx)
	defer stop()
	emits := 0
	dec, err := eng.Decode(cctx, job(pre, sampling, kv), func([]byte, int) error {
		if emits++; emits == 3 {
			stop()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || emits != 3 || dec.FinishReason.Real() {
		return fmt.Errorf("decode: %d emits, %+v, %v", emits, dec, err)
	}
	if _, err := eng.Decode(cctx, job(pre, sampling, kv), func([]byte, int) error { return errors.New("emitted") }); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("decode after cancel: %v", err)
	}
	if _, err := eng.Prefill(cctx, engine.PrefillJob{Prompt: p, Sampling: sampling, KV: kv}); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("prefill after cancel: %v", err)
	}
	return nil
}

func emitError(ctx context.Context, s Suite) error {
	eng, err := s.New(Options{})
	if err != nil {
		return err
	}
	sampling := engine.Sampling{MaxTokens: 20}
	p := Prose(6, 300)
	kv := engine.NewMemory(eng.Info(), 320)
	pre, err := eng.Prefill(ctx, engine.PrefillJob{Prompt: p, Sampling: sampling, KV: kv})
	if err != nil {
		return err
	}
	broken, emits := errors.New("client gone"), 0
	dec, err := eng.Decode(ctx, job(pre, sampling, kv), func([]byte, int) error { emits++; return broken })
	if !errors.Is(err, broken) || emits != 1 || dec.FinishReason.Real() {
		return fmt.Errorf("%d emits, %+v, %v", emits, dec, err)
	}
	return nil
}

// oversize: a prompt above the limit is refused with the figures, and nothing is
// written, counted or answered.
func oversize(ctx context.Context, s Suite) error {
	eng, err := s.New(Options{ContextTokens: 2000, MaxInputTokens: 1000})
	if err != nil {
		return err
	}
	for _, c := range []struct{ prompt, max int }{{1001, 1}, {1999, 1}, {5000, 10}, {1000, 1001}} {
		kv := engine.NewMemory(eng.Info(), 6000)
		pre, err := eng.Prefill(ctx, engine.PrefillJob{Prompt: Prose(1, c.prompt), Sampling: engine.Sampling{MaxTokens: c.max}, KV: kv})
		if err != nil {
			return err
		}
		if pre.Refused == nil || pre.Refused.Code != events.CodeContextLength || pre.Refused.HTTPStatus() != 400 {
			return fmt.Errorf("%d+%d tokens: refused %v", c.prompt, c.max, pre.Refused)
		}
		if pre.PromptTokens != 0 || len(pre.First) != 0 || !zero(kv) {
			return fmt.Errorf("%d+%d tokens: refused, and yet %d tokens, first %d bytes, memory untouched %v", c.prompt, c.max, pre.PromptTokens, len(pre.First), zero(kv))
		}
	}
	pre, err := eng.Prefill(ctx, engine.PrefillJob{Prompt: Prose(1, 1000), Sampling: engine.Sampling{MaxTokens: 1000}, KV: engine.NewMemory(eng.Info(), 1000)})
	if err != nil || pre.Refused != nil || pre.PromptTokens != 1000 {
		return fmt.Errorf("the longest legal request: %+v %v", pre, err)
	}
	return nil
}

func zero(kv engine.KV) bool {
	for i := range kv.Pages() {
		if slices.ContainsFunc(kv.Page(i), func(w uint64) bool { return w != 0 }) {
			return false
		}
	}
	return true
}

// small: memory that cannot hold the tokens is an error, not a crash.
func small(ctx context.Context, s Suite) error {
	eng, err := s.New(Options{})
	if err != nil {
		return err
	}
	n := 4 * eng.Info().PageTokens
	sampling := engine.Sampling{MaxTokens: 1}
	short := engine.NewMemory(eng.Info(), n-1-eng.Info().PageTokens)
	if _, err := eng.Prefill(ctx, engine.PrefillJob{Prompt: Prose(1, n), Sampling: sampling, KV: short}); !errors.Is(err, engine.ErrKVSize) {
		return fmt.Errorf("prefill: %v", err)
	}
	pre, kv, err := prefillAlone(ctx, eng, Prose(1, n), sampling)
	if err != nil {
		return err
	}
	if _, err := eng.Decode(ctx, job(pre, sampling, kv), func([]byte, int) error { return nil }); !errors.Is(err, engine.ErrKVSize) {
		return fmt.Errorf("decode without room for its output: %v", err)
	}
	return nil
}

// poison: one page that nobody wrote, whichever it is, and whether or not its
// text would have mattered, is an error before the first emit.
func poison(ctx context.Context, s Suite) error {
	eng, err := s.New(Options{})
	if err != nil {
		return err
	}
	sampling := engine.Sampling{MaxTokens: 5}
	p := Prose(8, 17*eng.Info().PageTokens+3)
	for page := range eng.Info().PagesFor(len(p)) {
		kv := engine.NewMemory(eng.Info(), len(p)+5)
		pre, err := eng.Prefill(ctx, engine.PrefillJob{Prompt: p, Sampling: sampling, KV: kv})
		if err != nil {
			return err
		}
		w := kv.Page(page)
		for i := range w {
			w[i] = ^uint64(0)
		}
		emits := 0
		_, err = eng.Decode(ctx, job(pre, sampling, kv), func([]byte, int) error { emits++; return nil })
		if !errors.Is(err, engine.ErrPoison) || emits != 0 {
			return fmt.Errorf("page %d: %d emits, %v", page, emits, err)
		}
	}
	return nil
}

// concurrent: requests on one engine do not disturb each other.
func concurrent(ctx context.Context, s Suite) error {
	eng, err := s.New(Options{Threads: 2})
	if err != nil {
		return err
	}
	const n = 8
	want := make([]string, n)
	for i := range want {
		out, _, err := engine.Complete(ctx, eng, Prose(uint64(i), 500*(i+1)), engine.Sampling{MaxTokens: 40})
		if err != nil {
			return err
		}
		want[i] = string(out)
	}
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			for range 3 {
				out, _, err := Legs(ctx, eng, eng, Prose(uint64(i), 500*(i+1)), engine.Sampling{MaxTokens: 40})
				if err != nil || out != want[i] {
					errs[i] = fmt.Errorf("request %d: %q, want %q, error %v", i, out, want[i], err)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
