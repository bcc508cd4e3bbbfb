package engine

import (
	"context"
	"sync"
	"time"

	"github.com/pdgate/pdgate/gpuworker/engine/remote"
)

// meter reads one counter of a node. Readers that come while a page is on its
// way share the next one: what they get was read after they asked.
type meter struct {
	node *remote.Node
	name string

	mu      sync.Mutex
	running bool
	next    *reading
}

type reading struct {
	done  chan struct{}
	value float64
	err   error
}

const meterTime = 2 * time.Second

func newMeter(n *remote.Node, name string) *meter { return &meter{node: n, name: name} }

// sample is the counter's value; 0 where the node does not have it.
func (m *meter) sample(ctx context.Context) (float64, error) {
	m.mu.Lock()
	if m.next == nil {
		m.next = &reading{done: make(chan struct{})}
	}
	r := m.next
	if !m.running {
		m.running = true
		// Others may wait for it, so it does not end with who began it; each page has
		// a time of its own.
		go m.run(context.WithoutCancel(ctx))
	}
	m.mu.Unlock()
	select {
	case <-r.done:
		return r.value, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// run reads until nobody waits.
func (m *meter) run(ctx context.Context) {
	for {
		m.mu.Lock()
		r := m.next
		m.next = nil
		if r == nil {
			m.running = false
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		r.value, r.err = m.read(ctx)
		close(r.done)
	}
}

func (m *meter) read(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, meterTime)
	defer cancel()
	page, err := metricsOf(ctx, m.node)
	if err != nil {
		return 0, err
	}
	v, _ := remote.Total(remote.Metrics(page, m.name)[m.name])
	return v, nil
}
