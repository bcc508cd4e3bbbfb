package gateway

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/pdgate/pdgate/events"
)

// relayFields are those of a relayed body that are read here. What is kept stays
// in the body, as it came; the others are the gateway's, which sets them for each
// leg. All other fields are the engine's to judge, and to refuse.
var relayFields = map[string]struct {
	in   endpoints
	keep bool
	read reader
}{
	"model":                 {inBoth, false, readModel},
	"prompt":                {inCompletion, true, onePrompt},
	"messages":              {inChat, true, someMessages},
	"max_tokens":            {inBoth, false, func(c *cursor, r *request) error { return readTokens(c, &r.maxTokens) }},
	"max_completion_tokens": {inBoth, false, func(c *cursor, r *request) error { return readTokens(c, &r.maxCompletionTokens) }},
	"min_tokens":            {inBoth, false, readMinTokens},
	"n":                     {inBoth, false, readChoices},
	"seed":                  {inBoth, true, readSeed},
	"stream":                {inBoth, false, func(c *cursor, r *request) (err error) { r.stream, err = c.bool(); return err }},
	"stream_options":        {inBoth, false, readStreamOptions},

	"cache_salt": {inBoth, false, readSalt},

	// One reference is one sequence.
	"best_of":         {inBoth, false, onlyOne},
	"use_beam_search": {inBoth, false, onlyFalse},
	"prompt_embeds":   {inBoth, false, refuse},
	"input_ids":       {inBoth, false, refuse},
	"input_embeds":    {inBoth, false, refuse},

	// An engine takes these for its own key of the request.
	"request_id": {inBoth, false, takeString},
	"rid":        {inBoth, false, takeString},
}

// onePrompt takes a string, or an array of one.
func onePrompt(c *cursor, r *request) error {
	var p request
	if err := readPrompt(c, &p); err != nil {
		return err
	}
	if len(p.prompt) == 0 {
		return bad("is required, and must not be empty")
	}
	r.prompt = p.prompt
	return nil
}

func someMessages(c *cursor, r *request) error {
	n := 0
	err := c.array(func(int) error {
		if n++; n > maxMessages {
			return bad("holds too many messages")
		}
		if c.kind() != '{' {
			return bad("want an object")
		}
		return c.skip()
	})
	if err == nil && n == 0 {
		err = bad("is required, and must not be empty")
	}
	r.messages = make([]Message, min(n, 1)) // how many is the engine's affair
	return err
}

func readMinTokens(c *cursor, r *request) error {
	n, err := c.integer(0, maxTokensField)
	r.minTokens = int(n)
	return err
}

func readSalt(c *cursor, r *request) error {
	s, err := c.text()
	if err == nil && len(s) > maxSalt {
		err = bad("want at most 256 bytes")
	}
	r.salt = string(s)
	return err
}

// salted adds the salt of the engine's prefix cache: what one tenant's prompts
// left there is no other tenant's, and a client's own salt divides it further.
func salted(body, secret []byte, tenant, own string) []byte {
	m := hmac.New(sha256.New, secret)
	fmt.Fprintf(m, "cache salt\x00%s\x00%s", tenant, own)
	b := append(body[:len(body)-1], `,"cache_salt":"`...)
	return append(hex.AppendEncode(b, m.Sum(nil)[:16]), `"}`...)
}

// parseRelayed reads a body for a model of relays, and leaves it as it is.
// Another model's is not read to the end of its meaning: ours is then false.
func parseRelayed(body []byte, chat bool, choices int, relays map[string]Relay) (r *request, ours bool, err error) {
	c, err := newCursor(body)
	if err != nil {
		return nil, false, err
	}
	c.keep = true
	r = &request{chat: chat, n: 1, relay: true}
	here := inCompletion
	if chat {
		here = inChat
	}
	var kept []byte
	var fault error // of a field: the model decides whether it is one
	err = c.object(func(name string) error {
		c.space()
		from := c.i
		f, known := relayFields[name]
		switch {
		case known && f.in&here == 0:
			if err := c.skip(); err != nil {
				return err
			}
			if fault == nil {
				fault = within(shown(name), bad("is not known here"))
			}
			return nil
		case known && c.null():
			return nil
		case known:
			if err := f.read(c, r); err != nil {
				return err
			}
			if !f.keep {
				return nil
			}
		default:
			if err := c.skip(); err != nil {
				return err
			}
		}
		if len(kept) > 0 {
			kept = append(kept, ',')
		} else {
			kept = make([]byte, 0, len(body)+64) // a salt is to come
			kept = append(kept, '{')
		}
		kept = append(append(kept, marshal(name)...), ':')
		kept = append(kept, c.b[from:c.i]...)
		return nil
	})
	if err == nil {
		err = c.end()
	}
	if err == nil {
		err = fault
	}
	if relays[r.model] == nil {
		return nil, false, err
	}
	switch {
	case err != nil:
	case !chat && len(r.prompt) == 0:
		err = within("prompt", bad("is required, and must not be empty"))
	case chat && len(r.messages) == 0:
		err = within("messages", bad("is required, and must not be empty"))
	default:
		err = r.check(choices)
	}
	if err != nil {
		return nil, true, err
	}
	r.prompt, r.messages = append(kept, '}'), nil
	return r, true, nil
}

// understandRelayed is understand for a model whose engines read the body. ours
// is false where the model is none of them.
func (g *Gateway) understandRelayed(r *http.Request, b []byte, chat bool, body *lease) (*call, *failure, bool) {
	// What is kept of the body is copied.
	if !body.set(2 * int64(cap(b))) {
		return nil, newFailure(events.CodeOverloaded, "the gateway has no room for more requests"), true
	}
	req, ours, err := parseRelayed(b, chat, g.cfg.Limits.Choices, g.cfg.Relays)
	if !ours {
		return nil, nil, false // the other reader says what is wrong, if anything is
	}
	if err != nil {
		return nil, misread(err), true
	}
	x := exchangeOf(r)
	x.model = req.model
	req.prompt = salted(req.prompt, g.cfg.DigestSecret, x.tenant.Name, req.salt)
	tokens, err := g.cfg.Relays[req.model].Count(r.Context(), req.prompt)
	if err != nil {
		if e, ok := errors.AsType[*events.Error](err); ok {
			return nil, recorded(e), true
		}
		if r.Context().Err() != nil {
			return nil, newFailure(events.CodeClientGone, "the client went away"), true
		}
		return nil, newFailure(events.CodeUnavailable, "the prompt's tokens cannot be counted now"), true
	}
	if tokens < 1 {
		return nil, newFailure(events.CodeInvalidRequest, "the prompt has no tokens"), true
	}
	if req.maxTokens == 0 {
		most := g.cfg.MaxTokens.Completion
		if chat {
			most = g.cfg.MaxTokens.Chat
		}
		req.maxTokens = g.fit(r.Context(), req.model, most, tokens)
	}
	if req.minTokens > req.maxTokens {
		f := newFailure(events.CodeInvalidRequest, "min_tokens: is above max_tokens")
		f.param = "min_tokens"
		return nil, f, true
	}
	if f := x.tenant.admit(g.cfg.Now(), tokens, req.maxTokens*req.n); f != nil {
		return nil, f, true
	}
	c, f := g.newCall(r, x, req, req.prompt, tokens, cap(req.prompt))
	return c, f, true
}

// serves says whether the gateway knows the model.
func (g *Gateway) serves(model string) bool {
	return g.cfg.Models[model] != nil || g.cfg.Relays[model] != nil
}

// relayed says how choice i is continued. Where there are several, a seed that
// the client named is another one for each, as an engine's own choices have it.
func (r *request) relayed(i int) events.Sampling {
	s := events.Sampling{MaxTokens: r.maxTokens, MinTokens: r.minTokens, Route: "/v1/completions", Stream: r.stream}
	if r.chat {
		s.Route = "/v1/chat/completions"
	}
	if r.hasSeed && r.n > 1 {
		s.Seeded, s.Seed = true, r.seed+int64(i)
	}
	return s
}

// relayChoice is a choice, or a piece of one, as the engine wrote it.
type relayChoice struct {
	Index        int             `json:"index"`
	Text         json.RawMessage `json:"text,omitempty"`
	Message      json.RawMessage `json:"message,omitempty"`
	Delta        json.RawMessage `json:"delta,omitempty"`
	Logprobs     json.RawMessage `json:"logprobs"`
	FinishReason *string         `json:"finish_reason"`
	StopReason   json.RawMessage `json:"stop_reason,omitempty"`
}

// lines takes an engine's pieces out of output that comes in chunks.
type lines struct {
	rest []byte
	last []relayChoice // from the one with the finish reason on: it waits for decoded
}

// push returns the pieces that may be shown. The one that says why the output
// ended may not before the log does.
func (l *lines) push(f *flight, text []byte, done bool) ([]relayChoice, *failure) {
	l.rest = append(l.rest, text...)
	var out []relayChoice
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 {
			break
		}
		ch, err := choiceOf(f, l.rest[:i])
		if err != nil {
			return nil, err
		}
		l.rest = l.rest[i+1:]
		if len(l.last) > 0 || ch.FinishReason != nil {
			l.last = append(l.last, ch)
			continue
		}
		out = append(out, ch)
	}
	if !done {
		return out, nil
	}
	if len(l.rest) > 0 || len(l.last) == 0 {
		return nil, unreadable()
	}
	return append(out, l.last...), nil
}

func unreadable() *failure {
	f := newFailure(events.CodeOutputLost, "the engine's output cannot be read")
	f.lost = true
	return f
}

func choiceOf(f *flight, line []byte) (relayChoice, *failure) {
	p, err := events.DecodePiece(line)
	if err != nil {
		return relayChoice{}, unreadable()
	}
	return relayChoice{
		Index: f.choice, Text: p.Text, Message: public(p.Message), Delta: public(p.Delta),
		Logprobs: p.Logprobs, FinishReason: p.FinishReason, StopReason: p.StopReason,
	}, nil
}

// public drops members that engines pass among themselves.
func public(raw json.RawMessage) json.RawMessage {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil {
		return raw
	}
	n := len(m)
	for name := range m {
		if internalField(name) {
			delete(m, name)
		}
	}
	if len(m) == n {
		return raw
	}
	return marshal(m)
}

// wholeChoice is an answer in one piece.
func wholeChoice(f *flight, text []byte) (relayChoice, *failure) {
	var l lines
	all, err := l.push(f, text, true)
	if err == nil && len(all) != 1 {
		err = unreadable()
	}
	if err != nil {
		return relayChoice{}, err
	}
	return all[0], nil
}

// relayPiece is one event of a stream.
func (c *call) relayPiece(ch relayChoice) completion {
	return completion{ID: c.answerID(), Object: c.object(".chunk"), Created: c.created.Unix(), Model: c.req.model, Choices: []any{ch}}
}
