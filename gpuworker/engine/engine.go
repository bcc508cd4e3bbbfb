// Package engine is the seam to what computes: one interface, one file per
// engine, and a closed switch in [New].
//
// An engine is gullible by design. It knows nothing of tenants, states, grants
// or generations, and answers from whatever its KV memory holds; every guard
// belongs to the pool, the hand-off and the lifecycle, so that a test can take
// one away and see the leak.
//
// # External engines
//
// An engine behind HTTP keeps the KV to itself (Info.External). Its prompt is the
// client's JSON body, what it hands off is a reference in place of pages, and its
// output is a line of JSON for each piece: the choice as the engine gave it, see
// [events.Piece]. The page memory of a job is then nil.
package engine

import (
	"context"
	"errors"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Errors that callers branch on.
var (
	// ErrPoison means that attention read a page that nobody wrote for this
	// request. Nothing was emitted.
	ErrPoison = errors.New("engine: poisoned KV read")
	// ErrKVSize means that the pages handed to the engine cannot hold the tokens.
	ErrKVSize = errors.New("engine: pages do not fit the tokens")
)

// KV is the memory of one request: its pages in order. A page is
// Info.PageTokens × Info.TokenBytes bytes, as 64-bit words.
type KV interface {
	Pages() int
	Page(i int) []uint64
}

// Info describes an engine. It does not change while the engine lives.
type Info struct {
	Name    string // "ref", "faulty", …
	Version string
	Model   string

	ContextTokens  int // longest prompt plus completion; more is refused
	MaxInputTokens int // longest prompt Prefill accepts; 0: ContextTokens

	PageTokens int    // tokens a page holds
	TokenBytes int    // bytes of KV a token; 0 where External
	Layout     string // names the page format; two workers must agree to exchange pages

	External   bool // the engine keeps the KV: pages are an account, and hold nothing
	ReadsAgain bool // External: decode reads the prompt, too
}

// Sampling says how to continue a prompt.
type Sampling struct {
	MaxTokens   int      // most tokens to emit, at least 1
	Stop        []string // ends the output before the first of these; never emitted
	Temperature float64  // 0 is greedy
	Seed        int64

	// For external engines, which read the rest in the client's own body.
	Route     string // such as "/v1/completions"
	Stream    bool   // the client wants pieces
	MinTokens int    // 0: not named
	Seeded    bool   // Seed counts
}

// PrefillJob asks for a prompt's KV.
type PrefillJob struct {
	RequestID string
	Prompt    []byte
	Sampling  Sampling
	KV        KV // fresh pages for the whole prompt

	PromptTokens int // as admitted; for engines that answer to two legs at once
}

// Prefilled is what a prefill leg reported. An engine may report a refusal
// inside a result that otherwise looks finished (the public incident); callers
// must ask Refused before anything else.
type Prefilled struct {
	PromptTokens int           // tokens whose KV was written, as the engine counts them
	First        []byte        // the token computed by prefill; travels with the KV, never in an event
	Refused      *events.Error // not nil: the engine refused the prompt
	Reference    []byte        // opaque, for engines that keep KV themselves; nil otherwise

	// Of external engines.
	Lease time.Time     // decode must have begun by then; zero: the worker's own lease
	Hold  time.Duration // the engine may hold memory for it so long from now, also where Prefill returned an error; 0: it holds none
}

// DecodeJob continues from KV that was written elsewhere.
type DecodeJob struct {
	RequestID    string
	PromptTokens int // tokens that the KV holds, as decode was told
	First        []byte
	Sampling     Sampling
	KV           KV     // pages for the prompt and all tokens that may be generated
	Reference    []byte // see Prefilled

	Prompt []byte    // External: the body again
	Owner  string    // External: the prefill worker that gave the reference
	Lease  time.Time // External: the engine must be called before
}

// Decoded ends a decode leg.
type Decoded struct {
	PromptTokens     int
	CompletionTokens int
	FinishReason     events.FinishReason
}

// Emit takes the next piece of output. The slice is valid during the call. An
// error ends the decode with that error.
type Emit func(text []byte, tokens int) error

// Engine is one serving engine. Its methods may be called concurrently for
// different requests. A cancelled context ends a call within one step.
type Engine interface {
	Info() Info
	// Count is the number of tokens in the prompt, as Prefill would count them.
	Count(ctx context.Context, prompt []byte) (int, error)
	Prefill(ctx context.Context, job PrefillJob) (Prefilled, error)
	Decode(ctx context.Context, job DecodeJob, emit Emit) (Decoded, error)
}
