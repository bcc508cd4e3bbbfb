package enginefake

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// Call is a client's request.
type Call struct {
	Path   string // empty: /v1/completions
	Header map[string]string
	Body   map[string]any
}

// Reply is what a client makes of an answer, whatever it was.
type Reply struct {
	Err       error // the connection's; the rest is what came before it
	Status    int   // 0: no answer
	Header    http.Header
	Raw       []byte
	Text      []string // by choice
	Reasoning string
	Finish    []string // by choice; "" where none came
	Prompt    int      // tokens, by the answer
	Output    int
	Cached    int
	Message   string // of an error, in the body or in the stream
	Code      int    // the status that an error in the body or in the stream names
	Done      bool   // the stream's end mark came
}

// First is the text of the first choice.
func (r *Reply) First() string {
	if len(r.Text) == 0 {
		return ""
	}
	return r.Text[0]
}

// FinishFirst is the finish reason of the first choice.
func (r *Reply) FinishFirst() string {
	if len(r.Finish) == 0 {
		return ""
	}
	return r.Finish[0]
}

// Client makes a connection for each request.
var Client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// Do sends a call to a server and reads the answer to its end.
func Do(ctx context.Context, base string, c Call) Reply {
	body, err := json.Marshal(c.Body)
	if err != nil {
		return Reply{Err: err}
	}
	path := c.Path
	if path == "" {
		path = "/v1/completions"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+path, bytes.NewReader(body))
	if err != nil {
		return Reply{Err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	for k, v := range c.Header {
		req.Header.Set(k, v)
	}
	res, err := Client.Do(req)
	if err != nil {
		return Reply{Err: err}
	}
	defer func() { _ = res.Body.Close() }()
	r := Reply{Status: res.StatusCode, Header: res.Header}
	r.Raw, r.Err = io.ReadAll(res.Body)
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") {
		r.take(r.Raw)
		return r
	}
	for lines := bufio.NewScanner(bytes.NewReader(r.Raw)); lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && data == "[DONE]" {
			r.Done = true
		} else if ok {
			r.take([]byte(data))
		}
	}
	return r
}

type reply struct {
	Choices []struct {
		Index   int     `json:"index"`
		Text    string  `json:"text"`
		Finish  *string `json:"finish_reason"`
		Message piece   `json:"message"`
		Delta   piece   `json:"delta"`
	} `json:"choices"`
	Usage *struct {
		Prompt  int `json:"prompt_tokens"`
		Output  int `json:"completion_tokens"`
		Details *struct {
			Cached int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Text    *string         `json:"text"` // /generate: all of it so far
	Meta    *meta           `json:"meta_info"`
	Error   json.RawMessage `json:"error"`
	Object  string          `json:"object"`
	Message string          `json:"message"`
	Code    json.RawMessage `json:"code"`
}

type piece struct {
	Content   *string `json:"content"`
	Reasoning *string `json:"reasoning_content"`
	Tools     []struct {
		Function struct {
			Arguments string `json:"arguments"`
		} `json:"function"`
	} `json:"tool_calls"`
}

type meta struct {
	Finish *struct {
		Type    string `json:"type"`
		Message string `json:"message"`
		Status  int    `json:"status_code"`
	} `json:"finish_reason"`
	Prompt int `json:"prompt_tokens"`
	Output int `json:"completion_tokens"`
	Cached int `json:"cached_tokens"`
}

func (r *Reply) choice(i int) {
	for len(r.Text) <= i {
		r.Text, r.Finish = append(r.Text, ""), append(r.Finish, "")
	}
}

// take reads one JSON object of an answer. What it does not know stays in Raw.
func (r *Reply) take(data []byte) {
	if list := bytes.TrimSpace(data); len(list) > 0 && list[0] == '[' { // /generate with n > 1
		var all []json.RawMessage
		if json.Unmarshal(list, &all) == nil {
			for i, one := range all {
				r.takeOne(one, i)
			}
		}
		return
	}
	r.takeOne(data, 0)
}

func (r *Reply) takeOne(data []byte, at int) {
	var b reply
	if json.Unmarshal(data, &b) != nil {
		return
	}
	for _, c := range b.Choices {
		r.choice(c.Index)
		text := c.Text
		for _, p := range []piece{c.Message, c.Delta} {
			if p.Content != nil {
				text += *p.Content
			}
			if p.Reasoning != nil {
				r.Reasoning += *p.Reasoning
			}
			for _, t := range p.Tools {
				text += t.Function.Arguments
			}
		}
		r.Text[c.Index] += text
		if c.Finish != nil {
			r.Finish[c.Index] = *c.Finish
		}
	}
	if b.Usage != nil {
		r.Prompt, r.Output = b.Usage.Prompt, b.Usage.Output
		if b.Usage.Details != nil {
			r.Cached = b.Usage.Details.Cached
		}
	}
	if b.Text != nil && b.Meta != nil {
		r.choice(at)
		r.Text[at] = *b.Text
		r.Prompt, r.Output, r.Cached = b.Meta.Prompt, b.Meta.Output, b.Meta.Cached
		if f := b.Meta.Finish; f != nil {
			r.Finish[at], r.Message, r.Code = f.Type, f.Message, f.Status
		}
	}
	if b.Object == "error" {
		r.Message = b.Message
		_ = json.Unmarshal(b.Code, &r.Code) // a code may be a word
	}
	var inner struct {
		Message string          `json:"message"`
		Code    json.RawMessage `json:"code"`
	}
	if len(b.Error) > 0 && json.Unmarshal(b.Error, &inner) == nil {
		r.Message = inner.Message
		_ = json.Unmarshal(inner.Code, &r.Code) // a code may be a word
	}
}

// Until waits until ok holds.
func Until(ctx context.Context, what string, ok func() bool) error {
	for !ok() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}
