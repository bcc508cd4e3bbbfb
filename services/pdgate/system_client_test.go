package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/statemachine"
)

// order is what a client asks for.
type order struct {
	tenant      string
	prompt      []byte
	messages    []engine.Message // instead of prompt: a chat
	most        int
	n           int // 0: 1
	stop        []string
	temperature float64
	seed        int64
	stream      bool
	extra       map[string]any // further members of the body
	header      http.Header
}

// reply is what it got.
type reply struct {
	id       string
	status   int
	texts    []string // by choice
	finish   []events.FinishReason
	prompt   int // tokens, by the answer's usage; -1: not told
	tokens   int
	code     string
	message  string
	complete bool // the body came to its proper end
	receipts []string
}

func (r *reply) problem() string {
	return fmt.Sprintf("HTTP %d %s: %s (request %s)", r.status, r.code, r.message, r.id)
}

func (o *order) body(model string) ([]byte, string, error) {
	m := map[string]any{"model": model, "max_tokens": o.most, "temperature": o.temperature}
	path := "/v1/completions"
	if o.messages != nil {
		path = "/v1/chat/completions"
		var turns []map[string]string
		for _, t := range o.messages {
			turns = append(turns, map[string]string{"role": t.Role, "content": t.Content})
		}
		m["messages"] = turns
	} else {
		m["prompt"] = string(o.prompt)
	}
	if o.n > 0 {
		m["n"] = o.n
	}
	if o.stop != nil {
		m["stop"] = o.stop
	}
	if o.temperature > 0 {
		m["seed"] = o.seed
	}
	if o.stream {
		m["stream"], m["stream_options"] = true, map[string]any{"include_usage": true}
	}
	for k, v := range o.extra {
		m[k] = v
	}
	b, err := json.Marshal(m)
	return b, path, err
}

// send asks a gateway, and keeps the reply. An error means that there was none.
func (s *system) send(ctx context.Context, url string, o order) (reply, error) {
	body, path, err := o.body(s.engine.Model)
	if err != nil {
		return reply{}, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+path, bytes.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if o.header != nil {
		req.Header = o.header.Clone()
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+s.keys[o.tenant])
	resp, err := s.web.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	r := reply{id: resp.Header.Get("X-Request-Id"), status: resp.StatusCode, prompt: -1, receipts: resp.Header.Values("Pdgate-Receipt")}
	n := max(1, o.n)
	r.texts, r.finish = make([]string, n), make([]events.FinishReason, n)
	if strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		err = r.readStream(resp.Body)
	} else {
		var b []byte
		if b, err = io.ReadAll(resp.Body); err == nil {
			r.complete, err = true, r.readPiece(b)
		}
	}
	r.receipts = append(r.receipts, resp.Trailer.Values("Pdgate-Final-Receipt")...)
	s.mu.Lock()
	s.replies = append(s.replies, r)
	s.mu.Unlock()
	return r, err
}

// readPiece takes a whole answer, or one event of a stream.
func (r *reply) readPiece(b []byte) error {
	var v struct {
		Choices []struct {
			Index        int                 `json:"index"`
			Text         string              `json:"text"`
			FinishReason events.FinishReason `json:"finish_reason"`
			Message      struct {
				Content string `json:"content"`
			} `json:"message"`
			Delta struct {
				Content string `json:"content"`
			} `json:"delta"`
		} `json:"choices"`
		Usage *struct {
			Prompt     int `json:"prompt_tokens"`
			Completion int `json:"completion_tokens"`
		} `json:"usage"`
		Error *struct {
			Code    string `json:"code"`
			Message string `json:"message"`
		} `json:"error"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return fmt.Errorf("request %s: HTTP %d with a body that is not JSON: %w", r.id, r.status, err)
	}
	for _, c := range v.Choices {
		if c.Index < 0 || c.Index >= len(r.texts) {
			return fmt.Errorf("request %s: choice %d of %d", r.id, c.Index, len(r.texts))
		}
		r.texts[c.Index] += c.Text + c.Message.Content + c.Delta.Content
		if c.FinishReason != "" {
			r.finish[c.Index] = c.FinishReason
		}
	}
	if v.Usage != nil {
		r.prompt, r.tokens = v.Usage.Prompt, v.Usage.Completion
	}
	if v.Error != nil {
		r.code, r.message = v.Error.Code, v.Error.Message
	}
	return nil
}

func (r *reply) readStream(body io.Reader) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		switch {
		case lines.Text() == "":
		case !ok:
			return fmt.Errorf("request %s: a line of the stream is no data", r.id)
		case data == "[DONE]":
			r.complete = true
		default:
			if err := r.readPiece([]byte(data)); err != nil {
				return err
			}
		}
	}
	return lines.Err()
}

// ids are the lifecycles behind a reply, by choice.
func (log *record) ids(r *reply) []string {
	if len(r.texts) < 2 {
		return []string{r.id}
	}
	var ids []string
	for i := range r.texts {
		ids = append(ids, log.group[r.id][i])
	}
	return ids
}

// tenantKey is the fingerprint of the key that a request was admitted under.
func (log *record) tenantKey(id string) string {
	for _, e := range log.has(id, events.TypeAdmitted) {
		return e.Data.(*events.RequestAdmitted).TenantKey
	}
	return ""
}

// outcomes are a reply in the checker's terms.
func (s *system) outcomes(log *record, r *reply) (all []statemachine.ClientOutcome) {
	for i, id := range log.ids(r) {
		o := statemachine.ClientOutcome{RequestID: id, Status: r.status, Complete: r.complete}
		// The output of an external engine is its pieces, which the gateway wraps anew.
		if r.status == http.StatusOK && r.complete && !s.nodes.on() && !strings.ContainsRune(r.texts[i], '\ufffd') {
			key, own := s.own[log.tenantKey(id)]
			if !own {
				key = events.DigestKey{Secret: s.secret}
			}
			o.OutputDigest = events.Digest(key.Request(id), events.KindOutput, []byte(r.texts[i]))
		}
		all = append(all, o)
	}
	return all
}

// shown is output as JSON shows it: bytes that are no character become U+FFFD,
// one for one.
func shown(b []byte) string { return string([]rune(string(b))) }

// right compares a reply with a run of the engine in one plain memory.
func (o *order) right(ctx context.Context, eng engine.Engine, r *reply) error {
	prompt, stop := o.prompt, o.stop
	if o.messages != nil {
		prompt, stop = engine.Chat(o.messages), append(slices.Clone(o.stop), engine.ChatStop)
	}
	tokens := 0
	for i := range max(1, o.n) {
		if i > 0 && o.temperature == 0 { // greedy: as the first one
			if r.texts[i] != r.texts[0] || r.finish[i] != r.finish[0] {
				return fmt.Errorf("choice %d differs from choice 0 of a greedy answer (request %s)", i, r.id)
			}
			tokens += tokens / i
			continue
		}
		want, end, err := engine.Complete(ctx, eng, prompt, engine.Sampling{MaxTokens: o.most, Stop: stop, Temperature: o.temperature, Seed: o.seed + int64(i)})
		var refused *events.Error
		switch {
		case errors.As(err, &refused):
			if r.status != refused.HTTPStatus() || r.code != string(refused.Code) {
				return fmt.Errorf("%s, want %d %s", r.problem(), refused.HTTPStatus(), refused.Code)
			}
			return nil
		case err != nil:
			return err
		case r.status != http.StatusOK || !r.complete || r.code != "":
			return fmt.Errorf("%s, complete %v; want 200", r.problem(), r.complete)
		case r.texts[i] != shown(want):
			return fmt.Errorf("choice %d of %d prompt tokens: %q, want %q (request %s)", i, len(prompt), r.texts[i], want, r.id)
		case r.finish[i] != end.FinishReason:
			return fmt.Errorf("choice %d ended by %q, want %q (request %s)", i, r.finish[i], end.FinishReason, r.id)
		}
		tokens += end.CompletionTokens
	}
	if r.prompt != len(prompt) || r.tokens != tokens {
		return fmt.Errorf("usage is %d + %d tokens, want %d + %d (request %s)", r.prompt, r.tokens, len(prompt), tokens, r.id)
	}
	return nil
}
