package main

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/pdgate/pdgate/gpuworker/engine"
)

// TestOpenAIClient lets OpenAI's own library talk to the whole system: what it
// gets is what the monolithic engine answers, and its errors are typed.
func TestOpenAIClient(t *testing.T) {
	s := newSystem(1)
	eng, err := engine.New(s.engine)
	if err != nil {
		t.Fatal(err)
	}
	const prompt = "Q: What is the capital of Japan?\nA: Tokyo\nQ: What is the capital of Japan?\nA:"
	whole := func(ctx context.Context, prompt []byte, stop string, most int) (string, error) {
		text, _, err := engine.Complete(ctx, eng, prompt, engine.Sampling{MaxTokens: most, Stop: []string{stop}})
		return string(text), err
	}
	log := s.run(t, func(ctx context.Context) error {
		c := openai.NewClient(option.WithBaseURL(s.http+"/v1"), option.WithAPIKey(s.keys["t1"]), option.WithHTTPClient(s.web), option.WithMaxRetries(0))

		want, err := whole(ctx, []byte(prompt), "\n", 24)
		if err != nil || want != " Tokyo" {
			return fmt.Errorf("the engine alone answers %q, %v", want, err)
		}
		ask := openai.CompletionNewParams{Model: openai.CompletionNewParamsModel(s.engine.Model), Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(prompt)},
			MaxTokens: openai.Int(24), Stop: openai.CompletionNewParamsStopUnion{OfString: openai.String("\n")}}
		got, err := c.Completions.New(ctx, ask)
		if err != nil || got.Choices[0].Text != want || got.Choices[0].FinishReason != "stop" {
			return fmt.Errorf("completion: %+v, %v", got, err)
		}

		chat := openai.ChatCompletionNewParams{Model: s.engine.Model, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("color=blue. color=")}, MaxCompletionTokens: openai.Int(16)}
		want, err = whole(ctx, engine.Chat([]engine.Message{{Role: "user", Content: "color=blue. color="}}), engine.ChatStop, 16)
		if err != nil {
			return err
		}
		said, err := c.Chat.Completions.New(ctx, chat)
		if err != nil || said.Choices[0].Message.Content != want {
			return fmt.Errorf("chat: %+v, %v; want %q", said, err, want)
		}
		stream := c.Chat.Completions.NewStreaming(ctx, chat)
		var acc openai.ChatCompletionAccumulator
		for stream.Next() {
			acc.AddChunk(stream.Current())
		}
		if stream.Err() != nil || len(acc.Choices) != 1 || acc.Choices[0].Message.Content != want {
			return fmt.Errorf("stream: %+v, %v; want %q", acc.ChatCompletion, stream.Err(), want)
		}

		ask.MaxTokens = openai.Int(1 << 20)
		_, err = c.Completions.New(ctx, ask)
		var refused *openai.Error
		if !errors.As(err, &refused) || refused.StatusCode != 400 || refused.Code != "context_length_exceeded" {
			return fmt.Errorf("too long: %v", err)
		}
		return nil
	})
	if r := s.check(log); len(r.Violations) > 0 || r.Open != 0 || r.Requests != 4 {
		t.Errorf("the log: %+v", r)
	}
}
