package statemachine

import (
	"cmp"
	"slices"
	"time"

	"github.com/pdgate/pdgate/events"
)

// sender checks that the sending worker is registered under the epoch it names,
// in the role it speaks in, for the request's model. The registration is nil
// only where the guard is off.
func (m *Machine) sender(epoch uint64) (*events.WorkerJoined, *refusal) {
	w := m.f.Sender
	if m.guards.NoWorker {
		return w, nil
	}
	switch {
	case w == nil:
		return nil, refuse(events.CodeWorkerUnknown, "the sender is not registered")
	case w.Worker != m.c.Principal:
		return nil, refuse(events.CodeWrongWorker, "the registration is another worker's").are(w.Worker, m.c.Principal)
	case w.Role != m.c.Role:
		return nil, refuse(events.CodeWrongWorker, "the sender is registered in another role").are(string(w.Role), string(m.c.Role))
	case w.Epoch != epoch:
		return nil, refuse(events.CodeWorkerEpoch, "the sender is registered under another epoch").epochs(w.Epoch, epoch)
	case w.Model != m.r.Model:
		return nil, refuse(events.CodeWrongWorker, "the sender serves another model").are(m.r.Model, w.Model)
	}
	return w, nil
}

// reject ends a request that the engine refused before any KV existed.
func (m *Machine) reject(d *events.Reject) (events.Data, *refusal) {
	if _, no := m.sender(d.WorkerEpoch); no != nil {
		return nil, no
	}
	return &events.RequestRejected{
		Error: normal(d.Error, events.CodeEngineRefused), Stage: StageEngine, Model: m.r.Model,
		PromptTokens: m.r.PromptTokens, MaxTokens: m.r.MaxTokens, Worker: m.c.Principal,
	}, nil
}

// prefilled takes the KV over. An engine that rejects inside and goes on with a
// placeholder shows here: it has prefilled another number of tokens.
func (m *Machine) prefilled(d *events.Prefill) (events.Data, *refusal) {
	r, now := m.r, m.f.Now
	w, no := m.sender(d.WorkerEpoch)
	switch {
	case no != nil:
		return nil, no
	case d.PromptTokens != r.PromptTokens && !m.guards.NoTokenCount:
		return nil, refuse(events.CodeTokenCountMismatch, "prompt_tokens differs from what was admitted").numbers(int64(r.PromptTokens), int64(d.PromptTokens))
	case d.Tenant != r.Tenant:
		return nil, refuse(events.CodeTenantMismatch, "the pages are another tenant's").are(r.Tenant, d.Tenant)
	case w != nil && d.Layout != w.Layout:
		return nil, refuse(events.CodeIncompatible, "layout differs from the registration").are(w.Layout, d.Layout)
	case w != nil && d.PageTokens != w.PageTokens:
		return nil, refuse(events.CodeIncompatible, "page_tokens differs from the registration").numbers(int64(w.PageTokens), int64(d.PageTokens))
	}
	if no := fits(d.Pages, w, d.PageTokens, int64(d.PromptTokens)); no != nil {
		return nil, no
	}
	if events.External(d.Layout) && !m.guards.NoDigest {
		// The engine's reference stands for the KV: without it there is nothing to
		// hand off, and nothing to compare at transferred.
		switch {
		case d.Reference == "":
			return nil, refuse(events.CodeReferenceMismatch, "the engine's reference has no digest")
		case d.KVBytes < 1:
			return nil, refuse(events.CodeReferenceMismatch, "kv_bytes, the length of the engine's reference, is 1 or more").numbers(1, d.KVBytes)
		}
	}
	if w != nil && w.TokenBytes > 0 {
		least := mul(int64(d.PromptTokens), int64(w.TokenBytes))
		most := mul(mul(int64(events.Pages(d.Pages)), int64(d.PageTokens)), int64(w.TokenBytes))
		if d.KVBytes < least || d.KVBytes > most {
			return nil, refuse(events.CodeTokenCountMismatch, "kv_bytes is not what the pages hold").numbers(most, d.KVBytes)
		}
	}
	switch {
	case d.KVDigest == "" && !m.guards.NoDigest:
		return nil, refuse(events.CodeDigestMismatch, "the KV has no digest")
	case d.LeaseMS <= 0:
		return nil, refuse(events.CodeLeaseOver, "lease_ms is 1 or more").numbers(1, d.LeaseMS)
	case d.LeaseMS > m.t.Lease.Milliseconds():
		return nil, refuse(events.CodeMalformed, "lease_ms is above the limit").numbers(m.t.Lease.Milliseconds(), d.LeaseMS)
	case !r.Deadline.IsZero() && !now.Before(r.Deadline):
		return nil, refuse(events.CodeDeadline, "the request's deadline is over").times(r.Deadline, now)
	}
	return &events.RequestPrefilled{
		Worker: m.c.Principal, WorkerEpoch: d.WorkerEpoch, PromptTokens: d.PromptTokens,
		Pages: d.Pages, PageTokens: d.PageTokens, Layout: d.Layout,
		KVBytes: d.KVBytes, KVDigest: d.KVDigest, Reference: d.Reference,
		Lease: m.until(time.Duration(d.LeaseMS) * time.Millisecond),
	}, nil
}

// until is a deadline d from now, and no later than the request's own.
func (m *Machine) until(d time.Duration) time.Time {
	t := events.Micros(m.f.Now.Add(d))
	if m.r.Deadline.IsZero() {
		return t
	}
	return earlier(t, m.r.Deadline)
}

// maxGrants bounds the grants of one request. Each may leave a reservation in
// the aggregate, and each is an answer that is kept: a worker that asks in a loop
// must fill neither.
const maxGrants = 32

// grant allows one pull of the KV to one life of one decode worker.
func (m *Machine) grant(d *events.GrantTransfer) (events.Data, *refusal) {
	r, now, p := m.r, m.f.Now, m.r.Prefill
	if p == nil {
		if !m.guards.NoGrantState {
			return nil, refuse(events.CodeInternal, "no prefill is recorded")
		}
		p = &events.RequestPrefilled{}
	}
	last := 0
	if r.Grant != nil {
		last = r.Grant.GrantEpoch
	}
	w, no := m.sender(d.WorkerEpoch)
	owner := m.f.Owner
	switch {
	case no != nil:
		return nil, no
	case d.GrantEpoch != last+1:
		return nil, refuse(events.CodeGrantEpoch, "grant_epoch is not the one after the last").numbers(int64(last)+1, int64(d.GrantEpoch))
	case last >= maxGrants:
		return nil, refuse(events.CodeGrantEpoch, "the KV was granted too often").numbers(maxGrants, int64(d.GrantEpoch))
	case !m.guards.NoLease && !now.Before(p.Lease):
		return nil, refuse(events.CodeLeaseOver, "the lease of the KV is over").times(p.Lease, now)
	}
	if !m.guards.NoWorker {
		switch {
		case owner == nil || owner.Worker != p.Worker:
			return nil, refuse(events.CodeWorkerUnknown, "the KV's owner is not registered")
		case owner.Epoch != p.WorkerEpoch:
			return nil, refuse(events.CodeWorkerEpoch, "the KV's owner restarted: its pages are gone").epochs(p.WorkerEpoch, owner.Epoch)
		case !r.holds(events.RolePrefill, p.Worker, p.WorkerEpoch, generation(p.Pages)):
			return nil, refuse(events.CodePageOwner, "the KV's owner has released its pages")
		}
	}
	switch {
	case d.Layout != p.Layout:
		return nil, refuse(events.CodeIncompatible, "layout differs from the KV's").are(p.Layout, d.Layout)
	case w != nil && d.Layout != w.Layout:
		return nil, refuse(events.CodeIncompatible, "layout differs from the registration").are(w.Layout, d.Layout)
	case int64(d.ReservedTokens) < add(int64(r.PromptTokens), int64(r.MaxTokens)):
		return nil, refuse(events.CodeReservation, "reserved_tokens is below prompt plus max_tokens").numbers(add(int64(r.PromptTokens), int64(r.MaxTokens)), int64(d.ReservedTokens))
	}
	perPage := p.PageTokens
	if w != nil {
		perPage = w.PageTokens
	}
	if no := fits(d.Pages, w, perPage, int64(d.ReservedTokens)); no != nil {
		return nil, no
	}
	g := &events.TransferGranted{
		GrantEpoch: d.GrantEpoch, Owner: p.Worker, OwnerEpoch: p.WorkerEpoch,
		Worker: m.c.Principal, WorkerEpoch: d.WorkerEpoch,
		Pages: d.Pages, ReservedTokens: d.ReservedTokens, Lease: p.Lease,
	}
	if w != nil {
		g.WorkerKey = w.PublicKey
	}
	if owner != nil {
		g.OwnerKey, g.OwnerAddress = owner.PublicKey, owner.Address
	}
	return g, nil
}

// transferred believes that the right KV arrived whole, or does not. The lease
// is judged at the end of the copy: pages that changed hands meanwhile would
// have given another's bytes.
func (m *Machine) transferred(d *events.Transfer) (events.Data, *refusal) {
	r, now, p, g := m.r, m.f.Now, m.r.Prefill, m.r.Grant
	switch {
	case p == nil:
		return nil, refuse(events.CodeInternal, "no prefill is recorded")
	case g == nil:
		return nil, refuse(events.CodeGrantEpoch, "no transfer was granted").numbers(0, int64(d.GrantEpoch))
	}
	if !m.guards.NoWorker {
		switch _, no := m.sender(d.WorkerEpoch); {
		case no != nil:
			return nil, no
		case g.Worker != m.c.Principal:
			return nil, refuse(events.CodeWrongWorker, "the grant is another worker's").are(g.Worker, m.c.Principal)
		case g.WorkerEpoch != d.WorkerEpoch:
			return nil, refuse(events.CodeWorkerEpoch, "the grant is of another life of the worker").epochs(g.WorkerEpoch, d.WorkerEpoch)
		}
	}
	switch {
	case d.GrantEpoch != g.GrantEpoch:
		return nil, refuse(events.CodeGrantEpoch, "grant_epoch is not the current one").numbers(int64(g.GrantEpoch), int64(d.GrantEpoch))
	case !m.guards.NoWorker && !r.holds(events.RoleDecode, g.Worker, g.WorkerEpoch, generation(g.Pages)):
		return nil, refuse(events.CodePageOwner, "the reserved pages were released")
	case d.KVRequest != r.ID:
		return nil, refuse(events.CodePageOwner, "the KV is another request's").are(r.ID, d.KVRequest)
	case d.KVDigest != p.KVDigest && !m.guards.NoDigest:
		return nil, refuse(events.CodeDigestMismatch, "what arrived is not what was prefilled").are(p.KVDigest, d.KVDigest)
	case d.KVBytes != p.KVBytes && !m.guards.NoDigest:
		return nil, refuse(events.CodeDigestMismatch, "kv_bytes differs from what was prefilled").numbers(p.KVBytes, d.KVBytes)
	case d.Reference != p.Reference:
		return nil, refuse(events.CodeReferenceMismatch, "the reference is not the one recorded at prefilled").are(p.Reference, d.Reference)
	case !m.guards.NoLease && !now.Before(p.Lease):
		return nil, refuse(events.CodeLeaseOver, "the lease was over at the end of the copy").times(p.Lease, now)
	case d.DurationUS < 0:
		return nil, refuse(events.CodeMalformed, "duration_us is 0 or more").numbers(0, d.DurationUS)
	}
	return &events.RequestTransferred{
		GrantEpoch: d.GrantEpoch, Worker: m.c.Principal, WorkerEpoch: d.WorkerEpoch,
		KVBytes: d.KVBytes, KVDigest: d.KVDigest, DurationUS: d.DurationUS,
		DecodeBy: m.until(m.t.Decode),
	}, nil
}

// generation is the allocation's generation: all its pages share one.
func generation(runs []events.PageRun) uint64 {
	if len(runs) == 0 {
		return 0
	}
	return runs[0].Generation
}

// fits checks one allocation: its runs are disjoint and inside w's pool, share
// one generation, and hold at least so many tokens. w may be nil.
func fits(runs []events.PageRun, w *events.WorkerJoined, pageTokens int, tokens int64) *refusal {
	if len(runs) == 0 || len(runs) > events.MaxRuns {
		return refuse(events.CodeMalformed, "pages has no runs, or too many").numbers(events.MaxRuns, int64(len(runs)))
	}
	by := func(a, b events.PageRun) int { return cmp.Compare(a.Start, b.Start) }
	if !slices.IsSortedFunc(runs, by) {
		runs = slices.Clone(runs)
		slices.SortFunc(runs, by)
	}
	end, pages := int64(0), int64(0)
	for _, r := range runs {
		switch {
		case r.Count == 0:
			return refuse(events.CodeMalformed, "a page run is empty")
		case r.Generation == 0 || r.Generation != runs[0].Generation:
			return refuse(events.CodePageGeneration, "the pages of one allocation share one generation above 0").epochs(runs[0].Generation, r.Generation)
		case int64(r.Start) < end:
			return refuse(events.CodeMalformed, "a page stands twice").numbers(end, int64(r.Start))
		}
		end = int64(r.Start) + int64(r.Count)
		pages += int64(r.Count)
	}
	if w != nil && end > int64(w.PoolPages) {
		return refuse(events.CodeReservation, "a page lies outside the sender's pool").numbers(int64(w.PoolPages), end)
	}
	if have := mul(pages, int64(pageTokens)); have < tokens {
		return refuse(events.CodeReservation, "the pages hold fewer tokens than that").numbers(tokens, have)
	}
	return nil
}
