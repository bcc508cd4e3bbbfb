package simulation

import (
	"bytes"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// logMoved has followers go on.
func (w *world) logMoved() {
	for _, r := range w.replicas {
		if !r.life.dead {
			r.follow()
		}
	}
}

// settled says whether nothing is left to happen. It is looked at now and then.
func (w *world) settled() bool {
	if w.now.Before(w.looked) {
		return false
	}
	w.looked = w.now.Add(lookEvery)
	return w.unsettled() == ""
}

// unsettled names something that is not at its end.
func (w *world) unsettled() string {
	for _, c := range w.clients {
		if !c.over {
			return "client of " + short(c.id)
		}
	}
	for _, x := range w.workers {
		switch {
		case x.life.dead || x.life.still.After(w.now) || !x.registered:
			return x.name
		case len(x.jobs) > 0:
			return x.name + " with " + short(x.jobs[0].work.RequestID)
		case x.pool.Stats().Free != x.pool.Stats().Pages:
			return "pool of " + x.name
		}
	}
	for _, c := range w.calls {
		if !c.over && !c.life.dead {
			return "call"
		}
	}
	if r := w.log.auditor.Report(); r.Open > 0 {
		return "a request of the log"
	}
	return ""
}

// judge looks at everything once nothing happens any more.
func (w *world) judge() {
	if what := w.unsettled(); what != "" {
		w.breach(RuleSettle, "%s", what)
	}
	w.log.auditor.CheckAnswers(w.answers)
	var outcomes []statemachine.ClientOutcome
	for _, c := range w.clients {
		if c.life == nil {
			continue
		}
		o := statemachine.ClientOutcome{RequestID: c.id, Status: c.status, Complete: c.complete}
		if c.complete {
			o.OutputDigest = events.Digest(events.RequestKey(w.secret, c.id), events.KindOutput, c.text)
		}
		outcomes = append(outcomes, o)
		w.read(c)
	}
	w.log.auditor.CheckClients(outcomes)
	w.log.auditor.Close(w.now)
	for _, v := range w.log.auditor.Report().Violations {
		w.breach(v.Rule, "%s at %q: %s", short(v.Subject), v.Position, v.Message)
	}
	for _, x := range w.workers {
		if !x.life.dead {
			w.audit(x)
		}
	}
}

// read compares what a client got with what the engine says to its prompt.
func (w *world) read(c *client) {
	for _, o := range w.clients {
		if o.tenant != c.tenant && bytes.Contains(c.text, []byte(mark(o.tenant))) {
			w.breach(RuleForeign, "%s got text of %s", c.tenant, o.tenant)
		}
	}
	if c.status != 200 {
		return
	}
	want := c.expect()
	switch {
	case want == nil:
		w.breach(RuleText, "%s got %d bytes for a prompt that no engine takes", short(c.id), len(c.text))
	case !bytes.HasPrefix(want, c.text) || c.complete && len(want) != len(c.text):
		w.breach(RuleText, "%s got %d bytes, which are not the %d that its prompt gives", short(c.id), len(c.text), len(want))
	}
}

// audit counts a pool, and reads its free pages.
func (w *world) audit(x *worker) {
	st := x.pool.Stats()
	if st.Free != st.Pages || st.Pinned != 0 || st.DoubleFrees != 0 {
		w.breach(RulePool, "%s: %+v", x.name, st)
	}
	if dirty, err := x.pool.Audit(); err != nil || dirty > 0 {
		w.breach(RulePool, "%s: %d words of free pages are not poison (%v)", x.name, dirty, err)
	}
}
