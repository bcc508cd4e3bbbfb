package client

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
)

// Parts of what a gateway holds for a request.
const (
	PartPrompt   = "prompt"
	PartSampling = "sampling"
)

// maxPart bounds what a part may claim to be: memory is reserved for it.
const maxPart = 256 << 20

// promptTries is how often one chunk is asked for before the prompt counts as
// unavailable: its gateway may be gone for good.
const promptTries = 5

// FetchPrompt gets a part of what w's gateway holds, chunk by chunk. The part
// "prompt" must match the digest that the request was admitted with. A prompt
// that cannot be had is an [*events.Error] with code prompt_unavailable.
func (c *Client) FetchPrompt(ctx context.Context, w *events.Work, part string) ([]byte, error) {
	subject := events.PromptSubject(w.Gateway, c.role, c.principal, w.RequestID)
	var buf []byte
	for {
		ch, err := c.chunk(ctx, subject, events.PromptRequest{Part: part, Offset: int64(len(buf))})
		if err != nil {
			return nil, err
		}
		switch {
		case ch.Total > maxPart:
			return nil, unavailablePrompt(fmt.Sprintf("the gateway offers %d bytes, the limit is %d", ch.Total, maxPart))
		case ch.Offset != int64(len(buf)):
			return nil, unavailablePrompt(fmt.Sprintf("the gateway sent offset %d for %d", ch.Offset, len(buf)))
		case len(ch.Bytes) == 0 && ch.Total > int64(len(buf)):
			return nil, unavailablePrompt(fmt.Sprintf("the gateway sent nothing at offset %d of %d", len(buf), ch.Total))
		}
		if buf == nil {
			buf = make([]byte, 0, ch.Total)
		}
		buf = append(buf, ch.Bytes...)
		if int64(len(buf)) == ch.Total {
			break
		}
	}
	if part == PartPrompt {
		key, err := hex.DecodeString(w.DigestKey)
		if err != nil {
			return nil, errors.New("work item: digest_key is not hex")
		}
		if !events.SameDigest(w.PromptDigest, key, events.KindPrompt, buf) {
			return nil, unavailablePrompt("the gateway's prompt is not the admitted one: its digest differs")
		}
	}
	return buf, nil
}

func (c *Client) chunk(ctx context.Context, subject string, r events.PromptRequest) (events.PromptChunk, error) {
	payload, err := events.AppendPromptRequest(nil, &r)
	if err != nil {
		return events.PromptChunk{}, fmt.Errorf("encode prompt request: %w", err)
	}
	var last error
	for try, pause := 0, firstPause; try < promptTries; try, pause = try+1, min(4*pause, lastPause) {
		m, err := c.request(ctx, subject, payload, c.timeout)
		if err == nil {
			if refused := refusal(m); refused != nil {
				return events.PromptChunk{}, refused
			}
			ch, err := events.ParsePromptChunk(m.Data)
			if err != nil {
				return events.PromptChunk{}, unavailablePrompt("the gateway's reply is not a prompt chunk")
			}
			return ch, nil
		}
		var refused *events.Error
		switch {
		case ctx.Err() != nil:
			return events.PromptChunk{}, fmt.Errorf("fetch prompt: %w", context.Cause(ctx))
		case errors.As(err, &refused):
			return events.PromptChunk{}, refused
		case errors.Is(err, nats.ErrConnectionClosed):
			return events.PromptChunk{}, fmt.Errorf("fetch prompt: %w", err)
		case !sleep(ctx, pause):
			return events.PromptChunk{}, fmt.Errorf("fetch prompt: %w", context.Cause(ctx))
		}
		last = err
	}
	return events.PromptChunk{}, fmt.Errorf("fetch prompt: %w: %w", unavailablePrompt("the gateway that holds it does not answer"), last)
}

func unavailablePrompt(why string) *events.Error {
	return events.NewError(events.CodePromptUnavailable, why)
}

// SendOutput publishes one piece of output to the request's gateway. It is not
// answered: the gateway compares what arrived with the decoded event.
func (c *Client) SendOutput(w *events.Work, chunk events.OutputChunk) error {
	b := events.AppendOutputChunk(make([]byte, 0, 12+len(chunk.Text)), chunk)
	if err := c.conn.Publish(events.OutputSubject(w.Gateway, c.principal, w.RequestID), b); err != nil {
		return fmt.Errorf("publish output: %w", err)
	}
	return nil
}
