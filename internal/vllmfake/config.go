package vllmfake

import (
	"cmp"
	"errors"
	"io"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// Role is what a node is deployed as.
type Role string

// The roles. Prefill and decode nodes both run the connector as kv_both, as the
// public recipes do; a unified node has none and ignores kv_transfer_params.
const (
	Prefill Role = "prefill"
	Decode  Role = "decode"
	Unified Role = "unified"
)

// Build is a generation of vLLM.
type Build string

// The builds. Old ones hold blocks for 480 s without heartbeats, use the client's
// request id as it is, do not tell prefill of an early rejection and have no
// kv_cache_size_tokens label.
const (
	Current Build = "current"
	Old     Build = "old"
)

// BlockForm is how remote_block_ids is written.
type BlockForm string

// The forms.
const (
	Nested  BlockForm = "nested"  // one list for each KV group
	Flat    BlockForm = "flat"    // one list of integers
	Strings BlockForm = "strings" // one list of strings, as a simulator sends
)

// Policy is kv_load_failure_policy.
type Policy string

// The policies.
const (
	Fail      Policy = "fail"
	Recompute Policy = "recompute"
)

// Config describes a node.
type Config struct {
	Role  Role   // empty: Unified
	Model string // empty: "fake"
	Build Build  // empty: Current

	Version       string    // empty: by Build
	ContextTokens int       // max_model_len; 0: 4096
	Blocks        int       // KV blocks; 0: enough for four contexts
	BlockSize     int       // tokens a block; 0: 16
	BlockIDs      BlockForm // empty: by Build
	Groups        int       // KV groups, above 1 for a hybrid model; 0: 1
	KVDtype       string    // empty: "auto"
	TP            int       // 0: 1
	Template      int       // tokens that the chat template adds

	Lease       time.Duration // kv_lease_duration; 0: 30 s, and 480 s with Old
	LoadFailure Policy        // empty: Fail

	PrefillRate float64 // tokens a second; 0: at once
	DecodeRate  float64 // tokens a second; 0: at once

	APIKey string               // empty: none is asked for
	Clock  enginefake.Clock     // nil: the machine's
	Log    io.Writer            // log lines, as the engine prints them; nil: none
	Faults Faults               // see [Node.SetFaults]
	Inject *enginefake.Injector // random faults; nil: none
}

// Faults are published faults, and states in which a client may meet the engine.
// The zero value has none.
type Faults struct {
	// Refuse answers every generation with this status before anything is done.
	Refuse int
	// RejectEarly answers 400 to decode legs before the scheduler admits them.
	RejectEarly bool
	// Abort ends every prefill with finish_reason "abort" and a null reference.
	Abort bool
	// NullReference answers prefill as it should, with a null reference.
	NullReference bool
	// EmptyStream fails before the first token of a stream: 200, then only [DONE]
	// (vllm#40978). Not streamed, the failure is a 500.
	EmptyStream bool
	// FailLoads fails each load of remote KV; what follows is LoadFailure's.
	FailLoads bool
	// RecomputeWrong computes wrong KV after a failed load (vllm#49250).
	RecomputeWrong bool
	// FailedReceive answers a failed load with 200, empty content and garbage in
	// the reasoning (vllm#52276).
	FailedReceive bool
	// BrokenPair loads garbage from every peer, under 200 and with the counter
	// (wtdcode/vllm-backport#33).
	BrokenPair bool
	// CorruptLoads changes a byte of each block loaded, without a sign.
	CorruptLoads bool
	// NeverFree keeps prefill's blocks for ever (vllm PR#36958).
	NeverFree bool
	// LeakOnAbort keeps decode's and prefill's blocks of a request that is aborted
	// during its transfer (dynamo PR#7489).
	LeakOnAbort bool
}

func (c Config) filled() (Config, error) {
	c.Role, c.Model, c.Build = cmp.Or(c.Role, Unified), cmp.Or(c.Model, "fake"), cmp.Or(c.Build, Current)
	version, form, lease := "0.29.0", Nested, 30*time.Second
	if c.Build == Old {
		version, form, lease = "0.12.0", Flat, 480*time.Second
	}
	c.Version, c.BlockIDs, c.Lease = cmp.Or(c.Version, version), cmp.Or(c.BlockIDs, form), cmp.Or(c.Lease, lease)
	c.ContextTokens, c.BlockSize = cmp.Or(c.ContextTokens, 4096), cmp.Or(c.BlockSize, 16)
	if c.BlockSize > 0 {
		c.Blocks = cmp.Or(c.Blocks, 4*(c.ContextTokens+c.BlockSize-1)/c.BlockSize)
	}
	c.Groups, c.TP, c.KVDtype = cmp.Or(c.Groups, 1), cmp.Or(c.TP, 1), cmp.Or(c.KVDtype, "auto")
	c.LoadFailure = cmp.Or(c.LoadFailure, Fail)
	if c.Clock == nil {
		c.Clock = enginefake.System{}
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
	if c.ContextTokens < 1 || c.Blocks < 1 || c.BlockSize < 1 || c.Groups < 1 || c.Template < 0 || c.Lease < 0 {
		return c, errors.New("vllmfake: sizes must be above 0")
	}
	return c, nil
}
