package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/internal/enginefake"
	"github.com/pdgate/pdgate/internal/vllmfake"
)

// The published faults of vLLM's wire, behind the gate. internal/vllmfake shows
// each of them through a proxy that checks nothing; the steps are the same.

// right says that call i was answered, and with its own text.
func right(w *vllmfake.World, i int, who string) error {
	if err := w.Reply(i).Is(enginefake.Right(who, 200, 24)); err != nil {
		return fmt.Errorf("%s: %w", who, err)
	}
	return nil
}

// failedWith says that call i got an error of this status, and nothing else.
func failedWith(w *vllmfake.World, i, status int) error {
	r := w.Reply(i)
	if r.Err != nil || r.Status != status || r.Message == "" || r.First() != "" {
		return fmt.Errorf("call %d: status %d, message %q, text %q, error %v; want %d and an error", i, r.Status, r.Message, r.First(), r.Err, status)
	}
	return nil
}

// vllmRow plays all scenarios of a row. verdicts are by name; a scenario without
// one fails.
func vllmRow(t *testing.T, row string, verdicts map[string]func(*vllmfake.World) error) {
	t.Helper()
	// Old builds do not say what their memory holds.
	told := func(s *system) { s.prefillPool, s.decodePool = 2000, 2000 }
	found := vllmfake.Find(row)
	if len(found) != len(verdicts) {
		t.Fatalf("%s: %d scenarios, %d verdicts", row, len(found), len(verdicts))
	}
	for _, sc := range found {
		t.Run(sc.Name, func(t *testing.T) {
			if verdicts[sc.Name] == nil {
				t.Fatal("no verdict")
			}
			guardVLLM(t, &sc, told, verdicts[sc.Name])
		})
	}
}

func legs(w *vllmfake.World, prefill, decode int) error {
	return errors.Join(enginefake.Equal("prefill legs", len(w.Prefill.Generations()), prefill), enginefake.Equal("decode legs", len(w.Decode.Generations()), decode))
}

func TestF08_VLLMChoicesHaveReferencesOfTheirOwn(t *testing.T) {
	vllmRow(t, "F08", map[string]func(*vllmfake.World) error{"choices share one reference": func(w *vllmfake.World) error {
		r := w.Reply(0)
		if len(r.Text) != 2 || r.Text[0] != r.Text[1] {
			return fmt.Errorf("choices %q", r.Text)
		}
		return errors.Join(right(w, 0, "alice"), legs(w, 2, 2))
	}})
}

func TestF12_VLLMEmptyStreamIsAnError(t *testing.T) {
	vllmRow(t, "F12", map[string]func(*vllmfake.World) error{"failure before the first token of a stream": func(w *vllmfake.World) error {
		return failedWith(w, 0, http.StatusBadGateway)
	}})
}

// Slow corruption inside the engines is out of reach: nothing on the wire shows
// it, and this test says so.
func TestF13_VLLMSlowCorruptionIsOutOfReach(t *testing.T) {
	vllmRow(t, "F13", map[string]func(*vllmfake.World) error{"slow corruption": func(w *vllmfake.World) error {
		return w.Reply(0).Wrong(enginefake.Right("alice", 200, 24))
	}})
}

func TestF14_VLLMReferenceIsUsedOnce(t *testing.T) {
	vllmRow(t, "F14", map[string]func(*vllmfake.World) error{"consumed reference again": func(w *vllmfake.World) error {
		return errors.Join(failedWith(w, 0, http.StatusBadGateway), legs(w, 1, 1))
	}})
}

func TestF15_VLLMStaleReferenceIsNotUsed(t *testing.T) {
	vllmRow(t, "F15", map[string]func(*vllmfake.World) error{"stale reference after reuse": func(w *vllmfake.World) error {
		return errors.Join(failedWith(w, 0, http.StatusBadGateway), legs(w, 1, 1))
	}})
}

func TestF16_VLLMReferenceGoesThroughByteForByte(t *testing.T) {
	vllmRow(t, "F16", map[string]func(*vllmfake.World) error{"block ids out of range": func(w *vllmfake.World) error {
		return errors.Join(right(w, 0, "alice"), enginefake.Equal("failed transfers", w.Decode.Stats().FailedTransfers, 0))
	}})
}

func TestF17_VLLMLeaseIsOverBeforeDecode(t *testing.T) {
	vllmRow(t, "F17", map[string]func(*vllmfake.World) error{"held longer than the lease": func(w *vllmfake.World) error {
		return errors.Join(failedWith(w, 0, http.StatusConflict), legs(w, 1, 0))
	}})
}

func TestF18_VLLMFailedReceiveShowsNothing(t *testing.T) {
	vllmRow(t, "F18", map[string]func(*vllmfake.World) error{"failed receive under 200": func(w *vllmfake.World) error {
		return errors.Join(failedWith(w, 0, http.StatusBadGateway), enginefake.Equal("reasoning", len(w.Reply(0).Reasoning), 0))
	}})
}

func TestF19_VLLMPairIsQuarantined(t *testing.T) {
	vllmRow(t, "F19", map[string]func(*vllmfake.World) error{"a pair that keeps failing": func(w *vllmfake.World) error {
		var errs []error
		for i := range 5 {
			errs = append(errs, failedWith(w, i, http.StatusBadGateway))
		}
		return errors.Join(append(errs, enginefake.Equal("decode legs", len(w.Decode.Generations()), engine.DefaultPairFailures))...)
	}})
}

func TestF20_VLLMRecomputedTextIsNotShown(t *testing.T) {
	vllmRow(t, "F20", map[string]func(*vllmfake.World) error{"recompute after a failed load": func(w *vllmfake.World) error {
		return failedWith(w, 0, http.StatusBadGateway)
	}})
}

func TestF21_VLLMClientNamesNoPeer(t *testing.T) {
	vllmRow(t, "F21", map[string]func(*vllmfake.World) error{"the client names the peer": func(w *vllmfake.World) error {
		return errors.Join(right(w, 0, "victim"), failedWith(w, 1, http.StatusBadRequest), legs(w, 1, 1))
	}})
}

func TestF22_VLLMClientIDIsNoKey(t *testing.T) {
	vllmRow(t, "F22", map[string]func(*vllmfake.World) error{"the client's id is the key": func(w *vllmfake.World) error {
		seen := map[string]bool{}
		for _, g := range w.Prefill.Generations() {
			seen[g.Header.Get("X-Request-Id")] = true
		}
		return errors.Join(right(w, 0, "alice"), right(w, 1, "bob"), enginefake.Equal("ids", len(seen), 2))
	}})
}

// An engine that never frees leaks by itself; the account lets go at the lease's
// end, and a decode that says no before its scheduler is relayed as it is.
func TestF23_VLLMAccountEndsWithTheLease(t *testing.T) {
	vllmRow(t, "F23", map[string]func(*vllmfake.World) error{
		"blocks are never freed": func(w *vllmfake.World) error { return right(w, 0, "alice") },
		"decode rejects before its scheduler, old build": func(w *vllmfake.World) error {
			return failedWith(w, 0, http.StatusBadRequest)
		},
	})
}

func TestF24_VLLMPrefillIsNotSkipped(t *testing.T) {
	vllmRow(t, "F24", map[string]func(*vllmfake.World) error{"prefill is skipped": func(w *vllmfake.World) error {
		return errors.Join(right(w, 0, "alice"), legs(w, 1, 1), enginefake.Equal("recomputed", w.Decode.Stats().Recomputed, 0))
	}})
}

func TestF25_VLLMPrefillFailureIsNotSwallowed(t *testing.T) {
	vllmRow(t, "F25", map[string]func(*vllmfake.World) error{
		"prefill's failure is swallowed": func(w *vllmfake.World) error {
			return errors.Join(failedWith(w, 0, http.StatusInternalServerError), legs(w, 1, 0))
		},
		"an aborted prefill fails open": func(w *vllmfake.World) error {
			return errors.Join(failedWith(w, 0, http.StatusBadGateway), legs(w, 1, 0))
		},
	})
}

func TestF26_VLLMPrefillEndsWithItsClient(t *testing.T) {
	vllmRow(t, "F26", map[string]func(*vllmfake.World) error{"client gone, prefill goes on": func(w *vllmfake.World) error {
		return errors.Join(enginefake.Equal("aborts", w.Prefill.Stats().Aborted, 1), enginefake.Equal("decode legs", len(w.Decode.Generations()), 0))
	}})
}

func TestF27_VLLMClientGoneDuringATransfer(t *testing.T) {
	vllmRow(t, "F27", map[string]func(*vllmfake.World) error{"client gone during a transfer": func(w *vllmfake.World) error {
		return enginefake.Equal("aborts", w.Decode.Stats().Aborted, 1)
	}})
}

// again is a decode worker that tries once more where decode failed, as a
// careless one would.
type again struct {
	engine.Engine
	engine.Watched
}

// Decode implements engine.Engine.
func (a again) Decode(ctx context.Context, job engine.DecodeJob, emit engine.Emit) (engine.Decoded, error) {
	d, err := a.Engine.Decode(ctx, job, emit)
	if err != nil && ctx.Err() == nil {
		d, err = a.Engine.Decode(ctx, job, emit)
	}
	return d, err
}

func retries(worker string, e engine.Engine) engine.Engine {
	if worker[0] == 'd' {
		return again{e, e.(engine.Watched)}
	}
	return e
}

// TestVLLMGuards takes the guards of vLLM's wire away, one at a time, and sees
// what they are for.
func TestVLLMGuards(t *testing.T) {
	find := func(row, name string) *vllmfake.Scenario {
		for _, s := range vllmfake.Find(row) {
			if s.Name == name {
				return &s
			}
		}
		t.Fatalf("%s: no scenario %q", row, name)
		return nil
	}
	foreign := func(w *vllmfake.World) error { return w.Reply(0).Foreign("mallory") }
	wrong := func(w *vllmfake.World) error { return w.Reply(0).Wrong(enginefake.Right("alice", 200, 24)) }
	for _, c := range []struct {
		name    string
		sc      *vllmfake.Scenario
		change  func(*system)
		guarded func(*vllmfake.World) error
		without func(*system)
		shows   func(*vllmfake.World) error
	}{
		{"lease", find("F17", "held longer than the lease"), func(*system) {},
			func(w *vllmfake.World) error { return failedWith(w, 0, http.StatusConflict) },
			func(s *system) { s.nodes.guards.NoLease = true }, foreign},
		{"single use", find("F15", "stale reference after reuse"), func(s *system) { s.hooks.engine = retries },
			func(w *vllmfake.World) error {
				return errors.Join(failedWith(w, 0, http.StatusConflict), legs(w, 1, 1))
			},
			func(s *system) { s.nodes.guards.NoOnce = true }, foreign},
		{"counters", find("F20", "recompute after a failed load"), func(*system) {},
			func(w *vllmfake.World) error { return failedWith(w, 0, http.StatusBadGateway) },
			func(s *system) { s.nodes.guards.NoCounters = true }, wrong},
		{"policy", find("F20", "recompute after a failed load"), func(*system) {},
			func(w *vllmfake.World) error { return failedWith(w, 0, http.StatusBadGateway) },
			func(s *system) { s.nodes.policy = string(engine.Observe) }, wrong},
		{"reference", find("F25", "an aborted prefill fails open"), func(*system) {},
			func(w *vllmfake.World) error {
				return errors.Join(failedWith(w, 0, http.StatusBadGateway), legs(w, 1, 0))
			},
			func(s *system) { s.nodes.guards.NoReference = true },
			func(w *vllmfake.World) error { return legs(w, 1, 0) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			guardVLLM(t, c.sc, c.change, c.guarded)
			guardVLLM(t, c.sc, func(s *system) { c.change(s); c.without(s) }, c.shows)
		})
	}
}
