package statemachine

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
)

// denialCase is one command that must be denied. It differs from the rightful
// one in a single respect.
type denialCase struct {
	name  string
	after []events.CommandType // of request id1
	code  events.Code
	send  func(w *world) events.Data
}

// ownWord lets a case change one thing of a rightful command, sent by its
// rightful worker.
func prefillWith(f func(w *world, d *events.Prefill)) func(*world) events.Data {
	return func(w *world) events.Data {
		d := w.prefillData()
		f(w, d)
		return w.do(id1, events.RolePrefill, "p1", d)
	}
}

func grantWith(f func(w *world, d *events.GrantTransfer)) func(*world) events.Data {
	return func(w *world) events.Data {
		d := w.grantData()
		f(w, d)
		return w.do(id1, events.RoleDecode, "d1", d)
	}
}

func transferWith(f func(w *world, d *events.Transfer)) func(*world) events.Data {
	return func(w *world) events.Data {
		d := w.transferData(id1)
		f(w, d)
		return w.do(id1, events.RoleDecode, "d1", d)
	}
}

func decodeWith(f func(w *world, d *events.DecodeDone)) func(*world) events.Data {
	return func(w *world) events.Data {
		d := w.decodeData()
		f(w, d)
		return w.do(id1, events.RoleDecode, "d1", d)
	}
}

func releaseWith(f func(d *events.Release)) func(*world) events.Data {
	return func(w *world) events.Data {
		d := releaseData(events.RolePrefill)
		f(d)
		return w.do(id1, events.RolePrefill, "p1", d)
	}
}

func admitWith(id string, f func(d *events.Admit)) func(*world) events.Data {
	return func(w *world) events.Data {
		d := w.admitData()
		f(d)
		return w.do(id, events.RoleGateway, "gw1", d)
	}
}

func registerWith(name string, f func(*events.Register)) func(*world) events.Data {
	return func(w *world) events.Data { return w.register(events.RolePrefill, name, 99, f) }
}

// broken sends a command about an aggregate that lacks what its state implies,
// as a damaged snapshot would.
func broken(c events.CommandType, f func(r *Request)) func(*world) events.Data {
	return func(w *world) events.Data {
		f(w.requests[id1])
		return w.step(id1, c)
	}
}

func denialCases() []denialCase {
	adm, pre, gra, tra := whole[:1], whole[:2], whole[:3], whole[:4]
	own := func(name string, role events.Role, d func(w *world) events.CommandData) func(*world) events.Data {
		return func(w *world) events.Data { return w.do(id1, role, name, d(w)) }
	}
	all := []denialCase{
		{"admit: a worker", nil, events.CodeForbidden, own("p1", events.RolePrefill, func(w *world) events.CommandData { return w.admitData() })},
		{"decoded: no payload", tra, events.CodeMalformed, func(w *world) events.Data {
			c := command(id1, events.RoleDecode, "d1", w.decodeData())
			c.Data = (*events.DecodeDone)(nil)
			return w.m.Decide(w.requests[id1], c, w.gather(nil, c))
		}},
		{"admit: no UUIDv7", nil, events.CodeMalformed, admitWith("r1", func(*events.Admit) {})},
		{"admit: tenant is no name", nil, events.CodeMalformed, admitWith(id1, func(d *events.Admit) { d.Tenant = "a.b" })},
		{"admit: negative timeout", nil, events.CodeMalformed, admitWith(id1, func(d *events.Admit) { d.TimeoutMS = -1 })},
		{"admit: old id", nil, events.CodeStaleRequestID, admitWith(id(1, start.Add(-61*time.Second)), func(*events.Admit) {})},
		{"admit: id ahead", nil, events.CodeStaleRequestID, admitWith(id(1, start.Add(6*time.Second)), func(*events.Admit) {})},
		{"admit: a key that the service has not", nil, events.CodeTenantKey, admitWith(id1, func(d *events.Admit) { d.TenantKey = "0123456789abcdef" })},
		{"admit: no key, and the service has one", nil, events.CodeTenantKey, func(w *world) events.Data {
			w.tenantKey = "0123456789abcdef"
			return admitWith(id1, func(*events.Admit) {})(w)
		}},
		{"admit: another key than the service's", nil, events.CodeTenantKey, func(w *world) events.Data {
			w.tenantKey = "0123456789abcdef"
			return admitWith(id1, func(d *events.Admit) { d.TenantKey = "fedcba9876543210" })(w)
		}},
		{"admit: twice", adm, events.CodeIllegalState, admitWith(id1, func(d *events.Admit) { d.MaxTokens++ })},
		{"prefilled: unknown request", nil, events.CodeUnknownRequest, prefillWith(func(*world, *events.Prefill) {})},
		{"prefilled: tainted", adm, events.CodeIllegalState, func(w *world) events.Data {
			w.requests[id1].Tainted = "test"
			return w.step(id1, events.CmdPrefilled)
		}},

		{"prefilled: tokens", adm, events.CodeTokenCountMismatch, prefillWith(func(_ *world, d *events.Prefill) { d.PromptTokens-- })},
		{"prefilled: kv_bytes below the prompt", adm, events.CodeTokenCountMismatch, prefillWith(func(_ *world, d *events.Prefill) { d.KVBytes = 100*4 - 1 })},
		{"prefilled: kv_bytes above the pages", adm, events.CodeTokenCountMismatch, prefillWith(func(_ *world, d *events.Prefill) { d.KVBytes++ })},
		{"prefilled: tenant", adm, events.CodeTenantMismatch, prefillWith(func(_ *world, d *events.Prefill) { d.Tenant = "other" })},
		{"prefilled: layout", adm, events.CodeIncompatible, prefillWith(func(_ *world, d *events.Prefill) { d.Layout = "other" })},
		{"prefilled: page_tokens", adm, events.CodeIncompatible, prefillWith(func(_ *world, d *events.Prefill) { d.PageTokens = 32 })},
		{"prefilled: two generations", adm, events.CodePageGeneration, prefillWith(func(_ *world, d *events.Prefill) { d.Pages = append(runs(0, 4, 1), runs(5, 3, 2)...) })},
		{"prefilled: generation 0", adm, events.CodePageGeneration, prefillWith(func(_ *world, d *events.Prefill) { d.Pages = runs(0, 7, 0) })},
		{"prefilled: too few pages", adm, events.CodeReservation, prefillWith(func(_ *world, d *events.Prefill) { d.Pages = runs(0, 6, 1); d.KVBytes = 400 })},
		{"prefilled: outside the pool", adm, events.CodeReservation, prefillWith(func(_ *world, d *events.Prefill) { d.Pages = runs(94, 7, 1) })},
		{"prefilled: no pages", adm, events.CodeMalformed, prefillWith(func(_ *world, d *events.Prefill) { d.Pages = nil })},
		{"prefilled: a page twice", adm, events.CodeMalformed, prefillWith(func(_ *world, d *events.Prefill) { d.Pages = append(runs(3, 4, 1), runs(0, 4, 1)...) })},
		{"prefilled: no digest", adm, events.CodeDigestMismatch, prefillWith(func(_ *world, d *events.Prefill) { d.KVDigest = "" })},
		{"prefilled: no lease", adm, events.CodeLeaseOver, prefillWith(func(_ *world, d *events.Prefill) { d.LeaseMS = 0 })},
		{"prefilled: endless lease", adm, events.CodeMalformed, prefillWith(func(_ *world, d *events.Prefill) { d.LeaseMS = 1 << 62 })},
		{"prefilled: after the deadline", adm, events.CodeDeadline, prefillWith(func(w *world, d *events.Prefill) { w.now = w.now.Add(10 * time.Minute) })},

		{"grant: epoch 0", pre, events.CodeGrantEpoch, grantWith(func(_ *world, d *events.GrantTransfer) { d.GrantEpoch = 0 })},
		{"grant: epoch ahead", pre, events.CodeGrantEpoch, grantWith(func(_ *world, d *events.GrantTransfer) { d.GrantEpoch = 2 })},
		{"grant: epoch again", gra, events.CodeGrantEpoch, grantWith(func(_ *world, d *events.GrantTransfer) { d.ReservedTokens++ })},
		{"grant: lease over", pre, events.CodeLeaseOver, grantWith(func(w *world, _ *events.GrantTransfer) { w.now = w.now.Add(30 * time.Second) })},
		{"grant: owner gone", pre, events.CodeWorkerUnknown, grantWith(func(w *world, _ *events.GrantTransfer) {
			w.do("p1", events.RoleLifecycle, "lc1", &events.Leave{Epoch: 11})
		})},
		{"grant: owner restarted", pre, events.CodeWorkerEpoch, grantWith(func(w *world, _ *events.GrantTransfer) { w.register(events.RolePrefill, "p1", 31, nil) })},
		{"grant: owner released", pre, events.CodePageOwner, grantWith(func(w *world, _ *events.GrantTransfer) {
			w.do(id1, events.RolePrefill, "p1", releaseData(events.RolePrefill))
		})},
		{"grant: layout", pre, events.CodeIncompatible, grantWith(func(_ *world, d *events.GrantTransfer) { d.Layout = "other" })},
		{"grant: registered with another layout", pre, events.CodeIncompatible, func(w *world) events.Data {
			w.register(events.RoleDecode, "d3", 23, func(d *events.Register) { d.Layout = "other" })
			d := w.grantData()
			d.WorkerEpoch = 23
			return w.do(id1, events.RoleDecode, "d3", d)
		}},
		{"grant: reservation below the need", pre, events.CodeReservation, grantWith(func(_ *world, d *events.GrantTransfer) { d.ReservedTokens = 119 })},
		{"grant: pages below the reservation", pre, events.CodeReservation, grantWith(func(_ *world, d *events.GrantTransfer) { d.Pages = runs(0, 7, 1) })},
		{"grant: outside the pool", pre, events.CodeReservation, grantWith(func(_ *world, d *events.GrantTransfer) { d.Pages = runs(93, 8, 1) })},
		{"grant: two generations", pre, events.CodePageGeneration, grantWith(func(_ *world, d *events.GrantTransfer) { d.Pages = append(runs(0, 4, 1), runs(4, 4, 2)...) })},
		{"grant: no pages", pre, events.CodeMalformed, grantWith(func(_ *world, d *events.GrantTransfer) { d.Pages = nil })},
		{"grant: rejected", []events.CommandType{events.CmdAdmit, events.CmdReject}, events.CodeIllegalState, grantWith(func(*world, *events.GrantTransfer) {})},

		{"transferred: no grant", pre, events.CodeGrantEpoch, transferWith(func(*world, *events.Transfer) {})},
		{"transferred: another epoch", gra, events.CodeGrantEpoch, transferWith(func(_ *world, d *events.Transfer) { d.GrantEpoch = 2 })},
		{"transferred: used", tra, events.CodeGrantUsed, transferWith(func(_ *world, d *events.Transfer) { d.DurationUS++ })},
		{"transferred: another worker", gra, events.CodeWrongWorker, func(w *world) events.Data {
			d := w.transferData(id1)
			d.WorkerEpoch = 22
			return w.do(id1, events.RoleDecode, "d2", d)
		}},
		{"transferred: granted to the life before", gra, events.CodeWorkerEpoch, transferWith(func(w *world, d *events.Transfer) {
			w.register(events.RoleDecode, "d1", 41, nil)
			d.WorkerEpoch = 41
		})},
		{"transferred: another request's KV", gra, events.CodePageOwner, transferWith(func(_ *world, d *events.Transfer) { d.KVRequest = id2 })},
		{"transferred: reservation released", gra, events.CodePageOwner, transferWith(func(w *world, _ *events.Transfer) {
			w.do(id1, events.RoleDecode, "d1", releaseData(events.RoleDecode))
		})},
		{"transferred: digest", gra, events.CodeDigestMismatch, transferWith(func(_ *world, d *events.Transfer) { d.KVDigest = digest("e") })},
		{"transferred: bytes", gra, events.CodeDigestMismatch, transferWith(func(_ *world, d *events.Transfer) { d.KVBytes-- })},
		{"transferred: reference", gra, events.CodeReferenceMismatch, transferWith(func(_ *world, d *events.Transfer) { d.Reference = digest("e") })},
		{"transferred: lease over", gra, events.CodeLeaseOver, transferWith(func(w *world, _ *events.Transfer) { w.now = w.now.Add(30 * time.Second) })},
		{"transferred: negative duration", gra, events.CodeMalformed, transferWith(func(_ *world, d *events.Transfer) { d.DurationUS = -1 })},
		{"transferred: no prefill recorded", gra, events.CodeInternal, broken(events.CmdTransferred, func(r *Request) { r.Prefill = nil })},

		{"decoded: another worker", tra, events.CodeWrongWorker, func(w *world) events.Data {
			d := w.decodeData()
			d.WorkerEpoch = 22
			return w.do(id1, events.RoleDecode, "d2", d)
		}},
		{"decoded: the life before", tra, events.CodeWorkerEpoch, decodeWith(func(w *world, d *events.DecodeDone) {
			w.register(events.RoleDecode, "d1", 41, nil)
			d.WorkerEpoch = 41
		})},
		{"decoded: KV released", tra, events.CodePageOwner, decodeWith(func(w *world, _ *events.DecodeDone) {
			w.do(id1, events.RoleDecode, "d1", releaseData(events.RoleDecode))
		})},
		{"decoded: prompt_tokens", tra, events.CodeTokenCountMismatch, decodeWith(func(_ *world, d *events.DecodeDone) { d.PromptTokens++ })},
		{"decoded: more than max_tokens", tra, events.CodeTokenCountMismatch, decodeWith(func(_ *world, d *events.DecodeDone) { d.CompletionTokens = 21 })},
		{"decoded: less than nothing", tra, events.CodeTokenCountMismatch, decodeWith(func(_ *world, d *events.DecodeDone) { d.CompletionTokens = -1 })},
		{"decoded: abort is no finish", tra, events.CodeFinishReason, decodeWith(func(_ *world, d *events.DecodeDone) { d.FinishReason = "abort" })},

		{"fail: another gateway", adm, events.CodeForbidden, own("gw2", events.RoleGateway, func(*world) events.CommandData { return failData(0) })},
		{"fail: another prefill worker", pre, events.CodeWrongWorker, own("p2", events.RolePrefill, func(*world) events.CommandData { return failData(12) })},
		{"fail: the prefill worker after the transfer", tra, events.CodeWrongWorker, own("p1", events.RolePrefill, func(*world) events.CommandData { return failData(11) })},
		{"fail: decode without a grant", pre, events.CodeWrongWorker, own("d1", events.RoleDecode, func(*world) events.CommandData { return failData(21) })},
		{"fail: decode with another's grant", gra, events.CodeWrongWorker, own("d2", events.RoleDecode, func(*world) events.CommandData { return failData(22) })},
		{"cancel: another gateway", adm, events.CodeForbidden, own("gw2", events.RoleGateway, func(*world) events.CommandData { return &events.Cancel{} })},
		{"cancel: no code", adm, events.CodeMalformed, own("gw1", events.RoleGateway, func(*world) events.CommandData { return &events.Cancel{Reason: "because"} })},

		{"released: another's", pre, events.CodeWrongWorker, own("p2", events.RolePrefill, func(*world) events.CommandData { return releaseData(events.RolePrefill) })},
		{"released: in another role", gra, events.CodeWrongWorker, releaseWith(func(d *events.Release) { d.Role = events.RoleDecode })},
		{"released: epoch", pre, events.CodeWorkerEpoch, releaseWith(func(d *events.Release) { d.WorkerEpoch = 10 })},
		{"released: generation", pre, events.CodePageGeneration, releaseWith(func(d *events.Release) { d.Generation = 2 })},
		{"released: fewer pages", pre, events.CodePageOwner, releaseWith(func(d *events.Release) { d.Pages = 6 })},
		{"released: by who holds nothing", pre, events.CodePageOwner, own("d1", events.RoleDecode, func(*world) events.CommandData { return releaseData(events.RoleDecode) })},
		{"released: twice", pre, events.CodePageOwner, func(w *world) events.Data {
			w.do(id1, events.RolePrefill, "p1", releaseData(events.RolePrefill))
			d := releaseData(events.RolePrefill)
			d.Reason = "again"
			return w.do(id1, events.RolePrefill, "p1", d)
		}},

		{"register: content", nil, events.CodeMalformed, registerWith("p3", func(d *events.Register) { d.PoolPages = 0 })},
		{"register: epoch", nil, events.CodeWorkerEpoch, registerWith("p1", func(d *events.Register) { d.Epoch = 11 })},
		{"register: another role's name", nil, events.CodeWrongWorker, registerWith("d1", nil)},
		{"register: for another", nil, events.CodeForbidden, func(w *world) events.Data {
			return w.do("p9", events.RolePrefill, "p1", &events.Register{Epoch: 50})
		}},
		{"leave: for another", nil, events.CodeForbidden, func(w *world) events.Data {
			return w.do("p2", events.RolePrefill, "p1", &events.Leave{Epoch: 12})
		}},
		{"leave: unknown", nil, events.CodeWorkerUnknown, func(w *world) events.Data {
			return w.do("p9", events.RolePrefill, "p9", &events.Leave{Epoch: 1})
		}},
		{"leave: another role", nil, events.CodeWrongWorker, func(w *world) events.Data {
			return w.do("p1", events.RoleDecode, "p1", &events.Leave{Epoch: 11})
		}},
		{"leave: the life before", nil, events.CodeWorkerEpoch, func(w *world) events.Data {
			return w.do("p1", events.RoleLifecycle, "lc1", &events.Leave{Epoch: 10})
		}},
		{"quarantine: no name", nil, events.CodeMalformed, func(w *world) events.Data {
			return w.do("..", events.RoleOperator, "alice", &events.Quarantine{Reason: "x"})
		}},
		{"erase: no name", nil, events.CodeMalformed, func(w *world) events.Data {
			return w.do("a.b", events.RoleOperator, "alice", &events.Erase{TenantKey: "0123456789abcdef"})
		}},
		{"erase: twice", nil, events.CodeIllegalState, func(w *world) events.Data {
			w.do("t1", events.RoleOperator, "alice", &events.Erase{TenantKey: "0123456789abcdef"})
			return w.do("t1", events.RoleOperator, "bob", &events.Erase{TenantKey: "0123456789abcdef"})
		}},
		{"notify: no digest", nil, events.CodeMalformed, func(w *world) events.Data {
			return w.do("acme", events.RoleOperator, "alice", &events.Notify{Incident: "INC-1", Channel: "email", Content: "x", SentAt: w.now})
		}},
		{"restore: not quarantined", nil, events.CodeIllegalState, func(w *world) events.Data {
			return w.do(model, events.RoleOperator, "alice", &events.Restore{Reason: "x"})
		}},
	}
	// What holds for every worker's command, for each of them.
	for _, c := range []struct {
		cmd   events.CommandType
		after []events.CommandType
		role  events.Role
		name  string
		epoch uint64
	}{
		{events.CmdReject, adm, events.RolePrefill, "p1", 11},
		{events.CmdPrefilled, adm, events.RolePrefill, "p1", 11},
		{events.CmdGrant, pre, events.RoleDecode, "d1", 21},
		{events.CmdTransferred, gra, events.RoleDecode, "d1", 21},
		{events.CmdDecoded, tra, events.RoleDecode, "d1", 21},
		{events.CmdFail, gra, events.RoleDecode, "d1", 21},
	} {
		send := func(w *world) events.Data { return w.do(id1, c.role, c.name, w.payload(c.cmd, c.role)) }
		all = append(all,
			denialCase{string(c.cmd) + ": not registered", c.after, events.CodeWorkerUnknown, func(w *world) events.Data {
				w.do(c.name, events.RoleLifecycle, "lc1", &events.Leave{Epoch: c.epoch})
				return send(w)
			}},
			denialCase{string(c.cmd) + ": restarted", c.after, events.CodeWorkerEpoch, func(w *world) events.Data {
				w.register(c.role, c.name, 77, nil)
				return send(w)
			}},
			denialCase{string(c.cmd) + ": registered for another model", c.after, events.CodeWrongWorker, func(w *world) events.Data {
				w.ops.Workers[c.name].Model = "other"
				return send(w)
			}},
			denialCase{string(c.cmd) + ": registered in another role", c.after, events.CodeWrongWorker, func(w *world) events.Data {
				w.ops.Workers[c.name].Role = events.RoleAuditor
				return send(w)
			}},
		)
	}
	return all
}

// TestDenials makes every denial there is, and checks that the documented list
// is exactly that.
func TestDenials(t *testing.T) {
	seen := map[DenialRow]bool{}
	everywhere := map[events.Code]bool{}
	for _, d := range denials {
		if d.Command == "" {
			everywhere[d.Code] = true
		}
	}
	for _, c := range denialCases() {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Guards{})
			w.must(id1, c.after...)
			var before *Request
			if r := w.requests[id1]; r != nil {
				before = r.Clone()
			}
			out := c.send(w)
			w.want(c.code, out)
			d := out.(*events.CommandDenied)
			if d.Message == "" {
				t.Error("the denial gives no reason")
			}
			if r := w.requests[id1]; r != nil && r.State != before.State {
				t.Errorf("a denial moved the request from %s to %s", before.State, r.State)
			}
			own := slices.ContainsFunc(denials, func(r DenialRow) bool { return r.Command == d.Command && r.Code == d.Code })
			if !own && !everywhere[d.Code] {
				t.Errorf("%s: %s is not in the documented list", d.Command, d.Code)
			}
			if own {
				seen[DenialRow{Command: d.Command, Code: d.Code}] = true
			} else {
				seen[DenialRow{Code: d.Code}] = true
			}
		})
	}
	for _, d := range Denials() {
		if d.Doc = ""; !seen[d] {
			t.Errorf("%q: %s is documented, and no case shows it", d.Command, d.Code)
		}
	}
}

// TestRejections makes every rejection there is.
func TestRejections(t *testing.T) {
	var got []events.Code
	for _, c := range []struct {
		name string
		set  func(w *world, d *events.Admit)
		code events.Code
	}{
		{"no tokens", func(_ *world, d *events.Admit) { d.PromptTokens = 0 }, events.CodeInvalidRequest},
		{"erased", func(w *world, d *events.Admit) {
			d.TenantKey = "0123456789abcdef"
			w.do(d.Tenant, events.RoleOperator, "alice", &events.Erase{TenantKey: d.TenantKey})
		}, events.CodeTenantErased},
		{"erased, under the cluster's secret", func(w *world, d *events.Admit) {
			w.do(d.Tenant, events.RoleOperator, "alice", &events.Erase{TenantKey: "0123456789abcdef"})
		}, events.CodeTenantErased},
		{"unknown model", func(_ *world, d *events.Admit) { d.Model = "other" }, events.CodeModelNotFound},
		{"quarantined", func(w *world, _ *events.Admit) {
			w.do(model, events.RoleOperator, "alice", &events.Quarantine{Reason: "test"})
		}, events.CodeModelQuarantined},
		{"no prefill worker", func(w *world, _ *events.Admit) {
			w.do("p1", events.RolePrefill, "p1", &events.Leave{Epoch: 11})
			w.do("p2", events.RolePrefill, "p2", &events.Leave{Epoch: 12})
		}, events.CodeNoWorker},
		{"context", func(_ *world, d *events.Admit) { d.PromptTokens, d.MaxTokens = 600, 401 }, events.CodeContextLength},
		{"input", func(_ *world, d *events.Admit) { d.PromptTokens = 601 }, events.CodeContextLength},
		{"overflow", func(_ *world, d *events.Admit) { d.PromptTokens, d.MaxTokens = maxInt, maxInt }, events.CodeContextLength},
		{"decode pool", func(w *world, d *events.Admit) {
			for _, name := range []string{"d1", "d2"} {
				w.register(events.RoleDecode, name, 90, func(r *events.Register) { r.PoolPages = 7 })
			}
			d.PromptTokens, d.MaxTokens = 100, 13
		}, events.CodeContextLength},
		{"queue", func(w *world, _ *events.Admit) { w.facts.QueueDepth, w.facts.QueueLimit = 5, 5 }, events.CodeOverloaded},
		{"tenant", func(w *world, _ *events.Admit) { w.facts.TenantOpen, w.facts.TenantLimit = 3, 3 }, events.CodeTenantConcurrency},
		{"tenant, by the command's limit", func(w *world, d *events.Admit) {
			w.facts.TenantOpen, w.facts.TenantLimit, d.TenantLimit = 2, 3, 2
		}, events.CodeTenantConcurrency},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Guards{})
			d := w.admitData()
			c.set(w, d)
			out := w.do(id1, events.RoleGateway, "gw1", d)
			rej, ok := out.(*events.RequestRejected)
			if !ok || rej.Error.Code != c.code || rej.Error.HTTPStatus() != c.code.HTTPStatus() {
				t.Fatalf("%s %+v, want a rejection with %s", out.EventType(), out, c.code)
			}
			if rej.Facts == nil || rej.Stage != StageAdmission {
				t.Error("the rejection does not record what it rests on")
			}
			w.state(id1, events.Rejected)
			w.clean()
			if !slices.Contains(got, rej.Error.Code) {
				got = append(got, rej.Error.Code)
			}
		})
	}
	var want []events.Code
	for _, r := range Rejections() {
		want = append(want, r.Code)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the documented list and the cases differ:\n%s", d)
	}
}

// TestGuardsRemoved takes each guard away and sees what it is for: the same
// command is denied with it and carried out without.
func TestGuardsRemoved(t *testing.T) {
	adm, pre, gra, tra := whole[:1], whole[:2], whole[:3], whole[:4]
	for _, c := range []struct {
		name   string
		guards Guards
		after  []events.CommandType
		send   func(w *world) events.Data
		rule   string // what the checker says of the log without the guard; "": nothing
	}{
		{"NoAdmissionLimit", Guards{NoAdmissionLimit: true}, nil, admitWith(id1, func(d *events.Admit) { d.PromptTokens = 700 }), RuleDecision},
		{"NoTokenCount, prefilled", Guards{NoTokenCount: true}, adm, prefillWith(func(_ *world, d *events.Prefill) { d.PromptTokens = 1 }), RuleDecision},
		{"NoTokenCount, decoded", Guards{NoTokenCount: true}, tra, decodeWith(func(_ *world, d *events.DecodeDone) { d.PromptTokens = 1 }), RuleDecision},
		{"NoDigest, prefilled", Guards{NoDigest: true}, adm, prefillWith(func(_ *world, d *events.Prefill) { d.KVDigest = "" }), ""},
		{"NoDigest, transferred", Guards{NoDigest: true}, gra, transferWith(func(_ *world, d *events.Transfer) { d.KVDigest = digest("e") }), RulePages},
		{"NoLease, grant", Guards{NoLease: true}, pre, grantWith(func(w *world, _ *events.GrantTransfer) { w.now = w.now.Add(time.Minute) }), RuleDecision},
		{"NoLease, transferred", Guards{NoLease: true}, gra, transferWith(func(w *world, _ *events.Transfer) { w.now = w.now.Add(time.Minute) }), RulePages},
		{"NoWorker, transferred", Guards{NoWorker: true}, gra, func(w *world) events.Data {
			return w.do(id1, events.RoleDecode, "d2", w.transferData(id1))
		}, RulePages},
		{"NoWorker, decoded", Guards{NoWorker: true}, tra, func(w *world) events.Data {
			return w.do(id1, events.RoleDecode, "d2", w.decodeData())
		}, RulePages},
		{"NoWorker, grant of a restarted owner", Guards{NoWorker: true}, pre, grantWith(func(w *world, _ *events.GrantTransfer) {
			w.register(events.RolePrefill, "p1", 31, nil)
		}), ""},
		{"NoWorker, fail", Guards{NoWorker: true}, gra, func(w *world) events.Data {
			return w.do(id1, events.RoleDecode, "d2", failData(22))
		}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			refused := func(d events.Data) bool {
				return d.EventType() == events.TypeDenied || d.EventType() == events.TypeRejected
			}
			w := newWorld(t, Guards{})
			if out := c.send(w.must(id1, c.after...)); !refused(out) {
				t.Fatalf("with the guard: %s", out.EventType())
			}
			w.clean()
			w = newWorld(t, c.guards)
			if out := c.send(w.must(id1, c.after...)); refused(out) {
				t.Fatalf("without the guard: %s %+v", out.EventType(), out)
			}
			var rules []string
			for _, v := range w.check(CheckerConfig{}).Violations {
				rules = append(rules, v.Rule)
			}
			if c.rule != "" && !slices.Contains(rules, c.rule) || c.rule == "" && len(rules) > 0 {
				t.Errorf("the checker says %v, want %q", rules, c.rule)
			}
		})
	}
}

// TestGuardNoGrantState is apart, since the fold is the second lock on that
// door: without the guard a rejected request is granted, and the fold calls the
// history illegal.
func TestGuardNoGrantState(t *testing.T) {
	rejected := []events.CommandType{events.CmdAdmit, events.CmdReject}
	w := newWorld(t, Guards{})
	w.must(id1, rejected...)
	w.want(events.CodeIllegalState, w.step(id1, events.CmdGrant))

	w = newWorld(t, Guards{NoGrantState: true, NoLease: true, NoWorker: true})
	w.must(id1, rejected...)
	r := w.requests[id1]
	d := w.grantData()
	d.Layout = "" // a rejected request has no KV to differ from
	c := command(id1, events.RoleDecode, "d1", d)
	w.ops.Workers["d1"].Layout = ""
	out := w.m.Decide(r, c, w.gather(r, c))
	if out.EventType() != events.TypeTransferGranted {
		t.Fatalf("without the guard: %s %+v", out.EventType(), out)
	}
	if err := w.raw(id1, out); err == nil {
		t.Fatal("the fold took a grant for a rejected request")
	}
	w.state(id1, events.Rejected)
	if v := w.check(CheckerConfig{}).Violations; len(v) != 1 || v[0].Rule != RuleOutput {
		t.Errorf("the checker says %v, want one violation of S1", v)
	}
}

// TestDecideTakesAnything sends what no decoder lets through.
func TestDecideTakesAnything(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:3]...)
	odd := w.requests[id1].Clone()
	odd.State = "sideways"
	hollow := &Request{ID: id1, State: events.Transferred}
	for _, r := range []*Request{nil, {}, odd, hollow, w.requests[id1]} {
		for _, c := range []*events.Command{
			nil, {}, {Type: events.CmdGrant, Role: events.RoleDecode},
			{Type: events.CmdGrant, Role: events.RoleDecode, Data: (*events.GrantTransfer)(nil)},
			{Type: events.CmdGrant, Role: events.RoleDecode, Data: &events.Admit{}},
			command(id1, events.RoleDecode, "d1", &events.GrantTransfer{}),
			command(id1, events.RoleDecode, "d1", &events.Transfer{}),
			command(id1, events.RoleDecode, "d1", &events.DecodeDone{}),
			command(id1, events.RoleGateway, "", &events.Admit{}),
		} {
			for _, g := range []Guards{{}, {NoWorker: true}, {true, true, true, true, true, true}} {
				m := NewMachine(g)
				if d := m.Decide(r, c, nil); emptyData(d) {
					t.Errorf("no answer to %+v", c)
				}
				if d := m.DecideOps(nil, c, nil); emptyData(d) {
					t.Errorf("no answer of operations to %+v", c)
				}
			}
		}
	}
}
