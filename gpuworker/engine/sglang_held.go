package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine/remote"
)

// held is a decode leg whose answer waits. A goroutine reads it into a bounded
// queue; past the bound it stops reading, and the engine's own flow control
// takes over.
type held struct {
	ctx    context.Context
	cancel context.CancelFunc
	to     *place
	prompt []byte
	stream bool
	tokens int // reserved at the place
	failed func(error)

	more chan struct{} // holds one: something came
	room chan struct{} // holds one: something was taken
	once sync.Once

	mu     sync.Mutex
	events [][]byte
	bytes  int
	end    error // io.EOF: the answer is complete
	proven bool
	first  events.Piece // what prefill computed
}

func newHeld(ctx context.Context, job PrefillJob, to *place, failed func(error)) *held {
	ctx, cancel := context.WithCancel(ctx)
	return &held{
		ctx: ctx, cancel: cancel, to: to, prompt: job.Prompt, stream: job.Sampling.Stream, failed: failed,
		tokens: job.PromptTokens + job.Sampling.MaxTokens, more: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
}

// start calls decode. The reader ends with the answer or with close.
func (h *held) start(p remote.Post) {
	go func() {
		err := h.read(p)
		h.mu.Lock()
		h.end = err
		early := !h.proven && !errors.Is(err, io.EOF)
		h.mu.Unlock()
		signal(h.more)
		if early && h.ctx.Err() == nil {
			h.failed(err) // prefill need not go on
		}
	}()
}

func (h *held) read(p remote.Post) error {
	e := h.to.engine
	resp, err := e.node.Send(h.ctx, p)
	if err != nil {
		return e.unreachable(h.ctx, "decode", err, events.CodeDecodeFailed)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("decode: %w", refused(resp, h.prompt, events.CodeDecodeFailed))
	}
	if !h.stream {
		b, err := remote.ReadAll(resp.Body)
		if err != nil {
			return fmt.Errorf("decode: read answer: %w", err)
		}
		if err := h.keep(b); err != nil {
			return err
		}
		return io.EOF
	}
	s := remote.NewStream(resp.Body)
	for {
		b, err := s.Next()
		if err != nil {
			return err
		}
		if err := h.keep(append([]byte(nil), b...)); err != nil {
			return err
		}
	}
}

// keep queues one event. An error or an abort inside it ends the leg: nobody
// waits for prefill then.
func (h *held) keep(b []byte) error {
	if a, err := parseAnswer(b, h.prompt, events.CodeDecodeFailed); err != nil {
		return fmt.Errorf("decode: %w", err)
	} else if len(a.Choices) == 1 && a.Choices[0].FinishReason != nil {
		if _, ok := finished(*a.Choices[0].FinishReason); !ok {
			return fmt.Errorf("decode: %w", aborted(b, h.prompt))
		}
	}
	for {
		h.mu.Lock()
		if h.bytes == 0 || h.bytes+len(b) <= maxHeld {
			h.events = append(h.events, b)
			h.bytes += len(b)
			h.mu.Unlock()
			signal(h.more)
			return nil
		}
		h.mu.Unlock()
		select {
		case <-h.room:
		case <-h.ctx.Done():
			return h.ctx.Err()
		}
	}
}

// aborted is the error of an answer that was aborted under 200, by what its
// meta_info says of it where it has one.
func aborted(b, prompt []byte) *events.Error {
	var v struct {
		Meta struct {
			Finish struct {
				Message string `json:"message"`
				Status  int    `json:"status_code"`
			} `json:"finish_reason"`
		} `json:"meta_info"`
	}
	_ = json.Unmarshal(b, &v) // OpenAI routes have none
	return remote.Inband(v.Meta.Finish.Status, v.Meta.Finish.Message, prompt, events.CodeDecodeFailed)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// prove says that prefill computed this prompt. It is an error where decode has
// failed before.
func (h *held) prove(first events.Piece) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.end != nil && !errors.Is(h.end, io.EOF) {
		return h.end
	}
	h.proven, h.first = true, first
	return nil
}

// close ends the leg and gives back what it reserved. Repeating it does nothing.
func (h *held) close() {
	h.once.Do(func() {
		h.cancel()
		h.to.pairing.giveBack(h.to, h.tokens)
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, b := range h.events {
			clear(b)
		}
		h.events, h.bytes = nil, 0
	})
}

// next is the next event, io.EOF after the last.
func (h *held) next(ctx context.Context) ([]byte, error) {
	for {
		h.mu.Lock()
		if len(h.events) > 0 {
			b := h.events[0]
			h.events = h.events[1:]
			h.bytes -= len(b)
			h.mu.Unlock()
			signal(h.room)
			return b, nil
		}
		end := h.end
		h.mu.Unlock()
		if end != nil {
			return nil, end
		}
		select {
		case <-h.more:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-h.ctx.Done():
			return nil, events.NewError(events.CodeLeaseOver, "the held answer was given up")
		}
	}
}

// follow hands the answer to out.
func (h *held) follow(ctx context.Context, out *output) (Decoded, error) {
	for {
		b, err := h.next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return out.done, out.end(ctx)
		case err != nil:
			return out.done, err
		}
		if err := out.take(ctx, b, !h.stream); err != nil {
			return out.done, err
		}
	}
}

// complete fills in prefill's token where decode's whole output is empty, which
// is how a decode that has nothing left to do answers.
func (h *held) complete(p *events.Piece) bool {
	h.mu.Lock()
	first := h.first
	h.mu.Unlock()
	switch {
	case p.Text != nil && first.Text != nil && !emptyText(first.Text):
		p.Text = first.Text
	case p.Message != nil && first.Message != nil && !emptyContent(first.Message):
		p.Message = first.Message
	case p.Delta != nil && first.Message != nil && !emptyContent(first.Message):
		p.Delta = first.Message // a message's members are those of a delta
	default:
		return false
	}
	if first.Logprobs != nil {
		p.Logprobs = first.Logprobs
	}
	return true
}

func emptyText(raw json.RawMessage) bool { return string(raw) == `""` || string(raw) == "null" }

// emptyContent says whether a message shows nothing.
func emptyContent(raw json.RawMessage) bool {
	o, err := remote.ParseObject(raw)
	if err != nil {
		return false
	}
	for _, m := range o {
		if m.Name == "role" || emptyText(m.Value) || string(m.Value) == "[]" {
			continue
		}
		return false
	}
	return true
}
