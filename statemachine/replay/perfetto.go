package replay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// traceEvent is one of Chrome's trace events, which Perfetto shows.
type traceEvent struct {
	Name  string            `json:"name"`
	Cat   string            `json:"cat,omitempty"`
	Phase string            `json:"ph"`
	At    int64             `json:"ts"` // microseconds
	PID   int               `json:"pid"`
	TID   int               `json:"tid"`
	ID    string            `json:"id,omitempty"`
	Scope string            `json:"s,omitempty"`
	Args  map[string]string `json:"args,omitempty"`
}

// Perfetto writes a log as trace events: a track a request with the time in each
// state, and each event on it, whole, so that the file replays to the same result.
func Perfetto(w io.Writer, src Source) error {
	b := bufio.NewWriterSize(w, 256<<10)
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	_, err := b.WriteString("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")
	first := true
	put := func(e *traceEvent) error {
		if !first {
			b.WriteByte(',')
		}
		first = false
		return enc.Encode(e)
	}
	states := map[string]string{} // the slice that is open, by request
	for err == nil {
		var env *events.Envelope
		env, err = src.Next()
		if err != nil {
			break
		}
		err = events.Split(env.Lines, func(line int, raw []byte) error {
			e, err := events.Decode(raw)
			if err != nil {
				return err
			}
			at := e.Time.UnixMicro()
			if name := stateOf(e.Type); name != "" {
				if was := states[e.Subject]; was != "" {
					if err := put(&traceEvent{Name: was, Cat: "request", Phase: "e", At: at, PID: 1, ID: e.Subject}); err != nil {
						return err
					}
					delete(states, e.Subject)
				}
				if !events.State(name).Final() {
					if err := put(&traceEvent{Name: name, Cat: "request", Phase: "b", At: at, PID: 1, ID: e.Subject, Args: map[string]string{"request": e.Subject, "tenant": e.Tenant}}); err != nil {
						return err
					}
					states[strings.Clone(e.Subject)] = name
				}
			}
			return put(&traceEvent{Name: string(e.Type), Phase: "i", Scope: "p", At: at, PID: 1, TID: env.Partition + 2, Args: map[string]string{
				"pdgate.event": string(raw), "pdgate.position": events.Position{Seq: env.Seq, Line: line}.String()}})
		})
	}
	if !errors.Is(err, io.EOF) {
		return fmt.Errorf("write trace events: %w", err)
	}
	if _, err := b.WriteString("]}\n"); err != nil {
		return err
	}
	return b.Flush()
}

// stateOf is the state that an event leads to, "" where it leads to none.
func stateOf(t events.Type) string {
	switch t {
	case events.TypeAdmitted:
		return string(events.Admitted)
	case events.TypePrefilled:
		return string(events.Prefilled)
	case events.TypeTransferred:
		return string(events.Transferred)
	case events.TypeDecoded:
		return string(events.Decoded)
	case events.TypeRejected:
		return string(events.Rejected)
	case events.TypeFailed:
		return string(events.Failed)
	case events.TypeCancelled:
		return string(events.Cancelled)
	}
	return ""
}

// Copy writes a log's envelopes as another trace file, or as lines.
func Copy(w io.Writer, src Source, partitions int, lines bool) error {
	var t *TraceWriter
	b := bufio.NewWriterSize(w, 256<<10)
	if !lines {
		t = NewTraceWriter(w, partitions)
	}
	for {
		env, err := src.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if lines {
			if _, err = io.Copy(b, bytes.NewReader(env.Lines)); err != nil {
				return err
			}
			continue
		}
		if err := t.Add(env); err != nil {
			return err
		}
	}
	if lines {
		return b.Flush()
	}
	return t.Close()
}
