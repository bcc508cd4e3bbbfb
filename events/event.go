package events

import (
	"strings"
	"time"
)

// MaxEvent is the longest canonical event in bytes: one log entry of a
// tlog-tiles tree holds at most 65,535.
const MaxEvent = 65_535

// Event is one fact. Its exported fields are the CloudEvents attributes;
// [Append] writes them in one order, and leaves out those that are empty.
type Event struct {
	ID          string // subject + "." + N; where N is 0 any name but that
	Source      string // the writer: "/pdgate/lifecycle/<replica>"
	Type        Type
	Subject     string // request id; worker, model, tenant, read, run of the canary or the log for operations
	Time        time.Time
	N           int      // the event's number in its subject's history, from 1; 0: outside of it
	Command     string   // key of the command that caused it (see Command.Key)
	Principal   string   // "<role>.<name>" that sent the command
	Prev        Position // the subject's event before
	Tenant      string
	TenantSeq   uint64 // dense per tenant and partition, from 1
	TenantPrev  string // hash of the tenant's event before, see Hash
	Traceparent string // W3C trace context of the request
	Data        Data
}

// Data is the payload of an event: one struct a type.
type Data interface{ EventType() Type }

// AdmissionFacts are what an admission was decided on. They are part of the
// event, so that a replay or another policy judges the same facts.
type AdmissionFacts struct {
	ContextTokens   int    `json:"context_tokens"`    // longest prompt plus completion
	MaxInputTokens  int    `json:"max_input_tokens"`  // longest prompt that some live prefill worker accepts
	MaxDecodeTokens int    `json:"max_decode_tokens"` // largest live decode pool
	PrefillNodes    int    `json:"prefill_nodes"`
	DecodeNodes     int    `json:"decode_nodes"`
	QueueDepth      int    `json:"queue_depth"`  // requests of the model that wait for prefill
	QueueLimit      int    `json:"queue_limit"`  // 0: none
	TenantOpen      int    `json:"tenant_open"`  // the tenant's open requests
	TenantLimit     int    `json:"tenant_limit"` // 0: none
	Quarantined     bool   `json:"quarantined"`
	Quarantine      string `json:"quarantine,omitempty"`    // why it is quarantined
	TenantErased    bool   `json:"tenant_erased,omitempty"` // and the request's digests are under no key that was made since
	Policy          string `json:"policy"`                  // digest of the admission policy in force
}

// RequestAdmitted opens a lifecycle.
type RequestAdmitted struct {
	Model        string         `json:"model"`
	Gateway      string         `json:"gateway"` // holds the prompt and the client's connection
	PromptTokens int            `json:"prompt_tokens"`
	MaxTokens    int            `json:"max_tokens"`
	PromptDigest string         `json:"prompt_digest"` // keyed, see Digest
	Stream       bool           `json:"stream"`
	Group        string         `json:"group,omitempty"`      // first request id of one HTTP request with n > 1
	Choice       int            `json:"choice,omitempty"`     // index within the group
	Label        string         `json:"label,omitempty"`      // salted digest of the client's own request id, see SaltedDigest
	User         string         `json:"user,omitempty"`       // salted digest of the client's name for its user
	TenantKey    string         `json:"tenant_key,omitempty"` // fingerprint of the tenant's key that all digests are under; absent: the cluster's secret
	PrefillBy    time.Time      `json:"prefill_by"`
	Deadline     time.Time      `json:"deadline"`
	Facts        AdmissionFacts `json:"facts"`
}

// RequestRejected ends a request before any KV existed.
type RequestRejected struct {
	Error        Error           `json:"error"` // the original one
	Stage        string          `json:"stage"` // "admission" or "engine"
	Model        string          `json:"model"`
	PromptTokens int             `json:"prompt_tokens"`
	MaxTokens    int             `json:"max_tokens"`
	Worker       string          `json:"worker,omitempty"`
	Facts        *AdmissionFacts `json:"facts,omitempty"` // for stage admission
}

// RequestPrefilled says that the prompt's KV is complete in the worker's pages.
type RequestPrefilled struct {
	Worker       string    `json:"worker"`
	WorkerEpoch  uint64    `json:"worker_epoch"`
	PromptTokens int       `json:"prompt_tokens"`
	Pages        []PageRun `json:"pages"`
	PageTokens   int       `json:"page_tokens"`
	Layout       string    `json:"layout"` // see [External] for whose pages they are
	KVBytes      int64     `json:"kv_bytes"`
	KVDigest     string    `json:"kv_digest"`
	Reference    string    `json:"reference,omitempty"` // digest of an engine's opaque reference
	Lease        time.Time `json:"lease"`               // the pages are gone after it
}

// TransferGranted allows one pull of the KV.
type TransferGranted struct {
	GrantEpoch     int       `json:"grant_epoch"` // 1, 2, … per request
	Owner          string    `json:"owner"`       // prefill worker
	OwnerEpoch     uint64    `json:"owner_epoch"`
	Worker         string    `json:"worker"` // decode worker
	WorkerEpoch    uint64    `json:"worker_epoch"`
	WorkerKey      string    `json:"worker_key"` // Ed25519, base64
	OwnerKey       string    `json:"owner_key"`
	OwnerAddress   string    `json:"owner_address"` // of the data plane
	Pages          []PageRun `json:"pages"`         // reserved by the decode worker
	ReservedTokens int       `json:"reserved_tokens"`
	Lease          time.Time `json:"lease"`
}

// RequestTransferred says that the KV arrived whole at the decode worker.
type RequestTransferred struct {
	GrantEpoch  int       `json:"grant_epoch"`
	Worker      string    `json:"worker"`
	WorkerEpoch uint64    `json:"worker_epoch"`
	KVBytes     int64     `json:"kv_bytes"`
	KVDigest    string    `json:"kv_digest"`
	DurationUS  int64     `json:"duration_us"` // of the copy
	DecodeBy    time.Time `json:"decode_by"`
}

// RequestDecoded says that the output is complete.
type RequestDecoded struct {
	Worker           string       `json:"worker"`
	WorkerEpoch      uint64       `json:"worker_epoch"`
	PromptTokens     int          `json:"prompt_tokens"`
	CompletionTokens int          `json:"completion_tokens"`
	FinishReason     FinishReason `json:"finish_reason"`
	OutputDigest     string       `json:"output_digest"` // keyed, see Digest
}

// RequestFailed ends a request that was admitted. The first error wins.
type RequestFailed struct {
	Error  Error  `json:"error"`
	From   State  `json:"from"`
	Stage  string `json:"stage"` // "prefill", "transfer", "decode", "deadline", …
	Worker string `json:"worker,omitempty"`
}

// RequestCancelled ends a request that somebody no longer wants.
type RequestCancelled struct {
	Reason Code  `json:"reason"`
	From   State `json:"from"`
}

// RequestReleased says that a worker's pages of the request are free again. It
// never changes the state, and may follow a final one.
type RequestReleased struct {
	Worker      string `json:"worker"`
	WorkerEpoch uint64 `json:"worker_epoch"`
	Role        Role   `json:"role"`
	Generation  uint64 `json:"generation"` // of the allocation
	Pages       int    `json:"pages"`
	Drained     bool   `json:"drained"`  // no copy was in flight
	Scrubbed    bool   `json:"scrubbed"` // the poison pattern was written
	Reason      string `json:"reason"`   // "done", "lease_over", "worker_lost", "worker_restarted"
}

// CommandDenied is evidence: who asked for what, in which state, and why not.
type CommandDenied struct {
	Command  CommandType `json:"command"`
	State    State       `json:"state" is:"optional"`
	Code     Code        `json:"code"`
	Message  string      `json:"message"` // names and numbers only
	Expected string      `json:"expected,omitempty"`
	Actual   string      `json:"actual,omitempty"`
}

// WorkerJoined registers one life of a worker. Pages of its earlier epochs are
// gone, and grants for them are void.
type WorkerJoined struct {
	Worker         string `json:"worker"`
	Role           Role   `json:"role"`
	Model          string `json:"model"`
	Epoch          uint64 `json:"epoch"`      // microseconds since 1970 at its start
	PublicKey      string `json:"public_key"` // Ed25519, base64
	Address        string `json:"address"`    // data plane: "tcp://host:port" or "unix:///path"
	Engine         string `json:"engine"`
	Version        string `json:"version"`
	ContextTokens  int    `json:"context_tokens"`
	MaxInputTokens int    `json:"max_input_tokens"`
	PoolPages      int    `json:"pool_pages"`
	PageTokens     int    `json:"page_tokens"`
	TokenBytes     int    `json:"token_bytes"` // 0 where the engine keeps its KV to itself
	Layout         string `json:"layout"`
}

// ExternalLayout begins the layout of a worker whose engine keeps the KV to
// itself.
const ExternalLayout = "external:"

// External says whether the layout is that of an engine that keeps the KV to
// itself. What is handed off is then the engine's own reference to it: kv_bytes
// is the length of the reference, kv_digest its sum, and token_bytes is 0. The
// pages that events name are the worker's account of the engine's memory, not
// the engine's blocks, whose numbers nobody outside learns: such a history shows
// the lifecycle, and not which memory was read (coverage: lifecycle-only). Pages
// of an account hold no bytes, so "scrubbed" says nothing about the engine's.
func External(layout string) bool { return strings.HasPrefix(layout, ExternalLayout) }

// PoolTokens is what the worker's whole pool holds.
func (w *WorkerJoined) PoolTokens() int { return w.PoolPages * w.PageTokens }

// WorkerLeft ends one life of a worker.
type WorkerLeft struct {
	Worker string `json:"worker"`
	Epoch  uint64 `json:"epoch"`
	Reason string `json:"reason"` // "shutdown", "lost", "replaced"
}

// ModelQuarantined stops admissions of a model.
type ModelQuarantined struct {
	Model    string `json:"model"`
	Reason   string `json:"reason"`
	Running  string `json:"running,omitempty"`  // what becomes of open requests: "drain" (the same as none) or "cancel"
	Evidence string `json:"evidence,omitempty"` // a canary's: "<request id>@<receipt>", separated by spaces
}

// ModelRestored allows them again.
type ModelRestored struct {
	Model  string `json:"model"`
	Reason string `json:"reason"`
}

// TenantErased says that a tenant's key is given up for destruction: nobody can
// tell again what the digests under it stand for. Every proof stays as it is.
type TenantErased struct {
	Tenant    string `json:"tenant"`
	TenantKey string `json:"tenant_key"`   // fingerprint
	By        string `json:"by,omitempty"` // who asked for it, by the operator's word
}

// CanaryRan is one run of the canary: sentinels of two tenants went through the
// gateway, and the answers were compared with known ones. It holds counts and
// names, no text.
type CanaryRan struct {
	Model       string `json:"model"`
	Verdict     string `json:"verdict"` // "clean", "wrong", "foreign" or "inconclusive"
	Passed      int    `json:"passed"`
	Refused     int    `json:"refused"` // above a limit, and refused before any engine saw it
	Wrong       int    `json:"wrong"`
	Foreign     int    `json:"foreign"`     // answers that held another probe's sentinel
	Unreachable int    `json:"unreachable"` // no verdict: no answer, or too busy
	DurationUS  int64  `json:"duration_us"`
	Lengths     string `json:"lengths,omitempty"`  // of the probes, in tokens: "<prompt>+<max_tokens>", separated by spaces
	Evidence    string `json:"evidence,omitempty"` // of what was wrong or foreign: "<request id>@<receipt>", separated by spaces
}

// TenantNotified says that a tenant was told of an incident: when, by what way, and
// with which words, by their digest. What it says of an acknowledgement is the
// operator's word.
type TenantNotified struct {
	Tenant   string    `json:"tenant"`
	Incident string    `json:"incident"`
	Channel  string    `json:"channel"`        // "email", "post", …
	Content  string    `json:"content_sha256"` // of what was sent, in hex
	SentAt   time.Time `json:"sent_at"`
	AckAt    time.Time `json:"ack_at,omitzero"`
}

// AuditRead says that somebody reads, or read, what the audit log does not show
// to everybody. It is recorded before anything is answered. Filter and range are
// what was asked for; nobody counts what it held.
type AuditRead struct {
	Reader  string    `json:"reader"`            // name of an auditor's reader, or "<role>/<principal>"
	Kind    string    `json:"kind"`              // "export", "receipt" or "entries"
	Via     string    `json:"via"`               // "http" or "nats"
	Reads   int       `json:"reads"`             // that the event stands for: those since the reader's last one
	Tenant  string    `json:"tenant,omitempty"`  // of an export; the tree shows the tenant's chain heads behind the event
	Request string    `json:"request,omitempty"` // of an export
	Model   string    `json:"model,omitempty"`   // of an export
	FromSeq uint64    `json:"from_seq,omitempty"`
	ToSeq   uint64    `json:"to_seq,omitempty"` // 0: up to this event, in an export
	Since   time.Time `json:"since,omitzero"`
	Until   time.Time `json:"until,omitzero"` // exclusive
}

// LogTrimmed says that what is below a sequence leaves the live stream. It is
// durable before anything leaves, so a stream that begins above 1 holds the event
// that says so. It names the signed tree that has what leaves; without an auditor
// there is none.
type LogTrimmed struct {
	BelowSeq      uint64 `json:"below_seq"`           // the first sequence that stays
	Bound         string `json:"bound"`               // what the sequence follows from
	Origin        string `json:"origin,omitempty"`    // name of the signed log
	TreeSize      int64  `json:"tree_size,omitempty"` // of the signed tree
	TreeRoot      string `json:"tree_root,omitempty"` // base64
	CompleteUntil uint64 `json:"complete_until"`      // the tree holds the stream up to it; 0: there is no tree
}

func (*RequestAdmitted) EventType() Type    { return TypeAdmitted }
func (*RequestRejected) EventType() Type    { return TypeRejected }
func (*RequestPrefilled) EventType() Type   { return TypePrefilled }
func (*TransferGranted) EventType() Type    { return TypeTransferGranted }
func (*RequestTransferred) EventType() Type { return TypeTransferred }
func (*RequestDecoded) EventType() Type     { return TypeDecoded }
func (*RequestFailed) EventType() Type      { return TypeFailed }
func (*RequestCancelled) EventType() Type   { return TypeCancelled }
func (*RequestReleased) EventType() Type    { return TypeReleased }
func (*CommandDenied) EventType() Type      { return TypeDenied }
func (*WorkerJoined) EventType() Type       { return TypeWorkerJoined }
func (*WorkerLeft) EventType() Type         { return TypeWorkerLeft }
func (*ModelQuarantined) EventType() Type   { return TypeModelQuarantined }
func (*ModelRestored) EventType() Type      { return TypeModelRestored }
func (*TenantErased) EventType() Type       { return TypeTenantErased }
func (*CanaryRan) EventType() Type          { return TypeCanaryRan }
func (*TenantNotified) EventType() Type     { return TypeTenantNotified }
func (*AuditRead) EventType() Type          { return TypeAuditRead }
func (*LogTrimmed) EventType() Type         { return TypeLogTrimmed }
