package main

import (
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/internal/bench"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/services/gateway"
)

// warnings is a log handler that drops everything below a warning, unless its
// inner one is set to debug.
type warnings struct{ slog.Handler }

// Enabled implements slog.Handler.
func (w warnings) Enabled(ctx context.Context, l slog.Level) bool {
	return w.Handler.Enabled(ctx, l) && (l >= slog.LevelWarn || w.Handler.Enabled(ctx, slog.LevelDebug))
}

// WithAttrs implements slog.Handler.
func (w warnings) WithAttrs(as []slog.Attr) slog.Handler { return warnings{w.Handler.WithAttrs(as)} }

// WithGroup implements slog.Handler.
func (w warnings) WithGroup(name string) slog.Handler { return warnings{w.Handler.WithGroup(name)} }

// benchStack runs the stack of `pdgate up` for a measurement, with one tenant
// that has no limits.
func benchStack(ctx context.Context, cfg bench.StackConfig, use func(context.Context, bench.Stack) error) error {
	key := ""
	var mu sync.Mutex
	type probe struct {
		role events.Role
		pool *kvpool.Pool
		w    *gpuworker.Worker
	}
	probes := map[string]probe{}
	role := func(name string) events.Role {
		if name[0] == 'p' {
			return events.RolePrefill
		}
		return events.RoleDecode
	}
	s := stack{
		dir: cfg.Dir, listen: "127.0.0.1:0", durability: broker.FsyncAlways, engine: cfg.Engine, lifecycles: cfg.Replicas,
		prefill: cfg.Prefill, decode: cfg.Decode, prefillPool: cfg.PrefillTokens, decodePool: cfg.DecodeTokens, concurrency: cfg.Concurrency,
		queueLimit: cfg.QueueLimit, drain: 2 * time.Second, allowRed: true, log: cfg.Logger,
		tenants: func(dir string) (*gateway.Tenants, error) {
			var digest string
			key, digest = gateway.GenerateKey()
			path := filepath.Join(dir, "tenants.yaml")
			if err := writeFile(path, "tenants:\n  - name: bench\n    api_keys: ["+digest+"]\n"); err != nil {
				return nil, err
			}
			return gateway.LoadTenants(path)
		},
	}
	if !cfg.Fsync {
		s.durability = broker.FsyncInterval
	}
	s.hooks.worker = func(name string, w *gpuworker.Worker, p *kvpool.Pool) {
		mu.Lock()
		defer mu.Unlock()
		probes[name] = probe{role(name), p, w}
	}
	if cfg.Wrap != nil {
		s.hooks.engine = func(name string, e engine.Engine) engine.Engine { return cfg.Wrap(name, e) }
	}
	return s.run(ctx, func(ctx context.Context, e endpoints) error {
		return use(ctx, bench.Stack{URL: e.http, Key: key, Pools: func() []bench.PoolSample {
			mu.Lock()
			defer mu.Unlock()
			var all []bench.PoolSample
			for name, p := range probes {
				st := p.pool.Stats()
				all = append(all, bench.PoolSample{Worker: name, Role: p.role, Pages: st.Pages, Used: st.Pages - st.Free, Waiting: st.Waiting, Running: p.w.Stats().Running})
			}
			return all
		}})
	})
}
