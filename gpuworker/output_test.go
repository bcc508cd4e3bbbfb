package gpuworker

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pdgate/pdgate/events"
)

type sink struct {
	chunks []events.OutputChunk
	at     []time.Duration
	start  time.Time
	err    error
}

func (s *sink) send(c events.OutputChunk) error {
	if s.err != nil {
		return s.err
	}
	c.Text = bytes.Clone(c.Text)
	s.chunks = append(s.chunks, c)
	s.at = append(s.at, time.Since(s.start))
	return nil
}

// A piece after a pause goes at once; others are gathered, for no longer than
// the limit, also where the engine falls silent.
func TestOutputIsGathered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{start: time.Now()}
		o := newOutput([]byte("k"), s.send)
		emit := func(text string) {
			t.Helper()
			if err := o.emit([]byte(text), len(text)); err != nil {
				t.Fatal(err)
			}
		}
		emit("a")
		emit("b")
		emit("c")
		time.Sleep(time.Second)
		emit("d")
		emit(strings.Repeat("x", flushBytes))
		emit("e")
		if err := o.flush(); err != nil {
			t.Fatal(err)
		}
		want := []string{"a", "bc", "d", strings.Repeat("x", flushBytes), "e"}
		if len(s.chunks) != len(want) {
			t.Fatalf("%d chunks", len(s.chunks))
		}
		for i, c := range s.chunks {
			if string(c.Text) != want[i] || c.Index != uint32(i) || int(c.Tokens) != len(want[i]) {
				t.Errorf("chunk %d: %q, index %d, %d tokens", i, c.Text, c.Index, c.Tokens)
			}
		}
		if s.at[0] != 0 || s.at[1] != flushAfter || s.at[2] != time.Second || s.at[3] != time.Second {
			t.Errorf("sent at %v", s.at)
		}
		if got := o.digest.String(); got != events.Digest([]byte("k"), events.KindOutput, []byte(strings.Join(want, ""))) {
			t.Error("the digest is of other bytes")
		}
	})
}

// An engine that is slower than the limit is not held back at all.
func TestSlowOutputIsNotHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{start: time.Now()}
		o := newOutput([]byte("k"), s.send)
		for i := range 10 {
			if err := o.emit([]byte("x"), 1); err != nil {
				t.Fatal(err)
			}
			if len(s.chunks) != i+1 {
				t.Fatalf("%d chunks after %d pieces", len(s.chunks), i+1)
			}
			time.Sleep(flushAfter)
		}
		o.close()
	})
}

func TestOutputIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{start: time.Now()}
		o := newOutput([]byte("k"), s.send)
		_ = o.emit([]byte("a"), 1)
		_ = o.emit([]byte("b"), 1)
		o.close()
		time.Sleep(time.Second)
		if err := o.emit([]byte("c"), 1); !errors.Is(err, errClosed) {
			t.Errorf("emit: %v", err)
		}
		if err := o.flush(); !errors.Is(err, errClosed) {
			t.Errorf("flush: %v", err)
		}
		if len(s.chunks) != 1 {
			t.Errorf("%d chunks", len(s.chunks))
		}
	})
}

func TestOutputError(t *testing.T) {
	s := &sink{err: errors.New("no connection")}
	o := newOutput([]byte("k"), s.send)
	if err := o.emit([]byte("a"), 1); !errors.Is(err, errSend) {
		t.Errorf("emit: %v", err)
	}
	s.err = nil
	if err := o.flush(); !errors.Is(err, errSend) || len(s.chunks) != 0 {
		t.Errorf("flush: %v, %d chunks", err, len(s.chunks))
	}
}

// A piece longer than a message goes in parts, and its tokens are counted once.
func TestOutputIsSplit(t *testing.T) {
	s := &sink{start: time.Now()}
	o := newOutput([]byte("k"), s.send)
	text := strings.Repeat("0123456789abcdef", events.MaxPromptChunk/8) // twice as long
	if err := errors.Join(o.emit([]byte(text+"end"), 7), o.flush()); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	tokens := 0
	for i, c := range s.chunks {
		if c.Index != uint32(i) || len(c.Text) > events.MaxPromptChunk {
			t.Errorf("chunk %d: index %d, %d bytes", i, c.Index, len(c.Text))
		}
		tokens += int(c.Tokens)
		got.Write(c.Text)
	}
	if got.String() != text+"end" || tokens != 7 || len(s.chunks) != 3 {
		t.Errorf("%d bytes and %d tokens in %d chunks", got.Len(), tokens, len(s.chunks))
	}
}
