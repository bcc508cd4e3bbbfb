package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine/remote"
)

// Defaults of [Remote].
const (
	DefaultEngineLease  = 30 * time.Second
	DefaultEngineMargin = 5 * time.Second
	DefaultEngineDrain  = 10 * time.Second // of the commands; the zero value of a Remote is none
)

// ErrRestarted means that the server behind an engine is another one than
// before, or gone: every reference to its KV is void.
var ErrRestarted = errors.New("the engine restarted, or is gone")

// Watched is an engine whose server may restart under it. Watch returns
// [ErrRestarted] then, and nil when ctx ends.
type Watched interface {
	Watch(ctx context.Context) error
}

// Placed is an engine that decides before decode asks where a request is
// decoded. Elsewhere names that place where it is another worker's.
type Placed interface {
	Elsewhere(requestID string) bool
}

// Policy says what follows when a node's counters show a failed transfer that
// may be this request's.
type Policy string

// The policies.
const (
	Strict  Policy = "strict"  // every request that had a transfer open there fails
	Observe Policy = "observe" // it is logged and counted
)

// Forgetful is an engine that keeps something for a request until decode claims
// it. Forget is called when the prefill worker has ended the request's part.
type Forgetful interface {
	Forget(requestID string)
}

// Remote describes the server behind an external engine.
type Remote struct {
	Name  string      // the worker's
	Role  events.Role // the worker's, and the node's
	URL   string
	Key   string // its API key; "": none
	Facts Facts  // see [Probe]

	Lease  time.Duration // how long a prefill node keeps what nobody fetched; 0: 30 s
	Margin time.Duration // before the end of which decode must have begun; 0: 5 s
	Drain  time.Duration // sglang: how long the legs of a request whose client left may go on; 0: they end at once
	Policy Policy        // "": Strict

	Pairing *Pairing // sglang: what its prefill and decode workers share

	Clock  func() time.Time // nil: time.Now
	Logger *slog.Logger     // nil: nothing is logged
	Guards RemoteGuards
}

// RemoteGuards takes checks of external engines away, for tests of the whole
// system. The zero value has all of them.
type RemoteGuards struct {
	NoReference bool // the reference is complete
	NoLease     bool // decode begins before the lease's end
	NoOnce      bool // a reference is used once
	NoCount     bool // decode counts the admitted number of prompt tokens
	NoCounters  bool // no transfer failed at the node meanwhile
	NoHold      bool // sglang: decode's output waits until prefill is proven
}

func (r *Remote) complete(name string) error {
	switch {
	case r.Lease < 0 || r.Margin < 0 || r.Drain < 0:
		return fmt.Errorf("engine %s: a time is negative", name)
	case r.Policy != "" && r.Policy != Strict && r.Policy != Observe:
		return fmt.Errorf("engine %s: policy %q is none of strict, observe", name, r.Policy)
	}
	r.Lease = cmp.Or(r.Lease, DefaultEngineLease)
	r.Margin = cmp.Or(r.Margin, DefaultEngineMargin)
	r.Policy = cmp.Or(r.Policy, Strict)
	if r.Margin >= r.Lease {
		return fmt.Errorf("engine %s: the margin of %v leaves nothing of the lease of %v", name, r.Margin, r.Lease)
	}
	if r.Clock == nil {
		r.Clock = time.Now
	}
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Facts are what a node says of itself, and what the operator says in its place.
type Facts struct {
	Version        string
	Model          string // the name it serves the model under
	ContextTokens  int    // longest prompt plus completion
	MaxInputTokens int    // longest prompt it accepts
	PoolTokens     int    // what its KV memory holds
	PageTokens     int    // tokens of its pages
	Dtype          string // of its KV; "": not said
	Mode           string // sglang: "prefill", "decode" or "null"
	BootstrapPort  int    // sglang
	Host           string // sglang: what the decode side dials; "": the URL's
}

// limit is the most tokens that one request may have at the node.
func (f *Facts) limit() int { return min(f.ContextTokens, f.PoolTokens) }

// accountPage is the least page of an account: an engine's own may hold one
// token, and a page table of millions of rows would count nothing better.
const accountPage = 16

// info is an external engine's, from the facts.
func (f *Facts) info(name string, cfg Config) Info {
	page := f.PageTokens
	if page < accountPage {
		page *= (accountPage + page - 1) / page
	}
	// The layout has the node's own page: what differs there does not fit together.
	layout := fmt.Sprintf("%s%s:%d:%s", events.ExternalLayout, name, f.PageTokens, cmp.Or(f.Dtype, "auto"))
	return Info{
		Name: name, Version: cmp.Or(f.Version, "unknown"), Model: cfg.Model, External: true, Layout: layout,
		ContextTokens: f.ContextTokens, MaxInputTokens: min(f.MaxInputTokens, f.ContextTokens), PageTokens: page,
	}
}

// External says whether the named engine is one behind HTTP.
func External(name string) bool { return name == "vllm" || name == "sglang" }

// Overrides are facts that the operator gives: 0 or "" is the node's own word.
type Overrides struct {
	Model         string
	ContextTokens int
	PoolTokens    int
}

// probeTime bounds each question to a node.
const probeTime = 5 * time.Second

// Probe asks a node for its facts. What it does not say, and nobody gave, is an
// error that names the flag: a guess here would admit what the node refuses.
func Probe(ctx context.Context, name string, n *remote.Node, o Overrides) (Facts, error) {
	var f Facts
	var err error
	switch name {
	case "vllm":
		f, err = probeVLLM(ctx, n)
	case "sglang":
		f, err = probeSGLang(ctx, n)
	default:
		return f, fmt.Errorf("engine %q has no nodes to ask", name)
	}
	if err != nil {
		return f, fmt.Errorf("engine %s at %s: %w", name, n.URL(), keyless(err))
	}
	f.Model = cmp.Or(o.Model, f.Model)
	if o.ContextTokens > 0 && (f.ContextTokens == 0 || o.ContextTokens < f.ContextTokens) {
		f.ContextTokens = o.ContextTokens
	}
	if o.PoolTokens > 0 {
		f.PoolTokens = o.PoolTokens
	}
	unknown := func(what, flag string) error {
		return fmt.Errorf("%w: engine %s at %s does not say %s: give it with %s", errFacts, name, n.URL(), what, flag)
	}
	switch {
	case f.Model == "":
		return f, unknown("the name of its model", "--engine-model")
	case f.ContextTokens < 2:
		return f, unknown("its context window (max_model_len)", "--context")
	case f.PoolTokens < 1:
		return f, unknown("what its KV memory holds in tokens", "--pool-tokens (of a decode node under `up`: --decode-pool-tokens)")
	}
	if f.PageTokens < 1 {
		f.PageTokens = accountPage
	}
	longest := min(f.ContextTokens-1, f.PoolTokens)
	if f.MaxInputTokens < 1 || f.MaxInputTokens > longest {
		f.MaxInputTokens = longest
	}
	return f, nil
}

// errFacts means that a node answers, and does not say what is needed.
var errFacts = errors.New("facts are missing")

// Waits says whether a node's error may be gone after a while: one that loads
// its model does not answer yet.
func Waits(err error) bool {
	if s, ok := errors.AsType[*remote.Status](err); ok {
		return s.Code >= 500
	}
	return !errors.Is(err, errFacts)
}

// ServedModel is the name of the first model that a node lists.
func ServedModel(ctx context.Context, n *remote.Node) (string, error) {
	name, _, err := modelsOf(ctx, n)
	if err == nil && name == "" {
		err = fmt.Errorf("%w: /v1/models lists none", errFacts)
	}
	if err != nil {
		return "", fmt.Errorf("engine at %s: %w", n.URL(), keyless(err))
	}
	return name, nil
}

// keyless says what to do where a node asks for a key.
func keyless(err error) error {
	if s, ok := errors.AsType[*remote.Status](err); ok && (s.Code == 401 || s.Code == 403) {
		return fmt.Errorf("%w: give its API key with --engine-key-file", err)
	}
	return err
}

// modelsOf reads /v1/models: the name and the context window of the first model.
func modelsOf(ctx context.Context, n *remote.Node) (model string, context int, err error) {
	var v struct {
		Data []struct {
			ID     string `json:"id"`
			MaxLen int    `json:"max_model_len"`
			Parent string `json:"parent"`
		} `json:"data"`
	}
	if err := getJSON(ctx, n, "/v1/models", &v); err != nil {
		return "", 0, err
	}
	for _, m := range v.Data {
		if m.Parent == "" { // adapters name what they adapt
			return m.ID, m.MaxLen, nil
		}
	}
	return "", 0, nil
}

func dtypeName(s string) string {
	s = strings.ToLower(s)
	if len(s) > 32 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789_-") != "" {
		return ""
	}
	return s
}
