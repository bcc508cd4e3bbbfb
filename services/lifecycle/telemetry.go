package lifecycle

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/pdgate/pdgate/events"
)

const scope = "github.com/pdgate/pdgate/services/lifecycle"

// metrics are the service's instruments. The options are made once: without an
// SDK a measurement must cost next to nothing.
type metrics struct {
	commands metric.Int64Counter
	seconds  metric.Float64Histogram
	options  map[outcome]metric.MeasurementOption
}

type outcome struct {
	command events.CommandType
	result  string
}

// Results of a command.
const (
	resultDone    = "done"
	resultDenied  = "denied"
	resultRefused = "refused" // nothing recorded
)

func newMetrics() (*metrics, error) {
	meter := otel.Meter(scope)
	m := &metrics{options: map[outcome]metric.MeasurementOption{}}
	var err error
	if m.commands, err = meter.Int64Counter("pdgate.lifecycle.commands", metric.WithDescription("commands by result")); err != nil {
		return nil, err
	}
	m.seconds, err = meter.Float64Histogram("pdgate.lifecycle.command.duration", metric.WithUnit("s"), metric.WithDescription("from the command's arrival to its answer"),
		metric.WithExplicitBucketBoundaries(.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10))
	if err != nil {
		return nil, err
	}
	for _, c := range events.AllCommandTypes() {
		for _, r := range []string{resultDone, resultDenied, resultRefused} {
			m.options[outcome{c, r}] = metric.WithAttributeSet(attribute.NewSet(attribute.String("command", string(c)), attribute.String("result", r)))
		}
	}
	return m, nil
}

// refused counts a command that did not reach a partition. Verbs that are no
// commands are a peer's invention and make no series of their own.
func (m *metrics) refused(c events.CommandType) {
	if o, ok := m.options[outcome{c, resultRefused}]; ok {
		m.commands.Add(context.Background(), 1, o)
	}
}

func (m *metrics) answered(now time.Time, c *caller, a *events.Answer, err *events.Error) {
	r := resultDone
	switch {
	case err != nil:
		r = resultRefused
	case a.Denied != nil:
		r = resultDenied
	}
	o := m.options[outcome{c.cmd, r}]
	if o == nil {
		return
	}
	ctx := context.Background() // measurements need no caller's context
	m.commands.Add(ctx, 1, o)
	m.seconds.Record(ctx, now.Sub(c.since).Seconds(), o)
}

// observe offers what is read off the service when somebody asks; stop ends it.
func (s *Service) observe() (stop func(), err error) {
	meter := otel.Meter(scope)
	open, err := meter.Int64ObservableGauge("pdgate.lifecycle.requests.open", metric.WithDescription("requests that are not final, or hold pages"))
	if err != nil {
		return nil, err
	}
	waiting, err := meter.Int64ObservableGauge("pdgate.lifecycle.commands.waiting", metric.WithDescription("commands that the log has not settled"))
	if err != nil {
		return nil, err
	}
	lag, err := meter.Int64ObservableGauge("pdgate.lifecycle.log.lag", metric.WithDescription("messages of the log that are not followed"))
	if err != nil {
		return nil, err
	}
	first, err := meter.Int64ObservableGauge("pdgate.lifecycle.log.first", metric.WithDescription("sequence of the log's first message"))
	if err != nil {
		return nil, err
	}
	trimmed, err := meter.Int64ObservableGauge("pdgate.lifecycle.trimmed", metric.WithDescription("sequence below which the log may have left, and the bound that holds the next trim back"))
	if err != nil {
		return nil, err
	}
	reg, err := meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		opened, queued := 0, 0
		for _, n := range s.all() {
			queued += n.waiting()
			if n.shard != nil {
				n.mu.Lock()
				opened += len(n.shard.open)
				n.mu.Unlock()
			}
		}
		o.ObserveInt64(open, int64(opened))
		o.ObserveInt64(waiting, int64(queued))
		o.ObserveInt64(lag, max(0, int64(s.logSeq.Load())-int64(s.followed.Load())))
		if s.cfg.Retention.on() {
			seq, b := s.trim.get()
			o.ObserveInt64(first, int64(seq))
			o.ObserveInt64(trimmed, int64(s.trimmedBelow()), metric.WithAttributes(attribute.String("bound", b.name)))
		}
		return nil
	}, open, waiting, lag, first, trimmed)
	if err != nil {
		return nil, err
	}
	return func() { _ = reg.Unregister() }, nil // it fails for what is not registered
}

// startSpan continues the sender's trace. The span ends with the answer.
func (s *Service) startSpan(c *events.Command) trace.Span {
	ctx := context.Background() // a command's trace comes in the command
	if c.Traceparent != "" {
		ctx = propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": c.Traceparent})
	}
	_, span := s.tracer.Start(ctx, "lifecycle."+string(c.Type), trace.WithSpanKind(trace.SpanKindServer))
	if span.IsRecording() {
		span.SetAttributes(attribute.String("request_id", c.Subject), attribute.String("principal", c.From()))
	}
	return span
}

func endSpan(span trace.Span, a *events.Answer, err *events.Error) {
	if span == nil {
		return
	}
	if span.IsRecording() {
		if err != nil {
			span.SetStatus(codes.Error, string(err.Code))
		} else {
			span.SetAttributes(attribute.String("state", string(a.State)), attribute.String("event", string(a.Type)), attribute.String("position", a.Position))
			if a.Denied != nil {
				span.SetAttributes(attribute.String("denied", string(a.Denied.Code)))
			}
		}
	}
	span.End()
}
