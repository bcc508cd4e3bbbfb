package auditor

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

const scope = "github.com/pdgate/pdgate/services/auditor"

// metrics are what is counted as it happens.
type metrics struct {
	reads, gaps, refusals, alarms metric.Int64Counter
}

func newMetrics() (*metrics, error) {
	meter := otel.Meter(scope)
	m := &metrics{}
	var err1, err2, err3, err4 error
	m.reads, err1 = meter.Int64Counter("pdgate.auditor.reads", metric.WithDescription("reads of entries and receipts"))
	m.gaps, err2 = meter.Int64Counter("pdgate.auditor.gaps", metric.WithDescription("runs of messages that the stream had lost"))
	m.refusals, err3 = meter.Int64Counter("pdgate.auditor.witness.refusals", metric.WithDescription("consistency proofs that a witness refused"))
	m.alarms, err4 = meter.Int64Counter("pdgate.auditor.alarms", metric.WithDescription("stops because the tree does not continue the last signed one"))
	return m, errors.Join(err1, err2, err3, err4)
}

// Measurements need no caller's context.

func (m *metrics) gap()     { m.gaps.Add(context.Background(), 1) }
func (m *metrics) alarm()   { m.alarms.Add(context.Background(), 1) }
func (m *metrics) refused() { m.refusals.Add(context.Background(), 1) }
func (m *metrics) read(what, via string) {
	m.reads.Add(context.Background(), 1, metric.WithAttributes(attribute.String("what", what), attribute.String("via", via)))
}

// observe offers what is read off the replica when somebody asks; stop ends it.
func (a *Auditor) observe() (stop func(), err error) {
	meter := otel.Meter(scope)
	gauge := func(name, unit, what string) metric.Float64ObservableGauge {
		g, e := meter.Float64ObservableGauge(name, metric.WithUnit(unit), metric.WithDescription(what))
		err = errors.Join(err, e)
		return g
	}
	age := gauge("pdgate.auditor.checkpoint.age", "s", "since the last signed checkpoint")
	unsigned := gauge("pdgate.auditor.unsigned", "{leaf}", "leaves on disk that no signature covers")
	size := gauge("pdgate.auditor.size", "{leaf}", "leaves of the signed tree")
	witnessed := gauge("pdgate.auditor.witness.age", "s", "since the witness last cosigned")
	if err != nil {
		return nil, err
	}
	reg, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		now, signed := time.Now(), int64(0)
		if c := a.signed.Load(); c != nil {
			signed = c.Tree.N
			o.ObserveFloat64(age, now.Sub(c.time).Seconds())
		}
		o.ObserveFloat64(size, float64(signed))
		o.ObserveFloat64(unsigned, float64(max(0, a.committed.Load().Size-signed)))
		for _, w := range a.witness.list {
			if t := w.cosigned.Load(); t != 0 {
				o.ObserveFloat64(witnessed, now.Sub(time.Unix(0, t)).Seconds(), metric.WithAttributes(attribute.String("witness", w.name)))
			}
		}
		return nil
	}, age, unsigned, size, witnessed)
	if err != nil {
		return nil, err
	}
	return func() { _ = reg.Unregister() }, nil // it fails for what is not registered
}
