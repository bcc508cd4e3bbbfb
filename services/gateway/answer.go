package gateway

import (
	"context"
	"net/http"

	"github.com/pdgate/pdgate/events"
)

// collect answers in one piece: when every choice is decoded, and whole.
func (c *call) collect(ctx context.Context, w *answerWriter) *failure {
	for {
		all := true
		for _, f := range c.flights {
			p := f.look(c.g.cfg.Now())
			if p.err != nil {
				return p.err
			}
			all = all && p.done
		}
		if all {
			break
		}
		if f := c.wait(ctx); f != nil {
			return f
		}
	}
	answer := completion{ID: c.answerID(), Object: c.object(""), Created: c.created.Unix(), Model: c.req.model, Usage: &usage{PromptTokens: c.promptTokens}}
	for _, f := range c.flights {
		text, p := f.take(c.g.cfg.Now())
		if p.err != nil {
			return p.err
		}
		answer.Usage.add(p.tokens)
		if c.relay {
			whole, err := wholeChoice(f, text)
			if err != nil {
				return err
			}
			answer.Choices = append(answer.Choices, whole)
			continue
		}
		answer.Choices = append(answer.Choices, c.choice(f, replaceInvalid(text), p.finish))
	}
	c.receipts(w.Header())
	writeJSON(w, http.StatusOK, answer)
	return nil
}

// stream answers in pieces. The status line is held until every choice may be
// shown, since it speaks for all of them.
func (c *call) stream(ctx context.Context, w *answerWriter) *failure {
	for {
		open := true
		for _, f := range c.flights {
			p := f.look(c.g.cfg.Now())
			if p.err != nil {
				return p.err
			}
			open = open && p.open
		}
		if open {
			break
		}
		if f := c.wait(ctx); f != nil {
			return f
		}
	}
	c.receipts(w.Header())
	s := newSSE(w)
	texts := make([]runes, len(c.flights))
	relayed := make([]lines, len(c.flights))
	ended := make([]bool, len(c.flights))
	total := usage{PromptTokens: c.promptTokens}
	if c.req.chat && !c.relay {
		for _, f := range c.flights {
			s.send(c.piece(f, "", true, ""))
		}
	}
	for left := len(c.flights); ; {
		for i, f := range c.flights {
			if ended[i] {
				continue
			}
			text, p := f.take(c.g.cfg.Now())
			if p.err != nil {
				return p.err
			}
			if c.relay {
				choices, err := relayed[i].push(f, text, p.done)
				if err != nil {
					return err
				}
				for _, ch := range choices {
					s.send(c.relayPiece(ch))
				}
			} else {
				shown := texts[i].push(text)
				if p.done {
					shown += texts[i].flush()
				}
				if shown != "" {
					s.send(c.piece(f, shown, false, ""))
				}
				if p.done {
					s.send(c.piece(f, "", false, p.finish))
				}
			}
			if p.done {
				total.add(p.tokens)
				ended[i], left = true, left-1
			}
		}
		if left == 0 {
			break
		}
		if f := s.push(); f != nil {
			return f
		}
		if f := c.wait(ctx); f != nil {
			return f
		}
	}
	if c.req.usage {
		s.send(c.usagePiece(total))
	}
	s.done()
	c.finalReceipts(w.Header())
	return s.push()
}

// writeFailure answers with f, whatever was sent already.
func (c *call) writeFailure(w *answerWriter, f *failure) {
	w.x.code = f.code
	if w.broken {
		return
	}
	if w.status == 0 {
		c.receipts(w.Header())
		writeFailure(w, f)
	} else {
		// The status is gone. An error event, and no [DONE].
		s := &sse{w: w}
		s.send(f.body())
		c.finalReceipts(w.Header())
	}
	// The client has it before what is left open is cancelled, which takes a while.
	_ = w.push()
}

// receipts names the durable events behind an answer.
func (c *call) receipts(h http.Header) {
	for _, f := range c.flights {
		if _, r := f.stands(); r != "" {
			h.Add(headerReceipt, r)
		}
	}
}

func (c *call) finalReceipts(h http.Header) {
	for _, f := range c.flights {
		if _, r := f.stands(); r != "" {
			h.Add(http.TrailerPrefix+trailerReceipt, r)
		}
	}
}

func (c *call) answerID() string {
	if c.req.chat {
		return "chatcmpl-" + c.id
	}
	return "cmpl-" + c.id
}

// object is OpenAI's name of the answer.
func (c *call) object(piece string) string {
	if c.req.chat {
		return "chat.completion" + piece
	}
	return "text_completion"
}

type usage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

func (u *usage) add(completion int) {
	u.CompletionTokens += completion
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
}

// completion is an answer, or a piece of one.
type completion struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	Model   string `json:"model"`
	Choices []any  `json:"choices"` // choice or relayChoice
	Usage   *usage `json:"usage,omitempty"`
}

type choice struct {
	Index        int                  `json:"index"`
	Text         *string              `json:"text,omitempty"`    // completion
	Message      *turn                `json:"message,omitempty"` // chat
	Delta        *turn                `json:"delta,omitempty"`   // piece of a chat
	Logprobs     *struct{}            `json:"logprobs"`
	FinishReason *events.FinishReason `json:"finish_reason"`
}

type turn struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
	Refusal *string `json:"refusal,omitempty"`
}

func (c *call) choice(f *flight, text string, finish events.FinishReason) choice {
	ch := choice{Index: f.choice, FinishReason: &finish}
	if c.req.chat {
		ch.Message = &turn{Role: "assistant", Content: &text}
	} else {
		ch.Text = &text
	}
	return ch
}

// piece is one event of a stream: a role, some text, or a finish reason.
func (c *call) piece(f *flight, text string, role bool, finish events.FinishReason) completion {
	ch := choice{Index: f.choice}
	if finish != "" {
		ch.FinishReason = &finish
	}
	switch {
	case !c.req.chat:
		ch.Text = &text
	case role:
		ch.Delta = &turn{Role: "assistant", Content: &text}
	case finish != "":
		ch.Delta = &turn{}
	default:
		ch.Delta = &turn{Content: &text}
	}
	return completion{ID: c.answerID(), Object: c.object(".chunk"), Created: c.created.Unix(), Model: c.req.model, Choices: []any{ch}}
}

// usagePiece is the last event of a stream that was asked for its usage.
func (c *call) usagePiece(u usage) completion {
	return completion{ID: c.answerID(), Object: c.object(".chunk"), Created: c.created.Unix(), Model: c.req.model, Choices: []any{}, Usage: &u}
}
