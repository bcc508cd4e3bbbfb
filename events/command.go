package events

import (
	"crypto/sha256"
	"encoding/hex"
	"time"
)

// CommandType is an order to the lifecycle service. It is a token of the
// subject that carries it.
type CommandType string

const (
	CmdAdmit       CommandType = "admit"       // gateway
	CmdReject      CommandType = "reject"      // prefill: the engine refused, no KV exists
	CmdPrefilled   CommandType = "prefilled"   // prefill
	CmdGrant       CommandType = "grant"       // decode
	CmdTransferred CommandType = "transferred" // decode
	CmdDecoded     CommandType = "decoded"     // decode
	CmdFail        CommandType = "fail"        // prefill, decode, lifecycle
	CmdCancel      CommandType = "cancel"      // gateway, operator
	CmdReleased    CommandType = "released"    // prefill, decode, lifecycle

	CmdRegister   CommandType = "register"   // prefill, decode: on pdgate.log.ops
	CmdLeave      CommandType = "leave"      // prefill, decode, lifecycle
	CmdQuarantine CommandType = "quarantine" // operator, canary
	CmdRestore    CommandType = "restore"    // operator
	CmdErase      CommandType = "erase"      // operator
	CmdCanary     CommandType = "canary"     // canary
	CmdNotify     CommandType = "notify"     // operator
	CmdAudit      CommandType = "audit"      // auditor
	CmdTrim       CommandType = "trim"       // lifecycle
)

// Command is an order as it arrives. Role and Principal come from the subject,
// never from the payload: the NATS user's permissions pin the subject.
type Command struct {
	Type        CommandType
	Subject     string // request id, worker, model, tenant, id of a read or of a canary's run, or the log
	Role        Role
	Principal   string
	Traceparent string
	Data        CommandData
	Raw         []byte // the payload's data member, canonical; set by Decode and Append
}

// CommandData is the payload of a command: one struct a type.
type CommandData interface{ CommandType() CommandType }

// Key identifies a command by content: the same principal asking the same thing
// of the same subject again gets the recorded answer, whatever the transport
// did. It is half of a SHA-256, in hex.
func (c *Command) Key() string {
	b := make([]byte, 0, 1024) // on the stack; longer commands go to the heap
	for _, s := range [...]string{string(c.Type), string(c.Role), c.Principal, c.Subject} {
		b = append(append(b, s...), 0)
	}
	h := sha256.Sum256(append(b, c.Raw...))
	return string(hex.AppendEncode(b[:0], h[:16]))
}

// From is the principal as events name it: "<role>.<name>".
func (c *Command) From() string { return string(c.Role) + "." + c.Principal }

// Admit asks for a lifecycle.
type Admit struct {
	Tenant       string `json:"tenant" is:"name"`
	TenantLimit  int    `json:"tenant_limit,omitempty"` // most open requests; 0: no limit
	Model        string `json:"model" is:"model"`
	PromptTokens int    `json:"prompt_tokens" is:"positive"`
	MaxTokens    int    `json:"max_tokens" is:"positive"`
	PromptDigest string `json:"prompt_digest" is:"digest"`
	Stream       bool   `json:"stream,omitempty"`
	Group        string `json:"group,omitempty" is:"request"`
	Choice       int    `json:"choice,omitempty"`
	Label        string `json:"label,omitempty" is:"personal"`
	User         string `json:"user,omitempty" is:"personal"`
	TenantKey    string `json:"tenant_key,omitempty" is:"keyname"` // what the digests are under; "": the cluster's secret
	TimeoutMS    int64  `json:"timeout_ms,omitempty"`              // 0: the service's own
}

// Reject reports that the engine refused the prompt before any KV existed.
type Reject struct {
	WorkerEpoch uint64 `json:"worker_epoch" is:"positive"`
	Error       Error  `json:"error"`
}

// Prefill reports finished KV (command "prefilled").
type Prefill struct {
	WorkerEpoch  uint64    `json:"worker_epoch" is:"positive"`
	Tenant       string    `json:"tenant" is:"name"` // whose pages they are
	PromptTokens int       `json:"prompt_tokens"`
	Pages        []PageRun `json:"pages" is:"runs"`
	PageTokens   int       `json:"page_tokens" is:"positive"`
	Layout       string    `json:"layout" is:"text"`
	KVBytes      int64     `json:"kv_bytes"`
	KVDigest     string    `json:"kv_digest" is:"kvdigest"`
	Reference    string    `json:"reference,omitempty" is:"digest"`
	LeaseMS      int64     `json:"lease_ms" is:"positive"`
}

// GrantTransfer asks for the right to pull (command "grant").
type GrantTransfer struct {
	WorkerEpoch    uint64    `json:"worker_epoch" is:"positive"`
	GrantEpoch     int       `json:"grant_epoch" is:"positive"` // last + 1
	Pages          []PageRun `json:"pages" is:"runs"`           // reserved for it
	ReservedTokens int       `json:"reserved_tokens" is:"positive"`
	Layout         string    `json:"layout" is:"text"`
}

// Transfer reports that the KV arrived (command "transferred").
type Transfer struct {
	WorkerEpoch uint64 `json:"worker_epoch" is:"positive"`
	GrantEpoch  int    `json:"grant_epoch" is:"positive"`
	KVRequest   string `json:"kv_request" is:"request"` // whose KV the owner said it sent
	KVBytes     int64  `json:"kv_bytes"`
	KVDigest    string `json:"kv_digest" is:"kvdigest"` // summed over what arrived
	Reference   string `json:"reference,omitempty" is:"digest"`
	DurationUS  int64  `json:"duration_us"`
}

// DecodeDone reports a complete output (command "decoded").
type DecodeDone struct {
	WorkerEpoch      uint64       `json:"worker_epoch" is:"positive"`
	PromptTokens     int          `json:"prompt_tokens"`
	CompletionTokens int          `json:"completion_tokens"`
	FinishReason     FinishReason `json:"finish_reason"`
	OutputDigest     string       `json:"output_digest" is:"digest"`
}

// Fail reports an error that ends the request.
type Fail struct {
	WorkerEpoch uint64 `json:"worker_epoch,omitempty"`
	Stage       string `json:"stage" is:"text"`
	Error       Error  `json:"error"`
}

// Cancel ends a request that is no longer wanted.
type Cancel struct {
	Reason Code `json:"reason"`
}

// Release reports that pages are free again (command "released").
type Release struct {
	Worker      string `json:"worker" is:"name"` // the sender, unless the sender is the lifecycle service
	WorkerEpoch uint64 `json:"worker_epoch" is:"positive"`
	Role        Role   `json:"role" is:"worker"`
	Generation  uint64 `json:"generation" is:"positive"`
	Pages       int    `json:"pages"`
	Drained     bool   `json:"drained"`
	Scrubbed    bool   `json:"scrubbed"`
	Reason      string `json:"reason" is:"text"`
}

// Register announces one life of a worker; the fields are those of the event.
type Register struct {
	Model          string `json:"model" is:"model"`
	Epoch          uint64 `json:"epoch" is:"positive"`
	PublicKey      string `json:"public_key" is:"key"`
	Address        string `json:"address" is:"address"`
	Engine         string `json:"engine" is:"name"`
	Version        string `json:"version" is:"text"`
	ContextTokens  int    `json:"context_tokens" is:"positive"`
	MaxInputTokens int    `json:"max_input_tokens"`
	PoolPages      int    `json:"pool_pages" is:"positive"`
	PageTokens     int    `json:"page_tokens" is:"positive"`
	TokenBytes     int    `json:"token_bytes"` // 0 where the engine keeps its KV to itself, see [External]
	Layout         string `json:"layout" is:"text"`
}

// Leave ends one life of a worker.
type Leave struct {
	Epoch  uint64 `json:"epoch" is:"positive"`
	Reason string `json:"reason" is:"text"`
}

// Quarantine stops admissions of a model.
type Quarantine struct {
	Reason   string `json:"reason" is:"text"` // clients of the model read it
	Running  string `json:"running,omitempty" is:"running"`
	Evidence string `json:"evidence,omitempty" is:"evidence"`
}

// Restore allows them again.
type Restore struct {
	Reason string `json:"reason" is:"text"`
}

// Erase gives up a tenant's key (command "erase"); the subject is the tenant.
type Erase struct {
	TenantKey string `json:"tenant_key" is:"keyname"`
	By        string `json:"by,omitempty" is:"name"`
}

// Canary records a run of the canary (command "canary"); the fields are those of the
// event. Its subject is an id of the run's own, a UUIDv7.
type Canary struct {
	Model       string `json:"model" is:"model"`
	Verdict     string `json:"verdict" is:"verdict"`
	Passed      int    `json:"passed"`
	Refused     int    `json:"refused"`
	Wrong       int    `json:"wrong"`
	Foreign     int    `json:"foreign"`
	Unreachable int    `json:"unreachable"`
	DurationUS  int64  `json:"duration_us"`
	Lengths     string `json:"lengths,omitempty" is:"lengths"`
	Evidence    string `json:"evidence,omitempty" is:"evidence"`
}

// Notify records that a tenant was told of an incident. Its subject is the tenant.
type Notify struct {
	Incident string    `json:"incident" is:"name"`
	Channel  string    `json:"channel" is:"name"`
	Content  string    `json:"content_sha256" is:"text"` // 64 hex digits
	SentAt   time.Time `json:"sent_at"`
	AckAt    time.Time `json:"ack_at,omitzero"`
}

// Audit records a read of the audit log (command "audit"); the fields are those of
// the event. Its subject is an id of the read's own, a UUIDv7: two reads are two
// commands, however alike they are.
type Audit struct {
	Reader  string    `json:"reader" is:"name"`
	Kind    string    `json:"kind" is:"read"`
	Via     string    `json:"via" is:"via"`
	Reads   int       `json:"reads" is:"positive"`
	Tenant  string    `json:"tenant,omitempty" is:"name"`
	Request string    `json:"request,omitempty" is:"request"`
	Model   string    `json:"model,omitempty" is:"model"`
	FromSeq uint64    `json:"from_seq,omitempty"`
	ToSeq   uint64    `json:"to_seq,omitempty"`
	Since   time.Time `json:"since,omitzero"`
	Until   time.Time `json:"until,omitzero"`
}

// Trim lets what is below a sequence leave the live stream (command "trim"); the
// fields are those of the event. Its subject is [LogStream].
type Trim struct {
	BelowSeq      uint64 `json:"below_seq" is:"positive"`
	Bound         string `json:"bound" is:"text"`
	Origin        string `json:"origin,omitempty" is:"text"`
	TreeSize      int64  `json:"tree_size,omitempty"`
	TreeRoot      string `json:"tree_root,omitempty" is:"text"`
	CompleteUntil uint64 `json:"complete_until"`
}

func (*Admit) CommandType() CommandType         { return CmdAdmit }
func (*Reject) CommandType() CommandType        { return CmdReject }
func (*Prefill) CommandType() CommandType       { return CmdPrefilled }
func (*GrantTransfer) CommandType() CommandType { return CmdGrant }
func (*Transfer) CommandType() CommandType      { return CmdTransferred }
func (*DecodeDone) CommandType() CommandType    { return CmdDecoded }
func (*Fail) CommandType() CommandType          { return CmdFail }
func (*Cancel) CommandType() CommandType        { return CmdCancel }
func (*Release) CommandType() CommandType       { return CmdReleased }
func (*Register) CommandType() CommandType      { return CmdRegister }
func (*Leave) CommandType() CommandType         { return CmdLeave }
func (*Quarantine) CommandType() CommandType    { return CmdQuarantine }
func (*Restore) CommandType() CommandType       { return CmdRestore }
func (*Erase) CommandType() CommandType         { return CmdErase }
func (*Canary) CommandType() CommandType        { return CmdCanary }
func (*Notify) CommandType() CommandType        { return CmdNotify }
func (*Audit) CommandType() CommandType         { return CmdAudit }
func (*Trim) CommandType() CommandType          { return CmdTrim }

// Heartbeat is a sign of life on core NATS. It is no command: it is not
// recorded, routes and admissions read it, and nothing is decided from it alone.
type Heartbeat struct {
	Epoch     uint64    `json:"epoch" is:"positive"`
	Model     string    `json:"model" is:"model"`
	FreePages int       `json:"free_pages"`
	HeldPages int       `json:"held_pages"`
	Running   int       `json:"running"`
	SentAt    time.Time `json:"sent_at"`
}

// Denial says why a command was not carried out.
type Denial struct {
	Code    Code   `json:"code"`
	Message string `json:"message"`
	State   State  `json:"state" is:"optional"` // what the command met
}

// Error implements error.
func (d *Denial) Error() string { return string(d.Code) + ": " + d.Message }

// Answer is the reply to a command. It exists only for what is in the log.
type Answer struct {
	Subject  string       `json:"request_id"`
	State    State        `json:"state" is:"optional"` // after the event
	Type     Type         `json:"event"`               // what was recorded
	ID       string       `json:"event_id"`
	Position string       `json:"position"`        // "seq.line"
	Hash     string       `json:"hash"`            // of the event's bytes, see Hash
	Error    *Error       `json:"error,omitempty"` // a rejection's or failure's original error
	Denied   *Denial      `json:"denied,omitempty"`
	Grant    *SignedGrant `json:"grant,omitempty"`
	KVKey    string       `json:"kv_key,omitempty"` // with a grant: hex key of the KV digest
}

// Err is the denial as an error, nil if the command was carried out.
func (a *Answer) Err() error {
	if a.Denied == nil {
		return nil
	}
	return a.Denied
}
