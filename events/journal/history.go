package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/pdgate/pdgate/events"
)

// Record is one event with its place and its exact bytes.
type Record struct {
	Event *events.Event
	Pos   events.Position
	Line  []byte
}

// Reader is the part of a [Journal] that History needs.
type Reader interface {
	Read(ctx context.Context, seq uint64) (*events.Envelope, error)
}

// ErrHistory means that a history does not hang together: the log is damaged, or
// a writer is broken.
var ErrHistory = errors.New("journal: history is broken")

// LeftError means that a history goes on at a position that the log does not show:
// it has left, or a lagging replica answered. It wraps [ErrNotFound].
type LeftError struct{ Pos events.Position }

// Error implements error.
func (e *LeftError) Error() string { return fmt.Sprintf("read %s: %v", e.Pos, ErrNotFound) }

// Unwrap is ErrNotFound.
func (e *LeftError) Unwrap() error { return ErrNotFound }

// History is what the log holds of one subject up to the event at pos, oldest
// first. It walks back from pos by each event's prev and checks that the events
// are of one subject, that each prev points further back, and that numbers are
// dense down to 1: a missing event is an error, not a shorter history. With a
// *LeftError comes what is behind the missing one.
func History(ctx context.Context, r Reader, pos events.Position) ([]Record, error) {
	var out []Record
	for !pos.IsZero() {
		env, err := r.Read(ctx, pos.Seq)
		if errors.Is(err, ErrNotFound) {
			slices.Reverse(out)
			return out, &LeftError{pos}
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", pos, err)
		}
		line, err := lineAt(env.Lines, pos.Line)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrHistory, pos, err)
		}
		e, err := events.Decode(line)
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrHistory, pos, err)
		}
		if n := len(out); n > 0 {
			newer := out[n-1].Event
			if e.Subject != newer.Subject || newer.N > 0 && e.N > 0 && e.N != newer.N-1 {
				return nil, fmt.Errorf("%w: event %s of %s follows %s of %s", ErrHistory, newer.ID, newer.Subject, e.ID, e.Subject)
			}
		}
		// A copy: the line would keep its whole envelope in memory, which holds
		// hundreds of other requests' events.
		out = append(out, Record{Event: e, Pos: pos, Line: bytes.Clone(line)})
		switch prev := e.Prev; {
		case prev.IsZero() && e.N > 1:
			return nil, fmt.Errorf("%w: event %s names no event before it", ErrHistory, e.ID)
		case prev.Seq > pos.Seq || prev.Seq == pos.Seq && prev.Line >= pos.Line:
			return nil, fmt.Errorf("%w: event %s at %s names %s as the one before", ErrHistory, e.ID, pos, prev)
		default:
			pos = prev
		}
	}
	slices.Reverse(out)
	return out, nil
}

var errLine = errors.New("envelope has no such line")

func lineAt(lines []byte, n int) (line []byte, err error) {
	ok := false
	err = events.Split(lines, func(i int, b []byte) error {
		if i == n {
			line, ok = b, true
		}
		return nil
	})
	if err == nil && !ok {
		err = errLine
	}
	return line, err
}
