package main

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/statemachine"
)

// An attack is one way in which another customer's KV could come to the
// intruder. Each goes over the whole stack; runTrial carries it out.
type attack string

const (
	// The public incident: the prompt is longer than prefill takes, the engine
	// refuses inside and goes on with a placeholder, decode reads the length that
	// was reserved.
	placeholder attack = "placeholder"
	// A writer that is late overwrites finished KV with a victim's, after it was
	// summed.
	strayWriter attack = "stray writer"
	// The same, and what came out is not streamed only after its time, but asked
	// for as a stream, whose first byte settles the status.
	earlyOutput attack = "early output"
	// A decode worker asks for the KV of a request that was cancelled, and whose
	// pages were given back.
	lateDecode attack = "late decode"
	// The same worker comes to the owner with a grant for those pages, which are
	// another request's by then. The grant is signed by the lifecycle's own key:
	// nobody but the owner of the pages can stop it.
	wrongGrant attack = "wrong grant"
)

// guard is one check between an attack and the intruder, and the trace by which
// it is known that this one, and no other, stopped it.
type guard struct {
	name   string
	remove func(*guards)
	trace  func(*trial) bool
}

func deny(c events.CommandType, code events.Code) func(*trial) bool {
	return func(x *trial) bool { return x.log.denied(x.id, c, code) }
}

func rejectedAt(stage string) func(*trial) bool {
	return func(x *trial) bool {
		return slices.ContainsFunc(x.log.has(x.id, events.TypeRejected), func(e *events.Event) bool {
			return e.Data.(*events.RequestRejected).Stage == stage
		})
	}
}

var (
	guardAdmission = guard{"admission limit", func(g *guards) { g.machine.NoAdmissionLimit = true }, rejectedAt(statemachine.StageAdmission)}
	guardRefused   = guard{"worker asks whether the engine refused", func(g *guards) { g.worker.NoRefusedCheck = true }, func(x *trial) bool {
		return rejectedAt(statemachine.StageEngine)(x) && len(x.log.has(x.id, events.TypeDenied)) == 0
	}}
	guardCount = guard{"token count at prefilled", func(g *guards) { g.machine.NoTokenCount = true }, deny(events.CmdPrefilled, events.CodeTokenCountMismatch)}
	guardScrub = guard{"scrub", func(g *guards) { g.scrub = kvpool.ScrubNone }, func(x *trial) bool {
		return slices.ContainsFunc(x.log.has(x.id, events.TypeFailed), func(e *events.Event) bool {
			return e.Data.(*events.RequestFailed).Error.Code == events.CodePoison
		})
	}}

	guardOwnerSum = guard{"owner sums what it sends", func(g *guards) { g.worker.Handoff.NoDigest = true }, func(x *trial) bool {
		return x.worker("p1").Handoff.Refused > 0
	}}
	guardPullSum = guard{"puller sums what arrives", func(g *guards) { g.worker.Handoff.NoPullDigest = true }, func(x *trial) bool {
		return x.worker("d1").FailedTransfers > 0 && x.worker("p1").Handoff.Refused == 0
	}}
	guardDigest = guard{"digest at transferred", func(g *guards) { g.machine.NoDigest = true }, deny(events.CmdTransferred, events.CodeDigestMismatch)}
	// Decode only with the durable answer: where it is denied, nothing is decoded.
	guardDurable = guard{"decode waits for transferred", func(g *guards) { g.worker.NoTransferred = true }, func(x *trial) bool {
		return deny(events.CmdTransferred, events.CodeDigestMismatch)(x) && !deny(events.CmdDecoded, events.CodeIllegalState)(x)
	}}
	// Output arrived, and the status line was held.
	guardHold = guard{"output held", func(g *guards) { g.gateway.NoHold = true }, func(x *trial) bool {
		return deny(events.CmdDecoded, events.CodeIllegalState)(x) && x.reply.status != http.StatusOK
	}}

	guardState = guard{"grant by state", func(g *guards) { g.machine.NoGrantState = true }, func(x *trial) bool {
		return deny(events.CmdGrant, events.CodeIllegalState)(x) && len(x.log.has(x.id, events.TypeTransferGranted)) == 0
	}}
	guardHolder = guard{"grant only for pages that are held", func(g *guards) { g.machine.NoWorker = true }, deny(events.CmdGrant, events.CodePageOwner)}
	// A grant that stands in the log against the table taints the history: no
	// signature leaves for it.
	guardFold = guard{"fold of the log", nil, func(x *trial) bool {
		return x.unsigned && len(x.log.has(x.id, events.TypeTransferGranted)) > 0
	}}

	guardOwner = guard{"owner looks whether it offers the KV", func(g *guards) { g.worker.Handoff.NoHeld = true }, func(x *trial) bool {
		return x.pull == events.CodeUnknownRequest
	}}
	guardTable = guard{"owner compares pages with its own record", func(g *guards) { g.worker.Handoff.NoTable = true }, func(x *trial) bool {
		return x.pull == events.CodePageOwner && strings.Contains(x.pullError, "granted pages")
	}}
	guardTag = guard{"tags of the pages", nil, func(x *trial) bool {
		return x.pull == events.CodePageOwner && !strings.Contains(x.pullError, "granted pages")
	}}
)

// chains are the attacks with the guards in the order in which they meet them.
// Without the last one there is a leak, except where that one has no switch:
// packages statemachine and kvpool test it.
var chains = []struct {
	attack attack
	guards []guard
	breaks string // rule that the log breaks when all are gone; "": the log has nothing of it
}{
	{placeholder, []guard{guardAdmission, guardRefused, guardCount, guardScrub}, statemachine.RuleDecision},
	{strayWriter, []guard{guardOwnerSum, guardPullSum, guardDigest}, statemachine.RulePages},
	{earlyOutput, []guard{guardOwnerSum, guardPullSum, guardDurable, guardHold}, statemachine.RuleClient},
	{lateDecode, []guard{guardState, guardHolder, guardFold}, statemachine.RuleOutput},
	{wrongGrant, []guard{guardOwner, guardTable, guardTag}, ""},
}

// TestGuardMatrix takes the guards away. Each one alone: the others still stop
// every attack. Then one after the other, in the order in which an attack meets
// them: each leaves its trace while it is there, and the trace is gone with it,
// so that no guard is asserted that does nothing. Without any of them the leak is
// seen by the intruder's HTTP client, and the log tells of it.
func TestGuardMatrix(t *testing.T) {
	trials := map[string]*trial{}
	run := func(t *testing.T, a attack, without []guard) *trial {
		t.Helper()
		name := string(a) + " without " + guardList(without)
		if trials[name] == nil {
			trials[name] = runTrial(t, a, without)
			x := trials[name]
			t.Logf("%s: HTTP %d %s, foreign text %q%s", name, x.reply.status, x.reply.code, x.leak, x.pulled())
		}
		return trials[name]
	}
	for _, c := range chains {
		for i, g := range c.guards {
			t.Run(fmt.Sprintf("%s/%s", c.attack, g.name), func(t *testing.T) {
				before := run(t, c.attack, c.guards[:i])
				if !g.trace(before) || before.leak != "" || before.reply.status == http.StatusOK {
					t.Fatalf("this guard left no trace, or did not stop it: %s", before)
				}
				for _, other := range c.guards {
					if other.name != g.name && other.trace(before) {
						t.Errorf("the trace is also that of %q: %s", other.name, before)
					}
				}
				if g.remove == nil {
					return
				}
				after := run(t, c.attack, c.guards[:i+1])
				if g.trace(after) {
					t.Errorf("its trace is there without it: %s", after)
				}
				if last := i == len(c.guards)-1; last != (after.leak != "") || last != (after.reply.status == http.StatusOK) {
					t.Errorf("without it: last %v, %s", last, after)
				}
				if i > 0 {
					alone := run(t, c.attack, []guard{g})
					if alone.leak != "" || alone.reply.status == http.StatusOK {
						t.Errorf("alone it must not be missed: %s", alone)
					}
					if g.name == guardScrub.name && alone.dirty == 0 {
						t.Error("without scrubbing every free page is clean")
					}
				}
			})
		}
		t.Run(string(c.attack)+"/the log tells", func(t *testing.T) {
			all := c.guards
			if all[len(all)-1].remove == nil {
				all = all[:len(all)-1]
			}
			x := run(t, c.attack, all)
			if c.breaks != "" && !slices.ContainsFunc(x.report.Violations, func(v statemachine.Violation) bool { return v.Rule == c.breaks }) {
				t.Errorf("without any guard the log does not break %s: %v", c.breaks, x.report.Violations)
			}
			if r := run(t, c.attack, nil).report; !r.OK() {
				t.Errorf("with all guards it does: %v", r.Violations)
			}
		})
	}
}

func guardList(all []guard) string {
	if len(all) == 0 {
		return "nothing"
	}
	var names []string
	for _, g := range all {
		names = append(names, g.name)
	}
	return strings.Join(names, ", ")
}
