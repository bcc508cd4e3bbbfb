package statemachine

import (
	"strconv"
	"strings"
	"time"

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
		c.violate(KindHistoryGap, q.ID, pos, "number %d with prev %q follows number %d at %q", e.N, e.Prev, q.N, q.Pos)
		q.broken = true
		return false
	}
	if _, legal := Next(q.State, e.Type); !legal {
		if !q.State.Final() && q.broken {
			return false
		}
		c.breach(q.illegal(e.Type), q.ID, pos)
		return false
	}
	if q.broken {
		return false
	}
	if e.Command != "" {
		for i := range q.Recorded {
			if a := &q.Recorded[i]; a.Key == e.Command && a.Denied == nil {
				c.violate(KindCommandTwice, q.ID, pos, "the command of number %d was carried out as number %d", e.N, a.N)
				return true
			}
		}
	}
	if e.Type != denied && e.Type != events.TypeReleased && q.Tenant != "" && e.Tenant != q.Tenant {
		c.breach(broke(KindTenant, "the event is of another tenant").are(q.Tenant, e.Tenant), q.ID, pos)
		return true
	}
	var b breach
	if c.cfg.Lifecycle {
		b = q.differs(e)
	} else {
		b = q.contradiction(e)
	}
	if b.kind != "" {
		c.breach(b, q.ID, pos)
	}
	if !q.Deadline.IsZero() && !q.State.Final() && e.Type != denied {
		if to, _ := Next(q.State, e.Type); to.Final() && e.Time.After(q.Deadline.Add(c.cfg.Slack)) {
			c.violate(KindLate, q.ID, pos, "the request ended %s after its deadline", e.Time.Sub(q.Deadline))
		}
	}
	return true
}

// illegal names what an event that the table does not allow amounts to.
func (q *checked) illegal(t events.Type) breach {
	b := broke(KindTransition, string(known(t))+" in state "+string(q.State)).are(legalFrom(t), string(q.State))
	rejected := q.State == events.Rejected
	lost := q.State == events.Failed || q.State == events.Cancelled
	switch {
	case t == events.TypeTransferGranted && rejected:
		b.kind = KindGrantRejected
	case t == events.TypeTransferred && rejected:
		b.kind = KindTransferRejected
	case t == events.TypeDecoded && rejected:
		b.kind = KindDecodeRejected
	case t == events.TypeTransferGranted && lost:
		b.kind = KindGrantLost
	case t == events.TypeTransferred && lost:
		b.kind = KindTransferLost
	case t == events.TypeDecoded && lost:
		b.kind = KindDecodeLost
	case q.State.Final():
		b.kind = KindAfterEnd
	case t == events.TypeTransferred && q.State == events.Transferred:
		b.kind = KindGrantUsed
	case (t == events.TypeTransferGranted || t == events.TypeTransferred) && q.State != events.Transferred:
		b.kind = KindTransferUnfilled
	case t == events.TypeDecoded && q.State == events.Prefilled:
		b.kind = KindDecodeUnmoved
	case t == events.TypeDecoded:
		b.kind = KindDecodeUnfilled
	}
	return b
}

// legalFrom lists the states in which the event is legal.
func legalFrom(t events.Type) string {
	var from []string
	for _, r := range table {
		if r.Event == t {
			from = append(from, string(r.From))
		}
	}
	return strings.Join(from, "|")
}

// contradiction says what the event breaks by what it records.
func (q *checked) contradiction(e *events.Event) breach {
	p, g := q.Prefill, q.Grant
	switch d := e.Data.(type) {
	case *events.RequestAdmitted:
		born, err := events.RequestTime(q.ID)
		switch no := judgeAdmission(true, &d.Facts, d.PromptTokens, d.MaxTokens, Guards{}); {
		case err != nil || born.IsZero():
			return broke(KindRequestID, "the request id is not a UUIDv7")
		case no != nil:
			return broke(KindAdmitted, "admitted against its own facts: "+string(no.Code)).are(string(no.Message), strconv.Itoa(d.PromptTokens)+" + "+strconv.Itoa(d.MaxTokens)+" tokens")
		case !d.Deadline.After(e.Time) || d.PrefillBy.After(d.Deadline):
			return broke(KindDeadlines, "the deadlines are out of order")
		}
	case *events.RequestRejected:
		switch {
		case d.Error.HTTPStatus() < 400:
			return broke(KindErrorStatus, "a rejection carries the status of a success")
		case d.Stage != StageAdmission:
			if q.State == events.New {
				return broke(KindRejectedUnknown, "an engine rejected what was not admitted")
			}
		case d.Facts == nil:
			return broke(KindRejectedNoFacts, "a rejection at admission records no facts")
		case d.Error.Code == events.CodeModelNotFound && d.Facts.PrefillNodes == 0 && d.Facts.DecodeNodes == 0:
		case judgeAdmission(true, d.Facts, d.PromptTokens, d.MaxTokens, Guards{}) == nil:
			return broke(KindRejected, "rejected against its own facts")
		}
	case *events.RequestPrefilled:
		switch {
		case d.PromptTokens != q.PromptTokens:
			return q.count(KindPrefillTokens, d.PromptTokens)
		case mul(int64(events.Pages(d.Pages)), int64(d.PageTokens)) < int64(d.PromptTokens):
			return broke(KindPagesBelow, "the pages do not hold the prompt").are(strconv.Itoa(d.PromptTokens)+" tokens", strconv.FormatInt(mul(int64(events.Pages(d.Pages)), int64(d.PageTokens)), 10))
		case events.External(d.Layout) && (d.Reference == "" || d.KVBytes < 1):
			return broke(KindReference, "prefilled without the engine's reference")
		case !e.Time.Before(d.Lease) || d.Lease.After(q.Deadline):
			return broke(KindLease, "the lease is over, or ends after the request's deadline")
		}
	case *events.TransferGranted:
		last := 0
		if g != nil {
			last = g.GrantEpoch
		}
		switch {
		case p == nil:
			return broke(KindTransferUnfilled, "no prefill is recorded")
		case d.Owner != p.Worker || d.OwnerEpoch != p.WorkerEpoch:
			return broke(KindGrantOwner, "the grant names another owner than prefilled").are(p.Worker+" of "+strconv.FormatUint(p.WorkerEpoch, 10), d.Owner+" of "+strconv.FormatUint(d.OwnerEpoch, 10))
		case !q.holds(events.RolePrefill, p.Worker, p.WorkerEpoch, generation(p.Pages)):
			return broke(KindGrantReleased, "the grant is for pages that were released")
		case d.GrantEpoch != last+1:
			return broke(KindGrantEpoch, "grant_epoch is not the one after the last").are(strconv.Itoa(last+1), strconv.Itoa(d.GrantEpoch))
		case !e.Time.Before(p.Lease) || !d.Lease.Equal(p.Lease):
			return broke(KindGrantPastLease, "granted after the lease, or with another one").are("before "+moment(p.Lease), moment(e.Time))
		case int64(d.ReservedTokens) < add(int64(q.PromptTokens), int64(q.MaxTokens)):
			return broke(KindReservation, "the reservation is below prompt plus max_tokens").are(strconv.Itoa(q.PromptTokens+q.MaxTokens), strconv.Itoa(d.ReservedTokens))
		}
	case *events.RequestTransferred:
		switch {
		case p == nil || g == nil || d.GrantEpoch != g.GrantEpoch:
			return broke(KindTransferGrant, "the transfer's grant is not the current one")
		case d.Worker != g.Worker || d.WorkerEpoch != g.WorkerEpoch:
			return broke(KindTransferWorker, "another worker than the granted one has the KV").are(g.Worker, d.Worker)
		case d.KVDigest != p.KVDigest || d.KVBytes != p.KVBytes:
			return broke(KindKVDiffers, "what arrived is not what was prefilled").are(strconv.FormatInt(p.KVBytes, 10)+" bytes, "+p.KVDigest, strconv.FormatInt(d.KVBytes, 10)+" bytes, "+d.KVDigest)
		case !q.holds(events.RoleDecode, g.Worker, g.WorkerEpoch, generation(g.Pages)):
			return broke(KindTransferReleased, "the KV arrived in pages that were released")
		case !e.Time.Before(p.Lease):
			return broke(KindReadPastLease, "the lease was over at the end of the copy").are("before "+moment(p.Lease), moment(e.Time))
		}
	case *events.RequestDecoded:
		t := q.Transfer
		switch {
		case t == nil || g == nil || d.Worker != t.Worker || d.WorkerEpoch != t.WorkerEpoch:
			return broke(KindDecodeWorker, "another worker than the one with the KV made the output")
		case !q.holds(events.RoleDecode, g.Worker, g.WorkerEpoch, generation(g.Pages)):
			return broke(KindDecodeReleased, "the output was made from pages that were released")
		case d.PromptTokens != q.PromptTokens:
			return q.count(KindDecodeTokens, d.PromptTokens)
		case !d.FinishReason.Real() || d.CompletionTokens < 0 || d.CompletionTokens > q.MaxTokens:
			return broke(KindOutputEnd, "the output did not end properly").are("stop or length, and at most "+strconv.Itoa(q.MaxTokens)+" tokens", string(d.FinishReason)+", "+strconv.Itoa(d.CompletionTokens)+" tokens")
		}
	case *events.RequestFailed:
		if d.Error.HTTPStatus() < 400 {
			return broke(KindErrorStatus, "a failure carries the status of a success")
		}
	case *events.RequestReleased:
		lost := d.Reason == "worker_lost" || d.Reason == "worker_restarted" // memory and all
		if !lost && !d.Drained {
			return broke(KindFreedUndrained, "freed undrained: a copy may have been in flight")
		}
		if !lost && !d.Scrubbed {
			return broke(KindFreedUnscrubbed, "freed unscrubbed")
		}
	case *events.CommandDenied:
		return q.unjust(d)
	}
	return breach{}
}

// unjust says whether a denial contradicts the table. Its facts beyond the state
// are not in the log.
func (q *checked) unjust(d *events.CommandDenied) breach {
	row := commandRows[d.Command]
	if row == nil {
		return broke(KindDenial, "a command was denied that does not exist")
	}
	_, legal := Next(q.State, row.Events[0])
	switch d.Code {
	case events.CodeForbidden, events.CodeMalformed, events.CodeInternal:
	case events.CodeIllegalState, events.CodeUnknownRequest:
		if legal && q.Tainted == "" {
			return broke(KindDenial, "a command was denied for a state in which it is legal")
		}
	case events.CodeGrantUsed:
		if q.Transfer == nil {
			return broke(KindDenial, "a grant was called used, and nothing was transferred")
		}
	default:
		if !legal {
			return broke(KindDenial, "a command was judged in a state in which it is illegal")
		}
	}
	return breach{}
}

// account enters the event into the ledger of pages.
func (c *Checker) account(q *checked, e *events.Event, pos events.Position) {
	if c.cfg.Lifecycle {
		return
	}
	var no breach
	switch d := e.Data.(type) {
	case *events.RequestPrefilled:
		no = q.take(c.pages, life{q.Prefill.Worker, d.WorkerEpoch}, d.Pages)
	case *events.TransferGranted:
		no = q.take(c.pages, life{q.Grant.Worker, d.WorkerEpoch}, d.Pages)
	case *events.RequestReleased:
		no = q.giveBack(c.pages, life{d.Worker, d.WorkerEpoch}, d.Generation)
	}
	if no.kind != "" {
		c.breach(no, q.ID, pos)
	}
}

// count is a breach by a prompt of another length.
func (q *checked) count(kind Kind, got int) breach {
	return broke(kind, "prompt_tokens differs from what was admitted").are(strconv.Itoa(q.PromptTokens), strconv.Itoa(got))
}

func moment(t time.Time) string { return events.Micros(t).Format(wireTime) }
