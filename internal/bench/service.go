package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// serviceInFlight is how many lifecycles a closed loop has open.
const serviceInFlight = 256

// service takes whole lifecycles through the lifecycle service, over NATS. The
// server, each replica and the load are processes of their own.
func (b *bench) service(ctx context.Context) error {
	type pair struct {
		fsync        bool
		replicas     int
		closed, open *Case
	}
	inFlight := b.Concurrency
	if inFlight == 0 {
		inFlight = serviceInFlight
	}
	var pairs []*pair
	for _, fsync := range b.Fsync {
		for _, n := range b.Replicas {
			p := map[string]string{"fsync": onOff(fsync), "replicas": strconv.Itoa(n)}
			x := &pair{fsync: fsync, replicas: n}
			p["in flight"] = strconv.Itoa(inFlight)
			x.closed = b.add(newCase("service", "whole lifecycles, closed loop", p, "lifecycle service", "echo service", "events/s",
				fmt.Sprintf("a lifecycle is %d events: %d transitions and 2 releases, each one a call; the echo answers as many calls with as many bytes", len(steps), transitions),
				"server, replicas and load are processes on the same CPUs; latency is that of a call"))
			delete(p, "in flight")
			x.open = b.add(newCase("service", "one transition, open loop", p, "lifecycle service", "lone synchronous publish", unitMillis,
				"the rate is set by the closed loop on the same installation, whose backlog is worked off first; latency from the intended start; the value is p99; the ceiling publishes one event at a time to the same idle server"))
			pairs = append(pairs, x)
		}
	}
	var answers []int
	for round := range b.Rounds {
		var echo *Sample
		for _, x := range pairs {
			b.Progress("service: round %d of %d, fsync %s, %d replicas", round+1, b.Rounds, onOff(x.fsync), x.replicas)
			closed, open, publish, err := b.lifecycles(ctx, x.fsync, x.replicas, inFlight, x.open, &answers)
			if err != nil {
				return fmt.Errorf("fsync %s, %d replicas: %w", onOff(x.fsync), x.replicas, err)
			}
			if echo == nil { // it depends on neither
				b.Progress("service: round %d of %d, echo", round+1, b.Rounds)
				e, err := b.echo(ctx, inFlight, answers)
				if err != nil {
					return fmt.Errorf("echo: %w", err)
				}
				echo = &e
			}
			x.closed.add(closed, *echo)
			x.open.add(open, publish)
		}
	}
	return nil
}

// lifecycles measures one installation: closed loop, open loop, and a lone
// publish on the server that is idle again.
func (b *bench) lifecycles(ctx context.Context, fsync bool, replicas, inFlight int, c *Case, answers *[]int) (closed, open, publish Sample, err error) {
	s, err := b.open(ctx, fsync)
	if err != nil {
		return closed, open, publish, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err = s.replicas(ctx, replicas); err != nil {
		return closed, open, publish, err
	}
	l, err := s.newLoad(ctx, true)
	if err != nil {
		return closed, open, publish, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	got, closed, err := s.measure(ctx, l, shape{inFlight: inFlight, warm: s.warm})
	if err != nil {
		return closed, open, publish, err
	}
	closed.Value = float64(got.answers) / got.seconds
	*answers = l.answerSizes()

	rate := b.Rate
	if rate == 0 {
		rate = float64(got.lifecycles) / got.seconds / 2
	}
	if rate <= 0 {
		return closed, open, publish, errTooShort
	}
	if err = s.rest(ctx); err != nil { // the closed loop's backlog is not the open loop's
		return closed, open, publish, err
	}
	got, open, err = s.measure(ctx, l, shape{rate: rate})
	if err != nil {
		return closed, open, publish, fmt.Errorf("open loop: %w", err)
	}
	open.Value = got.latency.P99 / 1e3
	c.Notes = append(c.Notes[:1], fmt.Sprintf("last round: %.0f lifecycles/s; a whole one p50 %s, p99 %s", float64(got.lifecycles)/got.seconds, us(got.whole.P50), us(got.whole.P99)))

	admin, err := s.connect(ctx, keyring.Admin)
	if err == nil {
		err = s.rest(ctx)
	}
	if err != nil {
		return closed, open, publish, err
	}
	js, err := raw(ctx, admin)
	if err == nil {
		publish, err = lone(ctx, js, eventBytes(), b.Duration/2)
	}
	return closed, open, publish, err
}

// echo measures the same calls without anything behind them.
func (b *bench) echo(ctx context.Context, inFlight int, answers []int) (_ Sample, err error) {
	s, err := b.open(ctx, false)
	if err != nil {
		return Sample{}, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if _, err := s.part(ctx, "echo", childConfig{Kind: kindEcho, Answers: answers}); err != nil {
		return Sample{}, err
	}
	l, err := s.newLoad(ctx, false)
	if err != nil {
		return Sample{}, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	got, sample, err := s.measure(ctx, l, shape{inFlight: inFlight, warm: s.warm})
	sample.Value = float64(got.answers) / got.seconds
	return sample, err
}

// measure runs a load, and says what it cost each process. Value is the
// caller's.
func (s *site) measure(ctx context.Context, l *load, sh shape) (loaded, Sample, error) {
	quiesce()
	all := s.processes()
	var before, after map[string]Usage
	var errs []error
	sh.warmup, sh.duration = s.b.warmup(), s.b.Duration
	sh.border = func() {
		m := map[string]Usage{"load": usage()}
		for _, c := range all {
			u, err := c.usage()
			if err != nil {
				errs = append(errs, err)
			}
			m[c.name] = u
		}
		before, after = after, m
	}
	got, err := l.run(ctx, sh)
	if err = errors.Join(append(errs, err)...); err != nil {
		return got, Sample{}, err
	}
	if got.answers == 0 || got.latency == nil || got.lifecycles == 0 {
		return got, Sample{}, errTooShort
	}
	sample := Sample{Count: got.answers, Seconds: got.seconds, Latency: got.latency, CPU: map[string]float64{}, PeakMB: map[string]float64{}}
	for name, u := range after {
		sample.CPU[name] = micros(u.CPU-before[name].CPU) / float64(got.answers)
		sample.PeakMB[name] = float64(u.PeakRSS >> 20)
	}
	return got, sample, nil
}

// eventBytes is the size of a typical event: what raw publishing carries.
func eventBytes() int {
	now := events.Micros(time.Unix(1_700_000_000, 123456000))
	e := &events.Event{
		ID: zeroID + ".2", Source: "/pdgate/lifecycle/lc1", Subject: zeroID, Time: now, N: 2, Type: events.TypePrefilled,
		Command: "0123456789abcdef0123456789abcdef", Principal: "prefill.p1", Prev: events.Position{Seq: 123456, Line: 7},
		Tenant: loadTenant, TenantSeq: 123456, TenantPrev: events.Hash(nil),
		Data: &events.RequestPrefilled{
			Worker: sitePrefill, WorkerEpoch: 1_700_000_000_123_456, PromptTokens: loadPrompt, Pages: []events.PageRun{{Start: 1024, Count: promptPages, Generation: 123456}},
			PageTokens: pageTokens, Layout: loadLayout, KVBytes: promptPages * pageTokens * tokenBytes, KVDigest: someSum, Lease: now,
		},
	}
	b, err := events.Append(nil, e)
	if err != nil {
		panic(err) // a constant
	}
	return len(b) + 1
}

const zeroID = "01890a5d-ac96-774b-bcce-b302099a8057"
