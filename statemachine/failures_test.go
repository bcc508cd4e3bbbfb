package statemachine

import (
	"slices"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Public failures of disaggregated serving, as far as the machine alone decides
// them: what happened there, told in its terms, and the verdict it owes.

// refused checks that the client of the request gets an error, and which.
func (w *world) refused(id string, status int) {
	w.t.Helper()
	r := w.requests[id]
	if r.Error == nil || r.Error.HTTPStatus() != status || !r.State.Final() {
		w.t.Fatalf("state %s, error %v; want a final state and HTTP %d", r.State, r.Error, status)
	}
	if v := w.outcome(id, 200); len(v) != 1 || v[0].Rule != RuleClient {
		w.t.Errorf("a client that got 200 is not found: %v", v)
	}
	if v := w.outcome(id, status); len(v) != 0 {
		w.t.Errorf("a client that got %d: %v", status, v)
	}
}

// outcome is what the checker says of a client that got the status.
func (w *world) outcome(id string, status int) []Violation {
	c := NewChecker(CheckerConfig{})
	for _, e := range w.log {
		if err := c.Add(e); err != nil {
			w.t.Fatal(err)
		}
	}
	c.CheckClients([]ClientOutcome{{RequestID: id, Status: status, Complete: true}})
	return c.Report().Violations
}

func TestF01_EngineRejectsInsideAndGoesOnWithAPlaceholder(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit)
	w.want(events.CodeTokenCountMismatch, prefillWith(func(_ *world, d *events.Prefill) { d.PromptTokens, d.KVBytes, d.Pages = 1, 64, runs(0, 1, 1) })(w))
	// The worker then reports what its engine really said.
	w.must(id1, events.CmdReject)
	w.state(id1, events.Rejected)
	w.want(events.CodeIllegalState, w.step(id1, events.CmdGrant))
	w.refused(id1, 400)
	w.clean()
}

func TestF02_RejectedRequestAsksForATransfer(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit, events.CmdReject)
	w.want(events.CodeIllegalState, w.step(id1, events.CmdGrant))
	w.want(events.CodeIllegalState, w.step(id1, events.CmdTransferred))
	w.want(events.CodeIllegalState, w.step(id1, events.CmdDecoded))
	w.refused(id1, 400)
	w.clean()
}

func TestF03_PromptFitsDecodeAndNotPrefill(t *testing.T) {
	w := newWorld(t, Guards{})
	// The incident's sizes: the window is 1,048,576 tokens, prefill's pool 681,280.
	for _, p := range []string{"p1", "p2"} {
		w.register(events.RolePrefill, p, 50, func(d *events.Register) {
			d.ContextTokens, d.MaxInputTokens, d.PoolPages = 1_048_576, 0, 681_280/perPage
		})
	}
	for _, p := range []string{"d1", "d2"} {
		w.register(events.RoleDecode, p, 50, func(d *events.Register) { d.ContextTokens, d.PoolPages = 1_048_576, 1<<20 })
	}
	out := admitWith(id1, func(d *events.Admit) { d.PromptTokens = 681_281 })(w)
	if d, ok := out.(*events.RequestRejected); !ok || d.Error.Code != events.CodeContextLength || d.Facts.MaxInputTokens != 681_280 {
		t.Fatalf("%s %+v", out.EventType(), out)
	}
	w.refused(id1, 400)
	if out := admitWith(id2, func(d *events.Admit) { d.PromptTokens = 681_280 })(w); out.EventType() != events.TypeAdmitted {
		t.Fatalf("the longest prompt that fits: %s", out.EventType())
	}
	w.clean()
}

func TestF04_AbortInMidTransferIsNoLength(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit, events.CmdPrefilled, events.CmdGrant, events.CmdCancel)
	w.want(events.CodeIllegalState, w.step(id1, events.CmdTransferred))
	w.want(events.CodeIllegalState, w.step(id1, events.CmdDecoded))
	w.state(id1, events.Cancelled)
	w.refused(id1, 499)
	w.clean()
}

func TestF06_FreedWithoutDrain(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit, events.CmdPrefilled, events.CmdGrant, events.CmdCancel)
	d := releaseData(events.RoleDecode)
	d.Drained = false
	w.want("", w.do(id1, events.RoleDecode, "d1", d)) // a fact is recorded, not denied
	if v := w.check(CheckerConfig{}).Violations; len(v) != 1 || v[0].Rule != RulePages {
		t.Errorf("violations %v, want one of S2: freed undrained", v)
	}
}

func TestF07_FirstTokenOfAnotherRequest(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:3]...)
	w.want(events.CodePageOwner, transferWith(func(_ *world, d *events.Transfer) { d.KVRequest = id2 })(w))
	w.state(id1, events.Prefilled)
	w.clean()
}

func TestF08_TwoChoicesShareOneTransfer(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:3]...)
	w.step(id2, events.CmdAdmit)
	p := w.prefillData()
	p.Pages = runs(10, 7, 2)
	w.want("", w.do(id2, events.RolePrefill, "p1", p))
	g := w.grantData()
	g.Pages = runs(10, 8, 2)
	w.want("", w.do(id2, events.RoleDecode, "d1", g))
	w.must(id1, events.CmdTransferred)
	// The second choice comes with the first one's transfer.
	w.want(events.CodePageOwner, w.do(id2, events.RoleDecode, "d1", w.transferData(id1)))
	w.clean()
}

func TestF09_PrefillFailsWhileDecodeWaits(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit)
	w.want("", w.do(id1, events.RolePrefill, "p1", &events.Fail{WorkerEpoch: 11, Stage: "prefill", Error: *events.NewError(events.CodePrefillFailed, "xid 79")}))
	w.want(events.CodeIllegalState, w.step(id1, events.CmdGrant))
	w.want(events.CodeIllegalState, w.do(id1, events.RoleDecode, "d1", failData(21)))
	if e := w.requests[id1].Error; e.Code != events.CodePrefillFailed {
		t.Errorf("the first error is gone: %v", e)
	}
	w.refused(id1, 502)
	w.clean()
}

func TestF10_StuckInTransferring(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:3]...)
	r := w.requests[id1]
	if !r.StateBy.Equal(r.Prefill.Lease) || r.Deadline.IsZero() || r.StateBy.After(r.Deadline) {
		t.Fatalf("a granted request has no deadline: %v of %v", r.StateBy, r.Deadline)
	}
	w.now = r.Deadline.Add(time.Minute)
	if v := w.check(CheckerConfig{}).Violations; !slices.ContainsFunc(v, func(v Violation) bool { return v.Rule == RuleLive }) {
		t.Errorf("a stuck request is not found: %v", v)
	}
	w.now = r.Deadline
	w.want("", w.do(id1, events.RoleLifecycle, "lc1", &events.Fail{Stage: "deadline", Error: *events.NewError(events.CodeDeadline, "transfer")}))
	w.releaseAll(id1)
	w.want(events.CodeIllegalState, w.step(id1, events.CmdTransferred))
	if r.Open() || !r.StateBy.IsZero() {
		t.Errorf("still open, or still with a deadline: %+v", r.Held)
	}
	w.refused(id1, 504)
	w.now = r.Deadline.Add(time.Hour)
	w.clean()
}

func TestF11_DecodeOverCommits(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:2]...)
	w.want(events.CodeReservation, grantWith(func(_ *world, d *events.GrantTransfer) { d.Pages, d.ReservedTokens = runs(0, 101, 1), 1616 })(w))
	w.want(events.CodeReservation, grantWith(func(_ *world, d *events.GrantTransfer) { d.ReservedTokens = 100 })(w))
	w.must(id1, events.CmdGrant)
	// Another request is given the same pages: the ledger sees it.
	w.must(id2, events.CmdAdmit)
	p := w.prefillData()
	p.Pages = runs(20, 7, 2)
	w.want("", w.do(id2, events.RolePrefill, "p1", p))
	w.want("", w.do(id2, events.RoleDecode, "d1", w.grantData()))
	if v := w.check(CheckerConfig{}).Violations; len(v) != 1 || v[0].Rule != RulePages {
		t.Errorf("violations %v, want one of S2: pages held twice", v)
	}
}

func TestF12_RejectionUnder200(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit)
	w.want("", w.do(id1, events.RolePrefill, "p1", &events.Reject{WorkerEpoch: 11, Error: events.Error{Code: events.CodeEngineRefused, Message: "no", Status: 200}}))
	w.refused(id1, 400)
	w.clean()
}

func TestF13_SlowCorruption(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:3]...)
	w.want(events.CodeDigestMismatch, transferWith(func(_ *world, d *events.Transfer) { d.KVDigest = digest("f") })(w))
	w.clean()
	// Without digests there is nothing to compare: prefilled is not taken.
	w = newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit)
	w.want(events.CodeDigestMismatch, prefillWith(func(_ *world, d *events.Prefill) { d.KVDigest = "" })(w))
}

func TestF14_UsedReferenceAgain(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:4]...)
	again := transferWith(func(_ *world, d *events.Transfer) { d.DurationUS = 9 })
	w.want(events.CodeGrantUsed, again(w))
	w.must(id1, events.CmdDecoded)
	w.want(events.CodeGrantUsed, again(w))
	w.clean()
}

func TestF15_StaleReferenceAfterPageReuse(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:2]...)
	w.register(events.RolePrefill, "p1", 31, nil) // the pages of epoch 11 are gone
	w.want(events.CodeWorkerEpoch, w.step(id1, events.CmdGrant))
	w.clean()

	w = newWorld(t, Guards{})
	w.must(id1, whole[:2]...)
	w.want("", w.do(id1, events.RolePrefill, "p1", releaseData(events.RolePrefill)))
	w.want(events.CodePageOwner, w.step(id1, events.CmdGrant))
	w.clean()
}

func TestF16_ReferenceIsNotTheRecordedOne(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:3]...)
	w.want(events.CodeReferenceMismatch, transferWith(func(_ *world, d *events.Transfer) { d.Reference = digest("e") })(w))
	w.want(events.CodeReferenceMismatch, transferWith(func(_ *world, d *events.Transfer) { d.Reference = "" })(w))
	w.clean()
	// Pages out of range never become a reference.
	w.want(events.CodeReservation, func() events.Data {
		w.must(id2, events.CmdAdmit)
		d := w.prefillData()
		d.Pages = runs(4_294_967_290, 7, 2)
		return w.do(id2, events.RolePrefill, "p1", d)
	}())
}

func TestF17_HeldLongerThanTheLease(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:2]...)
	w.now = start.Add(30*time.Second - time.Microsecond)
	w.must(id1, events.CmdGrant) // the last moment
	w.now = start.Add(30 * time.Second)
	// The copy ended with the lease: it may have read what came after.
	w.want(events.CodeLeaseOver, w.step(id1, events.CmdTransferred))
	w.want(events.CodeLeaseOver, grantWith(func(_ *world, d *events.GrantTransfer) { d.GrantEpoch = 2 })(w))
	w.clean()
}

func TestF18_FailedReceiveWithOutput(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:3]...)
	w.want("", w.do(id1, events.RoleDecode, "d1", &events.Fail{WorkerEpoch: 21, Stage: "transfer", Error: *events.NewError(events.CodeTransferFailed, "checksum")}))
	w.want(events.CodeIllegalState, w.step(id1, events.CmdDecoded))
	w.refused(id1, 502)
	w.clean()
}

func TestF19_PairThatKeepsFailing(t *testing.T) {
	w := newWorld(t, Guards{})
	w.want("", w.do(model, events.RoleLifecycle, "lc1", &events.Quarantine{Reason: "3 failed transfers"}))
	if out := w.step(id1, events.CmdAdmit); out.EventType() != events.TypeRejected {
		t.Fatalf("a quarantined model: %s", out.EventType())
	}
	w.refused(id1, 503)
	w.want("", w.do(model, events.RoleOperator, "alice", &events.Restore{Reason: "new cable"}))
	w.must(id2, events.CmdAdmit)
	w.clean()
}

func TestF20_RecomputeAfterAFailedLoad(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:4]...)
	w.want("", w.do(id1, events.RoleDecode, "d1", &events.Fail{WorkerEpoch: 21, Stage: "transfer", Error: *events.NewError(events.CodePoison, "page 3")}))
	w.want(events.CodeIllegalState, w.step(id1, events.CmdDecoded))
	w.want(events.CodeIllegalState, prefillWith(func(_ *world, d *events.Prefill) { d.LeaseMS++ })(w))
	w.state(id1, events.Failed)
	w.refused(id1, 502)
	w.clean()
}

func TestF22_SameClientIDTwice(t *testing.T) {
	w := newWorld(t, Guards{})
	for _, id := range []string{id1, id2} {
		w.want("", w.do(id, events.RoleGateway, "gw1", func() *events.Admit {
			d := w.admitData()
			d.Label = digest("9")
			return d
		}()))
	}
	w.must(id1, events.CmdReject)
	w.state(id1, events.Rejected)
	w.state(id2, events.Admitted)
	w.clean()
}

func TestF23_BlocksNeverFreed(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:2]...)
	w.now = start.Add(31 * time.Second)
	d := releaseData(events.RolePrefill)
	d.Reason = "lease_over"
	w.want("", w.do(id1, events.RolePrefill, "p1", d))
	if n := len(w.requests[id1].Held); n != 0 {
		t.Fatalf("%d holdings are left", n)
	}
	w.want("", w.step(id1, events.CmdFail))
	w.clean()

	// If they are not, the checker finds the leak.
	w = newWorld(t, Guards{})
	w.must(id1, whole...)
	w.now = start.Add(time.Hour)
	if v := w.check(CheckerConfig{}).Violations; len(v) != 2 || v[0].Rule != RuleLive || v[1].Rule != RuleLive {
		t.Errorf("violations %v, want two leaks", v)
	}
}

func TestF24_PrefillIsSkipped(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit)
	for _, c := range []events.CommandType{events.CmdGrant, events.CmdTransferred, events.CmdDecoded} {
		w.want(events.CodeIllegalState, w.step(id1, c))
	}
	w.clean()
}

func TestF25_FailedPrefillIsSwallowed(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit)
	w.want("", w.do(id1, events.RolePrefill, "p1", failData(11)))
	w.want(events.CodeIllegalState, w.step(id1, events.CmdGrant))
	w.want(events.CodeIllegalState, w.step(id1, events.CmdTransferred))
	w.refused(id1, 500)
	w.clean()
}

func TestF26_ClientGoneWhilePrefillGoesOn(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit, events.CmdCancel)
	w.want(events.CodeIllegalState, w.step(id1, events.CmdPrefilled))
	if w.requests[id1].Open() {
		t.Error("a cancelled request holds pages that nobody reported")
	}
	w.refused(id1, 499)
	w.clean()
}

func TestF27_CancelDuringATransfer(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:3]...)
	w.must(id1, events.CmdCancel)
	r := w.requests[id1]
	if len(r.Held) != 2 || !r.Open() {
		t.Fatalf("both sides hold pages until they say otherwise: %v", r.Held)
	}
	w.want("", w.do(id1, events.RoleDecode, "d1", releaseData(events.RoleDecode)))
	w.want("", w.do(id1, events.RolePrefill, "p1", releaseData(events.RolePrefill)))
	if r.Open() {
		t.Errorf("leaked: %v", r.Held)
	}
	w.now = start.Add(time.Hour)
	w.clean()
}

func TestF30_AnotherTenantsPrefix(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit)
	w.want(events.CodeTenantMismatch, prefillWith(func(_ *world, d *events.Prefill) { d.Tenant = "other" })(w))
	w.state(id1, events.Admitted)
	w.clean()
}
