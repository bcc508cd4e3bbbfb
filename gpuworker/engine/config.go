package engine

import (
	"fmt"
	"strings"
)

// DefaultContextTokens is the context window of an engine whose configuration
// names none.
const DefaultContextTokens = 131_072

// Config describes an engine to [New].
type Config struct {
	Name  string // one of [Names]; empty: "ref"
	Model string // the model it serves; empty: the engine's name

	ContextTokens  int // longest prompt plus completion; 0: DefaultContextTokens
	MaxInputTokens int // longest prompt; 0: ContextTokens

	// Threads split the work of one call. The answer does not depend on them.
	// 0: one.
	Threads int

	// Silent makes the faulty engine hide its refusal as well. Other engines
	// refuse it.
	Silent bool

	// Remote is the server behind an external engine, whose facts then stand in the
	// place of the limits above. Other engines refuse it.
	Remote *Remote
}

// New makes the engine that the configuration names.
func New(cfg Config) (Engine, error) {
	if cfg.Name == "" {
		cfg.Name = "ref"
	}
	if cfg.Model == "" {
		cfg.Model = cfg.Name
	}
	if External(cfg.Name) != (cfg.Remote != nil) {
		return nil, fmt.Errorf("engine %s: Remote is for vllm and sglang, which need it", cfg.Name)
	}
	if cfg.Remote != nil {
		return newExternal(cfg)
	}
	if cfg.ContextTokens == 0 {
		cfg.ContextTokens = DefaultContextTokens
	}
	if cfg.MaxInputTokens == 0 {
		cfg.MaxInputTokens = cfg.ContextTokens
	}
	if cfg.Threads == 0 {
		cfg.Threads = 1
	}
	switch {
	case cfg.ContextTokens < 1:
		return nil, fmt.Errorf("engine %s: ContextTokens is %d", cfg.Name, cfg.ContextTokens)
	case cfg.MaxInputTokens < 1 || cfg.MaxInputTokens > cfg.ContextTokens:
		return nil, fmt.Errorf("engine %s: MaxInputTokens is %d, the context is %d", cfg.Name, cfg.MaxInputTokens, cfg.ContextTokens)
	case cfg.Threads < 1:
		return nil, fmt.Errorf("engine %s: Threads is %d", cfg.Name, cfg.Threads)
	case cfg.Silent && cfg.Name != "faulty":
		return nil, fmt.Errorf("engine %s: Silent is for the faulty engine", cfg.Name)
	}
	switch cfg.Name {
	case "ref":
		return newRef(cfg), nil
	case "faulty":
		return newFaulty(cfg), nil
	default:
		return nil, fmt.Errorf("engine %q is none of %s", cfg.Name, strings.Join(Names(), ", "))
	}
}

func newExternal(cfg Config) (Engine, error) {
	r := *cfg.Remote
	if err := r.complete(cfg.Name); err != nil {
		return nil, err
	}
	cfg.Remote = &r
	switch cfg.Name {
	case "vllm":
		return newVLLM(cfg)
	default:
		return newSGLang(cfg)
	}
}

// Names lists what [New] accepts.
func Names() []string { return []string{"ref", "faulty", "vllm", "sglang"} }
