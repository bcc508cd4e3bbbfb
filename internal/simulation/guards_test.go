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
	long    = "context_length_exceeded"
	d       = statemachine.RuleDecision
	s1      = statemachine.RuleOutput
	s2      = statemachine.RulePages
	s3      = statemachine.RuleFinal
	s5      = statemachine.RuleClient
	badMemo = "kv_digest_mismatch"
)

func machine(g statemachine.Guards) Guards { return Guards{Machine: g} }
func worker_(g gpuworker.Guards) Guards    { return Guards{Worker: g} }
func plane(g handoff.Guards) Guards        { return Guards{Worker: gpuworker.Guards{Handoff: g}} }
func gate_(g gateway.Guards) Guards        { return Guards{Gateway: g} }

var removals = []removal{
	// The lifecycle's.
	{name: "admission limit", guards: machine(statemachine.Guards{NoAdmissionLimit: true}), faults: Faults{LongOnly: true},
		own: "lifecycle rejected: " + long, rules: []string{d}},
	{name: "token count", guards: machine(statemachine.Guards{NoTokenCount: true}), faults: Faults{LongOnly: true, Overclaim: true, Silent: true},
		own: "lifecycle prefilled: token_count_mismatch", silent: true, rules: []string{d}},
	{name: "grant in prefilled only", guards: machine(statemachine.Guards{NoGrantState: true}), faults: Faults{Eager: true},
		own: "lifecycle grant: illegal_state", rules: []string{s1, s3, d}},
	{name: "lease", guards: machine(statemachine.Guards{NoLease: true}), faults: Faults{Slow: true},
		own: "lifecycle grant: lease_over", silent: true, rules: []string{d, s2}},
	{name: "registered senders", guards: machine(statemachine.Guards{NoWorker: true}),
		own: "lifecycle grant: worker_epoch", silent: true, rules: []string{d, s2}},
	{name: "digest at transferred", guards: machine(statemachine.Guards{NoDigest: true}), faults: Faults{BitFlip: true},
		next: "puller: " + badMemo},

	// The digests, behind each other.
	{name: "digest at the owner", guards: plane(handoff.Guards{NoDigest: true}), faults: Faults{MemFlip: true},
		own: "owner: " + badMemo, silent: true, next: "puller: " + badMemo},
	{name: "digest at the puller", guards: plane(handoff.Guards{NoPullDigest: true}), faults: Faults{BitFlip: true},
		own: "puller: " + badMemo, silent: true, next: "lifecycle transferred: " + badMemo},
	{name: "digest at owner and puller", guards: plane(handoff.Guards{NoDigest: true, NoPullDigest: true}), faults: Faults{MemFlip: true},
		next: "lifecycle transferred: " + badMemo},
	{name: "all digests", faults: Faults{BitFlip: true},
		guards: Guards{Machine: statemachine.Guards{NoDigest: true}, Worker: gpuworker.Guards{Handoff: handoff.Guards{NoPullDigest: true}}},
		rules:  []string{s2}},

	// The owner's.
	{name: "signature", guards: plane(handoff.Guards{NoSignature: true}), faults: Faults{Forge: true},
		own: "forged grant: grant_signature", silent: true, rules: []string{RuleThief}},
	{name: "proof", guards: plane(handoff.Guards{NoProof: true}), faults: Faults{Steal: true},
		own: "stolen grant: forbidden", silent: true, rules: []string{RuleThief}},
	{name: "once", guards: plane(handoff.Guards{NoOnce: true}), faults: Faults{Replay: true},
		own: "replayed opening: grant_used", silent: true, rules: []string{RuleOnce}},
	{name: "owner", guards: plane(handoff.Guards{NoOwner: true}), faults: Faults{Stray: true},
		own: "stray grant: wrong_worker", silent: true, next: "stray grant: worker_epoch"},
	{name: "epoch", guards: plane(handoff.Guards{NoEpoch: true}), faults: Faults{Stray: true},
		own: "stray grant: worker_epoch", silent: true, next: "stray grant: unknown_request"},
	{name: "owner, epoch", guards: plane(handoff.Guards{NoOwner: true, NoEpoch: true}), faults: Faults{Stray: true},
		next: "stray grant: unknown_request"},
	{name: "owner, epoch, held", guards: plane(handoff.Guards{NoOwner: true, NoEpoch: true, NoHeld: true}), faults: Faults{Stray: true},
		next: "stray grant: page_owner"},
	{name: "owner, epoch, held, table", guards: plane(handoff.Guards{NoOwner: true, NoEpoch: true, NoHeld: true, NoTable: true}), faults: Faults{Stray: true},
		next: "stray grant: page_generation"}, // the pool's own
	{name: "held", guards: plane(handoff.Guards{NoHeld: true}), next: "owner: page_owner"},
	{name: "held, table, digest", guards: plane(handoff.Guards{NoHeld: true, NoTable: true, NoDigest: true}), faults: Faults{Slow: true},
		rules: []string{RuleRevoked}},
	{name: "table", guards: plane(handoff.Guards{NoTable: true}), faults: Faults{Lie: true},
		own: "lying grant: page_owner", next: "lying grant: " + badMemo},
	{name: "check after the copy", guards: plane(handoff.Guards{NoRecheck: true}), faults: Faults{Slow: true},
		next: "owner: unknown_request"}, // revoked; and the pool waits for whoever reads

	// The lease, at all who look at a clock.
	{name: "lease at the owner", guards: plane(handoff.Guards{NoLease: true}), faults: Faults{Stale: true}, next: "stale grant: lease_over"},
	{name: "lease at the owner's end", guards: plane(handoff.Guards{NoLeaseEnd: true}), faults: Faults{Slow: true}, next: "puller: lease_over"},
	{name: "lease at the puller", guards: plane(handoff.Guards{NoPullLease: true}), faults: Faults{Slow: true}, next: "owner: lease_over"},
	{name: "lease at the hand-off", faults: Faults{Slow: true},
		guards: plane(handoff.Guards{NoLease: true, NoLeaseEnd: true, NoPullLease: true}),
		next:   "lifecycle transferred: illegal_state"}, // the deadline of prefilled is the lease
	{name: "lease everywhere", faults: Faults{Slow: true},
		guards: Guards{
			Machine: statemachine.Guards{NoLease: true},
			Worker:  gpuworker.Guards{Handoff: handoff.Guards{NoLease: true, NoLeaseEnd: true, NoPullLease: true}},
		},
		rules: []string{d, s2}},

	// The puller's.
	{name: "owner's key", guards: plane(handoff.Guards{NoOwnerKey: true}), faults: Faults{Trailer: true},
		own: "puller: wrong_worker", silent: true}, // the sum is right all the same
	{name: "header", guards: plane(handoff.Guards{NoHeader: true}), faults: Faults{Header: true},
		own: "puller: page_owner", silent: true, next: "puller: wrong_worker"},
	{name: "header, owner's key", guards: plane(handoff.Guards{NoHeader: true, NoOwnerKey: true}), faults: Faults{Header: true},
		next: "lifecycle transferred: page_owner"},
	{name: "trailer", guards: plane(handoff.Guards{NoPullTrailer: true}), faults: Faults{MemFlip: true},
		own: "owner: " + badMemo, next: "puller: " + badMemo},

	// The worker's.
	{name: "refused", guards: worker_(gpuworker.Guards{NoRefusedCheck: true}), faults: Faults{LongOnly: true, Overclaim: true, Faulty: true},
		own: "prefill asks whether the engine refused: " + long, silent: true, next: "lifecycle prefilled: token_count_mismatch"},
	{name: "refused, token count", faults: Faults{LongOnly: true, Overclaim: true, Faulty: true},
		guards: Guards{Worker: gpuworker.Guards{NoRefusedCheck: true}, Machine: statemachine.Guards{NoTokenCount: true}},
		rules:  []string{d}},
	{name: "prompt", guards: worker_(gpuworker.Guards{NoPromptCheck: true}), faults: Faults{MixPrompt: true},
		own: "prefill checks the prompt: prompt_unavailable", silent: true, rules: []string{RuleForeign}},
	{name: "state", guards: worker_(gpuworker.Guards{NoStateCheck: true}), next: "lifecycle prefilled: illegal_state"},
	{name: "drain", guards: worker_(gpuworker.Guards{NoDrain: true}), rules: []string{s2}},
	{name: "transferred", faults: Faults{BitFlip: true},
		guards: worker_(gpuworker.Guards{NoTransferred: true, Handoff: handoff.Guards{NoPullDigest: true}}),
		next:   "lifecycle decoded: illegal_state"}, // and the gateway holds what came
	{name: "transferred, hold", faults: Faults{BitFlip: true},
		guards: Guards{
			Worker:  gpuworker.Guards{NoTransferred: true, Handoff: handoff.Guards{NoPullDigest: true}},
			Gateway: gateway.Guards{NoHold: true},
		},
		rules: []string{s5}},
	{name: "report before reuse", guards: Guards{NoReportFirst: true}, rules: []string{s2}},
	{name: "tokens that arrived", guards: Guards{NoArrivedCount: true}, faults: Faults{LongOnly: true, Overclaim: true, Faulty: true},
		next: "prefill asks whether the engine refused: " + long},

	// The pool's.
	{name: "scrub", guards: Guards{Scrub: kvpool.ScrubNone}, rules: []string{RulePool}},
	{name: "poison", guards: Guards{Scrub: kvpool.ScrubZero}, rules: []string{RulePool}},

	// The gateway's.
	{name: "hold", guards: gate_(gateway.Guards{NoHold: true})},
	{name: "origin", guards: gate_(gateway.Guards{NoOrigin: true}), faults: Faults{Rogue: true}, rules: []string{RuleText}},
	{name: "whole", guards: gate_(gateway.Guards{NoWhole: true}),
		own: "gateway compares the output: output_lost", silent: true, rules: []string{s5, RuleText}},

	// The public incident: the engine's refusal is not asked for, its count is
	// believed, decode reads as many tokens as were admitted. What is left is what
	// free pages hold.
	{name: "incident, poisoned pages", faults: Faults{LongOnly: true, Overclaim: true, Faulty: true},
		guards: Guards{
			Worker: gpuworker.Guards{NoRefusedCheck: true}, Machine: statemachine.Guards{NoTokenCount: true}, NoArrivedCount: true,
		},
		rules: []string{d}, next: "decode computes: kv_poisoned"},
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
	for _, r := range removals {
		t.Run(strings.ReplaceAll(r.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			if r.own != "" {
				heard := false
				for seed := range seeds(t, 40) {
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
			for seed := range max(seeds(t, 100), 60) {
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
				case len(r.rules) == 0 && next && seed >= 8:
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
