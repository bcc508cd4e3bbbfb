package canary

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// maxAnswer is the most that is read of one answer.
const maxAnswer = 1 << 20

// answer is what a client of the HTTP API sees. Body and text stay in memory, for
// the comparison.
type answer struct {
	status    int
	body      string // all of it, whatever it is
	parsed    bool   // it is JSON
	text      string
	code      string // of an error
	tokens    int    // of the prompt, as the answer counts them
	requestID string
	receipt   string
}

// evidence names the answer in the log; empty without a receipt.
func (a *answer) evidence() string {
	if a.requestID == "" || a.receipt == "" {
		return ""
	}
	return a.requestID + "@" + a.receipt
}

// newHTTP makes a client that follows no redirect: the key is for one host.
func newHTTP() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// complete asks an OpenAI completions endpoint.
func complete(ctx context.Context, c *http.Client, base, key, model, prompt string) (*answer, error) {
	body, err := json.Marshal(map[string]any{"model": model, "prompt": prompt, "max_tokens": most, "temperature": 0, "seed": 1})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimRight(base, "/")+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the gateway's address cannot be asked")
	}
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, fmt.Errorf("no answer: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("no whole answer: %w", err)
	}
	a := &answer{status: resp.StatusCode, body: string(b), requestID: resp.Header.Get("X-Request-Id"), receipt: resp.Header.Get("Pdgate-Receipt")}
	var v struct {
		Choices []struct {
			Text string `json:"text"`
		} `json:"choices"`
		Usage struct {
			PromptTokens int `json:"prompt_tokens"`
		} `json:"usage"`
		Error struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	a.parsed = json.Unmarshal(b, &v) == nil
	if a.code, a.tokens = v.Error.Code, v.Usage.PromptTokens; len(v.Choices) > 0 {
		a.text = v.Choices[0].Text
	}
	return a, nil
}
