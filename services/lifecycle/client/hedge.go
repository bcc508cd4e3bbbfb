package client

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/pdgate/pdgate/events"
)

const (
	// hedgeAfter is about how long the preferred replica may be silent before all
	// replicas are asked. It is spread by a fifth either way.
	hedgeAfter = 150 * time.Millisecond
	// hedgeBurst commands may be hedged in a row, and one more for each hedgeCost
	// that were answered in time. A service that is slow for all is not asked twice
	// for everything, which would make it slower.
	hedgeBurst = 128
	hedgeCost  = 8
)

// hedges bounds and counts the commands that every replica was asked for because
// the preferred one was silent.
type hedges struct {
	budget atomic.Int64 // hedgeCost for each that may follow; what is open already may make it negative
	hedged metric.Int64Counter
}

func newHedges() (*hedges, error) {
	n, err := otel.Meter("github.com/pdgate/pdgate/services/lifecycle/client").Int64Counter("pdgate.lifecycle.client.hedges",
		metric.WithDescription("commands sent to every replica because the preferred one was silent"))
	if err != nil {
		return nil, err
	}
	h := &hedges{hedged: n}
	h.budget.Store(hedgeBurst * hedgeCost)
	return h, nil
}

// patience is how long the first try of a command waits, and whether that is so
// as to hedge.
func (h *hedges) patience(timeout time.Duration) (d time.Duration, hedge bool) {
	d = hedgeAfter*4/5 + rand.N(hedgeAfter*2/5)
	if h.budget.Load() <= 0 || d >= timeout {
		return timeout, false
	}
	return d, true
}

// answered notes that a command was answered at its first try, and in time,
// whether it might have been hedged or not.
func (h *hedges) answered() {
	if h.budget.Load() < hedgeBurst*hedgeCost {
		h.budget.Add(1)
	}
}

// count notes a command that is hedged.
func (h *hedges) count(ctx context.Context, c events.CommandType) {
	h.budget.Add(-hedgeCost)
	h.hedged.Add(ctx, 1, metric.WithAttributes(attribute.String("command", string(c))))
}
