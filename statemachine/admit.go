package statemachine

import (
	"strconv"
	"time"

	"github.com/pdgate/pdgate/events"
)

// admit lets a request in, or rejects it with the error that its client gets.
func (m *Machine) admit(a *events.Admit) (events.Data, *refusal) {
	f, now := m.f, m.f.Now
	born, err := events.RequestTime(m.c.Subject)
	switch {
	case err != nil:
		return nil, refuse(events.CodeMalformed, "the request id is not a UUIDv7")
	case born.Before(now.Add(-m.t.Fresh)):
		return nil, refuse(events.CodeStaleRequestID, "the request id is too old: the request may have ended and been forgotten").times(now.Add(-m.t.Fresh), born)
	case born.After(now.Add(m.t.Skew)):
		return nil, refuse(events.CodeStaleRequestID, "the request id is ahead of the clock").times(now.Add(m.t.Skew), born)
	case !events.ValidName(a.Tenant) || !events.ValidModel(a.Model):
		return nil, refuse(events.CodeMalformed, "the tenant or the model is not a name")
	case a.TimeoutMS < 0 || a.TenantLimit < 0 || a.Choice < 0:
		return nil, refuse(events.CodeMalformed, "timeout_ms, tenant_limit and choice are 0 or more")
	}
	facts := f.Admission
	// A key that was erased is not compared: the answer to it is that it was.
	if !facts.TenantErased && a.TenantKey != f.TenantKey {
		return nil, refuse(events.CodeTenantKey, otherKey(a.Tenant, a.TenantKey, f.TenantKey)).are(orCluster(f.TenantKey), orCluster(a.TenantKey))
	}
	if facts.TenantLimit <= 0 || a.TenantLimit > 0 && a.TenantLimit < facts.TenantLimit {
		facts.TenantLimit = a.TenantLimit
	}
	if e := judgeAdmission(f.Known, &facts, a.PromptTokens, a.MaxTokens, m.guards); e != nil {
		return &events.RequestRejected{
			Error: *e, Stage: StageAdmission, Model: a.Model,
			PromptTokens: max(a.PromptTokens, 0), MaxTokens: max(a.MaxTokens, 0), Facts: &facts,
		}, nil
	}
	life := m.t.Request
	if a.TimeoutMS > 0 && a.TimeoutMS < life.Milliseconds() {
		life = time.Duration(a.TimeoutMS) * time.Millisecond
	}
	deadline := events.Micros(now.Add(life))
	return &events.RequestAdmitted{
		Model: a.Model, Gateway: m.c.Principal, PromptTokens: a.PromptTokens, MaxTokens: a.MaxTokens,
		PromptDigest: a.PromptDigest, Stream: a.Stream, Group: a.Group, Choice: a.Choice, Label: a.Label, User: a.User, TenantKey: a.TenantKey,
		PrefillBy: earlier(now.Add(m.t.Prefill), deadline), Deadline: deadline, Facts: facts,
	}, nil
}

// otherKey says which side lacks what: two sides that key digests differently could
// not check each other's.
func otherKey(tenant, gateway, own string) string {
	file := "; copy the tenant's key file, keys/tenants/" + tenant + ".key, to "
	switch {
	case own == "":
		return "tenant " + tenant + ": the gateway digests under key " + gateway + ", this replica has none" + file + "its machine"
	case gateway == "":
		return "tenant " + tenant + ": the gateway digests under the cluster's secret, this replica has key " + own + file + "the gateway's machine"
	}
	return "tenant " + tenant + ": the gateway digests under key " + gateway + ", this replica has key " + own + file + "whichever has the wrong one"
}

func orCluster(fingerprint string) string {
	if fingerprint == "" {
		return "the cluster's secret"
	}
	return fingerprint
}

// Stages of a rejection.
const (
	StageAdmission = "admission"
	StageEngine    = "engine"
)

// JudgeAdmission is the admission policy over the facts of a model that somebody
// serves: nil, or the error that the client gets.
func JudgeAdmission(f *events.AdmissionFacts, prompt, maxTokens int) *events.Error {
	return judgeAdmission(true, f, prompt, maxTokens, Guards{})
}

// judgeAdmission is the admission policy over recorded facts: nil, or the error
// that the client gets. The checker judges the same facts again.
func judgeAdmission(known bool, f *events.AdmissionFacts, prompt, maxTokens int, g Guards) *events.Error {
	total := add(int64(prompt), int64(maxTokens))
	switch {
	case prompt <= 0 || maxTokens < 0:
		return events.NewError(events.CodeInvalidRequest, "prompt_tokens is 1 or more and max_tokens 0 or more")
	case f.TenantErased:
		return events.NewError(events.CodeTenantErased, "the tenant was erased; an operator may make it a new key")
	case !known:
		return events.NewError(events.CodeModelNotFound, "no worker serves this model")
	case f.Quarantined:
		if f.Quarantine != "" {
			return events.NewError(events.CodeModelQuarantined, "the model is quarantined: "+f.Quarantine)
		}
		return events.NewError(events.CodeModelQuarantined, "the model is quarantined")
	case f.PrefillNodes <= 0 || f.DecodeNodes <= 0:
		return events.NewError(events.CodeNoWorker, "live workers: "+strconv.Itoa(f.PrefillNodes)+" prefill, "+strconv.Itoa(f.DecodeNodes)+" decode")
	}
	if !g.NoAdmissionLimit {
		switch {
		case total > int64(f.ContextTokens):
			return tooLong("prompt plus max_tokens, against the context window", total, f.ContextTokens)
		case prompt > f.MaxInputTokens:
			return tooLong("prompt, against the longest input of a live prefill worker", int64(prompt), f.MaxInputTokens)
		case total > int64(f.MaxDecodeTokens):
			return tooLong("prompt plus max_tokens, against the largest live decode pool", total, f.MaxDecodeTokens)
		}
	}
	switch {
	case f.QueueLimit > 0 && f.QueueDepth >= f.QueueLimit:
		return events.NewError(events.CodeOverloaded, "requests waiting: "+strconv.Itoa(f.QueueDepth)+", the limit is "+strconv.Itoa(f.QueueLimit))
	case f.TenantLimit > 0 && f.TenantOpen >= f.TenantLimit:
		return events.NewError(events.CodeTenantConcurrency, "open requests: "+strconv.Itoa(f.TenantOpen)+", the limit is "+strconv.Itoa(f.TenantLimit))
	}
	return nil
}

func tooLong(what string, count int64, limit int) *events.Error {
	return events.ContextExceeded(what, int(min(count, int64(maxInt))), limit)
}

const maxInt = int(^uint(0) >> 1)

// earlier is the earlier of two times, as the wire carries it.
func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		a = b
	}
	return events.Micros(a)
}
