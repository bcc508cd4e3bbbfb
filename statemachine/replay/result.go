package replay

import (
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// ResultFormat is the version of the result's JSON form.
const ResultFormat = "pdgate-replay/1"

// Coverage says how much of a claim an input can carry.
type Coverage string

// Coverages.
const (
	CoveragePages Coverage = "pages"          // the input names pages and their generations
	LifecycleOnly Coverage = "lifecycle-only" // it does not: nothing is claimed about pages
)

// Result is what a replay found. The text and the JSON are printed from it.
type Result struct {
	Format    string   `json:"format"`
	Inputs    []*Input `json:"inputs"`
	Range     Range    `json:"range"`
	Coverage  Coverage `json:"coverage"`
	Integrity []string `json:"integrity"` // what vouches for the inputs, and what does not
	Configs   []Config `json:"configs"`   // in force, in order of their first use
	Verdict   Verdict  `json:"verdict"`
	Groups    []*Group `json:"violations"`
	Exposure  Exposure `json:"exposure"`
	WhatIf    *WhatIf  `json:"what_if,omitempty"`
	At        *State   `json:"at,omitempty"`
	Limits    []string `json:"limits"`

	Notifications []Notification `json:"notifications,omitempty"` // to tenants, as the log holds them
}

// Verdict is the one line.
type Verdict struct {
	Exit Severity `json:"exit"`
	Word string   `json:"word"`
	Line string   `json:"line"`
}

// Input is one input as it was read.
type Input struct {
	Name        string    `json:"name"`
	Format      Format    `json:"format"`
	Compression string    `json:"compression,omitempty"`
	SHA256      string    `json:"sha256,omitempty"`     // of the bytes as they came
	Digest      string    `json:"digest,omitempty"`     // of a trace, by its own end
	Checkpoint  string    `json:"checkpoint,omitempty"` // of a bundle: what it proves to be part of
	Bytes       int64     `json:"bytes"`
	Events      int64     `json:"events"`
	Problems    []Problem `json:"problems,omitempty"`
	More        int64     `json:"problems_more,omitempty"`
	Notes       []string  `json:"notes,omitempty"`
}

// Problem is a place of an input that could not be read.
type Problem struct {
	Line     int64    `json:"line,omitempty"`
	Offset   int64    `json:"offset"`
	Want     string   `json:"want"`
	Severity Severity `json:"severity"`
}

// Range is what the inputs span.
type Range struct {
	Events    int64            `json:"events"`
	Requests  int64            `json:"requests"`
	Open      int64            `json:"open"`
	Unjudged  int64            `json:"unjudged,omitempty"` // events of requests that began before the input
	First     time.Time        `json:"first,omitzero"`
	Last      time.Time        `json:"last,omitzero"`
	FirstSeq  uint64           `json:"first_seq,omitempty"`
	LastSeq   uint64           `json:"last_seq,omitempty"`
	Types     map[string]int64 `json:"types"` // events by type and version
	Gaps      int64            `json:"gaps"`
	SkewUS    int64            `json:"clock_skew_us"` // largest step back of a history's time
	SkewBound int64            `json:"clock_skew_bound_us"`
}

// Config is one configuration that was in force.
type Config struct {
	Policy         string         `json:"policy,omitempty"`
	ContextTokens  int            `json:"context_tokens,omitempty"`
	MaxInputTokens int            `json:"max_input_tokens,omitempty"`
	MaxDecode      int            `json:"max_decode_tokens,omitempty"`
	First          time.Time      `json:"first"`
	Last           time.Time      `json:"last"`
	Requests       int64          `json:"requests"`
	Affected       int64          `json:"affected"` // responses of them
	Workers        []ConfigWorker `json:"workers,omitempty"`
	key            configKey
}

// ConfigWorker is a worker as it was registered.
type ConfigWorker struct {
	Worker         string      `json:"worker"`
	Role           events.Role `json:"role"`
	Engine         string      `json:"engine"`
	Version        string      `json:"version"`
	MaxInputTokens int         `json:"max_input_tokens"`
	PoolTokens     int         `json:"pool_tokens"`
	PageTokens     int         `json:"page_tokens"`
	Layout         string      `json:"layout"`
}

// Group is violations of one kind under one version and one configuration.
type Group struct {
	ID       statemachine.Kind `json:"id"`
	Rule     string            `json:"rule"`
	Title    string            `json:"title"`
	Severity Severity          `json:"severity"`
	Version  string            `json:"version,omitempty"` // engine and version of the worker
	Policy   string            `json:"policy,omitempty"`  // of the configuration in force
	Count    int64             `json:"count"`
	First    Evidence          `json:"first"`
	Last     Evidence          `json:"last"`
	Samples  []Evidence        `json:"samples,omitempty"` // after the first one
}

// Evidence is one violation.
type Evidence struct {
	Subject  string    `json:"subject"`
	Tenant   string    `json:"tenant,omitempty"`
	Position string    `json:"position,omitempty"`
	Input    string    `json:"input,omitempty"`
	Line     int64     `json:"line,omitempty"`
	Offset   int64     `json:"offset"`
	Time     time.Time `json:"time,omitzero"`
	What     string    `json:"what"`
	Expected string    `json:"expected,omitempty"`
	Actual   string    `json:"actual,omitempty"`
}

// Exposure is the blast radius.
type Exposure struct {
	Rings            Rings      `json:"responses"`
	TenantsExposed   []string   `json:"tenants_exposed"`
	TenantsReceiving []string   `json:"tenants_receiving"`
	CrossTenant      int64      `json:"cross_tenant"` // confirmed responses with another tenant's pages
	Owners           int64      `json:"owners"`       // requests whose pages were read
	First            time.Time  `json:"first,omitzero"`
	Last             time.Time  `json:"last,omitzero"`
	MinPrompt        int        `json:"min_prompt_tokens,omitempty"` // of the confirmed and possible responses
	MaxPrompt        int        `json:"max_prompt_tokens,omitempty"`
	Responses        []Response `json:"affected"`
	ResponsesMore    int64      `json:"affected_more,omitempty"`
	Edges            []Edge     `json:"edges"`
	EdgesMore        int64      `json:"edges_more,omitempty"`
}

// Rings count responses: those that were made from another request's pages, those
// that may have been, and those that the same workers gave in the same time.
type Rings struct {
	Confirmed  int64 `json:"confirmed"`
	Possible   int64 `json:"possible"`
	Population int64 `json:"population"`
}

// Response is one affected response.
type Response struct {
	Request      string    `json:"request"`
	Tenant       string    `json:"tenant"`
	Ring         string    `json:"ring"` // confirmed or possible
	Worker       string    `json:"worker,omitempty"`
	Time         time.Time `json:"time,omitzero"`
	Position     string    `json:"position,omitempty"`
	PromptTokens int       `json:"prompt_tokens"`
	OutputTokens int       `json:"output_tokens"`
	Pages        int64     `json:"foreign_pages"`
	Owners       int64     `json:"owners"`
	Why          []string  `json:"why"` // ids of violations
}

// Edge says that one request read pages that another one had written.
type Edge struct {
	OwnerTenant  string    `json:"owner_tenant"`
	Owner        string    `json:"owner"`
	ReaderTenant string    `json:"reader_tenant"`
	Reader       string    `json:"reader"`
	Worker       string    `json:"worker"`
	FirstPage    uint64    `json:"first_page"`
	Pages        int64     `json:"pages"`
	GenExpected  uint64    `json:"gen_expected"`
	GenRead      uint64    `json:"gen_read"`
	Time         time.Time `json:"time"`
	Position     string    `json:"position"`
	OutputTokens int       `json:"output_tokens"`
}
