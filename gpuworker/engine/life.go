package engine

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/pdgate/pdgate/gpuworker/engine/remote"
)

// How the server behind an engine is watched.
const (
	watchEvery = time.Second     // between looks
	watchTime  = 5 * time.Second // for the answer to one
	watchTries = 3               // unanswered looks in a row that make it gone
)

// life is one life of the server behind an engine.
type life struct {
	node *remote.Node
	log  *slog.Logger
	wake chan struct{} // holds one: look now
	void chan struct{} // closed when the life is over
	over func()

	mu      sync.Mutex
	start   float64         // process_start_time_seconds; 0: not known
	expired float64         // requests whose KV expired there
	failed  float64         // sglang: requests whose transfer failed there
	ids     map[string]bool // engine ids that its references named
}

func newLife(n *remote.Node, log *slog.Logger) *life {
	l := &life{node: n, log: log, wake: make(chan struct{}, 1), void: make(chan struct{}), ids: make(map[string]bool)}
	l.over = sync.OnceFunc(func() { close(l.void) })
	return l
}

// suspect has the server looked at soon.
func (l *life) suspect() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// watch looks until the life is over, which is [ErrRestarted], or ctx ends.
func (l *life) watch(ctx context.Context) error {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for silent := 0; ; {
		err := l.look(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			silent = 0
		default:
			if silent++; silent == watchTries {
				l.log.Error("engine is gone", "url", l.node.URL(), "error", err)
				l.over()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.void:
			return ErrRestarted
		case <-t.C:
		case <-l.wake:
		}
	}
}

// look asks the server how it is, and since when.
func (l *life) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, watchTime)
	defer cancel()
	if _, err := l.node.Get(ctx, "/health"); err != nil {
		return fmt.Errorf("/health: %w", err)
	}
	page, err := metricsOf(ctx, l.node)
	if err != nil {
		return err
	}
	start := startOf(page)
	expired, _ := remote.Total(remote.Metrics(page, expiredName)[expiredName])
	failed, _ := remote.Total(remote.Metrics(page, failedName)[failedName])
	l.mu.Lock()
	defer l.mu.Unlock()
	if expired > l.expired {
		// Cancelled requests end so, and they are ours to know; of others a decode may
		// have read what was free by then.
		l.log.Warn("engine freed KV that nobody fetched in time", "url", l.node.URL(), "requests", expired-l.expired)
	}
	l.expired = expired
	if failed > l.failed {
		// Aborts count there too, so that it decides nothing: prefill's own answer,
		// which waits for the transfer, does.
		l.log.Warn("transfers failed at the engine", "url", l.node.URL(), "requests", failed-l.failed)
	}
	l.failed = failed
	switch {
	case start == 0:
	case l.start == 0:
		l.start = start
	case l.start != start:
		l.log.Error("engine restarted", "url", l.node.URL())
		l.over()
	}
	return nil
}

// started is when the server's process began, by its metrics; 0: they do not
// say.
func (l *life) started(ctx context.Context) (float64, error) {
	page, err := metricsOf(ctx, l.node)
	return startOf(page), err
}

func startOf(page []byte) float64 {
	const name = "process_start_time_seconds"
	s := remote.Metrics(page, name)[name]
	if len(s) == 0 {
		return 0
	}
	return s[0].Value
}

const (
	expiredName = "vllm:nixl_num_kv_expired_reqs_total"
	failedName  = "sglang:num_transfer_failed_reqs_total"
)

// seen takes note of the engine id in a reference. Several may live in one
// server, one for each data-parallel rank; another one than before is a restart
// unless the server says that it is the same process still.
func (l *life) seen(ctx context.Context, id string) error {
	l.mu.Lock()
	known := l.ids[id] || id == ""
	first := len(l.ids) == 0
	start := l.start
	l.mu.Unlock()
	if known {
		return nil
	}
	if !first {
		ctx, cancel := context.WithTimeout(ctx, watchTime)
		defer cancel()
		if s, err := l.started(ctx); err != nil || s == 0 || s != start {
			l.log.Error("engine restarted: it goes by another id", "url", l.node.URL())
			l.over()
			return ErrRestarted
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ids[id] = true
	return nil
}
