package vllmfake

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// Scenarios are the published faults that this engine's wire can show.
func Scenarios() []Scenario {
	return append(append(referenceScenarios(), loadScenarios()...), proxyScenarios()...)
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

// The sizes of the scenarios' requests.
const (
	promptTokens = 200 // 13 blocks
	outputTokens = 24  // 14 with the prompt
)

func ask(who ...string) func(context.Context, *World) error {
	return func(ctx context.Context, w *World) error {
		for _, name := range who {
			w.Call(ctx, completion(name)).Wait()
		}
		return nil
	}
}

// referenceScenarios are about a reference that is no longer what it was.
func referenceScenarios() []Scenario {
	// again cuts the client's side of a decode leg that has read its KV, so that
	// whoever retries does it with a reference that is used.
	again := func(between func(*World)) func(context.Context, *World) error {
		return func(ctx context.Context, w *World) error {
			release := w.Decode.Hold(enginefake.AtDecode)
			defer release()
			call := w.Call(ctx, completion("alice"))
			if err := enginefake.Until(ctx, "the first decode leg", func() bool { return w.Decode.Waiting(enginefake.AtDecode) == 1 }); err != nil {
				return err
			}
			between(w)
			w.Decode.Cut()
			if err := enginefake.Until(ctx, "its end", func() bool { return w.Decode.Stats().Aborted == 1 }); err != nil {
				return err
			}
			release()
			call.Wait()
			return nil
		}
	}
	return []Scenario{{
		Row: "F14", Name: "consumed reference again", Naive: Naive{RetryDecode: true},
		Steps: again(func(*World) {}),
		Unguarded: func(w *World) error {
			return errors.Join(w.Reply(0).Wrong(right("alice")),
				enginefake.Equal("failed transfers", w.Decode.Stats().FailedTransfers, 1))
		},
	}, {
		Row: "F15", Name: "stale reference after reuse", Naive: Naive{RetryDecode: true},
		Steps: again(func(w *World) { w.Prefill.Fill(enginefake.Sentinel("mallory", 64)) }),
		Unguarded: func(w *World) error {
			return errors.Join(w.Reply(0).Foreign("mallory"),
				enginefake.Equal("failed transfers", w.Decode.Stats().FailedTransfers, 0))
		},
	}, {
		Row: "F16", Name: "block ids out of range", Naive: Naive{Mangle: true},
		Steps: ask("alice"),
		Unguarded: func(w *World) error {
			return errors.Join(w.Reply(0).Wrong(right("alice")),
				enginefake.Equal("failed transfers", w.Decode.Stats().FailedTransfers, 1))
		},
	}, {
		Row: "F17", Name: "held longer than the lease",
		Steps: func(ctx context.Context, w *World) error {
			release := w.Prefill.Hold(enginefake.AtAnswer)
			defer release()
			call := w.Call(ctx, completion("alice"))
			if err := enginefake.Until(ctx, "prefill", func() bool { return w.Prefill.Waiting(enginefake.AtAnswer) == 1 }); err != nil {
				return err
			}
			w.Clock.Advance(50 * time.Second)
			w.Prefill.Fill(enginefake.Sentinel("mallory", 64))
			release()
			call.Wait()
			return nil
		},
		Unguarded: func(w *World) error {
			return errors.Join(w.Reply(0).Foreign("mallory"),
				enginefake.Equal("expired", w.Prefill.Stats().Expired, 1), enginefake.Equal("failed transfers", w.Decode.Stats().FailedTransfers, 0))
		},
	}, {
		Row: "F08", Name: "choices share one reference",
		Steps: func(ctx context.Context, w *World) error {
			c := completion("alice")
			c.Body["n"] = 2
			w.Call(ctx, c).Wait()
			return nil
		},
		Unguarded: func(w *World) error {
			r := w.Reply(0)
			if err := r.Is(right("alice")); err != nil {
				return err
			}
			if len(r.Text) != 2 || r.Text[1] == r.Text[0] {
				return errors.New("the second choice is right")
			}
			return enginefake.Equal("failed transfers", w.Decode.Stats().FailedTransfers, 1)
		},
	}, {
		Row: "F23", Name: "blocks are never freed",
		Config: func(p, d *Config) { p.Faults.NeverFree = true },
		Steps: func(ctx context.Context, w *World) error {
			w.Call(ctx, completion("alice")).Wait()
			w.Clock.Advance(time.Hour)
			return nil
		},
		Unguarded: func(w *World) error {
			return errors.Join(w.Reply(0).Is(right("alice")),
				enginefake.Equal("blocks past their lease", w.Prefill.Stats().PastLease, 13))
		},
	}, {
		Row: "F23", Name: "decode rejects before its scheduler, old build",
		Config: func(p, d *Config) { p.Build, d.Build, d.Faults.RejectEarly = Old, Old, true },
		Steps:  ask("alice"),
		Unguarded: func(w *World) error {
			before := w.Prefill.Stats().Stranded
			w.Clock.Advance(480 * time.Second)
			return errors.Join(enginefake.Equal("status", w.Reply(0).Status, http.StatusBadRequest),
				enginefake.Equal("stranded until the timeout", before, 13), enginefake.Equal("stranded after it", w.Prefill.Stats().Stranded, 0))
		},
	}, {
		Row: "F27", Name: "client gone during a transfer",
		Config: func(p, d *Config) { d.Faults.LeakOnAbort = true },
		Steps: func(ctx context.Context, w *World) error {
			release := w.Decode.Hold(enginefake.AtTransfer)
			defer release()
			gone, leave := context.WithCancel(ctx)
			call := w.Call(gone, completion("alice"))
			err := enginefake.Until(ctx, "the transfer", func() bool { return w.Decode.Waiting(enginefake.AtTransfer) == 1 })
			leave()
			call.Wait()
			if err == nil {
				err = enginefake.Until(ctx, "the abort", func() bool { return w.Decode.Stats().Aborted == 1 })
			}
			return err
		},
		Unguarded: func(w *World) error {
			return errors.Join(enginefake.Equal("decode's blocks", w.Decode.Stats().Held, 14), enginefake.Equal("prefill's blocks", w.Prefill.Stats().Stranded, 13))
		},
	}}
}

// loadScenarios are about a load of KV that went wrong.
func loadScenarios() []Scenario {
	return []Scenario{{
		Row: "F12", Name: "failure before the first token of a stream",
		Config: func(p, d *Config) { d.Faults.EmptyStream = true },
		Steps: func(ctx context.Context, w *World) error {
			c := completion("alice")
			c.Body["stream"] = true
			w.Call(ctx, c).Wait()
			return nil
		},
		Unguarded: func(w *World) error {
			if r := w.Reply(0); r.Status != http.StatusOK || string(r.Raw) != "data: [DONE]\n\n" {
				return errors.New("want 200 and nothing but the end mark")
			}
			return nil
		},
	}, {
		Row: "F13", Name: "slow corruption",
		Config: func(p, d *Config) { d.Faults.CorruptLoads = true },
		Steps:  ask("alice"),
		Unguarded: func(w *World) error {
			return errors.Join(w.Reply(0).Wrong(right("alice")),
				enginefake.Equal("prompt tokens", w.Reply(0).Prompt, promptTokens), enginefake.Equal("failed transfers", w.Decode.Stats().FailedTransfers, 0))
		},
	}, {
		Row: "F18", Name: "failed receive under 200",
		Config: func(p, d *Config) { d.Faults.FailedReceive = true },
		Steps: func(ctx context.Context, w *World) error {
			w.Call(ctx, enginefake.Call{Path: "/v1/chat/completions", Body: map[string]any{
				"model": "fake", "messages": []any{map[string]string{"role": "user", "content": "alice keeps to alice"}},
			}}).Wait()
			return nil
		},
		Unguarded: func(w *World) error {
			if err := w.Reply(0).Is(""); err != nil {
				return err
			}
			if w.Reply(0).Reasoning == "" {
				return errors.New("no garbage in the reasoning")
			}
			return nil
		},
	}, {
		Row: "F19", Name: "a pair that keeps failing",
		Config: func(p, d *Config) { d.Faults.BrokenPair = true },
		Steps:  ask("alice", "bob", "carol", "dave", "erin"),
		Unguarded: func(w *World) error {
			for i, who := range []string{"alice", "bob", "carol", "dave", "erin"} {
				if err := w.Reply(i).Wrong(right(who)); err != nil {
					return err
				}
			}
			return enginefake.Equal("failed transfers", w.Decode.Stats().FailedTransfers, 5)
		},
	}, {
		Row: "F20", Name: "recompute after a failed load",
		Config: func(p, d *Config) {
			d.LoadFailure, d.Faults.FailLoads, d.Faults.RecomputeWrong = Recompute, true, true
		},
		Steps:     ask("alice"),
		Unguarded: func(w *World) error { return w.Reply(0).Wrong(right("alice")) },
	}}
}

// proxyScenarios are about what stands in front of the nodes.
func proxyScenarios() []Scenario {
	return []Scenario{{
		Row: "F21", Name: "the client names the peer", Naive: Naive{PassParams: true},
		Steps: func(ctx context.Context, w *World) error {
			release := w.Decode.Hold(enginefake.AtTransfer)
			defer release()
			victim := w.Call(ctx, completion("victim"))
			if err := enginefake.Until(ctx, "the victim's decode leg", func() bool { return w.Decode.Waiting(enginefake.AtTransfer) == 1 }); err != nil {
				return err
			}
			var body map[string]json.RawMessage
			if err := json.Unmarshal(w.Decode.Generations()[0].Body, &body); err != nil {
				return err
			}
			c := completion("mallory")
			c.Body["kv_transfer_params"] = body["kv_transfer_params"]
			attack := w.Call(ctx, c)
			// Behind a gate the attack ends without reaching decode.
			err := enginefake.Until(ctx, "the attack", func() bool {
				return attack.Ended() || w.Decode.Waiting(enginefake.AtTransfer) == 2
			})
			w.Decode.Let(enginefake.AtTransfer, 1)
			attack.Wait()
			release()
			victim.Wait()
			return err
		},
		Unguarded: func(w *World) error { return w.Reply(1).Foreign("victim") },
	}, {
		Row: "F22", Name: "the client's id is the key", Naive: Naive{ClientID: true},
		Config: func(p, d *Config) { p.Build, d.Build = Old, Old },
		Steps: func(ctx context.Context, w *World) error {
			release := w.Decode.Hold(enginefake.AtTransfer)
			defer release()
			var calls []*enginefake.Pending
			for i, who := range []string{"alice", "bob"} {
				c := completion(who)
				c.Header = map[string]string{"X-Request-Id": "order-1"}
				calls = append(calls, w.Call(ctx, c))
				if err := enginefake.Until(ctx, "a decode leg", func() bool { return w.Decode.Waiting(enginefake.AtTransfer) == i+1 }); err != nil {
					return err
				}
			}
			for _, call := range calls {
				w.Decode.Let(enginefake.AtTransfer, 0)
				call.Wait()
			}
			return nil
		},
		Unguarded: func(w *World) error {
			// Alice's blocks have no owner that anybody knows; bob's were freed for her.
			w.Clock.Advance(time.Hour)
			return errors.Join(w.Reply(0).Is(right("alice")),
				w.Reply(1).Wrong(right("bob")), enginefake.Equal("blocks that leaked", w.Prefill.Stats().Held, 13))
		},
	}, {
		Row: "F24", Name: "prefill is skipped", Naive: Naive{SkipPrefill: true},
		Steps: ask("alice"),
		Unguarded: func(w *World) error {
			return errors.Join(w.Reply(0).Is(right("alice")),
				enginefake.Equal("prefill legs", len(w.Prefill.Generations()), 0))
		},
	}, {
		Row: "F25", Name: "prefill's failure is swallowed", Naive: Naive{IgnorePrefill: true},
		Config: func(p, d *Config) { p.Faults.Refuse = http.StatusInternalServerError },
		Steps:  ask("alice"),
		Unguarded: func(w *World) error {
			return errors.Join(w.Reply(0).Is(right("alice")),
				enginefake.Equal("prefill's status", w.Prefill.Generations()[0].Status, http.StatusInternalServerError))
		},
	}, {
		Row: "F25", Name: "an aborted prefill fails open",
		Config: func(p, d *Config) { p.Faults.Abort = true },
		Steps:  ask("alice"),
		Unguarded: func(w *World) error {
			return errors.Join(w.Reply(0).Is(right("alice")),
				enginefake.Equal("prefills", w.Prefill.Stats().Prefills, 0))
		},
	}, {
		Row: "F26", Name: "client gone, prefill goes on", Naive: Naive{Detach: true},
		Steps: func(ctx context.Context, w *World) error {
			release := w.Prefill.Hold(enginefake.AtPrefill)
			defer release()
			gone, leave := context.WithCancel(ctx)
			call := w.Call(gone, completion("alice"))
			err := enginefake.Until(ctx, "prefill", func() bool { return w.Prefill.Waiting(enginefake.AtPrefill) == 1 })
			leave()
			call.Wait()
			if err != nil {
				return err
			}
			aborted := func() bool { return w.Prefill.Stats().Aborted == 1 }
			if w.Guarded {
				return enginefake.Until(ctx, "the abort", aborted)
			}
			release()
			return enginefake.Until(ctx, "prefill's end", func() bool {
				return aborted() || w.Decode.Stats().Decodes == 1
			})
		},
		Unguarded: func(w *World) error {
			return errors.Join(enginefake.Equal("prefills", w.Prefill.Stats().Prefills, 1), enginefake.Equal("decodes", w.Decode.Stats().Decodes, 1),
				enginefake.Equal("aborts", w.Prefill.Stats().Aborted, 0))
		},
	}}
}
