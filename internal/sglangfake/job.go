package sglangfake

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

type route int

const (
	generateRoute route = iota
	completionsRoute
	chatRoute
)

// fakeHost is the bootstrap host of health checks: nothing is transferred.
const fakeHost = "2.2.2.2"

// job is one request in the engine.
type job struct {
	*enginefake.Request
	route    route
	rid      string
	ctx      context.Context
	cancel   context.CancelCauseFunc
	life     *life
	faults   Faults
	arrived  time.Time
	boot     bootstrap
	rank     int
	prompt   []byte // after what admission made of it
	max      int
	cached   int
	rejected *abortion // the incident: it is, and goes on
}

type bootstrap struct {
	Host string `json:"bootstrap_host"`
	Port *int   `json:"bootstrap_port"`
	Room *int64 `json:"bootstrap_room"`

	RID      string `json:"rid"`
	ExtraKey string `json:"extra_key"`
	Salt     string `json:"cache_salt"`
}

// errAborted is the cause of a context that /abort_request ended.
var errAborted = errors.New("aborted")

// abortion is a request's end without an answer.
type abortion struct {
	status  int // 0: none, and the HTTP status is 200
	kind    string
	message string
	early   bool // by the tokenizer, before the scheduler
}

// Error implements error.
func (a *abortion) Error() string { return a.message }

func refuse(status int, kind, format string, args ...any) *abortion {
	return &abortion{status: status, kind: kind, message: fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) *abortion {
	a := refuse(http.StatusBadRequest, "BadRequestError", format, args...)
	a.early = true
	return a
}

// parse reads a body of any route.
func (n *Node) parse(body []byte, at route) (*job, error) {
	j := &job{Request: &enginefake.Request{Logprobs: -1, N: 1}, route: at}
	if err := json.Unmarshal(body, &j.boot); err != nil {
		return j, badRequest("bootstrap fields: %v", err)
	}
	if j.rid = j.boot.RID; j.rid == "" {
		j.rid = token(16)
	}
	if at != generateRoute {
		q, err := enginefake.ParseRequest(body, at == chatRoute, n.cfg.Template)
		if err != nil {
			return j, badRequest("%v", err)
		}
		j.Request = q
		if q.Model == "" {
			q.Model = n.cfg.Model
		}
		if q.MaxTokens == 0 && at == completionsRoute {
			q.MaxTokens = 16
		}
		j.prompt = q.Prompt
		return j, nil
	}
	var g struct {
		Text   json.RawMessage `json:"text"`
		IDs    json.RawMessage `json:"input_ids"`
		Stream bool            `json:"stream"`
		Params struct {
			Max       *int            `json:"max_new_tokens"`
			Stop      json.RawMessage `json:"stop"`
			IgnoreEOS bool            `json:"ignore_eos"`
			N         int             `json:"n"`
		} `json:"sampling_params"`
	}
	if err := json.Unmarshal(body, &g); err != nil {
		return j, badRequest("body: %v", err)
	}
	raw := g.Text
	if len(raw) == 0 || string(raw) == "null" {
		raw = g.IDs
	}
	var err error
	if j.prompt, err = enginefake.Prompt(raw); err == nil {
		j.Stop, err = enginefake.Strings(g.Params.Stop)
	}
	if err != nil {
		return j, badRequest("%v", err)
	}
	j.Model, j.Stream, j.IgnoreEOS, j.MaxTokens, j.N = n.cfg.Model, g.Stream, g.Params.IgnoreEOS, 128, max(1, g.Params.N)
	if g.Params.Max != nil {
		j.MaxTokens = *g.Params.Max
	}
	return j, nil
}

// admit applies the engine's limits. With the incident's bug a prompt above them
// becomes one placeholder token, and the job goes on.
func (n *Node) admit(j *job) error {
	if n.cfg.Role != Unified && j.boot.Room == nil {
		return badRequest("Invalid request: Disaggregated request received without boostrap room id. input=")
	}
	if r := j.boot.Room; r != nil {
		if *r < 0 {
			return badRequest("bootstrap_room must not be negative")
		}
		j.rank = int(*r % int64(len(n.cfg.RankTokens)))
	}
	size, limit := len(j.prompt), n.cfg.maxInput(j.rank)
	switch {
	case size == 0:
		return badRequest("The input is empty.")
	case j.route != generateRoute && j.Model != n.cfg.Model:
		return badRequest("model %q is not served here", j.Model)
	case size >= limit && n.cfg.AutoTruncate:
		j.prompt = j.prompt[:limit-1]
	case size >= n.cfg.ContextTokens:
		return badRequest("The input (%d tokens) is longer than the model's context length (%d tokens).", size, n.cfg.ContextTokens)
	case size >= limit:
		a := refuse(http.StatusBadRequest, "BadRequestError", "Input length (%d tokens) exceeds the maximum allowed length (%d tokens). Use a shorter input or enable --allow-auto-truncate.", size, limit)
		if n.cfg.Incident == NoIncident || n.cfg.Role != Prefill {
			return a
		}
		j.rejected, j.prompt = a, []byte{0}
	}
	room := n.cfg.maxReqLen(j.rank) - len(j.prompt) - 1
	if j.max = room; j.MaxTokens > 0 {
		j.max = min(j.MaxTokens, room)
	}
	if j.max < 1 {
		j.max = 1
	}
	return nil
}

// abortRequest is POST /abort_request.
func (n *Node) abortRequest(w http.ResponseWriter, r *http.Request) {
	var q struct {
		RID string `json:"rid"`
		All bool   `json:"abort_all"`
	}
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for rid, j := range n.jobs {
		if q.All || rid == q.RID {
			j.cancel(errAborted)
		}
	}
}

// Abort ends all requests as /abort_request does.
func (n *Node) Abort() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, j := range n.jobs {
		j.cancel(errAborted)
	}
}
