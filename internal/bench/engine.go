package bench

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
)

// Speeds are a fake engine's, in tokens a second; 0: as fast as it can.
type Speeds struct {
	Prefill float64 // of one worker: prompts wait for each other
	Decode  float64 // of each request: they run side by side
}

// fakeEngine has the interface and the timing of an engine, and next to none of
// its work, so that a trace of a large cluster can be replayed on a small
// machine. A token is a byte and has one word of KV, which holds it; decode says
// the prompt again, from its pages.
type fakeEngine struct {
	info   engine.Info
	speeds Speeds
	marks  *marks
	said   func(out []byte, until int, when time.Time) // told of each piece before it is emitted: the whole output, and how much of it is out; nil: nobody

	mu   sync.Mutex
	busy time.Time // until when prefill has work; guarded by mu
}

// fakeTag marks a word that a fake engine wrote: its upper half.
const fakeTag = 0x6b76_0000

const fakePageTokens = 64

func newFakeEngine(cfg engine.Config, s Speeds, m *marks) *fakeEngine {
	most := cfg.MaxInputTokens
	if most == 0 {
		most = cfg.ContextTokens
	}
	return &fakeEngine{speeds: s, marks: m, info: engine.Info{
		Name: "fake", Version: "1", Model: cfg.Model, ContextTokens: cfg.ContextTokens, MaxInputTokens: most,
		PageTokens: fakePageTokens, TokenBytes: 8, Layout: "fake.v1",
	}}
}

// Info implements engine.Engine.
func (e *fakeEngine) Info() engine.Info { return e.info }

// Count implements engine.Engine.
func (e *fakeEngine) Count(_ context.Context, prompt []byte) (int, error) { return len(prompt), nil }

func (e *fakeEngine) fits(kv engine.KV, tokens int) error {
	if kv == nil || kv.Pages()*fakePageTokens < tokens {
		return fmt.Errorf("%w: fake engine", engine.ErrKVSize)
	}
	return nil
}

// Prefill implements engine.Engine.
func (e *fakeEngine) Prefill(ctx context.Context, job engine.PrefillJob) (engine.Prefilled, error) {
	n := len(job.Prompt)
	switch {
	case n == 0:
		return engine.Prefilled{Refused: events.NewError(events.CodeInvalidRequest, "prompt: 0 tokens")}, nil
	case n > e.info.MaxInputTokens:
		return engine.Prefilled{Refused: events.ContextExceeded("prompt", n, e.info.MaxInputTokens)}, nil
	case job.Sampling.MaxTokens > e.info.ContextTokens-n:
		return engine.Prefilled{Refused: events.ContextExceeded("prompt and max_tokens", n+job.Sampling.MaxTokens, e.info.ContextTokens)}, nil
	}
	if err := e.fits(job.KV, n); err != nil {
		return engine.Prefilled{}, err
	}
	if err := e.turn(ctx, job.RequestID, n); err != nil {
		return engine.Prefilled{}, err
	}
	for i, b := range job.Prompt {
		job.KV.Page(i / fakePageTokens)[i%fakePageTokens] = fakeTag<<32 | uint64(b)
	}
	e.marks.prefilled(job.RequestID)
	return engine.Prefilled{PromptTokens: n, First: job.Prompt[:1]}, nil
}

// turn waits until the worker has computed the prompts before this one, and it.
func (e *fakeEngine) turn(ctx context.Context, id string, tokens int) error {
	now := time.Now()
	if e.speeds.Prefill <= 0 {
		e.marks.started(id, now)
		return ctx.Err()
	}
	e.mu.Lock()
	from := now
	if e.busy.After(now) {
		from = e.busy
	}
	e.busy = from.Add(time.Duration(float64(tokens) / e.speeds.Prefill * float64(time.Second)))
	until := e.busy
	e.mu.Unlock()
	e.marks.started(id, from)
	return pause(ctx, time.Until(until))
}

// fakeStep is how often a fake engine emits: a timer for every token would be
// most of its work.
const fakeStep = 5 * time.Millisecond

// Decode implements engine.Engine.
func (e *fakeEngine) Decode(ctx context.Context, job engine.DecodeJob, emit engine.Emit) (engine.Decoded, error) {
	done := engine.Decoded{PromptTokens: job.PromptTokens}
	most := job.Sampling.MaxTokens
	switch n := job.PromptTokens; {
	case n < 1 || most < 1:
		return done, fmt.Errorf("fake engine: decode of %d tokens after %d", most, n)
	case most > e.info.ContextTokens-n:
		return done, events.ContextExceeded("prompt and max_tokens", n+most, e.info.ContextTokens)
	}
	if err := e.fits(job.KV, job.PromptTokens+most); err != nil {
		return done, err
	}
	if err := ctx.Err(); err != nil {
		return done, err
	}
	e.marks.decoding(job.RequestID, time.Now())
	word := func(i int) *uint64 { return &job.KV.Page(i / fakePageTokens)[i%fakePageTokens] }
	out := make([]byte, most)
	for i := range job.PromptTokens { // all of it, before anything is said
		w := *word(i)
		if w>>32 != fakeTag {
			return done, fmt.Errorf("%w: token %d", engine.ErrPoison, i)
		}
		if i < most {
			out[i] = byte(w)
		}
	}
	for i := job.PromptTokens; i < most; i++ {
		out[i] = out[i-job.PromptTokens]
	}
	reason := events.FinishLength
	if n, ok := firstStop(string(out), job.Sampling.Stop); ok {
		out, reason = out[:n], events.FinishStop
	}
	start := time.Now()
	for said := 0; said < len(out); {
		due := said + 1
		if e.speeds.Decode > 0 {
			due = min(len(out), 1+int(time.Since(start).Seconds()*e.speeds.Decode))
		}
		if due == said {
			step := time.Duration(float64(time.Second) / e.speeds.Decode)
			if err := pause(ctx, max(step, fakeStep)); err != nil {
				return done, err
			}
			continue
		}
		if err := ctx.Err(); err != nil {
			return done, err
		}
		for i := said; i < due; i++ {
			*word(job.PromptTokens + i) = fakeTag<<32 | uint64(out[i])
		}
		if e.said != nil {
			e.said(out, due, time.Now())
		}
		if err := emit(out[said:due], due-said); err != nil {
			return done, err
		}
		done.CompletionTokens += due - said
		said = due
	}
	done.FinishReason = reason
	return done, nil
}

// firstStop is where the output ends before the stop sequence that is complete
// first; of several that end there, before the longest.
func firstStop(out string, stops []string) (int, bool) {
	end, at := len(out)+1, 0
	for _, s := range stops {
		if s == "" {
			continue
		}
		i := strings.Index(out, s)
		if i < 0 {
			continue
		}
		if e := i + len(s); e < end || e == end && i < at {
			end, at = e, i
		}
	}
	return at, end <= len(out)
}

// marks notes when each request came to an engine. Nil: nobody asks.
type marks struct {
	mu     sync.Mutex
	filled map[string]time.Time // end of prefill, until decode begins
	begun  int                  // prefills
	// What was found: how long requests waited for their prefill, from admission,
	// and for their decode, from the end of prefill.
	prefill, decode Recorder
}

func newMarks() *marks { return &marks{filled: map[string]time.Time{}} }

func (m *marks) started(id string, at time.Time) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.begun++
	if u, err := uuid.Parse(id); err == nil {
		s, ns := u.Time().UnixTime()
		m.prefill.Add(max(0, at.Sub(time.Unix(s, ns))))
	}
}

func (m *marks) prefilled(id string) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.filled[id] = time.Now()
}

func (m *marks) decoding(id string, at time.Time) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if t, ok := m.filled[id]; ok {
		delete(m.filled, id)
		m.decode.Add(at.Sub(t))
	}
}

// count is the number of prefills so far.
func (m *marks) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.begun
}

// marked notes what comes to another engine.
type marked struct {
	engine.Engine
	marks *marks
}

// Prefill implements engine.Engine.
func (e marked) Prefill(ctx context.Context, job engine.PrefillJob) (engine.Prefilled, error) {
	e.marks.started(job.RequestID, time.Now())
	p, err := e.Engine.Prefill(ctx, job)
	if err == nil && p.Refused == nil {
		e.marks.prefilled(job.RequestID)
	}
	return p, err
}

// Decode implements engine.Engine.
func (e marked) Decode(ctx context.Context, job engine.DecodeJob, emit engine.Emit) (engine.Decoded, error) {
	e.marks.decoding(job.RequestID, time.Now())
	return e.Engine.Decode(ctx, job, emit)
}
