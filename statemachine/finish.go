package statemachine

import (
	"github.com/pdgate/pdgate/events"
)

// decoded ends a request well. Only the worker that holds the verified KV can
// say so, and only for the prompt that was admitted.
func (m *Machine) decoded(d *events.DecodeDone) (events.Data, *refusal) {
	r, t, g := m.r, m.r.Transfer, m.r.Grant
	if t == nil || g == nil {
		return nil, refuse(events.CodeInternal, "no transfer is recorded")
	}
	if !m.guards.NoWorker {
		switch _, no := m.sender(d.WorkerEpoch); {
		case no != nil:
			return nil, no
		case t.Worker != m.c.Principal:
			return nil, refuse(events.CodeWrongWorker, "another worker holds the KV").are(t.Worker, m.c.Principal)
		case t.WorkerEpoch != d.WorkerEpoch:
			return nil, refuse(events.CodeWorkerEpoch, "the KV is of another life of the worker").epochs(t.WorkerEpoch, d.WorkerEpoch)
		case !r.holds(events.RoleDecode, t.Worker, t.WorkerEpoch, generation(g.Pages)):
			return nil, refuse(events.CodePageOwner, "the worker has released the KV")
		}
	}
	switch {
	case d.PromptTokens != r.PromptTokens && !m.guards.NoTokenCount:
		return nil, refuse(events.CodeTokenCountMismatch, "prompt_tokens differs from what was admitted").numbers(int64(r.PromptTokens), int64(d.PromptTokens))
	case !d.FinishReason.Real():
		return nil, refuse(events.CodeFinishReason, "finish_reason does not end an output properly").are("stop|length", string(d.FinishReason))
	case d.CompletionTokens < 0 || d.CompletionTokens > r.MaxTokens:
		return nil, refuse(events.CodeTokenCountMismatch, "completion_tokens is negative or above max_tokens").numbers(int64(r.MaxTokens), int64(d.CompletionTokens))
	}
	return &events.RequestDecoded{
		Worker: m.c.Principal, WorkerEpoch: d.WorkerEpoch, PromptTokens: d.PromptTokens,
		CompletionTokens: d.CompletionTokens, FinishReason: d.FinishReason, OutputDigest: d.OutputDigest,
	}, nil
}

// fail ends a request with an error. The table has no way on from there: a
// worker cannot recompute what it failed to load.
func (m *Machine) fail(d *events.Fail) (events.Data, *refusal) {
	out := &events.RequestFailed{Error: normal(d.Error, events.CodeInternal), From: m.r.current(), Stage: word(d.Stage)}
	if out.Stage == "" {
		out.Stage = string(m.c.Role)
	}
	switch m.c.Role {
	case events.RoleGateway:
		if m.c.Principal != m.r.Gateway {
			return nil, refuse(events.CodeForbidden, "another gateway holds the request").are(m.r.Gateway, m.c.Principal)
		}
	case events.RolePrefill, events.RoleDecode:
		if no := m.mayFail(d.WorkerEpoch); no != nil {
			return nil, no
		}
		out.Worker = m.c.Principal
	}
	return out, nil
}

// mayFail says whether the sending worker works on the request: a worker that
// lost the race for it must not end what the winner goes on with.
func (m *Machine) mayFail(epoch uint64) *refusal {
	if m.guards.NoWorker {
		return nil
	}
	if _, no := m.sender(epoch); no != nil {
		return no
	}
	r, who, state := m.r, m.c.Principal, m.r.current()
	holder := ""
	switch {
	case m.c.Role == events.RolePrefill && state == events.Admitted:
		return nil // whoever took the work
	case m.c.Role == events.RolePrefill && state == events.Prefilled && r.Prefill != nil:
		holder = r.Prefill.Worker
	case m.c.Role == events.RoleDecode && state != events.Admitted && r.Grant != nil:
		holder = r.Grant.Worker
	}
	if who != holder {
		return refuse(events.CodeWrongWorker, "the sender does not hold the request in state "+string(state)).are(holder, who)
	}
	return nil
}

// cancel ends a request that nobody wants any more.
func (m *Machine) cancel(d *events.Cancel) (events.Data, *refusal) {
	if m.c.Role == events.RoleGateway && m.c.Principal != m.r.Gateway {
		return nil, refuse(events.CodeForbidden, "another gateway holds the request").are(m.r.Gateway, m.c.Principal)
	}
	reason := d.Reason
	switch {
	case reason == "":
		reason = events.CodeCancelled
	case !reason.Known():
		return nil, refuse(events.CodeMalformed, "the reason is not a code").are("", string(reason))
	}
	return &events.RequestCancelled{Reason: reason, From: m.r.current()}, nil
}

// released takes pages off the request. It names one holding of one life of one
// worker, never "the pages of the request": the loser of a race must not free
// the winner's. The sender's own registration does not matter, since a restarted
// worker reports on the life before.
func (m *Machine) released(d *events.Release) (events.Data, *refusal) {
	if m.c.Role != events.RoleLifecycle {
		switch {
		case d.Worker != m.c.Principal:
			return nil, refuse(events.CodeWrongWorker, "the pages are another worker's").are(m.c.Principal, d.Worker)
		case d.Role != m.c.Role:
			return nil, refuse(events.CodeWrongWorker, "the pages are held in another role").are(string(m.c.Role), string(d.Role))
		}
	}
	no := refuse(events.CodePageOwner, "the worker holds no pages of the request")
	for _, h := range m.r.Held {
		if h.Worker != d.Worker || h.Role != d.Role {
			continue
		}
		switch {
		case h.Epoch != d.WorkerEpoch:
			no = refuse(events.CodeWorkerEpoch, "the pages are of another life of the worker").epochs(h.Epoch, d.WorkerEpoch)
		case h.Generation != d.Generation:
			no = refuse(events.CodePageGeneration, "the allocation is of another generation").epochs(h.Generation, d.Generation)
		case h.Pages != d.Pages:
			no = refuse(events.CodePageOwner, "the allocation has another number of pages").numbers(int64(h.Pages), int64(d.Pages))
		default:
			return &events.RequestReleased{
				Worker: d.Worker, WorkerEpoch: d.WorkerEpoch, Role: d.Role, Generation: d.Generation,
				Pages: d.Pages, Drained: d.Drained, Scrubbed: d.Scrubbed, Reason: word(d.Reason),
			}, nil
		}
	}
	return nil, no
}
