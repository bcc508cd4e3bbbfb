package statemachine

import (
	"strconv"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// What follows reads inputs that are less than a stored log: lines without their
// places, logs from their middle on, and lives that engines tell of.

// place gives an event of an unplaced log the position that its predecessor has
// in the input, which is the predecessor's line. What the event itself says of
// that place must lie behind every place that lines before the predecessor name;
// floor is the last of those, and becomes the event's own.
func (c *Checker) place(e *events.Event, pos, last events.Position, floor *events.Position) {
	told := e.Prev
	if !told.IsZero() && !last.IsZero() {
		if !after(told, *floor) {
			c.breach(broke(KindHistoryGap, "the event before it does not stand where this one says").are("after "+floor.String(), told.String()), e.Subject, pos)
		}
		e.Prev = last
	}
	if after(told, c.newest) {
		c.newest = told
	}
	*floor = c.newest
}

// chainUnlinked checks the tenant's chains where the partition is not known:
// each event names the one before it by its hash.
func (c *Checker) chainUnlinked(e *events.Event, pos events.Position) {
	if e.Tenant == "" || e.TenantSeq == 0 || c.cfg.Torn {
		return
	}
	ends := c.chains[e.Tenant]
	if ends == nil {
		ends = map[string]uint64{}
		c.chains[strings.Clone(e.Tenant)] = ends
	}
	seq, ok := ends[e.TenantPrev]
	switch {
	case e.TenantPrev == "" && e.TenantSeq == 1, ok && seq == e.TenantSeq-1, !ok && c.cfg.Midway && e.TenantPrev != "":
	case ok:
		c.violate(KindTenantGap, e.Subject, pos, "tenantseq %d follows %d", e.TenantSeq, seq)
	default:
		c.breach(broke(KindTenantHash, "no event before it has the hash that tenantprev names").are("", e.TenantPrev), e.Subject, pos)
	}
	delete(ends, e.TenantPrev)
	ends[string(c.hash)] = e.TenantSeq
}

// midway lets a history of operations begin in its middle, and says whether the
// event itself cannot be judged.
func (c *Checker) midway(e *events.Event) (skip bool) {
	if !c.cfg.Midway || e.N <= 1 {
		return false
	}
	if _, ok := c.ops.Subjects[e.Subject]; ok {
		return false
	}
	if c.ops.Subjects == nil {
		return true // the first one of all begins with the next
	}
	c.ops.Subjects[strings.Clone(e.Subject)] = OpsSubject{N: e.N - 1, Pos: e.Prev}
	_, left := e.Data.(*events.WorkerLeft)
	return left
}

// differs is [checked.contradiction] for lives that engines tell of: what they
// do not tell is zero, and not judged.
func (q *checked) differs(e *events.Event) breach {
	p := q.Prefill
	switch d := e.Data.(type) {
	case *events.RequestAdmitted:
		if d.Facts.ContextTokens == 0 {
			break
		}
		if no := judgeAdmission(true, &d.Facts, d.PromptTokens, d.MaxTokens, Guards{}); no != nil {
			return broke(KindAdmitted, "admitted against its own facts: "+string(no.Code)).are(no.Message, strconv.Itoa(d.PromptTokens)+" tokens")
		}
	case *events.RequestPrefilled:
		if d.PromptTokens != q.PromptTokens && d.PromptTokens > 0 && q.PromptTokens > 0 {
			return q.count(KindPrefillTokens, d.PromptTokens)
		}
	case *events.RequestTransferred:
		if p != nil && !p.Lease.IsZero() && !e.Time.Before(p.Lease) {
			return broke(KindReadPastLease, "the lease was over at the end of the copy").are("before "+moment(p.Lease), moment(e.Time))
		}
	case *events.RequestDecoded:
		if d.PromptTokens != q.PromptTokens && d.PromptTokens > 0 && q.PromptTokens > 0 {
			return q.count(KindDecodeTokens, d.PromptTokens)
		}
	case *events.RequestFailed:
		if d.Error.HTTPStatus() < 400 {
			return broke(KindErrorStatus, "a failure carries the status of a success")
		}
	case *events.RequestRejected:
		if d.Error.HTTPStatus() < 400 {
			return broke(KindErrorStatus, "a rejection carries the status of a success")
		}
	}
	return breach{}
}
