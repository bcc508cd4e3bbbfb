package vllmfake

import (
	"errors"
	"net/http"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// apiError is a refusal in the engine's words.
type apiError struct {
	status  int
	kind    string
	message string
	param   any
}

// Error implements error.
func (e *apiError) Error() string { return e.message }

func badRequest(message string) *apiError {
	return &apiError{status: http.StatusBadRequest, kind: "BadRequestError", message: message}
}

var errDead = &apiError{status: http.StatusInternalServerError, kind: "InternalServerError",
	message: "EngineCore encountered an issue. See stack trace (above) for the root cause."}

func (n *Node) errorBody(err error) (int, map[string]any) {
	var e *apiError
	if !errors.As(err, &e) {
		e = &apiError{status: http.StatusInternalServerError, kind: "InternalServerError", message: "Internal server error"}
	}
	inner := map[string]any{"message": e.message, "type": e.kind, "param": e.param, "code": e.status}
	if n.cfg.Build == Old {
		inner["object"] = "error"
		return e.status, inner
	}
	return e.status, map[string]any{"error": inner}
}

func (n *Node) fail(w http.ResponseWriter, err error) {
	status, body := n.errorBody(err)
	enginefake.WriteJSON(w, status, body)
}

// failed ends a request that the scheduler had. A stream has answered 200 by
// then: its error is in it, or missing (vllm#40978).
func (n *Node) failed(w http.ResponseWriter, j *job, f Faults, err error) {
	var refused *apiError
	if !j.Stream || errors.As(err, &refused) {
		n.fail(w, err)
		return
	}
	sse := enginefake.NewSSE(w)
	if !f.EmptyStream {
		_, body := n.errorBody(err)
		if _, ok := body["error"]; !ok {
			body = map[string]any{"error": body}
		}
		if sse.Send(body) != nil {
			return
		}
	}
	_ = sse.Done() // a client that has left reads nothing
}
