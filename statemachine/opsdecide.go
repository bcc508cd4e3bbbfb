package statemachine

import (
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
)

// DecideOps returns the payload of the event to append for an order of
// operations: the one it asks for, or a denial. It never returns nil. o may be
// nil, and is not changed. Of the facts, it looks at Now; a zero one judges no
// clock.
func (m *Machine) DecideOps(o *Ops, c *events.Command, f *Facts) events.Data {
	if o == nil {
		o = &Ops{}
	}
	if c == nil {
		c = &events.Command{}
	}
	if f == nil {
		f = &Facts{}
	}
	out, no := judgeOps(o, c, f.Now)
	if no != nil {
		return &events.CommandDenied{
			Command: c.Type, Code: no.code, Message: no.message,
			Expected: no.expected, Actual: no.actual,
		}
	}
	return out
}

func judgeOps(o *Ops, c *events.Command, now time.Time) (events.Data, *refusal) {
	row := commandRows[c.Type]
	switch {
	case row == nil || !row.ForOps():
		return nil, refuse(events.CodeMalformed, "not a command of operations")
	case !slices.Contains(row.Roles, c.Role):
		return nil, refuse(events.CodeForbidden, "the sender's role may not do this").are(roleList(row.Roles), string(c.Role))
	case emptyPayload(c.Data) || c.Data.CommandType() != c.Type:
		return nil, refuse(events.CodeMalformed, "the payload is missing, or is another command's")
	}
	switch d := c.Data.(type) {
	case *events.Register:
		return register(o, c, d, now)
	case *events.Leave:
		return leave(o, c, d)
	case *events.Quarantine:
		if !events.ValidModel(c.Subject) {
			return nil, refuse(events.CodeMalformed, "the subject is not a model's name")
		}
		return &events.ModelQuarantined{Model: c.Subject, Reason: bounded(d.Reason), Running: d.Running, Evidence: d.Evidence}, nil
	case *events.Restore:
		if _, ok := o.Quarantined[c.Subject]; !ok {
			return nil, refuse(events.CodeIllegalState, "the model is not quarantined").are("quarantined", "open")
		}
		return &events.ModelRestored{Model: c.Subject, Reason: bounded(d.Reason)}, nil
	case *events.Erase:
		switch {
		case !events.ValidName(c.Subject):
			return nil, refuse(events.CodeMalformed, "the subject is not a tenant's name")
		case slices.Contains(o.Erased[c.Subject], d.TenantKey):
			return nil, refuse(events.CodeIllegalState, "the key is erased already")
		}
		return &events.TenantErased{Tenant: c.Subject, TenantKey: d.TenantKey, By: d.By}, nil
	case *events.Canary:
		return &events.CanaryRan{
			Model: d.Model, Verdict: d.Verdict, Passed: d.Passed, Refused: d.Refused, Wrong: d.Wrong, Foreign: d.Foreign,
			Unreachable: d.Unreachable, DurationUS: d.DurationUS, Lengths: d.Lengths, Evidence: d.Evidence,
		}, nil
	case *events.Notify:
		if !events.ValidName(c.Subject) || !sha256Hex(d.Content) || d.SentAt.IsZero() {
			return nil, refuse(events.CodeMalformed, "want a tenant's name, the SHA-256 of what was sent in hex, and when")
		}
		return &events.TenantNotified{Tenant: c.Subject, Incident: d.Incident, Channel: d.Channel, Content: d.Content, SentAt: events.Micros(d.SentAt), AckAt: d.AckAt}, nil
	case *events.Audit:
		return &events.AuditRead{
			Reader: d.Reader, Kind: d.Kind, Via: d.Via, Reads: d.Reads, Tenant: d.Tenant, Request: d.Request,
			Model: d.Model, FromSeq: d.FromSeq, ToSeq: d.ToSeq, Since: d.Since, Until: d.Until,
		}, nil
	case *events.Trim:
		return trim(o, c, d)
	}
	return nil, refuse(events.CodeMalformed, "the payload is not known to this build")
}

// trim lets the beginning of the log go. What the log itself shows of a mistake is
// judged here; the bounds that memory, disk and time set are the sender's.
func trim(o *Ops, c *events.Command, d *events.Trim) (events.Data, *refusal) {
	t := &events.LogTrimmed{BelowSeq: d.BelowSeq, Bound: d.Bound, Origin: d.Origin, TreeSize: d.TreeSize, TreeRoot: d.TreeRoot, CompleteUntil: d.CompleteUntil}
	if c.Subject != events.LogStream {
		return nil, refuse(events.CodeMalformed, "the subject is not the log").are(events.LogStream, c.Subject)
	}
	if what := untrimmable(o, t); what != "" {
		return nil, refuse(events.CodeIllegalState, what)
	}
	return t, nil
}

// untrimmable says what the log shows against a trim.
func untrimmable(o *Ops, t *events.LogTrimmed) string {
	last := o.Trimmed
	switch {
	case last != nil && t.BelowSeq <= last.BelowSeq:
		return "the log is trimmed as far already"
	case t.BelowSeq < 2:
		return "nothing is below the sequence"
	case (t.TreeSize == 0) != (t.CompleteUntil == 0) || t.TreeSize < 0:
		return "a signed tree has both a size and an end"
	case t.TreeSize > 0 && t.BelowSeq > t.CompleteUntil+1:
		return "the signed tree does not hold what would leave"
	case last != nil && last.Origin != "" && t.Origin != "" && t.Origin != last.Origin:
		return "the signed tree is of another log than the one before"
	}
	return ""
}

// sha256Hex says whether s is a SHA-256 in lower-case hex.
func sha256Hex(s string) bool { return len(s) == 64 && strings.Trim(s, "0123456789abcdef") == "" }

// bounded cuts a person's words to what an event carries.
func bounded(s string) string { return normal(events.Error{Message: s}, events.CodeInternal).Message }

// maxEpochAhead is how far ahead of the clock an epoch may lie.
const maxEpochAhead = time.Minute

// register starts one life of a worker. Its epoch is above that of every life
// before, also of those that ended: pages and grants of an old epoch must never
// look current again. It is a time, and not ahead of the clock: one that was
// would shut out every later life of the worker until the clock has passed it,
// for ever if it was chosen for that.
func register(o *Ops, c *events.Command, d *events.Register, now time.Time) (events.Data, *refusal) {
	w := &events.WorkerJoined{
		Worker: c.Subject, Role: c.Role, Model: d.Model, Epoch: d.Epoch, PublicKey: d.PublicKey,
		Address: d.Address, Engine: d.Engine, Version: d.Version, ContextTokens: d.ContextTokens,
		MaxInputTokens: d.MaxInputTokens, PoolPages: d.PoolPages, PageTokens: d.PageTokens,
		TokenBytes: d.TokenBytes, Layout: d.Layout,
	}
	last := o.Subjects[c.Subject].Epoch
	present := o.Workers[c.Subject]
	switch {
	case !events.ValidName(c.Subject):
		return nil, refuse(events.CodeMalformed, "the subject is not a worker's name")
	case c.Subject != c.Principal:
		return nil, refuse(events.CodeForbidden, "a worker registers itself only").are(c.Principal, c.Subject)
	case present != nil && present.Role != c.Role:
		return nil, refuse(events.CodeWrongWorker, "the name is taken by a worker of another role").are(string(present.Role), string(c.Role))
	case d.Epoch <= last:
		return nil, refuse(events.CodeWorkerEpoch, "the epoch is not above the last one").epochs(last+1, d.Epoch)
	case !now.IsZero() && d.Epoch > latestEpoch(now):
		return nil, refuse(events.CodeWorkerEpoch, "the epoch is a time ahead of the clock: set the worker's clock").epochs(latestEpoch(now), d.Epoch)
	}
	if what := malformed(w); what != "" {
		return nil, refuse(events.CodeMalformed, what)
	}
	return w, nil
}

func latestEpoch(now time.Time) uint64 { return uint64(max(now.Add(maxEpochAhead).UnixMicro(), 0)) }

// malformed says what is wrong with a registration's content.
func malformed(w *events.WorkerJoined) string {
	const most = 1 << 40 // of tokens and bytes: products stay far from overflow
	tokens := mul(int64(w.PoolPages), int64(w.PageTokens))
	switch {
	case !events.ValidModel(w.Model):
		return "model is not a name"
	case w.ContextTokens <= 0:
		return "context_tokens is 1 or more"
	case w.MaxInputTokens < 0:
		return "max_input_tokens is 0 or more"
	case w.PoolPages <= 0 || w.PageTokens <= 0 || w.TokenBytes < 0:
		return "pool_pages and page_tokens are 1 or more, and token_bytes is 0 or more"
	case (w.TokenBytes == 0) != events.External(w.Layout):
		return "token_bytes is 0 where layout begins with " + events.ExternalLayout + ", and only there"
	case int64(w.ContextTokens) > most || tokens > most || mul(tokens, int64(w.TokenBytes)) > most<<10:
		return "the pool is too large to be one"
	case w.Layout == "" || len(w.Layout) > 256:
		return "layout is 1 to 256 bytes"
	case !ed25519Key(w.PublicKey):
		return "public_key is not an Ed25519 key in base64"
	case !dataPlane(w.Address):
		return "address is neither tcp://host:port nor unix:///path"
	}
	return ""
}

func ed25519Key(s string) bool {
	b, err := base64.StdEncoding.DecodeString(s)
	return err == nil && len(b) == 32
}

// dataPlane says whether s is an address of the data plane. Addresses come from
// authenticated registrations only; no client ever names one.
func dataPlane(s string) bool {
	if path, ok := strings.CutPrefix(s, "unix://"); ok {
		return strings.HasPrefix(path, "/") && len(path) > 1 && len(path) < 256
	}
	host, ok := strings.CutPrefix(s, "tcp://")
	i := strings.LastIndexByte(host, ':')
	if !ok || i <= 0 || len(host) > 256 || strings.ContainsAny(host, "/@ \t\r\n") {
		return false
	}
	port := host[i+1:]
	return port != "" && len(port) <= 5 && strings.Trim(port, "0123456789") == ""
}

// leave ends one life of a worker: by its own word, or because the service lost
// sight of it.
func leave(o *Ops, c *events.Command, d *events.Leave) (events.Data, *refusal) {
	w := o.Workers[c.Subject]
	reason := word(d.Reason)
	if reason == "" {
		reason = "shutdown"
		if c.Role == events.RoleLifecycle {
			reason = "lost"
		}
	}
	switch {
	case c.Role != events.RoleLifecycle && c.Subject != c.Principal:
		return nil, refuse(events.CodeForbidden, "a worker takes leave for itself only").are(c.Principal, c.Subject)
	case w == nil:
		return nil, refuse(events.CodeWorkerUnknown, "the worker is not registered")
	case c.Role != events.RoleLifecycle && w.Role != c.Role:
		return nil, refuse(events.CodeWrongWorker, "the worker is registered in another role").are(string(w.Role), string(c.Role))
	case w.Epoch != d.Epoch:
		return nil, refuse(events.CodeWorkerEpoch, "the worker lives under another epoch").epochs(w.Epoch, d.Epoch)
	}
	return &events.WorkerLeft{Worker: c.Subject, Epoch: d.Epoch, Reason: reason}, nil
}
