package simulation

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/gpuworker"
	"github.com/pdgate/pdgate/gpuworker/handoff"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/services/gateway"
	"github.com/pdgate/pdgate/statemachine"
)

// removal is a guard, or a group of those that cover for each other, taken away.
type removal struct {
	name   string
	guards Guards
	faults Faults

	// own is the guard's own word, as [Result.Stopped] has it. With the guard it
	// is heard; without, where silent is set, no more.
	own    string
	silent bool

	// rules show that the guard is gone: one of them must be broken. Without any,
	// nothing may be: then next is the word of the guard that stands behind.
	rules []string
	next  string
}

const (
	tooLong  = "context_length_exceeded"
	changed  = "kv_digest_mismatch"
	decision = statemachine.RuleDecision
	output   = statemachine.RuleOutput
	pages    = statemachine.RulePages
	success  = statemachine.RuleClient
)

func ofLifecycle(g statemachine.Guards) Guards { return Guards{Machine: g} }
func ofWorker(g gpuworker.Guards) Guards       { return Guards{Worker: g} }
func ofHandoff(g handoff.Guards) Guards        { return Guards{Worker: gpuworker.Guards{Handoff: g}} }
func ofGateway(g gateway.Guards) Guards        { return Guards{Gateway: g} }

var removals = []removal{
	// The lifecycle's.
	{name: "admission limit", guards: ofLifecycle(statemachine.Guards{NoAdmissionLimit: true}), faults: Faults{LongOnly: true},
		own: "lifecycle rejected: " + tooLong, rules: []string{decision}},
	{name: "token count", guards: ofLifecycle(statemachine.Guards{NoTokenCount: true}), faults: Faults{LongOnly: true, Overclaim: true, Silent: true},
		own: "lifecycle prefilled: token_count_mismatch", silent: true, rules: []string{decision}},
	{name: "grant in prefilled only", guards: ofLifecycle(statemachine.Guards{NoGrantState: true}), faults: Faults{Eager: true},
		own: "lifecycle grant: illegal_state", rules: []string{output}},
	{name: "lease", guards: ofLifecycle(statemachine.Guards{NoLease: true}), faults: Faults{Slow: true},
		own: "lifecycle grant: lease_over", silent: true, rules: []string{decision, pages}},
	{name: "registered senders", guards: ofLifecycle(statemachine.Guards{NoWorker: true}), faults: Faults{Usurp: true},
		own: "lifecycle transferred: wrong_worker", silent: true, rules: []string{pages}},
	{name: "digest at transferred", guards: ofLifecycle(statemachine.Guards{NoDigest: true}), faults: Faults{BitFlip: true},
		next: "puller: " + changed},

	// The digests, behind each other.
	{name: "digest at the owner", guards: ofHandoff(handoff.Guards{NoDigest: true}), faults: Faults{MemFlip: true},
		own: "owner: " + changed, silent: true, next: "puller: " + changed},
	{name: "digest at the puller", guards: ofHandoff(handoff.Guards{NoPullDigest: true}), faults: Faults{BitFlip: true},
		own: "puller: " + changed, silent: true, next: "lifecycle transferred: " + changed},
	{name: "digest at owner and puller", guards: ofHandoff(handoff.Guards{NoDigest: true, NoPullDigest: true}), faults: Faults{MemFlip: true},
		next: "lifecycle transferred: " + changed},
	{name: "all digests", faults: Faults{BitFlip: true},
		guards: Guards{Machine: statemachine.Guards{NoDigest: true}, Worker: gpuworker.Guards{Handoff: handoff.Guards{NoPullDigest: true}}},
		rules:  []string{pages}},

	// The owner's.
	{name: "signature", guards: ofHandoff(handoff.Guards{NoSignature: true}), faults: Faults{Forge: true},
		own: "forged grant: grant_signature", silent: true, rules: []string{RuleThief}},
	{name: "proof", guards: ofHandoff(handoff.Guards{NoProof: true}), faults: Faults{Steal: true},
		own: "stolen grant: forbidden", silent: true, rules: []string{RuleThief}},
	{name: "once", guards: ofHandoff(handoff.Guards{NoOnce: true}), faults: Faults{Replay: true},
		own: "replayed opening: grant_used", silent: true, rules: []string{RuleOnce}},
	{name: "owner", guards: ofHandoff(handoff.Guards{NoOwner: true}), faults: Faults{Stray: true},
		own: "stray grant: wrong_worker", silent: true, next: "stray grant: worker_epoch"},
	{name: "epoch", guards: ofHandoff(handoff.Guards{NoEpoch: true}), faults: Faults{Stray: true},
		own: "stray grant: worker_epoch", silent: true, next: "stray grant: unknown_request"},
	{name: "owner, epoch", guards: ofHandoff(handoff.Guards{NoOwner: true, NoEpoch: true}), faults: Faults{Stray: true},
		next: "stray grant: unknown_request"},
	{name: "owner, epoch, held", guards: ofHandoff(handoff.Guards{NoOwner: true, NoEpoch: true, NoHeld: true}), faults: Faults{Stray: true},
		next: "stray grant: page_owner"},
	{name: "owner, epoch, held, table", guards: ofHandoff(handoff.Guards{NoOwner: true, NoEpoch: true, NoHeld: true, NoTable: true}), faults: Faults{Stray: true},
		next: "stray grant: page_generation"}, // the pool's own
	{name: "held", guards: ofHandoff(handoff.Guards{NoHeld: true}), next: "owner: page_owner"},
	{name: "held, once", guards: ofHandoff(handoff.Guards{NoHeld: true, NoOnce: true}), faults: Faults{Slow: true, Replay: true},
		rules: []string{RuleRevoked}},
	{name: "table", guards: ofHandoff(handoff.Guards{NoTable: true}), faults: Faults{Lie: true},
		own: "lying grant: page_owner", next: "lying grant: " + changed},
	{name: "check after the copy", guards: ofHandoff(handoff.Guards{NoRecheck: true}), faults: Faults{Slow: true},
		next: "owner: unknown_request"}, // revoked; and the pool waits for whoever reads

	// The lease, at all who look at a clock.
	{name: "lease at the owner", guards: ofHandoff(handoff.Guards{NoLease: true}), faults: Faults{Stale: true}, next: "stale grant: lease_over"},
	{name: "lease at the owner's end", guards: ofHandoff(handoff.Guards{NoLeaseEnd: true}), faults: Faults{Slow: true}, next: "puller: lease_over"},
	{name: "lease at the puller", guards: ofHandoff(handoff.Guards{NoPullLease: true}), faults: Faults{Slow: true}, next: "owner: lease_over"},
	{name: "lease at the hand-off", faults: Faults{Slow: true},
		guards: ofHandoff(handoff.Guards{NoLease: true, NoLeaseEnd: true, NoPullLease: true}),
		next:   "owner: unknown_request"}, // revoked: the worker lets go at the lease's end, and the log has ended the request
	{name: "lease everywhere", faults: Faults{Slow: true},
		guards: Guards{
			Machine: statemachine.Guards{NoLease: true},
			Worker:  gpuworker.Guards{Handoff: handoff.Guards{NoLease: true, NoLeaseEnd: true, NoPullLease: true}},
		},
		rules: []string{decision, pages}},

	// The puller's.
	{name: "owner's key", guards: ofHandoff(handoff.Guards{NoOwnerKey: true}), faults: Faults{Trailer: true},
		own: "puller: wrong_worker", silent: true}, // the sum is right all the same
	{name: "header", guards: ofHandoff(handoff.Guards{NoHeader: true}), faults: Faults{Header: true},
		own: "puller: page_owner", silent: true, next: "puller: wrong_worker"},
	{name: "header, owner's key", guards: ofHandoff(handoff.Guards{NoHeader: true, NoOwnerKey: true}), faults: Faults{Header: true},
		next: "lifecycle transferred: page_owner"},
	{name: "trailer", guards: ofHandoff(handoff.Guards{NoPullTrailer: true}), faults: Faults{MemFlip: true},
		own: "owner: " + changed, next: "puller: " + changed},

	// The worker's.
	{name: "refused", guards: ofWorker(gpuworker.Guards{NoRefusedCheck: true}), faults: Faults{LongOnly: true, Overclaim: true, Faulty: true},
		own: "prefill asks whether the engine refused: " + tooLong, silent: true, next: "lifecycle prefilled: token_count_mismatch"},
	{name: "refused, token count", faults: Faults{LongOnly: true, Overclaim: true, Faulty: true},
		guards: Guards{Worker: gpuworker.Guards{NoRefusedCheck: true}, Machine: statemachine.Guards{NoTokenCount: true}},
		rules:  []string{decision}},
	{name: "prompt", guards: ofWorker(gpuworker.Guards{NoPromptCheck: true}), faults: Faults{MixPrompt: true},
		own: "prefill checks the prompt: prompt_unavailable", silent: true, rules: []string{RuleForeign}},
	{name: "state", guards: ofWorker(gpuworker.Guards{NoStateCheck: true}), next: "lifecycle prefilled: illegal_state"},
	{name: "drain", guards: ofWorker(gpuworker.Guards{NoDrain: true}), rules: []string{pages}},
	{name: "transferred", faults: Faults{BitFlip: true},
		guards: ofWorker(gpuworker.Guards{NoTransferred: true, Handoff: handoff.Guards{NoPullDigest: true}}),
		next:   "lifecycle decoded: illegal_state"}, // and the gateway holds what came
	{name: "transferred, hold", faults: Faults{BitFlip: true},
		guards: Guards{
			Worker:  gpuworker.Guards{NoTransferred: true, Handoff: handoff.Guards{NoPullDigest: true}},
			Gateway: gateway.Guards{NoHold: true},
		},
		rules: []string{success}},
	{name: "report before reuse", guards: Guards{NoReportFirst: true}, rules: []string{pages}},
	{name: "tokens that arrived", guards: Guards{NoArrivedCount: true}, faults: Faults{LongOnly: true, Overclaim: true, Faulty: true},
		next: "prefill asks whether the engine refused: " + tooLong},

	// The pool's.
	{name: "scrub", guards: Guards{Scrub: kvpool.ScrubNone}, rules: []string{RulePool}},
	{name: "poison", guards: Guards{Scrub: kvpool.ScrubZero}, rules: []string{RulePool}},

	// The gateway's.
	{name: "hold", guards: ofGateway(gateway.Guards{NoHold: true})},
	{name: "origin", guards: ofGateway(gateway.Guards{NoOrigin: true}), faults: Faults{Rogue: true}, rules: []string{RuleText}},
	{name: "whole", guards: ofGateway(gateway.Guards{NoWhole: true}),
		own: "gateway compares the output: output_lost", silent: true, rules: []string{success, RuleText}},

	// The public incident: the engine's refusal is not asked for, its count is
	// believed, decode reads as many tokens as were admitted. What is left is what
	// free pages hold.
	{name: "incident, poisoned pages", faults: Faults{LongOnly: true, Overclaim: true, Faulty: true},
		guards: Guards{
			Worker: gpuworker.Guards{NoRefusedCheck: true}, Machine: statemachine.Guards{NoTokenCount: true}, NoArrivedCount: true,
		},
		rules: []string{decision}, next: "decode computes: kv_poisoned"},
	{name: "incident", faults: Faults{LongOnly: true, Overclaim: true, Faulty: true},
		guards: Guards{
			Worker: gpuworker.Guards{NoRefusedCheck: true}, Machine: statemachine.Guards{NoTokenCount: true}, NoArrivedCount: true,
			Scrub: kvpool.ScrubNone,
		},
		rules: []string{RuleForeign}},
}

// TestGuardRemovedIsSeen takes guards away. A removal that can be seen alone is
// seen; one that cannot stays safe, and the guard behind it has spoken.
func TestGuardRemovedIsSeen(t *testing.T) {
	if raced {
		t.Skip("each run is one goroutine, and the run without the race detector has them all")
	}
	enough := uint64(8) // seeds of silence
	if testing.Short() {
		enough = 2
	}
	for _, r := range removals {
		t.Run(strings.ReplaceAll(r.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			if r.own != "" {
				heard := false
				for seed := range max(seeds(t, 40), 40) {
					with := Run(Config{Seed: seed, Force: r.faults, Only: true})
					if len(with.Violations) > 0 {
						show(t, with)
					}
					if heard = with.Stopped[r.own] > 0; heard {
						break
					}
				}
				if !heard {
					t.Errorf("with the guard, %q is never heard", r.own)
				}
			}
			next := r.next == ""
			for seed := range max(seeds(t, 400), 400) { // what stands behind a lease is heard in one seed of a hundred
				without := Run(Config{Seed: seed, Guards: r.guards, Force: r.faults, Only: true})
				if r.silent && without.Stopped[r.own] > 0 {
					t.Fatalf("seed %d: without the guard, %q is heard", seed, r.own)
				}
				next = next || without.Stopped[r.next] > 0
				broken := without.Rules()
				switch {
				case len(r.rules) == 0 && len(broken) > 0:
					show(t, without)
				case slices.ContainsFunc(r.rules, func(s string) bool { return slices.Contains(broken, s) }) && next:
					t.Logf("seed %d: %s", seed, first(without, r.rules))
					return
				case len(r.rules) == 0 && next && seed >= enough:
					t.Logf("stays safe: %s", behind(r))
					return
				}
			}
			if !next {
				t.Errorf("%q is never heard", r.next)
			} else {
				t.Errorf("no seed breaks %v", r.rules)
			}
		})
	}
}

// first is the first violation of one of the rules.
func first(r *Result, rules []string) Violation {
	for _, v := range r.Violations {
		if slices.Contains(rules, v.Rule) {
			return v
		}
	}
	return Violation{}
}

func behind(r removal) string {
	if r.next == "" {
		return "nothing needs to stop it"
	}
	return fmt.Sprintf("%q stands behind", r.next)
}
