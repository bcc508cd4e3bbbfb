package events

import (
	"encoding/json"
	"time"
)

// Queries are read-only questions to any replica. Their answers come from a
// read model: they may lag the log, say by how much, and decide nothing.
const (
	QueryGet     = "get"     // one request
	QueryHistory = "history" // one request's events
	QueryList    = "list"    // requests by tenant, state, model and time
	QueryWorkers = "workers" // workers and their pools
	QueryInfo    = "info"    // the service itself
)

// AllQueries lists the names of all queries.
func AllQueries() []string {
	return []string{QueryGet, QueryHistory, QueryList, QueryWorkers, QueryInfo}
}

// Page sizes of [ListQuery].
const (
	DefaultListLimit = 100
	MaxListLimit     = 1000
)

// GetQuery asks for one request; the answer is a [RequestView].
type GetQuery struct {
	RequestID string `json:"request_id" is:"request"`
}

// HistoryQuery asks for one request's events; the answer is a [HistoryView].
type HistoryQuery struct {
	RequestID string `json:"request_id" is:"request"`
}

// ListQuery asks for requests, newest first; the answer is a [ListView]. Empty
// members do not restrict.
type ListQuery struct {
	Tenant string    `json:"tenant,omitempty" is:"name"`
	State  State     `json:"state,omitempty"`
	Model  string    `json:"model,omitempty" is:"model"`
	Since  time.Time `json:"since,omitzero"` // admitted at or after it
	Until  time.Time `json:"until,omitzero"` // admitted before it
	Limit  int       `json:"limit,omitempty" is:"limit"`
	Cursor string    `json:"cursor,omitempty" is:"text"` // next_cursor of the page before
}

// WorkersQuery asks for all workers; the answer is a [WorkersView].
type WorkersQuery struct{}

// InfoQuery asks for the service's own facts; the answer is an [InfoView].
type InfoQuery struct{}

// Holding is one allocation of a request's pages.
type Holding struct {
	Worker     string `json:"worker"`
	Epoch      uint64 `json:"epoch"`
	Role       Role   `json:"role"`
	Generation uint64 `json:"generation"`
	Pages      int    `json:"pages"`
}

// RequestView is a request as its events so far leave it.
type RequestView struct {
	RequestID        string       `json:"request_id"`
	State            State        `json:"state"`
	Tenant           string       `json:"tenant"`
	Model            string       `json:"model"`
	Gateway          string       `json:"gateway,omitempty"`
	PromptTokens     int          `json:"prompt_tokens"`
	MaxTokens        int          `json:"max_tokens"`
	CompletionTokens int          `json:"completion_tokens,omitempty"`
	FinishReason     FinishReason `json:"finish_reason,omitempty"`
	Error            *Error       `json:"error,omitempty"`
	PrefillWorker    string       `json:"prefill_worker,omitempty"`
	DecodeWorker     string       `json:"decode_worker,omitempty"`
	GrantEpoch       int          `json:"grant_epoch,omitempty"`
	AdmittedAt       time.Time    `json:"admitted_at,omitzero"`
	UpdatedAt        time.Time    `json:"updated_at"`
	Deadline         time.Time    `json:"deadline,omitzero"`
	Position         string       `json:"position"` // of the last event
	Events           int          `json:"events"`   // how many there are
	Held             []Holding    `json:"held,omitempty"`
}

// HistoryView holds a request's events, oldest first: their canonical bytes,
// and where each one stands in the log.
type HistoryView struct {
	RequestID string            `json:"request_id"`
	Events    []json.RawMessage `json:"events"`
	Positions []string          `json:"positions"`
	// Earlier is the position of the event before the first one here, which left
	// the live log with those before it: an export of the audit log has them.
	Earlier string `json:"earlier,omitempty"`
}

// ListView is one page of a list. The read model has applied the log up to
// AppliedSeq of LogSeq. Where the log is trimmed, the list is complete from
// FromSeq and Since on.
type ListView struct {
	Requests   []RequestView `json:"requests"`
	NextCursor string        `json:"next_cursor,omitempty"` // empty: this is the last page
	AppliedSeq uint64        `json:"applied_seq"`
	LogSeq     uint64        `json:"log_seq"`
	FromSeq    uint64        `json:"from_seq,omitempty"` // the first sequence that was read; absent: the log's beginning
	Since      time.Time     `json:"since,omitzero"`     // requests that ended, and were admitted before it, are left out; absent: none are
}

// WorkerView is one life of a worker: what it said of itself, and what its
// heartbeats say.
type WorkerView struct {
	WorkerJoined
	Live      bool      `json:"live"`
	LastSeen  time.Time `json:"last_seen,omitzero"`
	FreePages int       `json:"free_pages"`
	HeldPages int       `json:"held_pages"`
	Running   int       `json:"running"`
}

// WorkersView lists the workers.
type WorkersView struct {
	Workers []WorkerView `json:"workers"`
}

// ModelView is what is served under one model's name.
type ModelView struct {
	Model          string          `json:"model"`
	ContextTokens  int             `json:"context_tokens"`
	MaxInputTokens int             `json:"max_input_tokens"`
	Quarantined    bool            `json:"quarantined"`
	PrefillNodes   int             `json:"prefill_nodes"`
	DecodeNodes    int             `json:"decode_nodes"`
	Open           int             `json:"open"`                 // requests that have not ended
	Quarantine     *QuarantineView `json:"quarantine,omitempty"` // while it is quarantined
}

// QuarantineView says who quarantined a model, when and why.
type QuarantineView struct {
	Reason   string    `json:"reason"`
	By       string    `json:"by"`       // principal of the last order
	Since    time.Time `json:"since"`    // the first order that still counts
	Position string    `json:"position"` // of the last order's event
	Running  string    `json:"running"`  // "drain" or "cancel"
	Evidence string    `json:"evidence,omitempty"`
}

// InfoView is what a replica says of itself.
type InfoView struct {
	Partitions int         `json:"partitions"`
	Replica    string      `json:"replica"`
	Version    string      `json:"version"`
	LogSeq     uint64      `json:"log_seq"`
	AppliedSeq uint64      `json:"applied_seq"`
	GrantKeys  []string    `json:"grant_keys"` // Ed25519 public keys, base64
	Models     []ModelView `json:"models"`
}
