package enginefake

import (
	"encoding/json"
	"fmt"
	"net/http"
)

// SSE is a stream of events. The status line leaves with the first of them.
type SSE struct {
	w http.ResponseWriter
	c *http.ResponseController
}

// NewSSE prepares a stream.
func NewSSE(w http.ResponseWriter) *SSE {
	return &SSE{w: w, c: http.NewResponseController(w)}
}

// Send sends one event.
func (s *SSE) Send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return s.raw(b)
}

// Done sends the end mark.
func (s *SSE) Done() error { return s.raw([]byte("[DONE]")) }

func (s *SSE) raw(b []byte) error {
	s.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	if _, err := fmt.Fprintf(s.w, "data: %s\n\n", b); err != nil {
		return err
	}
	return s.c.Flush()
}
