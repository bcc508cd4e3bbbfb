package gateway

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

var contextError = events.ContextExceeded("prompt", 681_281, 681_280)

// F12: a rejection has the status of its error, streamed or not, at admission
// or by the engine.
func TestF12RejectionStatus(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		for _, where := range []string{"admission", "engine"} {
			t.Run(where, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, rigConfig{})
				if where == "admission" {
					r.b.refuse = func(*events.Admit) *events.Error { return contextError }
				} else {
					r.b.script = func(rec *record) { rec.append(&events.RequestRejected{Error: *contextError, Stage: "engine"}) }
				}
				a := r.post("/v1/completions", completionBody(testPrompt, stream))
				e := a.wantError(t, http.StatusBadRequest, "context_length_exceeded")
				if !strings.Contains(e.Error.Message, "681281") || !strings.Contains(e.Error.Message, "681280") {
					t.Errorf("message %q names no numbers", e.Error.Message)
				}
				if _, receipt := r.b.record(0).last(); a.header.Get("Pdgate-Receipt") != receipt {
					t.Errorf("receipt %q, want %q", a.header.Get("Pdgate-Receipt"), receipt)
				}
			})
		}
	}
}

// The public failure: a decode worker answers from pages that nobody wrote, for
// a request that is rejected. Held output never leaves; without the hold it
// does, under 200.
func TestGuardHold(t *testing.T) {
	t.Parallel()
	for _, guarded := range []bool{true, false} {
		r := newRig(t, rigConfig{cfg: func(c *Config) { c.Guards.NoHold = !guarded }})
		shown := make(chan struct{})
		r.b.script = func(rec *record) {
			before := r.g.Stats().Memory
			rec.sendAll(r.b.decode, "somebody else's ", canary)
			if !guarded {
				<-shown
			} else {
				await(t, "output is kept", func() bool { return r.g.Stats().Memory > before })
			}
			rec.append(&events.RequestRejected{Error: *contextError, Stage: "engine"})
		}
		if guarded {
			r.post("/v1/completions", completionBody(testPrompt, true)).wantError(t, http.StatusBadRequest, "context_length_exceeded")
			continue
		}
		resp, body := r.open(t.Context(), completionBody(testPrompt, true))
		line, err := body.ReadString('\n')
		if resp.StatusCode != http.StatusOK || err != nil || !strings.Contains(line, "somebody else's ") {
			t.Errorf("without the hold nothing leaked: %d %q %v", resp.StatusCode, line, err)
		}
		close(shown)
		rest, _ := io.ReadAll(body)
		if s := parseStream(t, line+"\n"+strings.TrimPrefix(string(rest), "\n")); s.done || s.err != "context_length_exceeded" {
			t.Errorf("stream %+v", s)
		}
	}
}

// The status line waits for transferred, though output is there.
func TestHeldUntilTransferred(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	sent, release := make(chan struct{}), make(chan struct{})
	r.b.script = func(rec *record) {
		if _, err := rec.fetch(); err != nil {
			t.Error(err)
		}
		rec.prefilled()
		before := r.g.Stats().Memory
		rec.send(r.b.decode, 0, testAnswer)
		await(t, "output is kept", func() bool { return r.g.Stats().Memory > before })
		close(sent)
		<-release
		rec.transferred()
		rec.decoded(testAnswer, events.FinishStop)
	}
	answers := make(chan answer, 1)
	go func() { answers <- r.post("/v1/completions", completionBody(testPrompt, true)) }()
	<-sent
	select {
	case a := <-answers:
		t.Fatalf("answered before transferred: %+v", a)
	default:
	}
	close(release)
	if s := parseStream(t, (<-answers).body); !s.done || s.text[0] != testAnswer || s.finish[0] != "stop" {
		t.Errorf("stream %+v", s)
	}
}

// Text flows before decoded; the end waits for it.
func TestEndHeldUntilDecoded(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	release := make(chan struct{})
	r.b.script = func(rec *record) {
		rec.walk()
		rec.send(r.b.decode, 0, testAnswer)
		<-release
		rec.decoded(testAnswer, events.FinishStop)
	}
	_, body := r.open(t.Context(), completionBody(testPrompt, true))
	line, err := body.ReadString('\n')
	if err != nil || !strings.Contains(line, testAnswer) {
		t.Fatalf("%q %v", line, err)
	}
	rest := make(chan string, 1)
	go func() { b, _ := io.ReadAll(body); rest <- string(b) }()
	select {
	case s := <-rest:
		t.Fatalf("the stream ended before decoded: %q", s)
	default:
	}
	close(release)
	if s := parseStream(t, strings.TrimPrefix(<-rest, "\n")); !s.done || s.finish[0] != "stop" {
		t.Errorf("stream %+v", s)
	}
}

// Output counts only from the worker that the log names.
func TestGuardOrigin(t *testing.T) {
	t.Parallel()
	for _, guarded := range []bool{true, false} {
		r := newRig(t, rigConfig{cfg: func(c *Config) { c.Guards.NoOrigin = !guarded; c.Guards.NoWhole = !guarded }})
		r.b.script = func(rec *record) {
			before := r.g.Stats().Memory
			rec.send(r.b.rogue, 0, "FOREIGN") // before the log says whose counts
			await(t, "foreign output arrived", func() bool { return r.g.Stats().Memory > before })
			rec.walk()
			rec.send(r.b.rogue, 1, "FOREIGN") // and after
			rec.send(r.b.decode, 0, testAnswer)
			if guarded {
				await(t, "foreign output is dropped", func() bool { return r.g.Stats().Foreign > 0 })
			}
			rec.decoded(testAnswer, events.FinishStop)
		}
		a := r.post("/v1/completions", completionBody(testPrompt, false))
		if leaked := strings.Contains(a.body, "FOREIGN"); leaked == guarded || a.status != http.StatusOK {
			t.Errorf("guard %v: %d %s", guarded, a.status, a.body)
		}
		if guarded && textOf(t, a.body)[0] != testAnswer {
			t.Errorf("text %s", a.body)
		}
	}
}

// What arrived must be what was decoded, or it is no answer.
func TestGuardWhole(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]func(*record){
		"piece lost":  func(rec *record) { rec.send(rec.b.decode, 0, "one"); rec.send(rec.b.decode, 2, "three") },
		"first lost":  func(rec *record) { rec.send(rec.b.decode, 1, "onetwothree") },
		"last lost":   func(rec *record) { rec.sendAll(rec.b.decode, "one", "two") },
		"all lost":    func(*record) {},
		"other bytes": func(rec *record) { rec.sendAll(rec.b.decode, "one", "two", "Three") },
		"too many":    func(rec *record) { rec.sendAll(rec.b.decode, "one", "two", "three", "four") },
	} {
		for _, guarded := range []bool{true, false} {
			for _, stream := range []bool{false, true} {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					r := newRig(t, rigConfig{cfg: func(c *Config) { c.Guards.NoWhole, c.Timeouts.Output = !guarded, 40*time.Millisecond }})
					r.b.script = func(rec *record) {
						rec.walk()
						broken(rec)
						if name == "too many" { // a piece that comes after a whole answer changes nothing
							await(t, "four pieces arrived", func() bool {
								f := r.g.flight(rec.id)
								f.mu.Lock()
								defer f.mu.Unlock()
								return f.outputs["d1"] != nil && f.outputs["d1"].next == 4
							})
						}
						rec.decoded("onetwothree", events.FinishStop)
					}
					a := r.post("/v1/completions", completionBody(testPrompt, stream))
					if stream && a.status == http.StatusOK {
						s := parseStream(t, a.body)
						if s.done == guarded || guarded && s.err != "output_lost" {
							t.Errorf("guard %v: stream %+v", guarded, s)
						}
					} else if guarded {
						a.wantError(t, http.StatusBadGateway, "output_lost")
					} else if a.status != http.StatusOK {
						t.Errorf("without the guard: %d %s", a.status, a.body)
					}
					// Lifecycle hears of it, whatever it has recorded by then.
					if guarded && len(r.b.sent(events.CmdFail)) != 1 {
						t.Errorf("%d fail commands", len(r.b.sent(events.CmdFail)))
					}
				})
			}
		}
	}
}

// Pieces that come twice change nothing.
func TestRepeatedPieces(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	r.b.script = func(rec *record) {
		rec.walk()
		for _, i := range []int{0, 0, 1, 0, 1, 2} {
			rec.send(r.b.decode, i, []string{"one", "two", "three"}[i])
		}
		rec.decoded("onetwothree", events.FinishStop)
	}
	if a := r.post("/v1/completions", completionBody(testPrompt, false)); a.status != http.StatusOK || textOf(t, a.body)[0] != "onetwothree" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A message that found its request just before it was forgotten changes nothing.
func TestMessagesAfterTheEnd(t *testing.T) {
	for _, d := range []events.Data{nil, &events.RequestDecoded{Worker: "d1", CompletionTokens: 1}, &events.RequestTransferred{Worker: "d1"}} {
		h := NewHold(HoldConfig{RequestID: "r", Key: []byte("k"), Prompt: []byte("p"), Sampling: []byte("{}"), Now: time.Now, Output: time.Second})
		if d != nil {
			h.Observe(&events.Event{Data: d}, nil, "1.0")
		}
		h.Output("d1", events.OutputChunk{Text: []byte("x"), Tokens: 1})
		h.f.close()
		if h.Part(events.PartPrompt) != nil || h.Part(events.PartSampling) != nil {
			t.Errorf("%T: a part is served", d)
		}
		h.Output("d1", events.OutputChunk{Index: 1, Text: []byte("y"), Tokens: 1})
		h.Observe(&events.Event{Data: &events.RequestTransferred{Worker: "d2"}}, nil, "1.1")
		h.Observe(&events.Event{Data: &events.RequestDecoded{Worker: "d2"}}, nil, "1.2")
		if n := h.f.call.g.memory.used.Load(); n != 0 {
			t.Errorf("%T: %d bytes are kept", d, n)
		}
	}
}

// An output of nothing is an answer.
func TestEmptyOutput(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	r.b.script = func(rec *record) { rec.walk(); rec.decoded("", events.FinishStop) }
	for _, stream := range []bool{false, true} {
		a := r.post("/v1/completions", completionBody(testPrompt, stream))
		if a.status != http.StatusOK || stream && !parseStream(t, a.body).done || !stream && textOf(t, a.body)[0] != "" {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
}

// F04: a request is cancelled while its transfer is open; the transfer ends, and
// decode sends on. The first end wins, and the client gets its error.
func TestF04CancelWins(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		r := newRig(t, rigConfig{})
		r.b.script = func(rec *record) {
			if _, err := rec.fetch(); err != nil {
				t.Error(err)
			}
			rec.prefilled()
			rec.append(&events.TransferGranted{GrantEpoch: 1, Owner: "p1", Worker: "d1"})
			rec.append(&events.RequestCancelled{Reason: events.CodeCancelled, From: events.Prefilled})
			if rec.append(&events.RequestTransferred{Worker: "d1"}) {
				t.Error("transferred after cancelled")
			}
			rec.send(r.b.decode, 0, testAnswer)
			rec.decoded(testAnswer, events.FinishLength)
		}
		r.post("/v1/completions", completionBody(testPrompt, stream)).wantError(t, 499, "cancelled")
	}
}

// A failure's own error is the answer.
func TestFailures(t *testing.T) {
	t.Parallel()
	for _, code := range []events.Code{events.CodePrefillFailed, events.CodeTransferFailed, events.CodeDeadline, events.CodeWorkerLost, events.CodePoison, events.CodeInternal, events.CodeDigestMismatch} {
		for _, stream := range []bool{false, true} {
			r := newRig(t, rigConfig{})
			r.b.script = func(rec *record) {
				if _, err := rec.fetch(); err != nil {
					t.Error(err)
				}
				rec.append(&events.RequestFailed{Error: *events.NewError(code, "it failed"), From: events.Admitted, Stage: "prefill"})
			}
			r.post("/v1/completions", completionBody(testPrompt, stream)).wantError(t, code.HTTPStatus(), string(code))
		}
	}
	if f := recorded(&events.Error{Code: "engine_said", Status: 200}); f.status != http.StatusInternalServerError {
		t.Errorf("an error with status 200 became %d", f.status)
	}
}

// After the first byte the status is gone: an error event, no [DONE], and
// nothing of what arrives later.
func TestFailureInStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	release := make(chan struct{})
	r.b.script = func(rec *record) {
		rec.walk()
		rec.send(r.b.decode, 0, "first ")
		<-release
		rec.append(&events.RequestFailed{Error: *events.NewError(events.CodeWorkerLost, "worker d1 is lost"), From: events.Transferred, Stage: "decode"})
		await(t, "the failure is known", func() bool {
			f := r.g.flight(rec.id)
			if f == nil {
				return true
			}
			state, _ := f.stands()
			return state.Final()
		})
		rec.send(r.b.decode, 1, "late")
		rec.decoded("first late", events.FinishStop)
	}
	_, body := r.open(t.Context(), completionBody(testPrompt, true))
	line, err := body.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	close(release)
	rest, _ := io.ReadAll(body)
	s := parseStream(t, line+string(rest))
	if s.done || s.err != "worker_lost" || s.text[0] != "first " {
		t.Errorf("stream %+v", s)
	}
}

// F26, F27: a client that leaves is a cancel, before prefill, while the transfer
// is open, and in mid-stream; nothing is kept.
func TestClientGone(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]func(*record){
		"F26 admitted": func(*record) {},
		"F27 transfer open": func(rec *record) {
			_, _ = rec.fetch()
			rec.prefilled()
			rec.append(&events.TransferGranted{GrantEpoch: 1, Owner: "p1", Worker: "d1"})
		},
		"decoding": func(rec *record) { rec.walk(); rec.send(rec.b.decode, 0, "one") },
	} {
		for _, stream := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, rigConfig{})
				ctx, leave := context.WithCancel(t.Context())
				r.b.script = func(rec *record) {
					script(rec)
					leave()
					<-rec.ended
					rec.send(r.b.decode, 1, "late")
				}
				resp, err := r.client.Do(r.request(ctx, "/v1/completions", completionBody(testPrompt, stream)))
				if err == nil {
					_, _ = bufio.NewReader(resp.Body).ReadString(0)
					resp.Body.Close()
				}
				<-r.b.landed
				if state, _ := r.b.record(0).last(); state != events.Cancelled {
					t.Errorf("state %s", state)
				}
				if c := r.b.sent(events.CmdCancel); len(c) != 1 || c[0].Data.(*events.Cancel).Reason != events.CodeClientGone {
					t.Errorf("cancels %v", c)
				}
				await(t, "nothing is kept", func() bool { s := r.g.Stats(); return s.Memory == 0 && s.Flights == 0 && s.Requests == 0 })
				if _, err := r.b.record(0).fetch(); err == nil {
					t.Error("the prompt of a cancelled request is served")
				}
			})
		}
	}
}

// A client that leaves during a slow admission does not leave a lifecycle open.
func TestClientGoneDuringAdmission(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	ctx, leave := context.WithCancel(t.Context())
	r.b.refuse = func(*events.Admit) *events.Error { leave(); return nil }
	r.b.script = func(*record) {}
	if resp, err := r.client.Do(r.request(ctx, "/v1/completions", completionBody(testPrompt, false))); err == nil {
		resp.Body.Close()
	}
	<-r.b.landed
	if state, _ := r.b.record(0).last(); state != events.Cancelled {
		t.Errorf("state %s", state)
	}
}
