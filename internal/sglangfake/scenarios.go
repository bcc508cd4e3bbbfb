package sglangfake

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// The sizes of the scenarios' requests.
const (
	promptTokens = 200 // 13 pages
	outputTokens = 24  // 14 with the prompt
)

// Scenarios are the published faults that this engine's wire can show.
func Scenarios() []Scenario {
	return append(append(incidentScenarios(), transferScenarios()...), pageScenarios()...)
}

// Find returns the scenarios of a row.
func Find(row string) []Scenario {
	var out []Scenario
	for _, s := range Scenarios() {
		if s.Row == row {
			out = append(out, s)
		}
	}
	return out
}

func ask(who ...string) func(context.Context, *World) error {
	return func(ctx context.Context, w *World) error {
		for _, name := range who {
			w.Call(ctx, completion(name)).Wait()
		}
		return nil
	}
}

// incidentScenarios are about prompts above the limits of a node.
func incidentScenarios() []Scenario {
	// The prompt fits decode and not prefill. Decode's pages have been mallory's.
	afterMallory := func(stream bool) func(context.Context, *World) error {
		return func(ctx context.Context, w *World) error {
			w.Decode.Fill(enginefake.Sentinel("mallory", 64))
			c := completion("alice")
			c.Body["stream"] = stream
			w.Call(ctx, c).Wait()
			// Prefill's own answer may come later. Behind a gate there may be no leg.
			return enginefake.Until(ctx, "prefill", func() bool { return w.Prefill.Stats().Running == 0 })
		}
	}
	small := func(i Incident) func(p, d *Config) {
		return func(p, d *Config) { p.PoolTokens, p.Incident = 160, i }
	}
	return []Scenario{{
		Row: "F01", Name: "a rejected prompt goes on as a placeholder",
		Config: small(Silent), Steps: afterMallory(false),
		Unguarded: func(w *World) error {
			return errors.Join(w.Reply(0).Foreign("mallory"), enginefake.Equal("prompt tokens", w.Reply(0).Prompt, promptTokens))
		},
	}, {
		Row: "F02", Name: "results that belong to other requests",
		Config: small(Reported), Steps: afterMallory(false),
		Unguarded: func(w *World) error {
			return errors.Join(w.Reply(0).Foreign("mallory"),
				enginefake.Equal("prefill's status", w.Prefill.Generations()[0].Status, http.StatusBadRequest))
		},
	}, {
		Row: "F03", Name: "fits decode, not prefill",
		Config: small(Reported), Steps: afterMallory(true),
		Unguarded: func(w *World) error { return w.Reply(0).Foreign("mallory") },
	}, {
		Row: "F12", Name: "a rejection is streamed under 200",
		Config: func(p, d *Config) { p.PoolTokens, d.PoolTokens = 160, 160 },
		Steps:  afterMallory(true),
		Unguarded: func(w *World) error {
			r := w.Reply(0)
			return errors.Join(enginefake.Equal("status", r.Status, http.StatusOK), enginefake.Equal("code in the stream", r.Code, http.StatusBadRequest))
		},
	}}
}

// transferScenarios are about transfers that end badly, or not at all.
func transferScenarios() []Scenario {
	return []Scenario{{
		Row: "F04", Name: "an abort in mid-transfer is reported as length",
		Config: func(p, d *Config) { d.Faults.AbortAsLength = true },
		Steps: func(ctx context.Context, w *World) error {
			release := w.Prefill.Hold(enginefake.AtTransfer)
			defer release()
			call := w.Call(ctx, completion("alice"))
			err := held(ctx, w.Prefill, enginefake.AtTransfer, 1)
			w.Decode.Abort()
			if !w.Guarded {
				call.Wait()
			}
			release()
			call.Wait()
			return err
		},
		Unguarded: func(w *World) error {
			r := w.Reply(0)
			if r.Status != http.StatusOK || r.FinishFirst() != enginefake.FinishLength || r.First() != "" {
				return fmt.Errorf("status %d, finish %q, text %q", r.Status, r.FinishFirst(), r.First())
			}
			return nil
		},
	}, {
		Row: "F07", Name: "the first token is another request's",
		Config: func(p, d *Config) { d.Faults.ReuseMetadataSlot = true },
		Steps: func(ctx context.Context, w *World) error {
			release := w.Decode.Hold(enginefake.AtDecode)
			defer release()
			for i, who := range []string{"alice", "bob"} {
				w.Call(ctx, completion(who))
				if err := held(ctx, w.Decode, enginefake.AtDecode, i+1); err != nil {
					return err
				}
			}
			return nil
		},
		Unguarded: func(w *World) error {
			if err := w.Reply(0).Wrong(right("alice")); err != nil {
				return err
			}
			if w.Reply(0).First()[0] != right("bob")[0] {
				return errors.New("alice's answer does not begin as bob's")
			}
			return w.Reply(1).Is(right("bob"))
		},
	}, {
		Row: "F08", Name: "choices share one room",
		Steps: func(ctx context.Context, w *World) error {
			w.Decode.Fill(enginefake.Sentinel("mallory", 64))
			c := completion("alice")
			c.Body["n"] = 2
			w.Call(ctx, c).Wait()
			return nil
		},
		Unguarded: func(w *World) error {
			return errors.Join(w.Reply(0).Foreign("mallory"), enginefake.Equal("choices", len(w.Reply(0).Text), 2))
		},
	}, {
		Row: "F09", Name: "prefill fails, decode waits",
		Config: func(p, d *Config) { p.Faults.Refuse = http.StatusInternalServerError },
		Steps: func(ctx context.Context, w *World) error {
			call := w.Call(ctx, completion("alice"))
			if err := enginefake.Until(ctx, "prefill's failure", func() bool {
				seen := w.Prefill.Generations()
				return call.Ended() || len(seen) == 1 && seen[0].Status == http.StatusInternalServerError && w.Decode.Stats().Waiting == 1
			}); err != nil {
				return err
			}
			if w.Guarded {
				call.Wait() // at once, by the machine's clock
				return nil
			}
			return w.wait(ctx, call)
		},
		Unguarded: func(w *World) error {
			if w.Waited < 300*time.Second {
				return fmt.Errorf("the client had its answer after %v", w.Waited)
			}
			return enginefake.Equal("status", w.Reply(0).Status, http.StatusInternalServerError)
		},
	}, {
		Row: "F10", Name: "transferring for ever",
		Config: func(p, d *Config) { p.Faults.StuckTransfer = true },
		Steps: func(ctx context.Context, w *World) error {
			gone, leave := context.WithCancel(ctx)
			defer leave()
			call := w.Call(gone, completion("alice"))
			if err := enginefake.Until(ctx, "the transfer", func() bool { return call.Ended() || w.Decode.Stats().Transferring == 1 }); err != nil {
				return err
			}
			if w.Guarded {
				call.Wait() // by its deadline
				return nil
			}
			w.Clock.Advance(24 * time.Hour)
			w.Waited = 24 * time.Hour
			if !call.Ended() {
				leave()
			}
			call.Wait()
			return nil
		},
		Unguarded: func(w *World) error {
			if r := w.Reply(0); !errors.Is(r.Err, context.Canceled) || r.Status != 0 {
				return fmt.Errorf("the client had an answer: %d", r.Status)
			}
			return nil
		},
	}, {
		Row: "F13", Name: "slow corruption",
		Config: func(p, d *Config) { p.Faults.CorruptTransfer = true },
		Steps:  ask("alice"),
		Unguarded: func(w *World) error {
			return errors.Join(w.Reply(0).Wrong(right("alice")), enginefake.Equal("prompt tokens", w.Reply(0).Prompt, promptTokens))
		},
	}}
}

// wait moves the clock on until the call has ended.
func (w *World) wait(ctx context.Context, call *enginefake.Pending) error {
	const step = 10 * time.Second
	for !call.Ended() && w.Waited < 300*time.Second {
		w.Clock.Advance(step)
		w.Waited += step
	}
	return enginefake.Until(ctx, "the answer", call.Ended)
}

// pageScenarios are about whose a page is.
func pageScenarios() []Scenario {
	// Alice leaves while her KV is on its way. Decode has pages for one request, so
	// that bob gets hers; then her KV arrives.
	late := func(freed func(context.Context, *World) error) func(context.Context, *World) error {
		return func(ctx context.Context, w *World) error {
			write, decode := w.Prefill.Hold(enginefake.AtTransfer), w.Decode.Hold(enginefake.AtDecode)
			defer decode()
			defer write()
			gone, leave := context.WithCancel(ctx)
			alice := w.Call(gone, completion("alice"))
			err := held(ctx, w.Prefill, enginefake.AtTransfer, 1)
			leave()
			alice.Wait()
			if err == nil && w.Guarded {
				// A gate lets alice's transfer end, and bob wait for her pages.
				bob := w.Call(ctx, completion("bob"))
				write()
				decode()
				bob.Wait()
				return nil
			}
			if err == nil {
				err = freed(ctx, w)
			}
			if err != nil {
				return err
			}
			bob := w.Call(ctx, completion("bob"))
			if err := held(ctx, w.Prefill, enginefake.AtTransfer, 2); err != nil {
				return err
			}
			w.Prefill.Let(enginefake.AtTransfer, 1)
			if err := held(ctx, w.Decode, enginefake.AtDecode, 1); err != nil {
				return err
			}
			write()
			if err := enginefake.Until(ctx, "alice's KV", func() bool { return w.Decode.Stats().Written == 2 }); err != nil {
				return err
			}
			decode()
			bob.Wait()
			return nil
		}
	}
	free := func(ctx context.Context, w *World) error {
		return enginefake.Until(ctx, "decode's pages", func() bool { return w.Decode.Stats().Held == 0 })
	}
	one := func(c *Config) { c.ContextTokens, c.PoolTokens = 512, 232 } // 14 pages
	return []Scenario{{
		Row: "F05", Name: "pages are freed while a writer is in flight",
		Config: func(p, d *Config) {
			one(d)
			d.Faults.FreeWhileWriting = true
		},
		Steps:     late(free),
		Unguarded: func(w *World) error { return w.Reply(1).Foreign("alice") },
	}, {
		Row: "F06", Name: "the drain's acknowledgement is lost",
		Config: func(p, d *Config) {
			one(d)
			d.Faults.DrainAckLost = true
		},
		Steps: late(func(ctx context.Context, w *World) error {
			if err := enginefake.Until(ctx, "the drain", func() bool { return w.Decode.Stats().Draining == 1 }); err != nil {
				return err
			}
			w.Clock.Advance(30 * time.Second)
			return free(ctx, w)
		}),
		Unguarded: func(w *World) error { return w.Reply(1).Foreign("alice") },
	}, {
		Row: "F11", Name: "decode over-commits and freezes",
		Config: func(p, d *Config) {
			one(d)
			d.Faults.OverCommit = true
		},
		Steps: func(ctx context.Context, w *World) error {
			gone, leave := context.WithCancel(ctx)
			defer leave()
			release := w.Decode.Hold(enginefake.AtDecode)
			defer release()
			for _, who := range []string{"alice", "bob"} {
				w.Call(gone, enginefake.Completion(who, 100, 64))
			}
			if !w.Guarded { // a gate lets in only what fits
				if err := held(ctx, w.Decode, enginefake.AtDecode, 2); err != nil {
					return err
				}
			}
			release()
			if err := enginefake.Until(ctx, "the freeze", func() bool {
				return w.Decode.Stats().Frozen || w.Calls[0].Ended() && w.Calls[1].Ended()
			}); err != nil {
				return err
			}
			if !w.Guarded {
				leave()
			}
			for _, c := range w.Calls {
				c.Wait()
			}
			return nil
		},
		Unguarded: func(w *World) error {
			if !w.Decode.Stats().Frozen {
				return errors.New("decode is not frozen")
			}
			return nil
		},
	}, {
		Row: "F30", Name: "another tenant's prefix",
		Config: func(p, d *Config) { p.PrefixCache, p.Faults.SharedPrefix = true, true },
		Steps: func(ctx context.Context, w *World) error {
			for _, tenant := range []string{"a", "b"} {
				c := completion("alice")
				c.Body["cache_salt"] = tenant
				w.Call(ctx, c).Wait()
			}
			return nil
		},
		Unguarded: func(w *World) error {
			return errors.Join(enginefake.Equal("tokens from the cache, tenant a", w.Reply(0).Cached, 0),
				enginefake.Equal("tokens from the cache, tenant b", w.Reply(1).Cached, 192))
		},
	}}
}
