package engine

import (
	"context"
	"fmt"

	"github.com/pdgate/pdgate/events"
)

// ref is a small but real attention engine over a paged KV cache.
//
// Tokens are bytes. One attention layer works as an induction head: the key at a
// position encodes the bytes before it, the value the byte at it. The query
// encodes the last bytes seen, so attention finds earlier places with the same
// history and answers with what followed them. It can say nothing but what its
// pages hold: a stale page comes out as readable text.
//
// Prefill and decode share nothing but the pages and the first token, and
// together answer what a monolithic run answers, byte for byte. Softmax sees all
// matches, but the logits are steep enough for the longest, latest one to win.
type ref struct {
	info    Info
	threads int
}

// refLayout names the page format: its version, tokens a page, words a key and a
// value.
const refLayout = "ref.v1:64:8+16"

func newRef(cfg Config) *ref {
	return &ref{threads: cfg.Threads, info: Info{
		Name: "ref", Version: "1", Model: cfg.Model,
		ContextTokens: cfg.ContextTokens, MaxInputTokens: cfg.MaxInputTokens,
		PageTokens: refPageTokens, TokenBytes: 8 * refTokenWords, Layout: refLayout,
	}}
}

// Info implements [Engine].
func (e *ref) Info() Info { return e.info }

// Count implements [Engine]: a token is a byte.
func (e *ref) Count(_ context.Context, prompt []byte) (int, error) { return len(prompt), nil }

// refuse is the verdict on a prompt before anything is written; nil: accepted.
func (e *ref) refuse(job PrefillJob) *events.Error {
	n := len(job.Prompt)
	switch {
	case n == 0:
		return events.NewError(events.CodeInvalidRequest, "prompt: 0 tokens")
	case n > e.info.MaxInputTokens:
		return events.ContextExceeded("prompt", n, e.info.MaxInputTokens)
	case job.Sampling.MaxTokens > e.info.ContextTokens-n:
		return events.ContextExceeded("prompt and max_tokens", n+job.Sampling.MaxTokens, e.info.ContextTokens)
	}
	return nil
}

// Prefill implements [Engine].
func (e *ref) Prefill(ctx context.Context, job PrefillJob) (Prefilled, error) {
	if refused := e.refuse(job); refused != nil {
		return Prefilled{Refused: refused}, nil
	}
	return e.prefill(ctx, job, job.Prompt)
}

// prefill writes the KV of prompt and computes the first token.
func (e *ref) prefill(ctx context.Context, job PrefillJob, prompt []byte) (Prefilled, error) {
	s, err := openRef(job.KV, len(prompt))
	if err != nil {
		return Prefilled{}, err
	}
	defer s.close()
	if err := s.fill(ctx, prompt, e.threads); err != nil {
		return Prefilled{}, err
	}
	var h refHistory
	for _, b := range prompt[max(0, len(prompt)-refWindow):] {
		h.push(b)
	}
	first, err := e.step(s, &h, job.Sampling)
	if err != nil {
		return Prefilled{}, err
	}
	return Prefilled{PromptTokens: len(prompt), First: []byte{first}}, nil
}

// step computes the token that follows.
func (e *ref) step(s *refSequence, h *refHistory, sampling Sampling) (byte, error) {
	q := h.embed()
	v, err := s.attend(&q, e.threads)
	if err != nil {
		return 0, err
	}
	logits, ok := v.logits()
	if !ok {
		return 0, fmt.Errorf("%w: value", ErrPoison)
	}
	if sampling.Temperature > 0 {
		return refSample(&logits, sampling.Temperature, sampling.Seed, s.len), nil
	}
	return refArgmax(&logits), nil
}

// Decode implements [Engine]. It believes job.PromptTokens.
func (e *ref) Decode(ctx context.Context, job DecodeJob, emit Emit) (Decoded, error) {
	done := Decoded{PromptTokens: job.PromptTokens}
	switch n := job.PromptTokens; {
	case n < 1 || job.Sampling.MaxTokens < 1:
		return done, fmt.Errorf("engine ref: decode of %d tokens after %d", job.Sampling.MaxTokens, n)
	case job.Sampling.MaxTokens > e.info.ContextTokens-n:
		return done, events.ContextExceeded("prompt and max_tokens", n+job.Sampling.MaxTokens, e.info.ContextTokens)
	case len(job.First) > 1:
		return done, fmt.Errorf("engine ref: first token of %d bytes", len(job.First))
	}
	s, err := openRef(job.KV, job.PromptTokens+job.Sampling.MaxTokens)
	if err != nil {
		return done, err
	}
	defer s.close()
	s.prompt, s.len = job.PromptTokens, job.PromptTokens
	h, err := s.history()
	if err != nil {
		return done, err
	}
	// One step over all pages before anything is emitted: a page that nobody
	// wrote becomes a status, not half an answer.
	if err := ctx.Err(); err != nil {
		return done, err
	}
	next, err := e.step(s, &h, job.Sampling)
	if err != nil {
		return done, err
	}
	if len(job.First) == 1 {
		next = job.First[0]
	}
	return e.generate(ctx, s, &h, next, job.Sampling, emit, done)
}

// generate emits next and what follows it. A completion counts the tokens that
// were emitted: those of a stop sequence are not part of it.
func (e *ref) generate(ctx context.Context, s *refSequence, h *refHistory, next byte, sampling Sampling, emit Emit, done Decoded) (Decoded, error) {
	release := func(text []byte) error {
		if len(text) == 0 {
			return nil
		}
		if err := emit(text, len(text)); err != nil {
			return err
		}
		done.CompletionTokens += len(text)
		return nil
	}
	stop := newStopper(sampling.Stop)
	for n := 1; ; n++ {
		text, stopped := stop.push(next)
		if err := release(text); err != nil {
			return done, err
		}
		if stopped {
			done.FinishReason = events.FinishStop
			return done, nil
		}
		if n == sampling.MaxTokens { // the last token needs no successor
			if err := release(stop.flush()); err != nil {
				return done, err
			}
			done.FinishReason = events.FinishLength
			return done, nil
		}
		if err := ctx.Err(); err != nil {
			return done, err
		}
		if err := s.push(h, next); err != nil {
			return done, err
		}
		var err error
		if next, err = e.step(s, h, sampling); err != nil {
			return done, err
		}
	}
}
