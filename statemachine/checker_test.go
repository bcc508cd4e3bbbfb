package statemachine

import (
	"slices"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

// forged is a log that breaks one rule. build leaves the log in w; edit, if
// there, changes the envelopes afterwards; ask tells the checker what others
// were told.
type forged struct {
	name  string
	rule  string
	build func(w *world)
	edit  func(log []*events.Envelope) []*events.Envelope
	ask   func(w *world, c *Checker)
	cfg   CheckerConfig
}

// steps is a build of rightful steps of id1.
func steps(all ...events.CommandType) func(w *world) {
	return func(w *world) { w.must(id1, all...) }
}

// then adds one event that no machine decided. The fold may refuse it.
func then(after []events.CommandType, make func(w *world) events.Data) func(w *world) {
	return func(w *world) {
		w.must(id1, after...)
		_ = w.raw(id1, make(w))
	}
}

// changed is the event that the rightful command would lead to, with one thing
// changed.
func changed[T events.Data](after []events.CommandType, c events.CommandType, f func(w *world, d T)) func(w *world) {
	return then(after, func(w *world) events.Data {
		role, name := events.RoleDecode, "d1"
		switch c {
		case events.CmdAdmit:
			role, name = events.RoleGateway, "gw1"
		case events.CmdPrefilled, events.CmdReject:
			role, name = events.RolePrefill, "p1"
		case events.CmdFail:
			role, name = events.RoleLifecycle, "lc1"
		}
		r := w.requests[id1]
		cmd := command(id1, role, name, w.payload(c, role))
		d, ok := w.m.Decide(r, cmd, w.gather(r, cmd)).(T)
		if !ok {
			w.t.Fatalf("%s is not carried out", c)
		}
		f(w, d)
		return d
	})
}

func decodedData(*world) events.Data {
	return &events.RequestDecoded{Worker: "d1", WorkerEpoch: 21, PromptTokens: 100, FinishReason: events.FinishStop, OutputDigest: digest("d")}
}

// second runs id2 up to its prefill in the pages.
func second(w *world, pages []events.PageRun) {
	w.must(id2, events.CmdAdmit)
	p := w.prefillData()
	p.Pages = pages
	p.KVBytes = 448
	w.want("", w.do(id2, events.RolePrefill, "p1", p))
}

// drop removes the envelope that holds the nth event of the log, and mends the
// chain of expectations over it, as a thief would.
func drop(n int) func([]*events.Envelope) []*events.Envelope {
	return func(log []*events.Envelope) []*events.Envelope {
		gone := log[n]
		log = slices.Delete(slices.Clone(log), n, n+1)
		for _, e := range log[n:] {
			if e.Expected == gone.Seq {
				e.Expected = gone.Expected
			}
		}
		return log
	}
}

var joins = 4 // the world begins with so many registrations

func forgeries() []forged {
	rejected := []events.CommandType{events.CmdAdmit, events.CmdReject}
	failedEarly := []events.CommandType{events.CmdAdmit, events.CmdFail}
	pre, gra, tra := whole[:2], whole[:3], whole[:4]
	granted := func(w *world) events.Data {
		return &events.TransferGranted{GrantEpoch: 1, Owner: "p1", OwnerEpoch: 11, Worker: "d1", WorkerEpoch: 21, Pages: runs(0, 8, 1), ReservedTokens: 120, Lease: w.now.Add(time.Minute)}
	}
	moved := func(*world) events.Data {
		return &events.RequestTransferred{GrantEpoch: 1, Worker: "d1", WorkerEpoch: 21, KVDigest: digest("b"), DecodeBy: start}
	}
	deny := func(c events.CommandType, code events.Code, s events.State) func(*world) events.Data {
		return func(*world) events.Data {
			return &events.CommandDenied{Command: c, Code: code, State: s, Message: "test"}
		}
	}
	return []forged{
		{name: "output of a rejected request", rule: RuleOutput, build: then(rejected, decodedData)},
		{name: "output of a failed request", rule: RuleOutput, build: then(failedEarly, decodedData)},
		{name: "output of a cancelled request", rule: RuleOutput, build: then([]events.CommandType{events.CmdAdmit, events.CmdCancel}, decodedData)},
		{name: "grant for a rejected request", rule: RuleOutput, build: then(rejected, granted)},
		{name: "transfer of a rejected request", rule: RuleOutput, build: then(rejected, moved)},

		{name: "pages held twice, prefill", rule: RulePages, build: func(w *world) { w.must(id1, pre...); second(w, runs(6, 7, 2)) }},
		{name: "generation used again", rule: RulePages, build: func(w *world) {
			w.must(id1, pre...)
			w.do(id1, events.RolePrefill, "p1", releaseData(events.RolePrefill))
			second(w, runs(0, 7, 1))
		}},
		{name: "generations differ within an allocation", rule: RulePages, build: changed(whole[:1], events.CmdPrefilled, func(_ *world, d *events.RequestPrefilled) { d.Pages = append(runs(0, 4, 1), runs(4, 3, 2)...) })},
		{name: "grant for another owner", rule: RulePages, build: changed(pre, events.CmdGrant, func(_ *world, d *events.TransferGranted) { d.OwnerEpoch++ })},
		{name: "grant for released pages", rule: RulePages, build: func(w *world) {
			w.must(id1, pre...)
			w.do(id1, events.RolePrefill, "p1", releaseData(events.RolePrefill))
			_ = w.raw(id1, func() events.Data {
				d := granted(w).(*events.TransferGranted)
				d.Lease = w.requests[id1].Prefill.Lease
				return d
			}())
		}},
		{name: "another digest arrived", rule: RulePages, build: changed(gra, events.CmdTransferred, func(_ *world, d *events.RequestTransferred) { d.KVDigest = digest("e") })},
		{name: "other bytes arrived", rule: RulePages, build: changed(gra, events.CmdTransferred, func(_ *world, d *events.RequestTransferred) { d.KVBytes-- })},
		{name: "another worker took it", rule: RulePages, build: changed(gra, events.CmdTransferred, func(_ *world, d *events.RequestTransferred) { d.Worker = "d2" })},
		{name: "arrived after the lease", rule: RulePages, build: changed(gra, events.CmdTransferred, func(w *world, _ *events.RequestTransferred) { w.now = w.now.Add(30 * time.Second) })},
		{name: "another worker's output", rule: RulePages, build: changed(tra, events.CmdDecoded, func(_ *world, d *events.RequestDecoded) { d.WorkerEpoch++ })},
		{name: "output from released pages", rule: RulePages, build: func(w *world) {
			w.must(id1, tra...)
			w.do(id1, events.RoleDecode, "d1", releaseData(events.RoleDecode))
			_ = w.raw(id1, decodedData(w))
		}},
		{name: "arrived in released pages", rule: RulePages, build: func(w *world) {
			w.must(id1, gra...)
			w.do(id1, events.RoleDecode, "d1", releaseData(events.RoleDecode))
			d := moved(w).(*events.RequestTransferred)
			d.KVBytes = 448
			_ = w.raw(id1, d)
		}},
		{name: "freed undrained", rule: RulePages, build: func(w *world) {
			w.must(id1, pre...)
			d := releaseData(events.RolePrefill)
			d.Drained = false
			w.do(id1, events.RolePrefill, "p1", d)
		}},
		{name: "freed unscrubbed", rule: RulePages, build: func(w *world) {
			w.must(id1, pre...)
			d := releaseData(events.RolePrefill)
			d.Scrubbed = false
			w.do(id1, events.RolePrefill, "p1", d)
		}},

		{name: "failed after decoded", rule: RuleFinal, build: then(whole, func(*world) events.Data {
			return &events.RequestFailed{From: events.Transferred, Error: *events.NewError(events.CodeInternal, "x")}
		})},
		{name: "decoded twice", rule: RuleFinal, build: then(whole, decodedData)},
		{name: "admitted after rejected", rule: RuleFinal, build: func(w *world) {
			w.must(id1, rejected...)
			_ = w.raw(id1, &events.RequestAdmitted{Model: model, Gateway: "gw1", PromptTokens: 1, MaxTokens: 1, PromptDigest: digest("a")})
		}},
		{name: "begins after it was forgotten", rule: RuleFinal, build: func(w *world) {
			w.now = w.now.Add(16 * time.Minute)
			w.timeouts.Fresh = time.Hour
			w.must(id1, events.CmdAdmit)
		}},

		{name: "an event is gone", rule: RuleLog, build: func(w *world) { w.must(id1, gra...); w.must(id2, events.CmdAdmit) }, edit: drop(joins + 1)},
		{name: "the first event is gone", rule: RuleLog, build: steps(gra...), edit: drop(joins)},
		{name: "another prev", rule: RuleLog, build: func(w *world) {
			w.must(id1, pre...)
			r := w.requests[id1]
			_ = w.put(0, &events.Event{Subject: id1, N: r.N + 1, Prev: events.Position{Seq: 1}, Tenant: tenant, Data: &events.RequestCancelled{Reason: events.CodeCancelled, From: events.Prefilled}})
		}},
		{name: "an envelope twice", rule: RuleLog, build: steps(pre...), ask: func(w *world, c *Checker) { _ = c.Add(w.log[joins]) }},
		{name: "written on another expectation", rule: RuleLog, build: steps(pre...), edit: func(log []*events.Envelope) []*events.Envelope {
			log[len(log)-1].Expected--
			return log
		}},
		{name: "not event lines", rule: RuleLog, build: steps(pre...), ask: func(w *world, c *Checker) {
			_ = c.Add(&events.Envelope{Partition: 1, Seq: 100, ID: "x", Lines: []byte("{}\n")})
		}},
		{name: "a wrong MAC", rule: RuleLog, build: func(*world) {}, cfg: CheckerConfig{Key: []byte("k")}, ask: func(w *world, c *Checker) {
			_ = c.Add(&events.Envelope{Partition: 1, Seq: 100, ID: "x", MAC: "y", Lines: w.log[0].Lines})
		}},
		{name: "another partition", rule: RuleLog, build: steps(pre...), cfg: CheckerConfig{Partitions: 1}, edit: func(log []*events.Envelope) []*events.Envelope {
			e := log[len(log)-1]
			e.Partition, e.Expected = 1, 0
			return log
		}},
		{name: "a command carried out twice", rule: RuleLog, build: func(w *world) {
			w.must(id1, gra...)
			g := w.grantData()
			g.GrantEpoch = 2
			w.want("", w.do(id1, events.RoleDecode, "d1", g))
			r := w.requests[id1]
			d := granted(w).(*events.TransferGranted)
			d.GrantEpoch, d.Lease = 3, r.Prefill.Lease
			_ = w.put(0, &events.Event{Subject: id1, N: r.N + 1, Prev: r.Pos, Tenant: tenant, Command: r.Recorded[2].Key, Data: d})
		}},
		{name: "an answer without an event", rule: RuleLog, build: steps(pre...), edit: func(log []*events.Envelope) []*events.Envelope { return log[:len(log)-1] },
			ask: func(w *world, c *Checker) { c.CheckAnswers(w.answers) }},
		{name: "an answer with another hash", rule: RuleLog, build: steps(pre...), ask: func(w *world, c *Checker) {
			a := w.answers[len(w.answers)-1]
			a.Hash = "x"
			c.CheckAnswers([]events.Answer{a})
		}},
		{name: "an answer with another state", rule: RuleLog, build: steps(pre...), ask: func(w *world, c *Checker) {
			a := w.answers[len(w.answers)-1]
			a.State = events.Decoded
			c.CheckAnswers([]events.Answer{a})
		}},
		{name: "an answer at another position", rule: RuleLog, build: steps(pre...), ask: func(w *world, c *Checker) {
			a := w.answers[len(w.answers)-1]
			a.Position = "1.0"
			c.CheckAnswers([]events.Answer{a})
		}},
		{name: "an answer that hides a denial", rule: RuleLog, build: func(w *world) { w.must(id1, pre...); w.step(id1, events.CmdDecoded) }, ask: func(w *world, c *Checker) {
			a := w.answers[len(w.answers)-1]
			a.Denied = nil
			c.CheckAnswers([]events.Answer{a})
		}},
		{name: "a transition outside of any history", rule: RuleLog, build: func(w *world) {
			_ = w.put(0, &events.Event{Subject: id2, ID: "x", Data: decodedData(w)})
		}},
		{name: "a denial's id twice", rule: RuleLog, build: func(w *world) {
			for range 2 {
				_ = w.put(0, &events.Event{Subject: id2, ID: "x", Data: deny(events.CmdGrant, events.CodeUnknownRequest, events.New)(w)})
			}
		}},

		{name: "200 for a rejected request", rule: RuleClient, build: steps(rejected...), ask: func(_ *world, c *Checker) {
			c.CheckClients([]ClientOutcome{{RequestID: id1, Status: 200}})
		}},
		{name: "200 for a request of nobody", rule: RuleClient, build: steps(whole...), ask: func(_ *world, c *Checker) {
			c.CheckClients([]ClientOutcome{{RequestID: id2, Status: 200}})
		}},
		{name: "a whole output that was not decoded", rule: RuleClient, build: steps(tra...), ask: func(_ *world, c *Checker) {
			c.CheckClients([]ClientOutcome{{RequestID: id1, Status: 200, Complete: true}})
		}},
		{name: "another output", rule: RuleClient, build: steps(whole...), ask: func(_ *world, c *Checker) {
			c.CheckClients([]ClientOutcome{{RequestID: id1, Status: 200, Complete: true, OutputDigest: digest("0")}})
		}},

		{name: "never ended", rule: RuleLive, build: steps(whole[:1]...), ask: func(_ *world, c *Checker) { c.Close(start.Add(time.Hour)) }},
		{name: "ended late", rule: RuleLive, build: func(w *world) {
			w.must(id1, whole[:1]...)
			w.now = w.now.Add(11 * time.Minute)
			w.must(id1, events.CmdFail)
		}},
		{name: "pages never released", rule: RuleLive, build: func(w *world) { w.must(id1, pre...); w.must(id1, events.CmdFail) }, ask: func(_ *world, c *Checker) { c.Close(start.Add(time.Hour)) }},

		{name: "admitted against its facts", rule: RuleDecision, build: changed(nil, events.CmdAdmit, func(_ *world, d *events.RequestAdmitted) { d.Facts.MaxInputTokens = 99 })},
		{name: "admitted in quarantine", rule: RuleDecision, build: changed(nil, events.CmdAdmit, func(_ *world, d *events.RequestAdmitted) { d.Facts.Quarantined = true })},
		{name: "admitted though erased", rule: RuleDecision, build: changed(nil, events.CmdAdmit, func(_ *world, d *events.RequestAdmitted) { d.Facts.TenantErased = true })},
		{name: "deadlines out of order", rule: RuleDecision, build: changed(nil, events.CmdAdmit, func(_ *world, d *events.RequestAdmitted) { d.PrefillBy = d.Deadline.Add(1e6) })},
		{name: "rejected against its facts", rule: RuleDecision, build: then(nil, func(*world) events.Data {
			return &events.RequestRejected{Error: *events.NewError(events.CodeContextLength, "x"), Stage: StageAdmission, Model: model, PromptTokens: 5,
				MaxTokens: 5, Facts: &events.AdmissionFacts{ContextTokens: 10, MaxInputTokens: 10, MaxDecodeTokens: 10, PrefillNodes: 1, DecodeNodes: 1}}
		})},
		{name: "rejected without facts", rule: RuleDecision, build: then(nil, func(*world) events.Data {
			return &events.RequestRejected{Error: *events.NewError(events.CodeContextLength, "x"), Stage: StageAdmission, Model: model}
		})},
		{name: "another number of tokens", rule: RuleDecision, build: changed(whole[:1], events.CmdPrefilled, func(_ *world, d *events.RequestPrefilled) { d.PromptTokens-- })},
		{name: "pages below the prompt", rule: RuleDecision, build: changed(whole[:1], events.CmdPrefilled, func(_ *world, d *events.RequestPrefilled) { d.Pages = runs(0, 6, 1) })},
		{name: "a lease beyond the deadline", rule: RuleDecision, build: changed(whole[:1], events.CmdPrefilled, func(_ *world, d *events.RequestPrefilled) { d.Lease = d.Lease.Add(time.Hour) })},
		{name: "a grant too far", rule: RuleDecision, build: changed(pre, events.CmdGrant, func(_ *world, d *events.TransferGranted) { d.GrantEpoch = 2 })},
		{name: "a grant after the lease", rule: RuleDecision, build: changed(pre, events.CmdGrant, func(w *world, _ *events.TransferGranted) { w.now = w.now.Add(30 * time.Second) })},
		{name: "a reservation too small", rule: RuleDecision, build: changed(pre, events.CmdGrant, func(_ *world, d *events.TransferGranted) { d.ReservedTokens = 119 })},
		{name: "a transfer by an old grant", rule: RuleDecision, build: changed(gra, events.CmdTransferred, func(_ *world, d *events.RequestTransferred) { d.GrantEpoch = 2 })},
		{name: "decoded another prompt", rule: RuleDecision, build: changed(tra, events.CmdDecoded, func(_ *world, d *events.RequestDecoded) { d.PromptTokens = 1 })},
		{name: "decoded too much", rule: RuleDecision, build: changed(tra, events.CmdDecoded, func(_ *world, d *events.RequestDecoded) { d.CompletionTokens = 21 })},
		{name: "decoded without prefill", rule: RuleDecision, build: then(whole[:1], decodedData)},
		{name: "a failure under 200", rule: RuleDecision, build: changed(tra, events.CmdFail, func(_ *world, d *events.RequestFailed) { d.Error.Status = 200 })},
		{name: "failed from elsewhere", rule: RuleDecision, build: changed(tra, events.CmdFail, func(_ *world, d *events.RequestFailed) { d.From = events.Admitted })},
		{name: "denied in a state in which it is legal", rule: RuleDecision, build: then(pre, deny(events.CmdGrant, events.CodeIllegalState, events.Prefilled))},
		{name: "judged in a state in which it is illegal", rule: RuleDecision, build: then(pre, deny(events.CmdDecoded, events.CodeFinishReason, events.Prefilled))},
		{name: "called used and was not", rule: RuleDecision, build: then(gra, deny(events.CmdTransferred, events.CodeGrantUsed, events.Prefilled))},
		{name: "denied elsewhere", rule: RuleDecision, build: then(pre, deny(events.CmdDecoded, events.CodeIllegalState, events.Admitted))},
		{name: "an open request is unknown", rule: RuleDecision, build: func(w *world) {
			w.must(id1, pre...)
			_ = w.put(0, &events.Event{Subject: id1, ID: "x", Data: deny(events.CmdGrant, events.CodeUnknownRequest, events.New)(w)})
		}},
		{name: "a released page that nobody holds", rule: RuleDecision, build: then(pre, func(*world) events.Data {
			return &events.RequestReleased{Worker: "p1", WorkerEpoch: 11, Role: events.RolePrefill, Generation: 9, Pages: 7, Drained: true, Scrubbed: true, Reason: "done"}
		})},
		{name: "a worker's epoch goes back", rule: RuleDecision, build: func(w *world) {
			s := w.ops.Subjects["p1"]
			_ = w.put(events.OpsPartition, &events.Event{Subject: "p1", N: s.N + 1, Prev: s.Pos, Data: w.ops.Workers["p1"]})
		}},
	}
}

// TestForgeries: each log breaks one rule, and exactly that is found.
func TestForgeries(t *testing.T) {
	found := map[string]bool{}
	for _, f := range forgeries() {
		t.Run(f.name, func(t *testing.T) {
			w := newWorld(t, Guards{})
			f.build(w)
			log := w.log
			if f.edit != nil {
				log = f.edit(log)
			}
			for _, noIndex := range []bool{false, true} {
				cfg := f.cfg
				cfg.NoIndex = noIndex
				if cfg.Key != nil {
					for _, e := range log {
						e.MAC = events.MAC(cfg.Key, e.Partition, e.Expected, e.Lines)
					}
				}
				c := NewChecker(cfg)
				if noIndex && f.ask != nil && (f.rule == RuleClient) {
					f.ask(w, c)
				}
				for _, e := range log {
					if err := c.Add(e); err != nil {
						t.Fatal(err)
					}
				}
				if f.ask != nil && !(noIndex && f.rule == RuleClient) {
					if noIndex {
						continue // asked after the fact: that needs the index
					}
					f.ask(w, c)
				}
				r := c.Report()
				if len(r.Violations) == 0 {
					t.Fatalf("nothing is found, want %s", f.rule)
				}
				for _, v := range r.Violations {
					if v.Rule != f.rule || v.Subject == "" || v.String() == "" || kindRule[v.Kind] != v.Rule {
						t.Errorf("found %v, want only %s", v, f.rule)
					}
				}
				found[f.rule] = true
			}
		})
	}
	for _, r := range []string{RuleOutput, RulePages, RuleFinal, RuleLog, RuleClient, RuleLive, RuleDecision} {
		if !found[r] {
			t.Errorf("no log breaks %s", r)
		}
	}
}

// TestTenantChain takes one of a tenant's events away and mends everything but
// the tenant's chain.
func TestTenantChain(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(end chainEnd) chainEnd
	}{
		{"a number is missing", func(e chainEnd) chainEnd { e.seq++; return e }},
		{"another hash", func(e chainEnd) chainEnd { e.hash = events.Hash(nil); return e }},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, Guards{})
			w.must(id1, events.CmdAdmit)
			w.tenants[tenant] = c.edit(w.tenants[tenant])
			w.must(id1, events.CmdPrefilled)
			if v := w.check(CheckerConfig{}).Violations; len(v) != 1 || v[0].Rule != RuleLog {
				t.Errorf("violations %v, want one of S4", v)
			}
		})
	}
}

func TestCleanLogs(t *testing.T) {
	for _, s := range situations {
		w := newWorld(t, Guards{})
		w.must(id1, s.steps...)
		if s.steps != nil {
			decodeWith(func(_ *world, d *events.DecodeDone) { d.CompletionTokens-- })(w) // most often a denial
		}
		w.clean()
		r := w.check(CheckerConfig{NoIndex: true})
		if r.Events != len(w.log) || r.Requests > 1 || r.Open != boolInt(w.requests[id1] != nil && w.requests[id1].Open()) {
			t.Errorf("%s: %+v", s.name, r)
		}
	}
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestStreamsAndOutcomes: what is legal for clients to get.
func TestStreamsAndOutcomes(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole[:4]...)
	w.must(id1, events.CmdCancel) // tokens that were sent before are legal
	for _, o := range []ClientOutcome{
		{RequestID: id1, Status: 200},
		{RequestID: id1, Status: 502},
		{RequestID: id2, Status: 404},
	} {
		c := NewChecker(CheckerConfig{})
		for _, e := range w.log {
			if err := c.Add(e); err != nil {
				t.Fatal(err)
			}
		}
		c.CheckClients([]ClientOutcome{o})
		if r := c.Report(); !r.OK() {
			t.Errorf("%+v: %v", o, r.Violations)
		}
	}
}

// TestCheckerForgets checks that memory follows the open requests and not the
// log, and that what comes after a request was forgotten is still judged.
func TestCheckerForgets(t *testing.T) {
	w := newWorld(t, Guards{})
	c := NewChecker(CheckerConfig{NoIndex: true, Keep: time.Minute})
	added := 0
	feed := func() {
		t.Helper()
		for ; added < len(w.log); added++ {
			if err := c.Add(w.log[added]); err != nil {
				t.Fatal(err)
			}
		}
	}
	most := 0
	for i := range 300 {
		one := id(1000+i, w.now)
		w.want("", w.do(one, events.RoleGateway, "gw1", w.admitData()))
		p := w.prefillData()
		p.Pages = runs(uint32(i%90), 7, uint64(i+1))
		w.want("", w.do(one, events.RolePrefill, "p1", p))
		w.must(one, events.CmdCancel)
		w.want("", w.do(one, events.RolePrefill, "p1", &events.Release{Worker: "p1", WorkerEpoch: 11, Role: events.RolePrefill,
			Generation: uint64(i + 1), Pages: 7, Drained: true, Scrubbed: true, Reason: "done"}))
		w.now = w.now.Add(2 * time.Second)
		feed()
		most = max(most, len(c.requests))
	}
	if most > 40 || len(c.ended) > 40 || len(c.closed) > 2 || len(c.clients.events) > 0 {
		t.Errorf("%d requests and %d ends were kept", most, len(c.ended))
	}
	if n := len(c.pages[life{"p1", 11}].spans); n > 100 {
		t.Errorf("%d spans for a pool of 100 pages", n)
	}
	first := id(1000, start)
	if c.find(first) != nil {
		t.Fatal("not forgotten")
	}
	// A late command is denied in the history that ended.
	w.step(first, events.CmdGrant)
	feed()
	if r := c.Report(); !r.OK() || r.Requests != 300 || r.Open != 0 {
		t.Fatalf("%+v", r)
	}
	_ = w.raw(first, decodedData(w))
	feed()
	if v := c.Report().Violations; len(v) != 1 {
		t.Errorf("an output after the end of a forgotten request: %v", v)
	}
}

// TestReportIsBounded feeds a log that is broken throughout.
func TestReportIsBounded(t *testing.T) {
	c := NewChecker(CheckerConfig{})
	for i := range 3 * maxViolations {
		_ = c.Add(&events.Envelope{Seq: uint64(i + 1), Expected: 7, Lines: []byte("x\n")})
	}
	if r := c.Report(); len(r.Violations) != maxViolations || r.More == 0 {
		t.Errorf("%d violations and %d more", len(r.Violations), r.More)
	}
	if c.Add(nil) == nil {
		t.Error("nil is an envelope")
	}
}

// TestAskedBeforehand: without an index the checker settles what it was told
// before as the log goes by, and keeps nothing of it.
func TestAskedBeforehand(t *testing.T) {
	w := newWorld(t, Guards{})
	w.must(id1, whole...)
	w.must(id2, events.CmdAdmit, events.CmdReject)
	for _, c := range []struct {
		name  string
		wrong func(a []events.Answer) []events.Answer
		want  int
	}{
		{"right", func(a []events.Answer) []events.Answer { return a }, 0},
		{"asked twice", func(a []events.Answer) []events.Answer { return append(slices.Clone(a), a...) }, 0},
		{"another state", func(a []events.Answer) []events.Answer { a[len(a)-1].State = events.Admitted; return a }, 1},
		{"not in the log", func(a []events.Answer) []events.Answer { a[len(a)-1].ID = id2 + ".9"; return a }, 1},
	} {
		k := NewChecker(CheckerConfig{NoIndex: true})
		k.CheckAnswers(c.wrong(slices.Clone(w.answers)))
		k.CheckClients([]ClientOutcome{{RequestID: id1, Status: 200, Complete: true, OutputDigest: digest("d")}, {RequestID: id2, Status: 400}})
		for _, e := range w.log {
			if err := k.Add(e); err != nil {
				t.Fatal(err)
			}
		}
		if v := k.Report().Violations; len(v) != c.want || c.want > 0 && v[0].Rule != RuleLog {
			t.Errorf("%s: %v", c.name, v)
		}
		if len(k.clients.events) > 0 {
			t.Errorf("%s: %d events are kept", c.name, len(k.clients.events))
		}
	}
}
