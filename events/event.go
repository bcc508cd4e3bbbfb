package events

import "time"

// MaxEvent is the longest canonical event in bytes: one log entry of a
// tlog-tiles tree holds at most 65,535.
const MaxEvent = 65_535

// Event is one fact. Its exported fields are the CloudEvents attributes;
// [Append] writes them in one order, and leaves out those that are empty.
type Event struct {
	ID          string // subject + "." + N; where N is 0 any name but that
	Source      string // the writer: "/pdgate/lifecycle/<replica>"
	Type        Type
	Subject     string // request id; worker, model or read for operations
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
	Policy          string `json:"policy"` // digest of the admission policy in force
}

// RequestAdmitted opens a lifecycle.
type RequestAdmitted struct {
	Model        string         `json:"model"`
	Gateway      string         `json:"gateway"` // holds the prompt and the client's connection
	PromptTokens int            `json:"prompt_tokens"`
	MaxTokens    int            `json:"max_tokens"`
	PromptDigest string         `json:"prompt_digest"` // keyed, see Digest
	Stream       bool           `json:"stream"`
	Group        string         `json:"group,omitempty"`  // first request id of one HTTP request with n > 1
	Choice       int            `json:"choice,omitempty"` // index within the group
	Label        string         `json:"label,omitempty"`  // keyed digest of the client's own request id
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
	Layout       string    `json:"layout"`
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
	TokenBytes     int    `json:"token_bytes"`
	Layout         string `json:"layout"`
}

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
	Model  string `json:"model"`
	Reason string `json:"reason"`
}

// ModelRestored allows them again.
type ModelRestored struct {
	Model  string `json:"model"`
	Reason string `json:"reason"`
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
func (*TenantNotified) EventType() Type     { return TypeTenantNotified }
func (*AuditRead) EventType() Type          { return TypeAuditRead }
