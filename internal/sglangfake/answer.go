package sglangfake

import (
	"context"
	"errors"
	"net/http"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// reply sends a whole answer, of a stream too: then it has one event.
func (n *Node) reply(w http.ResponseWriter, j *job, gens []*enginefake.Generation) {
	if j.route != generateRoute {
		a := n.frame(j)
		if j.Stream {
			// The job may have been aborted; its end is sent all the same. A client that
			// has left reads nothing.
			_ = a.Stream(context.WithoutCancel(j.ctx), enginefake.NewSSE(w), gens, n.pace)
			return
		}
		a.Write(w, gens)
		return
	}
	var all []any
	for _, g := range gens {
		all = append(all, n.native(j, g, g.All()))
	}
	switch {
	case j.Stream:
		sse := enginefake.NewSSE(w)
		for _, one := range all {
			if sse.Send(one) != nil {
				return
			}
		}
		_ = sse.Done() // as above
	case len(all) == 1:
		enginefake.WriteJSON(w, http.StatusOK, all[0])
	default:
		enginefake.WriteJSON(w, http.StatusOK, all)
	}
}

// frame is the answer on an OpenAI route.
func (n *Node) frame(j *job) *enginefake.Answer {
	return &enginefake.Answer{
		Request: j.Request, ID: j.rid, Created: n.cfg.Clock.Now().Unix(), Prompt: len(j.prompt), Cached: j.cached,
		Choice: func(c map[string]any, g *enginefake.Generation) {
			c["matched_stop"] = nil
			if g.Finish == enginefake.FinishStop {
				c["matched_stop"] = g.Stop
			}
		},
		Body: func(b map[string]any) { b["metadata"] = map[string]any{"weight_version": "default"} },
	}
}

// native is an answer of /generate, as far as it is.
func (n *Node) native(j *job, g *enginefake.Generation, text string) map[string]any {
	var finish any
	switch {
	case g.Finish == enginefake.FinishLength && n.cfg.Role == Prefill:
		finish = map[string]any{"type": "length", "length": 0}
	case g.Finish == enginefake.FinishLength:
		finish = map[string]any{"type": "length", "length": g.Tokens()}
	case g.Finish != "":
		finish = map[string]any{"type": g.Finish, "matched": g.Stop}
	}
	ids := make([]int, 0, g.Tokens())
	for _, b := range g.Raw() {
		ids = append(ids, int(b))
	}
	return map[string]any{"text": text, "output_ids": ids, "meta_info": map[string]any{
		"id": j.rid, "finish_reason": finish, "prompt_tokens": len(j.prompt), "completion_tokens": g.Tokens(),
		"cached_tokens": j.cached, "weight_version": "default", "e2e_latency": n.cfg.Clock.Now().Sub(j.arrived).Seconds(),
	}}
}

// stream sends tokens as they come; /generate repeats the text so far in each
// event.
func (n *Node) stream(w http.ResponseWriter, j *job, gens []*enginefake.Generation, seats []*seat) error {
	sse := enginefake.NewSSE(w)
	if j.route != generateRoute {
		at := 0
		return n.frame(j).Stream(j.ctx, sse, gens, func(context.Context) error {
			g, s := gens[at%len(gens)], seats[at%len(gens)]
			at++
			return n.tick(j, s, g)
		})
	}
	for i, g := range gens {
		text := ""
		for ended := false; !ended; {
			if err := n.tick(j, seats[i], g); err != nil {
				return err
			}
			text += g.Step()
			ended = g.Finish != ""
			event := n.native(j, g, text)
			if len(gens) > 1 {
				event["index"] = i
			}
			if err := sse.Send(event); err != nil {
				return err
			}
		}
	}
	return sse.Done()
}

// abort sends an end without an answer. What the tokenizer refuses on an OpenAI
// route has its status, streamed or not; in a stream the rest comes under 200.
func (n *Node) abort(w http.ResponseWriter, j *job, err error) {
	var a *abortion
	if !errors.As(err, &a) {
		a = &abortion{status: http.StatusInternalServerError, kind: "InternalServerError", message: "Internal server error"}
	}
	openAI := map[string]any{"object": "error", "message": a.message, "type": a.kind, "param": nil, "code": a.status}
	native := map[string]any{"error": map[string]any{"message": a.message}}
	switch streamed := j.Stream && !(a.early && j.route != generateRoute); {
	case a.status == 0:
		n.reply(w, j, []*enginefake.Generation{ended(j, enginefake.FinishAbort)})
	case !streamed && j.route == generateRoute:
		enginefake.WriteJSON(w, a.status, native)
	case !streamed:
		enginefake.WriteJSON(w, a.status, openAI)
	case j.route != generateRoute:
		n.last(w, map[string]any{"error": openAI})
	case a.early:
		n.last(w, native)
	default:
		event := n.native(j, ended(j, enginefake.FinishAbort), "")
		event["meta_info"].(map[string]any)["finish_reason"] = map[string]any{
			"type": "abort", "message": a.message, "status_code": a.status, "err_type": a.kind,
		}
		n.last(w, event)
	}
}

func (n *Node) last(w http.ResponseWriter, event any) {
	sse := enginefake.NewSSE(w)
	if sse.Send(event) == nil {
		_ = sse.Done() // a client that has left reads nothing
	}
}
