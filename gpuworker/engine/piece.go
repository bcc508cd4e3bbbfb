package engine

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine/remote"
)

// empty says whether the piece has nothing in it.
func empty(p *events.Piece) bool {
	return p.Text == nil && p.Message == nil && p.Delta == nil && p.FinishReason == nil
}

// shows says whether there is something in it for a person to see: the first
// piece of a chat has a role and no content.
func shows(p *events.Piece) bool {
	return p.Text != nil && !emptyText(p.Text) || p.Message != nil && !emptyContent(p.Message) || p.Delta != nil && !emptyContent(p.Delta)
}

// usage is what an engine counted.
type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
}

// answer is an OpenAI answer, or one event of its stream, or an error in place
// of either.
type answer struct {
	Choices []struct {
		Index int `json:"index"`
		events.Piece
	} `json:"choices"`
	Usage    *usage          `json:"usage"`
	Transfer json.RawMessage `json:"kv_transfer_params"`

	Object  string          `json:"object"`
	Error   json.RawMessage `json:"error"`
	Code    json.RawMessage `json:"code"`
	Message string          `json:"message"`
}

var errAnswer = errors.New("the engine's answer is not one")

// parseAnswer reads an answer with at most one choice. An error that the engine
// put inside is its own, in our terms.
func parseAnswer(b, prompt []byte, fallback events.Code) (*answer, error) {
	a := new(answer)
	if err := json.Unmarshal(b, a); err != nil {
		return nil, errAnswer // the decoder's error may quote the answer
	}
	if len(a.Error) > 0 && string(a.Error) != "null" || a.Object == "error" {
		return nil, remote.Inband(a.status(), remote.Words(b), prompt, fallback)
	}
	if len(a.Choices) > 1 || len(a.Choices) == 1 && a.Choices[0].Index != 0 {
		return nil, fmt.Errorf("%w: it holds another choice", errAnswer)
	}
	return a, nil
}

// status is the HTTP status that an in-band error names; 0: none.
func (a *answer) status() int {
	var e struct {
		Code json.RawMessage `json:"code"`
	}
	code := a.Code
	if json.Unmarshal(a.Error, &e) == nil && len(e.Code) > 0 {
		code = e.Code
	}
	var n int
	if json.Unmarshal(code, &n) != nil || n < 400 || n > 599 {
		return 0
	}
	return n
}

// finished is the end of an output as events know it; false: an engine's word
// for something that went wrong. The client gets the engine's own word.
func finished(reason string) (events.FinishReason, bool) {
	switch reason {
	case "stop", "tool_calls", "function_call", "content_filter":
		return events.FinishStop, true
	case "length":
		return events.FinishLength, true
	}
	return "", false
}
