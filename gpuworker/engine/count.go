package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine/remote"
)

// countTime bounds the count of one prompt at one node.
const countTime = 10 * time.Second

// counted are the members of a body that bear on the number of its tokens.
var counted = []string{
	"prompt", "add_special_tokens", "messages", "tools", "chat_template", "chat_template_kwargs", "add_generation_prompt",
	"continue_final_message", "mm_processor_kwargs",
}

// errCannotCount means that a node does not say how many tokens a prompt has.
var errCannotCount = errors.New("the engine does not count tokens")

// countTokens asks a node how many tokens a body's prompt has, as its own
// template and tokenizer make them.
func countTokens(ctx context.Context, n *remote.Node, model string, body []byte) (int, error) {
	o, err := remote.ParseObject(body)
	if err != nil {
		return 0, events.NewError(events.CodeInvalidRequest, "the body is not a JSON object")
	}
	ask := o.Only(counted...)
	if list := ask.Get("prompt"); len(list) > 0 && list[0] == '[' {
		var one []json.RawMessage
		if json.Unmarshal(list, &one) != nil || len(one) != 1 || one[0][0] != '"' {
			return 0, events.NewError(events.CodeInvalidRequest, "prompt: only one prompt, as a string, is supported")
		}
		ask = ask.Without("prompt").Set("prompt", one[0])
	}
	ctx, cancel := context.WithTimeout(ctx, countTime)
	defer cancel()
	// The answer lists the tokens, up to eight bytes for each byte of the prompt.
	if model != "" {
		ask = ask.Set("model", remote.Text(model))
	}
	b, err := n.Ask(ctx, "/tokenize", ask.Bytes(), 1<<20+8*int64(len(body)))
	var s *remote.Status
	switch {
	case errors.As(err, &s) && (s.Code == 404 || s.Code == 405):
		return 0, errCannotCount
	case errors.As(err, &s) && (s.Code == 400 || s.Code == 422) && ask.Get("messages") != nil && !countsChats(ctx, n):
		return 0, errCannotCount
	case errors.As(err, &s):
		return 0, remote.Failure(s.Code, b, body, events.CodeUnavailable)
	case err != nil:
		return 0, fmt.Errorf("/tokenize: %w", err)
	}
	var v struct {
		Count int `json:"count"`
	}
	if json.Unmarshal(b, &v) != nil || v.Count < 1 {
		return 0, errCannotCount
	}
	return v.Count, nil
}

// countsChats says whether a node counts the tokens of chats at all: some builds
// take prompts only, and refuse the rest as they refuse a bad request.
func countsChats(ctx context.Context, n *remote.Node) bool {
	_, err := n.Ask(ctx, "/tokenize", []byte(`{"messages":[{"role":"user","content":"x"}]}`), 1<<16)
	return err == nil
}

// Counter counts the tokens of clients' bodies at nodes of one engine, for the
// admission: one after the other is asked until one answers.
type Counter struct {
	nodes []*remote.Node
	model string
	log   *slog.Logger
}

// NewCounter makes a counter. model is the name that the nodes serve; "": the
// one that they serve first.
func NewCounter(urls []string, key, model string, log *slog.Logger) (*Counter, error) {
	c := &Counter{model: model, log: log}
	for _, u := range urls {
		n, err := remote.NewNode(u, key)
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, n)
	}
	if len(c.nodes) == 0 {
		return nil, errors.New("no engine node can count tokens: name one")
	}
	return c, nil
}

// Count is the number of tokens of a body's prompt. What no node counts is not
// guessed.
func (c *Counter) Count(ctx context.Context, body []byte) (int, error) {
	var last error
	for _, n := range c.nodes {
		t, err := countTokens(ctx, n, c.model, body)
		if err == nil {
			return t, nil
		}
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if e, ok := errors.AsType[*events.Error](err); ok && e.HTTPStatus() < 500 {
			return 0, e // the body's fault: others would say the same
		}
		c.log.Warn("engine does not count tokens", "url", n.URL(), "code", string(events.CodeUnavailable))
		last = err
	}
	if errors.Is(last, errCannotCount) {
		return 0, events.NewError(events.CodeUnavailable, "the engine cannot count the tokens of this kind of request, and without the count nothing is admitted")
	}
	return 0, events.NewError(events.CodeUnavailable, "no engine node counts the prompt's tokens now")
}

// Close gives connections back.
func (c *Counter) Close() {
	for _, n := range c.nodes {
		n.Close()
	}
}
