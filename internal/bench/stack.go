package bench

import (
	"context"
	"log/slog"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
)

// RunStack runs every part of pdgate in this process, and calls use once
// requests are answered. It returns when use has, and everything has ended.
type RunStack func(ctx context.Context, cfg StackConfig, use func(context.Context, Stack) error) error

// StackConfig describes a stack.
type StackConfig struct {
	Dir             string // of its data
	Fsync           bool
	Replicas        int // of the lifecycle service
	Engine          engine.Config
	Wrap            func(worker string, e engine.Engine) engine.Engine // what a worker gets in e's place; nil: e
	Prefill, Decode int                                                // number of workers
	PrefillTokens   int                                                // pool of each, in tokens
	DecodeTokens    int
	Concurrency     int // of each worker; 0: its own default
	QueueLimit      int // most requests that wait for prefill; 0: no limit
	Logger          *slog.Logger
}

// Stack is one that runs.
type Stack struct {
	URL   string // of the gateway
	Key   string // API key of a tenant without limits
	Pools func() []PoolSample
}

// PoolSample is a worker's pool at one instant.
type PoolSample struct {
	Worker      string
	Role        events.Role
	Pages, Used int // used: not free
	Waiting     int // allocations in line
	Running     int // requests that the engine works on
}
