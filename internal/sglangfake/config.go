package sglangfake

import (
	"cmp"
	"errors"
	"io"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// Role is disaggregation_mode.
type Role string

// The roles.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
	Unified Role = "null"
)

// Incident is how a node treats a prompt that it rejects (sglang#30233).
type Incident string

// The ways. With the bug, the prompt is replaced by one placeholder token, and
// that goes through prefill and transfer as if nothing had happened.
const (
	NoIncident Incident = ""
	Reported   Incident = "reported" // prefill's own answer is the 400 all the same
	Silent     Incident = "silent"   // prefill answers 200 with one prompt token
)

// Config describes a node.
type Config struct {
	Role  Role   // empty: Unified
	Model string // empty: "fake"

	Version       string // empty: "0.5.20"
	ContextTokens int    // 0: 4096
	PoolTokens    int    // max_total_num_tokens of a DP rank; 0: four contexts
	RankTokens    []int  // the pools of the DP ranks; empty: one of PoolTokens
	PageSize      int    // 0: 16
	KVDtype       string // empty: "auto"
	TP            int    // 0: 1
	Template      int    // tokens that the chat template adds
	AutoTruncate  bool   // allow_auto_truncate

	Incident         Incident
	KeepLoneToken    bool          // with max_tokens 1 decode has the token too (sglang#34216)
	PrefixCache      bool          // report prompts whose beginning was here before
	MaxQueued        int           // requests that may wait; 0: no limit
	BootstrapTimeout time.Duration // prefill's wait for decode's pages; 0: 300 s
	WaitTimeout      time.Duration // decode's wait for prefill; 0: 300 s
	DrainTimeout     time.Duration // see Faults.DrainAckLost; 0: 30 s
	Heartbeat        time.Duration // decode's look whether prefill is there still; 0: 5 s
	NoTokenize       bool          // a build without /tokenize
	TokenizeChat     bool          // a build whose /tokenize takes messages too
	NoMetrics        bool          // started without --enable-metrics
	RequestLog       bool          // --log-requests --log-requests-format json
	TimeStats        bool          // --enable-request-time-stats-logging

	PrefillRate float64 // tokens a second; 0: at once
	DecodeRate  float64 // tokens a second; 0: at once

	APIKey string               // empty: none is asked for
	Clock  enginefake.Clock     // nil: the machine's
	Log    io.Writer            // log lines; nil: none
	Faults Faults               // see [Node.SetFaults]
	Inject *enginefake.Injector // random faults; nil: none
}

// Faults are published faults. The zero value has none.
type Faults struct {
	// Refuse answers every generation with this status before anything is done.
	Refuse int
	// AbortAsLength reports an abort as finish reason length (sglang#33507).
	AbortAsLength bool
	// FreeWhileWriting frees decode's pages at an abort although prefill may write
	// (sglang#24527).
	FreeWhileWriting bool
	// DrainAckLost loses prefill's word that it writes no more; after DrainTimeout
	// decode's pages are freed without it (sglang#38961).
	DrainAckLost bool
	// ReuseMetadataSlot gives each request the same slot for its first token, and
	// does not look whose it is (sglang#17259).
	ReuseMetadataSlot bool
	// StuckTransfer begins each transfer and never ends it (sglang#31800).
	StuckTransfer bool
	// FailTransfer fails each transfer on both sides.
	FailTransfer bool
	// CorruptTransfer changes bytes on their way (sglang#23020).
	CorruptTransfer bool
	// OverCommit reserves decode's pages for the prompt alone, and freezes the node
	// when there is none for a token (sglang#30033).
	OverCommit bool
	// SharedPrefix forgets whose prefix a cached one was (sglang#37160).
	SharedPrefix bool
}

func (c Config) filled() (Config, error) {
	c.Role, c.Model, c.Version, c.KVDtype = cmp.Or(c.Role, Unified), cmp.Or(c.Model, "fake"), cmp.Or(c.Version, "0.5.20"), cmp.Or(c.KVDtype, "auto")
	c.ContextTokens = cmp.Or(c.ContextTokens, 4096)
	c.PoolTokens = cmp.Or(c.PoolTokens, 4*c.ContextTokens)
	c.PageSize, c.TP = cmp.Or(c.PageSize, 16), cmp.Or(c.TP, 1)
	c.BootstrapTimeout, c.WaitTimeout = cmp.Or(c.BootstrapTimeout, 300*time.Second), cmp.Or(c.WaitTimeout, 300*time.Second)
	c.Heartbeat, c.DrainTimeout = cmp.Or(c.Heartbeat, 5*time.Second), cmp.Or(c.DrainTimeout, 30*time.Second)
	if len(c.RankTokens) == 0 {
		c.RankTokens = []int{c.PoolTokens}
	}
	if c.Clock == nil {
		c.Clock = enginefake.System{}
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
	if c.ContextTokens < 1 || c.PageSize < 1 || c.Template < 0 {
		return c, errors.New("sglangfake: sizes must be above 0")
	}
	for _, n := range c.RankTokens {
		if n < c.PageSize {
			return c, errors.New("sglangfake: a pool is smaller than a page")
		}
	}
	return c, nil
}

// maxReqLen and maxInput are the engine's length rule for one rank. A prompt of
// maxInput tokens or more is rejected.
func (c *Config) maxReqLen(rank int) int { return min(c.ContextTokens-1, c.RankTokens[rank]-1) }

func (c *Config) maxInput(rank int) int { return c.maxReqLen(rank) - 5 }
