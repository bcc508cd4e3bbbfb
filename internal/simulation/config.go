package simulation

import (
	"fmt"
	"maps"
	"slices"

	"github.com/pdgate/pdgate/gpuworker"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/services/gateway"
	"github.com/pdgate/pdgate/statemachine"
)

// Config describes one run.
type Config struct {
	Seed   uint64
	Guards Guards
	Force  Faults // happen in this run, whatever the seed draws
	Only   bool   // the seed draws none of Faults beyond Force
}

// Guards takes checks away. The zero value has all of them.
type Guards struct {
	Machine statemachine.Guards
	Worker  gpuworker.Guards // with the hand-off's
	Gateway gateway.Guards
	Scrub   kvpool.ScrubMode

	// NoArrivedCount has decode continue from as many tokens as were admitted, as
	// the engines of the public incident did, and not from as many as arrived.
	NoArrivedCount bool

	// NoReportFirst has workers hand out pages again before the log knows that
	// they are free.
	NoReportFirst bool
}

// Faults are misdeeds and defects beyond delay, loss, crashes and stalls, which
// every run has.
type Faults struct {
	Overclaim bool // prefill workers register more than their engine takes
	Faulty    bool // their engine refuses inside, and goes on with a placeholder
	Silent    bool // … and hides even the refusal
	LongOnly  bool // every second prompt is longer than the engine takes

	BitFlip   bool // a byte of a page changes on its way to the puller
	MemFlip   bool // a word of a page changes at the owner, after the offer
	MixPrompt bool // a gateway hands out another request's prompt, of the same length
	Header    bool // a header names another request
	Trailer   bool // somebody other than the owner signs the trailer

	Eager bool // decode workers ask for grants whenever they hear of a request
	Rogue bool // a decode worker sends output of requests that it does not hold
	Usurp bool // a decode worker reports another one's transfers as its own
	Slow  bool // pulls take about as long as leases

	Forge  bool // the thief signs grants itself
	Steal  bool // … uses others' grants under its own key
	Replay bool // … plays back openings that were served
	Stray  bool // … takes grants to workers, or lives, that they are not for
	Stale  bool // … uses grants whose lease is over
	Lie    bool // the lifecycle signs grants for pages that are not the request's
}

// Result is what came of one run.
type Result struct {
	Seed       uint64
	Violations []Violation
	Transcript []byte
	Hash       string         // of the transcript
	Stopped    map[string]int // "who: code" -> how often a check stopped something
	Seen       map[string]int // how often things happened
}

// Violation is one breach. Rule is one of statemachine's, or one of those below.
type Violation struct {
	Rule string
	What string
}

// Rules beyond the log's.
const (
	RuleText    = "text"    // a client got bytes that the engine would not give to its prompt
	RuleForeign = "foreign" // … that hold another tenant's canary
	RuleThief   = "thief"   // bytes left for somebody who may not have them
	RulePool    = "pool"    // a page is held, dirty, or its generation was used before
	RuleOnce    = "once"    // one grant was served twice
	RuleRevoked = "revoked" // bytes left after their owner knew that the request had ended
	RuleRefused = "refused" // a command of ours was malformed, or forbidden
	RuleSettle  = "settle"  // something never came to its end
	RulePanic   = "panic"   // the code under test found itself broken
)

func (v Violation) String() string { return v.Rule + ": " + v.What }

// Rules lists the rules that were broken, once each.
func (r *Result) Rules() []string {
	m := map[string]bool{}
	for _, v := range r.Violations {
		m[v.Rule] = true
	}
	return slices.Sorted(maps.Keys(m))
}

// String is a short account.
func (r *Result) String() string {
	s := fmt.Sprintf("seed %d: %d violations", r.Seed, len(r.Violations))
	for i, v := range r.Violations {
		if i == 10 {
			return s + fmt.Sprintf("\n  … and %d more", len(r.Violations)-i)
		}
		s += "\n  " + v.String()
	}
	return s
}
