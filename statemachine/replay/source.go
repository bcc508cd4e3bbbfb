package replay

import (
	"errors"
	"fmt"

	"github.com/pdgate/pdgate/events"
)

// Format names what an input is.
type Format string

// Formats of inputs.
const (
	FormatTrace    Format = "trace"    // envelopes, with an end that vouches for them
	FormatEvents   Format = "events"   // lines of events, without their envelopes
	FormatBundle   Format = "bundle"   // an audit bundle
	FormatStream   Format = "stream"   // the live log
	FormatOTLP     Format = "otlp"     // OTLP JSON, one object or one a line
	FormatTempo    Format = "tempo"    // Tempo's {"batches": …}
	FormatJaeger   Format = "jaeger"   // Jaeger's {"data": […]}
	FormatPerfetto Format = "perfetto" // as replay exports it

	FormatSGLangRequests Format = "sglang-requests"   // --log-requests
	FormatSGLangTimes    Format = "sglang-time-stats" // --enable-request-time-stats-logging
	FormatSGLangMetrics  Format = "sglang-metrics"    // --export-metrics-to-file
	FormatVLLM           Format = "vllm-log"
)

// Own says whether the format holds our events, and not what others tell.
func (f Format) Own() bool {
	switch f {
	case FormatTrace, FormatEvents, FormatBundle, FormatStream, FormatPerfetto:
		return true
	}
	return false
}

// Where is a place in an input.
type Where struct {
	Line   int64 // from 1; 0: the input has no lines
	Offset int64 // byte offset, from 0, after decompression
}

func (w Where) String() string {
	if w.Line == 0 {
		return fmt.Sprintf("byte %d", w.Offset)
	}
	return fmt.Sprintf("line %d, byte %d", w.Line, w.Offset)
}

// Source yields an input's envelopes in their order. Next returns io.EOF after the
// last one. A *[Malformed] error is about one place, and reading goes on behind it;
// any other error ends the input.
//
// An envelope is good until the next call.
type Source interface {
	Next() (*events.Envelope, error)
	Where() Where // of the envelope that Next returned last
}

// Malformed is a place that cannot be read.
type Malformed struct {
	Where  Where
	Want   string // what was expected
	Cut    bool   // the input ends in the middle: it is incomplete
	Broken bool   // the input contradicts itself: somebody changed it
	Err    error
}

func (m *Malformed) Error() string {
	s := m.Where.String() + ": want " + m.Want
	if m.Err != nil {
		s += ": " + m.Err.Error()
	}
	return s
}

func (m *Malformed) Unwrap() error { return m.Err }

// ErrUnreadable means that an input is nothing that can be read.
var ErrUnreadable = errors.New("not a trace")
