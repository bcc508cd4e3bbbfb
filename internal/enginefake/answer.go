package enginefake

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
)

// Answer is the frame of one answer on an OpenAI route. The engines differ in
// what they put around it.
type Answer struct {
	Request *Request
	ID      string // of the answer
	Created int64
	Prompt  int // prompt tokens
	Cached  int // of which a prefix cache had

	// Choice adds an engine's own fields to a choice, Body to a whole answer. Both
	// may be nil.
	Choice func(choice map[string]any, g *Generation)
	Body   func(body map[string]any)
}

// WriteJSON answers with a body.
func WriteJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // a client that has left reads no error either
}

func (a *Answer) usage(gens []*Generation) map[string]any {
	n := 0
	for _, g := range gens {
		n += g.Tokens()
	}
	u := map[string]any{"prompt_tokens": a.Prompt, "completion_tokens": n, "total_tokens": a.Prompt + n, "prompt_tokens_details": nil}
	if a.Cached > 0 {
		u["prompt_tokens_details"] = map[string]any{"cached_tokens": a.Cached}
	}
	return u
}

func (a *Answer) body(object string, choices []any) map[string]any {
	return map[string]any{"id": a.ID, "object": object, "created": a.Created, "model": a.Request.Model, "choices": choices}
}

// Write answers in one piece.
func (a *Answer) Write(w http.ResponseWriter, gens []*Generation) {
	object := "text_completion"
	if a.Request.Chat {
		object = "chat.completion"
	}
	var choices []any
	for i, g := range gens {
		text := g.All()
		c := map[string]any{"index": i, "logprobs": a.logprobs(g, 0, g.keep), "finish_reason": a.finish(g)}
		if a.Request.Chat {
			c["message"] = a.message(text)
		} else {
			c["text"] = text
		}
		a.own(c, g)
		choices = append(choices, c)
	}
	body := a.body(object, choices)
	body["usage"] = a.usage(gens)
	if a.Body != nil {
		a.Body(body)
	}
	WriteJSON(w, http.StatusOK, body)
}

func (a *Answer) own(c map[string]any, g *Generation) {
	if a.Choice != nil {
		a.Choice(c, g)
	}
}

func (a *Answer) finish(g *Generation) any {
	switch {
	case g.Finish == "":
		return nil
	case a.Request.Tool != "" && (g.Finish == FinishStop || g.Finish == FinishLength):
		return FinishTools
	}
	return g.Finish
}

func (a *Answer) message(text string) map[string]any {
	if a.Request.Tool == "" {
		return map[string]any{"role": "assistant", "content": text, "reasoning_content": nil, "tool_calls": []any{}}
	}
	return map[string]any{"role": "assistant", "content": nil, "reasoning_content": nil, "tool_calls": []any{map[string]any{
		"id": "call_" + a.ID, "type": "function", "function": map[string]any{"name": a.Request.Tool, "arguments": toolArguments(text)},
	}}}
}

// toolArguments are the arguments of the call: the quote, so that they too show
// whose KV was read.
func toolArguments(text string) string {
	b, _ := json.Marshal(map[string]string{"text": text}) // strings always encode
	return string(b)
}

// logprobs of the tokens [from, to): certain of each, and of nothing else.
func (a *Answer) logprobs(g *Generation, from, to int) any {
	k := a.Request.Logprobs
	if k < 0 {
		return nil
	}
	if a.Request.Chat {
		content := []any{}
		for _, b := range g.out[from:to] {
			tok := map[string]any{"token": printable(b), "logprob": 0.0, "bytes": []int{int(b)}}
			top := []any{}
			if k > 0 {
				top = append(top, map[string]any{"token": printable(b), "logprob": 0.0, "bytes": []int{int(b)}})
			}
			tok["top_logprobs"] = top
			content = append(content, tok)
		}
		return map[string]any{"content": content}
	}
	tokens, probs, top, offsets := []string{}, []float64{}, []any{}, []int{}
	for i, b := range g.out[from:to] {
		tokens, probs, offsets = append(tokens, printable(b)), append(probs, 0), append(offsets, from+i)
		top = append(top, map[string]float64{printable(b): 0})
	}
	return map[string]any{"tokens": tokens, "token_logprobs": probs, "top_logprobs": top, "text_offset": offsets}
}

func printable(b byte) string {
	if b < 0x80 {
		return string(rune(b))
	}
	return fmt.Sprintf("<0x%02X>", b)
}

// Stream answers in events, a token at a time, the choices in turn. pace is
// called before each token; its error ends the stream where it is.
func (a *Answer) Stream(ctx context.Context, sse *SSE, gens []*Generation, pace func(context.Context) error) error {
	object := "text_completion"
	if a.Request.Chat {
		object = "chat.completion.chunk"
		for i := range gens {
			c := map[string]any{"index": i, "delta": map[string]any{"role": "assistant", "content": ""}, "logprobs": nil, "finish_reason": nil}
			if err := a.event(sse, object, c, gens, false); err != nil {
				return err
			}
		}
	}
	for open := len(gens); open > 0; {
		open = 0
		for i, g := range gens {
			if g.ended {
				continue
			}
			if err := pace(ctx); err != nil {
				return err
			}
			from := g.sent
			text := g.Step()
			g.ended = g.Finish != ""
			if !g.ended {
				open++
			}
			if text == "" && !g.ended {
				continue
			}
			c := map[string]any{"index": i, "logprobs": a.logprobs(g, from, g.sent), "finish_reason": a.finish(g)}
			a.piece(c, g, from, text)
			if g.ended {
				a.own(c, g)
			}
			if err := a.event(sse, object, c, gens, a.Request.Each); err != nil {
				return err
			}
		}
	}
	if a.Request.Usage {
		body := a.body(object, []any{})
		body["usage"] = a.usage(gens)
		if err := sse.Send(body); err != nil {
			return err
		}
	}
	return sse.Done()
}

// piece puts text into a chunk, or, of a tool call, the next part of its
// arguments.
func (a *Answer) piece(c map[string]any, g *Generation, from int, text string) {
	switch {
	case !a.Request.Chat:
		c["text"] = text
	case a.Request.Tool == "":
		c["delta"] = map[string]any{"content": text}
	default:
		f := map[string]any{"arguments": ""}
		call := map[string]any{"index": 0, "function": f}
		if from == 0 && !g.called {
			g.called = true
			call["id"], call["type"], f["name"] = "call_"+a.ID, "function", a.Request.Tool
			f["arguments"] = `{"text":"`
		}
		quoted := toolArguments(text)
		f["arguments"] = f["arguments"].(string) + quoted[len(`{"text":"`):len(quoted)-len(`"}`)]
		if g.ended {
			f["arguments"] = f["arguments"].(string) + `"}`
		}
		c["delta"] = map[string]any{"tool_calls": []any{call}}
	}
}

func (a *Answer) event(sse *SSE, object string, c map[string]any, gens []*Generation, usage bool) error {
	body := a.body(object, []any{c})
	if usage {
		body["usage"] = a.usage(gens)
	}
	return sse.Send(body)
}
