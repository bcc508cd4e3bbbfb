package statemachine

import (
	"testing"

	"github.com/pdgate/pdgate/events"
)

// external is a registration of a worker whose engine keeps its KV.
func external(d *events.Register) { d.TokenBytes, d.Layout = 0, events.ExternalLayout+"vllm:16:auto" }

// Workers of external engines register without token_bytes; what they prefill
// is their engine's reference, and there is no prefill without one.
func TestExternalEngines(t *testing.T) {
	w := newWorld(t, Guards{})
	w.want(events.CodeMalformed, w.register(events.RolePrefill, "p9", 60, func(d *events.Register) { external(d); d.TokenBytes = 4 }))
	for _, x := range []struct {
		role events.Role
		name string
	}{{events.RolePrefill, "p8"}, {events.RoleDecode, "d8"}} {
		if _, ok := w.register(x.role, x.name, 60, external).(*events.WorkerJoined); !ok {
			t.Fatalf("%s is refused", x.name)
		}
	}
	prefill := func(change func(*events.Prefill)) events.Data {
		d := w.prefillData()
		d.WorkerEpoch, d.Layout, d.KVBytes = 60, events.ExternalLayout+"vllm:16:auto", 400
		change(d)
		return w.do(id1, events.RolePrefill, "p8", d)
	}
	w.must(id1, events.CmdAdmit)
	w.want(events.CodeReferenceMismatch, prefill(func(d *events.Prefill) { d.Reference = "" }))
	w.want(events.CodeReferenceMismatch, prefill(func(d *events.Prefill) { d.Reference, d.KVBytes = digest("e"), 0 }))
	w.want(events.CodeTokenCountMismatch, prefill(func(d *events.Prefill) { d.Reference, d.PromptTokens = digest("e"), 1 }))
	w.want(events.CodeIncompatible, prefill(func(d *events.Prefill) { d.Reference, d.Layout = digest("e"), layout }))
	if _, ok := prefill(func(d *events.Prefill) { d.Reference = digest("e") }).(*events.RequestPrefilled); !ok {
		t.Fatal("the reference is not taken")
	}
	// A decode worker of another kind cannot have it.
	w.want(events.CodeIncompatible, w.step(id1, events.CmdGrant))
	g := w.grantData()
	g.WorkerEpoch, g.Layout = 60, events.ExternalLayout+"vllm:16:auto"
	if _, ok := w.do(id1, events.RoleDecode, "d8", g).(*events.TransferGranted); !ok {
		t.Fatal("no grant")
	}
	tr := w.transferData(id1)
	tr.WorkerEpoch, tr.KVBytes, tr.Reference = 60, 400, digest("f")
	w.want(events.CodeReferenceMismatch, w.do(id1, events.RoleDecode, "d8", tr))
	tr.Reference = digest("e")
	if _, ok := w.do(id1, events.RoleDecode, "d8", tr).(*events.RequestTransferred); !ok {
		t.Fatal("not transferred")
	}
}
