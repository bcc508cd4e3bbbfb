package statemachine

import (
	"github.com/pdgate/pdgate/events"
)

// judge judges one event of a request before it is folded: its place in the
// history, the table, and the facts that it records. It is written apart from
// the guards on purpose, since a check that calls what it checks finds nothing.
// It says whether the event may count.
func (c *Checker) judge(q *checked, e *events.Event, pos events.Position) bool {
	if q.N == 0 && e.N > 1 {
		q.broken = true // reported where the history began
		return false
	}
	if e.N != q.N+1 || e.Prev != q.Pos {
		c.violate(RuleLog, q.ID, pos, "number %d with prev %q follows number %d at %q", e.N, e.Prev, q.N, q.Pos)
		q.broken = true
		return false
	}
	if _, legal := Next(q.State, e.Type); !legal {
		if !q.State.Final() && q.broken {
			return false
		}
		c.violate(illegalRule(q.State, e.Type), q.ID, pos, "%s in state %s", known(e.Type), q.State)
		return false
	}
	if q.broken {
		return false
	}
	if e.Command != "" {
		for i := range q.Recorded {
			if a := &q.Recorded[i]; a.Key == e.Command && a.Denied == nil {
				c.violate(RuleLog, q.ID, pos, "the command of number %d was carried out as number %d", e.N, a.N)
				return true
			}
		}
	}
	if e.Type != denied && e.Type != events.TypeReleased && q.Tenant != "" && e.Tenant != q.Tenant {
		c.violate(RuleDecision, q.ID, pos, "the event is of another tenant")
		return true
	}
	if rule, what := q.contradiction(e); rule != "" {
		c.violate(rule, q.ID, pos, "%s", what)
	}
	if !q.Deadline.IsZero() && !q.State.Final() && e.Type != denied {
		if to, _ := Next(q.State, e.Type); to.Final() && e.Time.After(q.Deadline.Add(c.cfg.Slack)) {
			c.violate(RuleLive, q.ID, pos, "the request ended %s after its deadline", e.Time.Sub(q.Deadline))
		}
	}
	return true
}

func illegalRule(state events.State, t events.Type) string {
	lost := state == events.Rejected || state == events.Failed || state == events.Cancelled
	switch t {
	case events.TypeTransferGranted, events.TypeTransferred, events.TypeDecoded:
		if lost {
			return RuleOutput
		}
	}
	if state.Final() {
		return RuleFinal
	}
	return RuleDecision
}

// contradiction says which rule the event breaks by what it records, and how.
func (q *checked) contradiction(e *events.Event) (rule, what string) {
	p, g := q.Prefill, q.Grant
	switch d := e.Data.(type) {
	case *events.RequestAdmitted:
		born, err := events.RequestTime(q.ID)
		switch no := judgeAdmission(true, &d.Facts, d.PromptTokens, d.MaxTokens, Guards{}); {
		case err != nil || born.IsZero():
			return RuleDecision, "the request id is not a UUIDv7"
		case no != nil:
			return RuleDecision, "admitted against its own facts: " + string(no.Code)
		case !d.Deadline.After(e.Time) || d.PrefillBy.After(d.Deadline):
			return RuleDecision, "the deadlines are out of order"
		}
	case *events.RequestRejected:
		switch {
		case d.Error.HTTPStatus() < 400:
			return RuleDecision, "a rejection carries the status of a success"
		case d.Stage != StageAdmission:
			if q.State == events.New {
				return RuleDecision, "an engine rejected what was not admitted"
			}
		case d.Facts == nil:
			return RuleDecision, "a rejection at admission records no facts"
		case d.Error.Code == events.CodeModelNotFound && d.Facts.PrefillNodes == 0 && d.Facts.DecodeNodes == 0:
		case judgeAdmission(true, d.Facts, d.PromptTokens, d.MaxTokens, Guards{}) == nil:
			return RuleDecision, "rejected against its own facts"
		}
	case *events.RequestPrefilled:
		switch {
		case d.PromptTokens != q.PromptTokens:
			return RuleDecision, "prompt_tokens differs from what was admitted"
		case mul(int64(events.Pages(d.Pages)), int64(d.PageTokens)) < int64(d.PromptTokens):
			return RuleDecision, "the pages do not hold the prompt"
		case events.External(d.Layout) && (d.Reference == "" || d.KVBytes < 1):
			return RuleDecision, "prefilled without the engine's reference"
		case !e.Time.Before(d.Lease) || d.Lease.After(q.Deadline):
			return RuleDecision, "the lease is over, or ends after the request's deadline"
		}
	case *events.TransferGranted:
		last := 0
		if g != nil {
			last = g.GrantEpoch
		}
		switch {
		case p == nil:
			return RuleDecision, "no prefill is recorded"
		case d.Owner != p.Worker || d.OwnerEpoch != p.WorkerEpoch:
			return RulePages, "the grant names another owner than prefilled"
		case !q.holds(events.RolePrefill, p.Worker, p.WorkerEpoch, generation(p.Pages)):
			return RulePages, "the grant is for pages that were released"
		case d.GrantEpoch != last+1:
			return RuleDecision, "grant_epoch is not the one after the last"
		case !e.Time.Before(p.Lease) || !d.Lease.Equal(p.Lease):
			return RuleDecision, "granted after the lease, or with another one"
		case int64(d.ReservedTokens) < add(int64(q.PromptTokens), int64(q.MaxTokens)):
			return RuleDecision, "the reservation is below prompt plus max_tokens"
		}
	case *events.RequestTransferred:
		switch {
		case p == nil || g == nil || d.GrantEpoch != g.GrantEpoch:
			return RuleDecision, "the transfer's grant is not the current one"
		case d.Worker != g.Worker || d.WorkerEpoch != g.WorkerEpoch:
			return RulePages, "another worker than the granted one has the KV"
		case d.KVDigest != p.KVDigest || d.KVBytes != p.KVBytes:
			return RulePages, "what arrived is not what was prefilled"
		case !q.holds(events.RoleDecode, g.Worker, g.WorkerEpoch, generation(g.Pages)):
			return RulePages, "the KV arrived in pages that were released"
		case !e.Time.Before(p.Lease):
			return RulePages, "the lease was over at the end of the copy"
		}
	case *events.RequestDecoded:
		t := q.Transfer
		switch {
		case t == nil || g == nil || d.Worker != t.Worker || d.WorkerEpoch != t.WorkerEpoch:
			return RulePages, "another worker than the one with the KV made the output"
		case !q.holds(events.RoleDecode, g.Worker, g.WorkerEpoch, generation(g.Pages)):
			return RulePages, "the output was made from pages that were released"
		case d.PromptTokens != q.PromptTokens:
			return RuleDecision, "prompt_tokens differs from what was admitted"
		case !d.FinishReason.Real() || d.CompletionTokens < 0 || d.CompletionTokens > q.MaxTokens:
			return RuleDecision, "the output did not end properly"
		}
	case *events.RequestFailed:
		if d.Error.HTTPStatus() < 400 {
			return RuleDecision, "a failure carries the status of a success"
		}
	case *events.RequestReleased:
		lost := d.Reason == "worker_lost" || d.Reason == "worker_restarted" // memory and all
		if !lost && !d.Drained {
			return RulePages, "freed undrained: a copy may have been in flight"
		}
		if !lost && !d.Scrubbed {
			return RulePages, "freed unscrubbed"
		}
	case *events.CommandDenied:
		return q.unjust(d)
	}
	return "", ""
}

// unjust says whether a denial contradicts the table. Its facts beyond the state
// are not in the log.
func (q *checked) unjust(d *events.CommandDenied) (rule, what string) {
	row := commandRows[d.Command]
	if row == nil {
		return RuleDecision, "a command was denied that does not exist"
	}
	_, legal := Next(q.State, row.Events[0])
	switch d.Code {
	case events.CodeForbidden, events.CodeMalformed, events.CodeInternal:
	case events.CodeIllegalState, events.CodeUnknownRequest:
		if legal && q.Tainted == "" {
			return RuleDecision, "a command was denied for a state in which it is legal"
		}
	case events.CodeGrantUsed:
		if q.Transfer == nil {
			return RuleDecision, "a grant was called used, and nothing was transferred"
		}
	default:
		if !legal {
			return RuleDecision, "a command was judged in a state in which it is illegal"
		}
	}
	return "", ""
}

// account enters the event into the ledger of pages.
func (c *Checker) account(q *checked, e *events.Event, pos events.Position) {
	var no string
	switch d := e.Data.(type) {
	case *events.RequestPrefilled:
		no = q.take(c.pages, life{q.Prefill.Worker, d.WorkerEpoch}, d.Pages)
	case *events.TransferGranted:
		no = q.take(c.pages, life{q.Grant.Worker, d.WorkerEpoch}, d.Pages)
	case *events.RequestReleased:
		no = q.giveBack(c.pages, life{d.Worker, d.WorkerEpoch}, d.Generation)
	}
	if no != "" {
		c.violate(RulePages, q.ID, pos, "%s", no)
	}
}
