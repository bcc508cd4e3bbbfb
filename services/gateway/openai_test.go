package gateway

import (
	"errors"
	"net/http"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/pdgate/pdgate/events"
)

// OpenAI's own client gets what it expects.
func TestOpenAIClient(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	c := openai.NewClient(option.WithBaseURL(r.url+"/v1"), option.WithAPIKey(r.key), option.WithMaxRetries(0), option.WithHTTPClient(r.client))
	chat := openai.ChatCompletionNewParams{
		Model: "ref", Messages: []openai.ChatCompletionMessageParamUnion{openai.SystemMessage("be brief"), openai.UserMessage("hi " + canary)},
		MaxCompletionTokens: openai.Int(30), Temperature: openai.Float(0), Seed: openai.Int(1), N: openai.Int(2),
	}
	prompt, _ := bytesTokenizer{}.Chat([]Message{{"system", "be brief"}, {"user", "hi " + canary}})

	t.Run("chat", func(t *testing.T) {
		got, err := c.Chat.Completions.New(t.Context(), chat)
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Choices) != 2 || got.Choices[0].Message.Content != answerTo(prompt, 30, 0) || got.Choices[1].Message.Content != answerTo(prompt, 30, 1) ||
			got.Choices[0].FinishReason != "length" || got.Usage.TotalTokens != int64(len(prompt))+60 {
			t.Errorf("%+v", got)
		}
	})
	t.Run("chat stream", func(t *testing.T) {
		p := chat
		p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
		s := c.Chat.Completions.NewStreaming(t.Context(), p)
		var acc openai.ChatCompletionAccumulator
		for s.Next() {
			if !acc.AddChunk(s.Current()) {
				t.Error("a chunk does not fit the ones before")
			}
		}
		if err := s.Err(); err != nil {
			t.Fatal(err)
		}
		if len(acc.Choices) != 2 || acc.Choices[1].Message.Content != answerTo(prompt, 30, 1) || acc.Choices[0].FinishReason != "length" || acc.Usage.CompletionTokens != 60 {
			t.Errorf("%+v", acc.ChatCompletion)
		}
	})
	completion := openai.CompletionNewParams{Model: "ref", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(testPrompt)}, MaxTokens: openai.Int(64)}
	t.Run("completion", func(t *testing.T) {
		got, err := c.Completions.New(t.Context(), completion)
		if err != nil || got.Choices[0].Text != testAnswer {
			t.Errorf("%+v, %v", got, err)
		}
	})
	t.Run("completion stream", func(t *testing.T) {
		s := c.Completions.NewStreaming(t.Context(), completion)
		text := ""
		for s.Next() {
			for _, ch := range s.Current().Choices {
				text += ch.Text
			}
		}
		if s.Err() != nil || text != testAnswer {
			t.Errorf("%q, %v", text, s.Err())
		}
	})
	t.Run("models", func(t *testing.T) {
		got, err := c.Models.List(t.Context())
		if err != nil || len(got.Data) != 2 || got.Data[1].ID != "ref" {
			t.Errorf("%+v, %v", got, err)
		}
		if m, err := c.Models.Get(t.Context(), "ref"); err != nil || m.ID != "ref" {
			t.Errorf("%+v, %v", m, err)
		}
	})
	rejecting := func(rec *record) { rec.append(&events.RequestRejected{Error: *contextError, Stage: "engine"}) }
	failing := func(rec *record) {
		rec.walk()
		rec.send(rec.b.decode, 0, "half")
		rec.append(&events.RequestFailed{Error: *events.NewError(events.CodeWorkerLost, "worker d1 is lost"), From: events.Transferred, Stage: "decode"})
	}
	t.Run("errors", func(t *testing.T) {
		r.b.set(func() { r.b.script = rejecting })
		var e *openai.Error
		if _, err := c.Completions.New(t.Context(), completion); !errors.As(err, &e) || e.StatusCode != http.StatusBadRequest || e.Code != "context_length_exceeded" || e.Type != "invalid_request_error" {
			t.Errorf("rejected: %v", err)
		}
		s := c.Completions.NewStreaming(t.Context(), completion)
		if s.Next() || !errors.As(s.Err(), &e) || e.StatusCode != http.StatusBadRequest || e.Code != "context_length_exceeded" {
			t.Errorf("rejected stream: %v", s.Err())
		}
		r.b.set(func() { r.b.script = failing })
		s = c.Completions.NewStreaming(t.Context(), completion)
		for s.Next() {
		}
		if s.Err() == nil {
			t.Error("a stream that failed in the middle ends without an error")
		}
		bad := openai.NewClient(option.WithBaseURL(r.url+"/v1"), option.WithAPIKey("pdg_wrong"), option.WithMaxRetries(0), option.WithHTTPClient(r.client))
		if _, err := bad.Completions.New(t.Context(), completion); !errors.As(err, &e) || e.StatusCode != http.StatusUnauthorized {
			t.Errorf("wrong key: %v", err)
		}
	})
}
