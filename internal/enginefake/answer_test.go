package enginefake

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// answers serves a request as an engine would that has its prompt as KV.
func answers(t *testing.T, path string, body map[string]any) Reply {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var raw json.RawMessage
		if err := json.NewDecoder(r.Body).Decode(&raw); err != nil {
			t.Error(err)
		}
		q, err := ParseRequest(raw, strings.Contains(r.URL.Path, "chat"), 0)
		if err != nil {
			WriteJSON(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"message": err.Error(), "code": 400}})
			return
		}
		a := &Answer{Request: q, ID: "x", Prompt: len(q.Prompt)}
		var gens []*Generation
		for range q.N {
			gens = append(gens, NewGeneration(q.Prompt, q.MaxTokens, q))
		}
		if !q.Stream {
			a.Write(w, gens)
			return
		}
		if err := a.Stream(r.Context(), NewSSE(w), gens, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
	}))
	defer s.Close()
	return Do(t.Context(), s.URL, Call{Path: path, Body: body})
}

// Whatever is asked for, a stream adds up to the answer in one piece.
func TestStreamEqualsAnswer(t *testing.T) {
	chat := []any{map[string]any{"role": "user", "content": "grüße aus köln"}}
	tool := []any{map[string]any{"type": "function", "function": map[string]any{"name": "say"}}}
	for name, c := range map[string]struct {
		path   string
		body   map[string]any
		text   string
		finish string
	}{
		"completion":  {"/v1/completions", map[string]any{"prompt": "abcabcab", "max_tokens": 6}, "cabcab", FinishLength},
		"stop":        {"/v1/completions", map[string]any{"prompt": "abcdabcdab", "max_tokens": 9, "stop": []string{"xx", "dab"}}, "c", FinishStop},
		"not a stop":  {"/v1/completions", map[string]any{"prompt": "abcdabcdab", "max_tokens": 4, "stop": "dax"}, "cdab", FinishLength},
		"token ids":   {"/v1/completions", map[string]any{"prompt": []int{97, 98, 97}, "max_tokens": 2}, "ba", FinishLength},
		"choices":     {"/v1/completions", map[string]any{"prompt": "abcabcab", "max_tokens": 2, "n": 3}, "ca", FinishLength},
		"chat":        {"/v1/chat/completions", map[string]any{"messages": chat, "max_tokens": 99}, " grüße aus köln", FinishStop},
		"half a rune": {"/v1/chat/completions", map[string]any{"messages": chat, "max_tokens": 4}, " gr\uFFFD", FinishLength},
		"logprobs":    {"/v1/chat/completions", map[string]any{"messages": chat, "max_tokens": 99, "logprobs": true, "top_logprobs": 2}, " grüße aus köln", FinishStop},
		"tool":        {"/v1/chat/completions", map[string]any{"messages": chat, "max_tokens": 99, "tools": tool, "tool_choice": "auto"}, `{"text":" grüße aus köln"}`, FinishTools},
		"no tool":     {"/v1/chat/completions", map[string]any{"messages": chat, "max_tokens": 99, "tools": tool, "tool_choice": "none"}, " grüße aus köln", FinishStop},
	} {
		for _, stream := range []bool{false, true} {
			c.body["stream"], c.body["stream_options"] = stream, map[string]any{"include_usage": true}
			r := answers(t, c.path, c.body)
			if r.Status != 200 || r.First() != c.text || r.FinishFirst() != c.finish || r.Done != stream {
				t.Errorf("%s, stream %v: %d, finish %q, text %q in %s", name, stream, r.Status, r.FinishFirst(), r.First(), r.Raw)
			}
			if n := c.body["n"]; n != nil && (len(r.Text) != n || r.Text[2] != c.text || r.Output != 6) {
				t.Errorf("%s: %d choices, %d tokens", name, len(r.Text), r.Output)
			}
			if r.Prompt == 0 || r.Output == 0 {
				t.Errorf("%s, stream %v: no usage", name, stream)
			}
			if name == "logprobs" && !strings.Contains(string(r.Raw), `"top_logprobs":[{"bytes":[103]`) {
				t.Errorf("no logprobs: %s", r.Raw)
			}
		}
	}
	for name, body := range map[string]map[string]any{
		"no prompt": {}, "no messages": {"messages": []any{}}, "max_tokens": {"prompt": "a", "max_tokens": 0}, "n": {"prompt": "a", "n": 0},
		"token id": {"prompt": []int{256}}, "stop": {"prompt": "a", "stop": 1},
	} {
		path := "/v1/completions"
		if name == "no messages" {
			path = "/v1/chat/completions"
		}
		if r := answers(t, path, body); r.Status != 400 || r.Code != 400 {
			t.Errorf("%s: %d %s", name, r.Status, r.Raw)
		}
	}
}
