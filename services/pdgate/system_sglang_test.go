package main

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/enginefake"
	"github.com/pdgate/pdgate/internal/sglangfake"
	"github.com/pdgate/pdgate/statemachine"
)

// The published faults of SGLang's wire, behind the gate. internal/sglangfake
// shows each of them through a proxy that checks nothing; the steps are the same.

// answered says that call i was answered, and with its own text.
func answered(w *sglangfake.World, i int, who string) error {
	if err := w.Reply(i).Is(enginefake.Right(who, 200, 24)); err != nil {
		return fmt.Errorf("%s: %w", who, err)
	}
	return nil
}

// refusedWith says that call i got an error of this status, and nothing else.
func refusedWith(w *sglangfake.World, i, status int) error {
	r := w.Reply(i)
	if r.Err != nil || r.Status != status || r.Message == "" || r.First() != "" {
		return fmt.Errorf("call %d: status %d, message %q, text %q, error %v; want %d and an error", i, r.Status, r.Message, r.First(), r.Err, status)
	}
	return nil
}

func sglangRow(t *testing.T, row string, change func(*system), judge func(*sglangfake.World) error) *record {
	t.Helper()
	found := sglangfake.Find(row)
	if len(found) != 1 {
		t.Fatalf("%s: %d scenarios", row, len(found))
	}
	return guardSGLang(t, &found[0], change, judge)
}

// promises has a node registered with a longer input, and more memory, than it
// has.
func promises(s *system) { s.hooks.engine, s.prefillPool = claimsInput(400), 2048 }

// untouched says that no engine was called.
func untouched(w *sglangfake.World) error {
	return errors.Join(enginefake.Equal("prefill legs", len(w.Prefill.Generations()), 0), enginefake.Equal("decode legs", len(w.Decode.Generations()), 0))
}

// The node's own limit is known, so the prompt meets it at admission. Then it is
// registered with a longer one, and the count of its answer tells.
func TestF01_SGLangPlaceholderIsNotThePrompt(t *testing.T) {
	sglangRow(t, "F01", nil, func(w *sglangfake.World) error {
		return errors.Join(refusedWith(w, 0, http.StatusBadRequest), untouched(w))
	})
	log := sglangRow(t, "F01", promises, func(w *sglangfake.World) error {
		return refusedWith(w, 0, http.StatusBadGateway)
	})
	for id := range log.byRequest {
		if !log.denied(id, events.CmdPrefilled, events.CodeTokenCountMismatch) || len(log.has(id, events.TypeTransferGranted)) > 0 {
			t.Errorf("want prefilled denied for its count, and no grant: %s", log.story(id))
		}
	}
}

func TestF02_SGLangRejectedPromptGetsNoGrant(t *testing.T) {
	log := sglangRow(t, "F02", promises, func(w *sglangfake.World) error {
		return refusedWith(w, 0, http.StatusBadRequest)
	})
	for id := range log.byRequest {
		if ends := log.has(id, events.TypeRejected); len(ends) != 1 || ends[0].Data.(*events.RequestRejected).Stage != statemachine.StageEngine || len(log.has(id, events.TypeTransferGranted)) > 0 {
			t.Errorf("want a rejection and no grant: %s", log.story(id))
		}
	}
}

func TestF03_SGLangFitsDecodeNotPrefill(t *testing.T) {
	sglangRow(t, "F03", nil, func(w *sglangfake.World) error {
		return errors.Join(refusedWith(w, 0, http.StatusBadRequest), untouched(w))
	})
}

func TestF04_SGLangAbortIsNoLength(t *testing.T) {
	sglangRow(t, "F04", nil, func(w *sglangfake.World) error {
		if r := w.Reply(0); r.Status < 400 || r.First() != "" {
			return fmt.Errorf("status %d, text %q", r.Status, r.First())
		}
		return nil
	})
}

func TestF05_SGLangTransferEndsBeforeItsPagesAreTheNext(t *testing.T) {
	sglangRow(t, "F05", nil, func(w *sglangfake.World) error { return answered(w, 1, "bob") })
}

func TestF06_SGLangNothingIsDrainedByATimeout(t *testing.T) {
	sglangRow(t, "F06", nil, func(w *sglangfake.World) error { return answered(w, 1, "bob") })
}

// A first token that the engine mixed up inside is out of reach: all counts are
// right, and nothing on the wire shows it.
func TestF07_SGLangMixedUpTokenIsOutOfReach(t *testing.T) {
	sglangRow(t, "F07", nil, func(w *sglangfake.World) error {
		return w.Reply(0).Wrong(enginefake.Right("alice", 200, 24))
	})
}

func TestF08_SGLangChoicesHaveRoomsOfTheirOwn(t *testing.T) {
	sglangRow(t, "F08", nil, func(w *sglangfake.World) error {
		rooms := map[string]bool{}
		for _, g := range w.Prefill.Generations() {
			rooms[string(g.Body)] = true
		}
		if r := w.Reply(0); len(r.Text) != 2 || r.Text[0] != r.Text[1] {
			return fmt.Errorf("choices %q", r.Text)
		}
		return errors.Join(answered(w, 0, "alice"), enginefake.Equal("rooms", len(rooms), 2))
	})
}

func TestF09_SGLangDecodeEndsWithPrefill(t *testing.T) {
	sglangRow(t, "F09", nil, func(w *sglangfake.World) error {
		if w.Waited > 30*time.Second {
			return fmt.Errorf("the client had its answer after %v", w.Waited)
		}
		return refusedWith(w, 0, http.StatusInternalServerError)
	})
}

func TestF10_SGLangStuckTransferEndsByItsDeadline(t *testing.T) {
	sglangRow(t, "F10", func(s *system) {
		s.timeouts.Prefill, s.timeouts.Request, s.nodes.drain = 2*time.Second, 3*time.Second, time.Second
	},
		func(w *sglangfake.World) error { return refusedWith(w, 0, http.StatusGatewayTimeout) })
}

func TestF11_SGLangDecodeIsNotOverCommitted(t *testing.T) {
	sglangRow(t, "F11", nil, func(w *sglangfake.World) error {
		return errors.Join(w.Reply(0).Is(enginefake.Right("alice", 100, 64)), w.Reply(1).Is(enginefake.Right("bob", 100, 64)))
	})
}

func TestF12_SGLangRejectionHasItsStatus(t *testing.T) {
	sglangRow(t, "F12", nil, func(w *sglangfake.World) error { return refusedWith(w, 0, http.StatusBadRequest) })
	sglangRow(t, "F12", promises, func(w *sglangfake.World) error {
		return refusedWith(w, 0, http.StatusBadRequest)
	})
}

func TestF13_SGLangSlowCorruptionIsOutOfReach(t *testing.T) {
	sglangRow(t, "F13", nil, func(w *sglangfake.World) error {
		return w.Reply(0).Wrong(enginefake.Right("alice", 200, 24))
	})
}

// TestSGLangGuards takes the guards of SGLang's wire away, and sees what they
// are for: the incident itself. The counts cover for each other.
func TestSGLangGuards(t *testing.T) {
	for _, c := range []struct {
		name    string
		without func(*system)
		shows   func(*sglangfake.World) error
	}{
		{"prefill's count", func(s *system) { s.guards.machine.NoTokenCount = true },
			func(w *sglangfake.World) error { return refusedWith(w, 0, http.StatusBadGateway) }},
		{"both counts", func(s *system) { s.guards.machine.NoTokenCount, s.nodes.guards.NoCount = true, true },
			func(w *sglangfake.World) error { return w.Reply(0).Foreign("mallory") }},
		{"the hold", func(s *system) { s.nodes.guards.NoHold = true },
			func(w *sglangfake.World) error { return w.Reply(0).Foreign("mallory") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			sglangRow(t, "F01", func(s *system) { promises(s); c.without(s) }, c.shows)
		})
	}
}
