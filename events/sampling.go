package events

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
)

// Parts of a request that a gateway holds, see [PromptRequest].
const (
	PartPrompt   = "prompt"   // the prompt's bytes, as the engine reads them
	PartSampling = "sampling" // a [Sampling] in JSON
)

// Sampling says how to continue a prompt. It travels with the prompt, from the
// gateway to the worker, and is never part of an event: stop sequences are a
// client's text.
type Sampling struct {
	MaxTokens   int      `json:"max_tokens"`
	Stop        []string `json:"stop,omitempty"` // ends the output before the first of these
	Temperature float64  `json:"temperature,omitempty"`
	Seed        int64    `json:"seed,omitempty"`

	// For engines that read the client's own body: the rest stands there.
	Route     string `json:"route,omitempty"`      // where the client sent it, such as "/v1/completions"
	Stream    bool   `json:"stream,omitempty"`     // it wants pieces
	MinTokens int    `json:"min_tokens,omitempty"` // 0: not named
	Seeded    bool   `json:"seeded,omitempty"`     // seed takes the place of the body's
}

// AppendSampling appends s in JSON.
func AppendSampling(dst []byte, s *Sampling) ([]byte, error) {
	b, err := json.Marshal(s)
	return append(dst, b...), err
}

// DecodeSampling decodes what [AppendSampling] wrote. Its errors quote nothing.
func DecodeSampling(b []byte) (*Sampling, error) {
	var s Sampling
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		var t *json.UnmarshalTypeError
		if errors.As(err, &t) {
			return nil, wrong(t.Field, "has the wrong type")
		}
		return nil, wrong("", "want a sampling object")
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, wrong("", "want one sampling object")
	}
	switch {
	case s.MaxTokens < 1:
		return nil, wrong("max_tokens", "want 1 or more")
	case s.Temperature < 0 || math.IsNaN(s.Temperature):
		return nil, wrong("temperature", wantCount)
	case s.MinTokens < 0 || len(s.Route) > 64:
		return nil, wrong("route", "want a route of at most 64 bytes, and min_tokens of 0 or more")
	}
	return &s, nil
}
