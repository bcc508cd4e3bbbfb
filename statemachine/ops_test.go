package statemachine

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
)

func TestAdmissionLimits(t *testing.T) {
	w := newWorld(t, Guards{})
	w.register(events.RolePrefill, "p2", 50, func(d *events.Register) { d.MaxInputTokens, d.PoolPages = 0, 50 })      // 800 by its pool
	w.register(events.RolePrefill, "p3", 51, func(d *events.Register) { d.ContextTokens, d.MaxInputTokens = 700, 0 }) // 700 by its context
	w.register(events.RoleDecode, "d2", 52, func(d *events.Register) { d.PoolPages = 200 })
	w.register(events.RolePrefill, "p4", 53, func(d *events.Register) { d.Model = "other" })
	for _, c := range []struct {
		name string
		dead map[string]bool
		want events.AdmissionFacts
	}{
		{"all", nil, events.AdmissionFacts{ContextTokens: 700, MaxInputTokens: 800, MaxDecodeTokens: 3200, PrefillNodes: 3, DecodeNodes: 2}},
		{"without the small context", map[string]bool{"p3": true}, events.AdmissionFacts{ContextTokens: 1000, MaxInputTokens: 800, MaxDecodeTokens: 3200, PrefillNodes: 2, DecodeNodes: 2}},
		{"without the large ones", map[string]bool{"p2": true, "p3": true, "d2": true}, events.AdmissionFacts{ContextTokens: 1000, MaxInputTokens: 600, MaxDecodeTokens: 1600, PrefillNodes: 1, DecodeNodes: 1}},
		{"nobody lives", map[string]bool{"p1": true, "p2": true, "p3": true, "d1": true, "d2": true}, events.AdmissionFacts{}},
	} {
		known, got := w.ops.Admission(model, func(worker string, epoch uint64) bool {
			if w.ops.Workers[worker].Epoch != epoch {
				t.Errorf("asked for epoch %d of %s", epoch, worker)
			}
			return !c.dead[worker]
		})
		if d := cmp.Diff(c.want, got); d != "" || !known {
			t.Errorf("%s: known %v\n%s", c.name, known, d)
		}
	}
	if known, got := w.ops.Admission("nobody's", func(string, uint64) bool { return true }); known || got != (events.AdmissionFacts{}) {
		t.Errorf("a model of nobody: %v %+v", known, got)
	}
	w.do(model, events.RoleOperator, "alice", &events.Quarantine{Reason: "x"})
	if _, got := w.ops.Admission(model, func(string, uint64) bool { return true }); !got.Quarantined {
		t.Error("not quarantined")
	}
}

func TestRegistrationContent(t *testing.T) {
	for name, change := range map[string]func(*events.Register){
		"model":        func(d *events.Register) { d.Model = "a b" },
		"context":      func(d *events.Register) { d.ContextTokens = 0 },
		"input":        func(d *events.Register) { d.MaxInputTokens = -1 },
		"pool":         func(d *events.Register) { d.PoolPages = -5 },
		"page tokens":  func(d *events.Register) { d.PageTokens = 0 },
		"token bytes":  func(d *events.Register) { d.TokenBytes = 0 },
		"overflow":     func(d *events.Register) { d.PoolPages, d.PageTokens = maxInt, maxInt },
		"large tokens": func(d *events.Register) { d.TokenBytes = maxInt },
		"layout":       func(d *events.Register) { d.Layout = "" },
		"key":          func(d *events.Register) { d.PublicKey = "AAAA" },
		"no address":   func(d *events.Register) { d.Address = "" },
		"http":         func(d *events.Register) { d.Address = "http://127.0.0.1:80" },
		"path in tcp":  func(d *events.Register) { d.Address = "tcp://127.0.0.1:80/x" },
		"no port":      func(d *events.Register) { d.Address = "tcp://127.0.0.1" },
		"word port":    func(d *events.Register) { d.Address = "tcp://127.0.0.1:http" },
		"relative":     func(d *events.Register) { d.Address = "unix://run/x" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Guards{})
			w.want(events.CodeMalformed, w.register(events.RolePrefill, "p9", 60, change))
		})
	}
	w := newWorld(t, Guards{})
	w.want("", w.register(events.RolePrefill, "p9", 60, func(d *events.Register) { d.Address = "unix:///run/p9" }))
	w.want("", w.register(events.RolePrefill, "p8", 60, func(d *events.Register) { d.Address = "tcp://[::1]:7001" }))
}

// TestEpochsOnlyGrow: a life that ended does not come back, not even after its
// end was recorded.
func TestEpochsOnlyGrow(t *testing.T) {
	w := newWorld(t, Guards{})
	w.want("", w.do("p1", events.RoleLifecycle, "lc1", &events.Leave{Epoch: 11}))
	if w.ops.Workers["p1"] != nil {
		t.Fatal("still registered")
	}
	w.want(events.CodeWorkerEpoch, w.register(events.RolePrefill, "p1", 11, nil))
	w.want("", w.register(events.RolePrefill, "p1", 12, nil))
	w.clean()
}

// TestEpochsAreOfTheClock: an epoch ahead of the clock would shut out every life
// after it.
func TestEpochsAreOfTheClock(t *testing.T) {
	w := newWorld(t, Guards{})
	var content events.Register
	w.register(events.RolePrefill, "p9", 60, func(d *events.Register) { content = *d })
	limit := uint64(w.now.Add(maxEpochAhead).UnixMicro())
	for _, c := range []struct {
		epoch uint64
		now   time.Time
		want  events.Code
	}{
		{1, w.now, ""},
		{limit, w.now, ""},
		{limit + 1, w.now, events.CodeWorkerEpoch},
		{1<<64 - 1, w.now, events.CodeWorkerEpoch},
		{1, time.Unix(-1000, 0), events.CodeWorkerEpoch},
		{1<<64 - 1, time.Time{}, ""}, // no clock was given
	} {
		d := content
		d.Epoch = c.epoch
		w.want(c.want, w.m.DecideOps(nil, command("p9", events.RolePrefill, "p9", &d), &Facts{Now: c.now}))
	}
}

// TestQuarantineIsKept: who, why and since when, until somebody restores; a second
// order adds to the first, and its reason is what clients read.
func TestQuarantineIsKept(t *testing.T) {
	w := newWorld(t, Guards{})
	w.do(model, events.RoleCanary, "canary", &events.Quarantine{Reason: "foreign text", Evidence: "e"})
	first := w.ops.Quarantined[model]
	if first.By != "canary.canary" || first.Reason != "foreign text" || first.Evidence != "e" || first.Cancel || first.Since.IsZero() || first.Position != w.ops.Pos.String() {
		t.Fatalf("%+v", first)
	}
	w.now = w.now.Add(time.Hour)
	w.do(model, events.RoleOperator, "alice", &events.Quarantine{Reason: "stop", Running: events.RunningCancel})
	second := w.ops.Quarantined[model]
	if second.By != "operator.alice" || !second.Cancel || !second.Since.Equal(first.Since) || second.Position == first.Position {
		t.Errorf("%+v", second)
	}
	_, facts := w.ops.Admission(model, func(string, uint64) bool { return true })
	if e := judgeAdmission(true, &facts, 1, 1, Guards{}); e == nil || e.Code != events.CodeModelQuarantined || e.HTTPStatus() != 503 || !strings.HasSuffix(e.Message, ": stop") {
		t.Errorf("%+v", e)
	}
	w.want(events.CodeForbidden, w.do(model, events.RoleCanary, "canary", &events.Restore{Reason: "it was nothing"}))
	w.do(model, events.RoleOperator, "alice", &events.Restore{Reason: "mended"})
	if q, ok := w.ops.Quarantined[model]; ok {
		t.Errorf("still %+v", q)
	}
	w.clean()
}

// TestOpsAnswers: an order that comes again on purpose is carried out again, one
// that is only repeated gets its answer.
func TestOpsAnswers(t *testing.T) {
	w := newWorld(t, Guards{})
	stop, start := &events.Quarantine{Reason: "x"}, &events.Restore{Reason: "y"}
	key := command(model, events.RoleOperator, "alice", stop).Key()
	w.do(model, events.RoleOperator, "alice", stop)
	a, ok := w.ops.Answer(model, key)
	if !ok || a.Type != events.TypeModelQuarantined || a.Pos != w.ops.Pos {
		t.Fatalf("%+v, %v", a, ok)
	}
	// A denial in between changes nothing.
	w.do(model, events.RoleGateway, "gw1", stop)
	if again, ok := w.ops.Answer(model, key); !ok || again.Pos != a.Pos {
		t.Errorf("after a denial: %+v, %v", again, ok)
	}
	w.do(model, events.RoleOperator, "alice", start)
	if _, ok := w.ops.Answer(model, key); ok {
		t.Error("the first quarantine answers for the second")
	}
	w.do(model, events.RoleOperator, "alice", stop)
	if _, quarantined := w.ops.Quarantined[model]; !quarantined {
		t.Error("not quarantined again")
	}
	w.clean()
}

func TestFoldOpsIllegal(t *testing.T) {
	joined := &events.WorkerJoined{Worker: "p1", Epoch: 12}
	for _, c := range []struct {
		name string
		data events.Data
		edit func(e *events.Event)
	}{
		{"a gap", joined, func(e *events.Event) { e.N++ }},
		{"another prev", joined, func(e *events.Event) { e.Prev.Seq++ }},
		{"another type", joined, func(e *events.Event) { e.Type = events.TypeWorkerLeft }},
		{"an old epoch", &events.WorkerJoined{Worker: "p1", Epoch: 11}, nil},
		{"another's", &events.WorkerJoined{Worker: "p2", Epoch: 99}, nil},
		{"a life that is not", &events.WorkerLeft{Worker: "p1", Epoch: 10}, nil},
		{"a request's", &events.RequestDecoded{}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Guards{})
			before := w.ops.Clone()
			s := w.ops.Subjects["p1"]
			e := &events.Event{Subject: "p1", N: s.N + 1, Prev: s.Pos, Type: c.data.EventType(), Data: c.data}
			if c.edit != nil {
				c.edit(e)
			}
			if err := FoldOps(w.ops, e, events.Position{Seq: 100}, "h"); err == nil {
				t.Fatal("taken")
			}
			if d := cmp.Diff(before.Workers, w.ops.Workers); d != "" {
				t.Errorf("changed:\n%s", d)
			}
			if w.ops.Pos.Seq != 100 || before.Pos.Seq == 100 {
				t.Error("the event's place does not count, or the clone changed")
			}
		})
	}
}

// A read of the audit log is recorded by auditors alone, and leaves nothing behind
// in the aggregate; nor does the checker mind it, unless it is a request's.
func TestAuditReads(t *testing.T) {
	w := newWorld(t, Guards{})
	c := &events.Command{Type: events.CmdAudit, Subject: id1, Role: events.RoleAuditor, Principal: "auditor", Data: &events.Audit{
		Reader: "first", Kind: events.ReadExport, Via: "http", Reads: 1, Tenant: "t1", FromSeq: 3, ToSeq: 9}}
	want := &events.AuditRead{Reader: "first", Kind: events.ReadExport, Via: "http", Reads: 1, Tenant: "t1", FromSeq: 3, ToSeq: 9}
	if diff := cmp.Diff(events.Data(want), NewMachine(Guards{}).DecideOps(w.ops, c, nil)); diff != "" {
		t.Error(diff)
	}
	for _, role := range events.AllRoles() {
		c.Role = role
		_, denied := NewMachine(Guards{}).DecideOps(w.ops, c, nil).(*events.CommandDenied)
		if denied != (role != events.RoleAuditor) {
			t.Errorf("%s: denied is %v", role, denied)
		}
	}
	for partition, legal := range map[int]bool{events.OpsPartition: true, 0: false} {
		line, err := events.Append(nil, &events.Event{ID: "read.1", Source: "s", Type: want.EventType(), Subject: id1, Time: time.Unix(1, 0), Data: want})
		if err != nil {
			t.Fatal(err)
		}
		k := NewChecker(CheckerConfig{})
		if err := k.Add(&events.Envelope{Partition: partition, Seq: 1, Lines: append(line, '\n')}); err != nil {
			t.Fatal(err)
		}
		if r := k.Report(); (len(r.Violations) == 0) != legal {
			t.Errorf("partition %d: %+v", partition, r.Violations)
		}
	}
}

// A tenant's keys are erased one by one, each once; what may not be admitted then
// is what is under one of them, or under none.
func TestErase(t *testing.T) {
	w := newWorld(t, Guards{})
	const first, second, third = "1111111111111111", "2222222222222222", "3333333333333333"
	gone := func(want ...bool) {
		t.Helper()
		for i, key := range []string{"", first, second, third} {
			if got := w.ops.Gone(tenant, key); got != want[i] {
				t.Errorf("key %q is gone: %v, want %v", key, got, want[i])
			}
		}
		if w.ops.Gone("globex", "") || w.ops.Gone("globex", first) {
			t.Error("another tenant is gone")
		}
	}
	erase := func(key string) events.Data {
		return w.do(tenant, events.RoleOperator, "alice", &events.Erase{TenantKey: key, By: "bob"})
	}
	gone(false, false, false, false)
	want := events.Data(&events.TenantErased{Tenant: tenant, TenantKey: first, By: "bob"})
	if diff := cmp.Diff(want, erase(first)); diff != "" {
		t.Error(diff)
	}
	before := w.ops.Clone()
	gone(true, true, false, false)
	erase(second)
	gone(true, true, true, false)
	if before.Gone(tenant, second) {
		t.Error("the clone changed")
	}
	w.want(events.CodeIllegalState, erase(first))
	for _, role := range events.AllRoles() {
		_, no := w.m.DecideOps(w.ops, command(tenant, role, "x", &events.Erase{TenantKey: third}), nil).(*events.CommandDenied)
		if no != (role != events.RoleOperator) {
			t.Errorf("%s: denied is %v", role, no)
		}
	}
	w.clean()
	// The log cannot say it twice either.
	s := w.ops.Subjects[tenant]
	e := &events.Event{Subject: tenant, N: s.N + 1, Prev: s.Pos, Type: events.TypeTenantErased, Data: want}
	if err := FoldOps(w.ops, e, events.Position{Seq: 100}, "h"); err == nil {
		t.Error("an erasure was folded twice")
	}
	b, err := json.Marshal(w.ops)
	if err != nil {
		t.Fatal(err)
	}
	var read Ops
	if err := json.Unmarshal(b, &read); err != nil || !read.Gone(tenant, second) {
		t.Errorf("the snapshot form: %v, %v", read.Erased, err)
	}
}

// What was admitted by builds that knew no tenant's key folds, and is under the
// cluster's secret.
func TestFoldWithoutTenantKey(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, events.CmdAdmit)
	line := []byte(`{"specversion":"1.0","id":"` + id2 + `.1","source":"/pdgate/lifecycle/lc1","type":"request.admitted.v1","subject":"` + id2 + `","time":"2026-01-02T03:04:05.000000Z","datacontenttype":"application/json","command":"k","principal":"gateway.gw1","tenant":"acme","tenantseq":2,"tenantprev":"h","data":{"model":"ref-1.0","gateway":"gw1","prompt_tokens":100,"max_tokens":20,"prompt_digest":"hmac-sha256:` + digest("a")[12:] + `","stream":true,"label":"hmac-sha256:` + digest("b")[12:] + `","prefill_by":"2026-01-02T03:06:05.000000Z","deadline":"2026-01-02T03:14:05.000000Z","facts":{"context_tokens":1000,"max_input_tokens":600,"max_decode_tokens":1600,"prefill_nodes":2,"decode_nodes":2,"queue_depth":0,"queue_limit":0,"tenant_open":0,"tenant_limit":0,"quarantined":false,"policy":"p"}}}`)
	e, err := events.Decode(line)
	if err != nil {
		t.Fatal(err)
	}
	r := &Request{}
	if err := Fold(r, e, events.Position{Seq: 50}, "h"); err != nil {
		t.Fatal(err)
	}
	if r.State != events.Admitted || r.TenantKey != "" || w.requests[id1].TenantKey != "" {
		t.Errorf("%s under key %q", r.State, r.TenantKey)
	}
}
