package enginefake

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Request is a generation request on an OpenAI route, as far as the fakes look
// into it.
type Request struct {
	Chat      bool
	Model     string
	Prompt    []byte // rendered, for a chat
	MaxTokens int    // 0: not given
	N         int
	Stream    bool
	Usage     bool // stream_options.include_usage
	Each      bool // stream_options.continuous_usage_stats
	Stop      []string
	IgnoreEOS bool
	Logprobs  int    // alternatives for each token; -1: no logprobs
	Tool      string // the function to call; empty: none
	Fields    map[string]json.RawMessage
}

type openAIBody struct {
	Model         string          `json:"model"`
	Prompt        json.RawMessage `json:"prompt"`
	Messages      []message       `json:"messages"`
	MaxTokens     *int            `json:"max_tokens"`
	MaxCompletion *int            `json:"max_completion_tokens"`
	N             *int            `json:"n"`
	Stream        bool            `json:"stream"`
	StreamOptions *struct {
		Usage bool `json:"include_usage"`
		Each  bool `json:"continuous_usage_stats"`
	} `json:"stream_options"`
	Stop        json.RawMessage `json:"stop"`
	IgnoreEOS   bool            `json:"ignore_eos"`
	Logprobs    json.RawMessage `json:"logprobs"`
	TopLogprobs int             `json:"top_logprobs"`
	Tools       []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	} `json:"tools"`
	ToolChoice json.RawMessage `json:"tool_choice"`
}

type message struct {
	Role    string          `json:"role"`
	Content json.RawMessage `json:"content"`
}

// ParseRequest reads a body of /v1/completions or /v1/chat/completions. template
// is the number of tokens that the chat template adds in front.
func ParseRequest(body []byte, chat bool, template int) (*Request, error) {
	var b openAIBody
	r := &Request{Chat: chat, N: 1, Logprobs: -1}
	if err := json.Unmarshal(body, &b); err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	if err := json.Unmarshal(body, &r.Fields); err != nil {
		return nil, fmt.Errorf("body: %w", err)
	}
	r.Model, r.Stream, r.IgnoreEOS = b.Model, b.Stream, b.IgnoreEOS
	if b.StreamOptions != nil {
		r.Usage, r.Each = b.StreamOptions.Usage, b.StreamOptions.Each
	}
	for _, n := range []*int{b.MaxTokens, b.MaxCompletion} {
		if n == nil {
			continue
		}
		if *n < 1 {
			return nil, fmt.Errorf("max_tokens must be at least 1, got %d", *n)
		}
		r.MaxTokens = *n
	}
	if b.N != nil {
		r.N = *b.N
	}
	if r.N < 1 {
		return nil, fmt.Errorf("n must be at least 1, got %d", r.N)
	}
	var err error
	if r.Stop, err = Strings(b.Stop); err != nil {
		return nil, fmt.Errorf("stop: %w", err)
	}
	switch l := strings.TrimSpace(string(b.Logprobs)); {
	case l == "" || l == "null" || l == "false":
	case l == "true":
		r.Logprobs = b.TopLogprobs
	default:
		if err := json.Unmarshal(b.Logprobs, &r.Logprobs); err != nil {
			return nil, fmt.Errorf("logprobs: %w", err)
		}
	}
	if chat {
		r.Prompt, err = renderChat(b.Messages, template)
		if choice := strings.Trim(string(b.ToolChoice), `" `); len(b.Tools) > 0 && choice != "none" {
			r.Tool = b.Tools[0].Function.Name
		}
		return r, err
	}
	r.Prompt, err = Prompt(b.Prompt)
	return r, err
}

// renderChat is the fakes' chat template: tokens that stand for a beginning and
// a system part, a line for each message, and the assistant's turn. The answer
// quotes the last message, for that is what followed "says:" the last time.
func renderChat(messages []message, template int) ([]byte, error) {
	if len(messages) == 0 {
		return nil, errors.New("messages: none")
	}
	b := []byte(strings.Repeat("\x02", template))
	for i, m := range messages {
		text, err := contentText(m.Content)
		if err != nil {
			return nil, fmt.Errorf("messages[%d].content: %w", i, err)
		}
		b = fmt.Appendf(b, "%s says: %s\n", m.Role, text)
	}
	return append(b, "assistant says:"...), nil
}

// contentText is a message's text: a string, or a list of text parts.
func contentText(raw json.RawMessage) (string, error) {
	var s string
	if len(raw) == 0 || string(raw) == "null" || json.Unmarshal(raw, &s) == nil {
		return s, nil
	}
	var parts []struct {
		Text string `json:"text"`
	}
	if err := json.Unmarshal(raw, &parts); err != nil {
		return "", errors.New("want a string or a list of parts")
	}
	for _, p := range parts {
		s += p.Text
	}
	return s, nil
}

// Prompt reads a prompt: a string, a list with one string, or token ids.
func Prompt(raw json.RawMessage) ([]byte, error) {
	var s string
	if json.Unmarshal(raw, &s) == nil && len(raw) > 0 {
		return []byte(s), nil
	}
	var list []string
	if json.Unmarshal(raw, &list) == nil && len(list) == 1 {
		return []byte(list[0]), nil
	}
	var ids []int
	if json.Unmarshal(raw, &ids) != nil || len(ids) == 0 {
		return nil, errors.New("prompt: want a string, a list with one string, or token ids")
	}
	b := make([]byte, len(ids))
	for i, id := range ids {
		if id < 0 || id > 255 {
			return nil, fmt.Errorf("token id %d is out of vocabulary", id)
		}
		b[i] = byte(id)
	}
	return b, nil
}

// Strings reads a string or a list of strings.
func Strings(raw json.RawMessage) ([]string, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return []string{s}, nil
	}
	var list []string
	return list, json.Unmarshal(raw, &list)
}
