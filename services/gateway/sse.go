package gateway

import (
	"net/http"

	"github.com/pdgate/pdgate/events"
)

// sse writes server-sent events. JSON has no raw line breaks, so one data line
// carries each.
type sse struct {
	w   *answerWriter
	err error // of the first write that failed
}

// newSSE sends the head of a stream.
func newSSE(w *answerWriter) *sse {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("X-Accel-Buffering", "no") // nginx would keep the pieces together
	w.WriteHeader(http.StatusOK)
	return &sse{w: w}
}

func (s *sse) send(v any) { s.line(marshal(v)) }

// done ends a stream that is complete.
func (s *sse) done() { s.line([]byte("[DONE]")) }

func (s *sse) line(data []byte) {
	if s.err != nil {
		return
	}
	b := make([]byte, 0, len(data)+8)
	b = append(b, "data: "...)
	b = append(b, data...)
	b = append(b, "\n\n"...)
	_, s.err = s.w.Write(b)
}

// push sends what was written. A client that cannot be written to has gone.
func (s *sse) push() *failure {
	if s.err == nil {
		s.err = s.w.push()
	}
	if s.err != nil {
		return newFailure(events.CodeClientGone, "the client cannot be written to")
	}
	return nil
}
