package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
	"github.com/pdgate/pdgate/statemachine"
	"github.com/pdgate/pdgate/statemachine/replay"
)

// replayed is what a child that read a log found.
type replayed struct {
	Events     int     `json:"events"`
	Requests   int     `json:"requests"`
	Open       int     `json:"open"`
	Violations int     `json:"violations"`
	First      string  `json:"first,omitempty"` // the first violation
	Bytes      int64   `json:"bytes"`
	Seconds    float64 `json:"seconds"`
	Used       Usage   `json:"used"`
}

// replay checks a whole log, made by the state machine, on one core: from a file,
// and from the stream.
func (b *bench) replay(ctx context.Context) (err error) {
	b.Progress("replay: writing a log")
	s, err := b.open(ctx, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	path := filepath.Join(s.dir, "log.jsonl")
	n, err := s.writeLog(ctx, path)
	if err != nil {
		return err
	}
	type source struct {
		c    *Case
		kind string
	}
	note := fmt.Sprintf("%d events of whole lifecycles; one core (GOMAXPROCS=1), a process of its own; the checker decodes, verifies MACs, folds and judges every event", n)
	all := []source{
		{b.add(newCase("replay", "from a file", nil, "checker", "reading the file", "events/s", note, "the ceiling reads the same file and counts its lines")), kindReplay},
		{b.add(newCase("replay", "from the stream", nil, "journal follower and checker", "ordered consumer", "events/s", note, "the ceiling receives the same messages and counts their lines")), kindFollow},
	}
	for round := range b.Rounds {
		for _, x := range all {
			b.Progress("replay: round %d of %d, %s", round+1, b.Rounds, x.c.Name)
			p, c, err := alternate(round,
				func() (Sample, error) { return s.replayIn(ctx, x.kind, path, n, false) },
				func() (Sample, error) { return s.replayIn(ctx, x.kind, path, n, true) })
			if err != nil {
				return fmt.Errorf("%s: %w", x.c.Name, err)
			}
			x.c.add(p, c)
		}
	}
	return nil
}

// replayIn runs one child to its end.
func (s *site) replayIn(ctx context.Context, kind, path string, n int, raw bool) (Sample, error) {
	cfg := childConfig{Kind: kind, File: path, Raw: raw, URL: s.url, Keys: s.ring.Dir(), Partitions: s.b.Partitions}
	name := kind
	if raw {
		name += "-raw"
	}
	var r replayed
	c, err := s.b.start(ctx, name, cfg, &r, "GOMAXPROCS=1")
	if err != nil {
		return Sample{}, err
	}
	if err := c.stop(); err != nil {
		return Sample{}, err
	}
	if r.Events != n || r.Violations > 0 || r.Open > 0 {
		return Sample{}, fmt.Errorf("%s: %d events, want %d; %d violations (%s), %d open requests", name, r.Events, n, r.Violations, r.First, r.Open)
	}
	return Sample{Value: float64(n) / r.Seconds, Count: n, Seconds: r.Seconds,
		CPU: map[string]float64{name: micros(r.Used.CPU) / float64(n)}, PeakMB: map[string]float64{name: float64(r.Used.PeakRSS >> 20)}}, nil
}

// replayRate is how many events a second of measurement are written: a log that
// is read in no time would measure the start of the process that reads it.
const replayRate = 250_000

// fillLog fills a log with whole lifecycles that have about as many events.
func (s *site) fillLog(ctx context.Context, events int) error {
	// The service runs first, for the workers to register.
	if err := s.replicas(ctx, 1); err != nil {
		return err
	}
	workers, err := (&grown{site: s}).registered(ctx)
	if err = errors.Join(err, s.stopParts()); err != nil {
		return err
	}
	log := chains{tenant: make([]smallChain, s.b.Partitions)}
	return s.fill(ctx, max(1, events/len(steps)), &log, workers, func(int) {})
}

// writeLog fills a log with whole lifecycles, and copies it into a file. It
// returns the number of events.
func (s *site) writeLog(ctx context.Context, path string) (n int, err error) {
	if err := s.fillLog(ctx, int(s.b.Duration.Seconds()*replayRate)); err != nil {
		return 0, err
	}
	f, err := os.Create(path)
	if err != nil {
		return 0, fmt.Errorf("log file: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := replay.NewTraceWriter(f, s.b.Partitions)
	err = followLog(ctx, s.url, s.ring, s.b.Logger, func(env *events.Envelope) error {
		n += bytes.Count(env.Lines, []byte{'\n'})
		return w.Add(env)
	})
	return n, errors.Join(err, w.Close())
}

var errEnd = errors.New("the end of the log")

// followLog reads the log from where it begins to what is its end now.
func followLog(ctx context.Context, url string, ring *keyring.Ring, log *slog.Logger, f func(*events.Envelope) error) error {
	key, err := ring.LogKey()
	if err != nil {
		return err
	}
	nc, err := natsclient.Connect(ctx, natsclient.Config{URL: url, Ring: ring, User: keyring.LifecycleLog, Logger: log})
	if err != nil {
		return err
	}
	defer nc.Close()
	j, err := journal.OpenJetStream(ctx, nc, journal.Config{Key: key, Logger: log})
	if err != nil {
		return err
	}
	defer j.Close()
	x, err := j.Extent(ctx)
	if err == nil {
		err = x.Check(ctx, j)
	}
	if err != nil {
		return err
	}
	err = j.Follow(ctx, x.First, func(env *events.Envelope) error {
		if err := f(env); err != nil {
			return err
		}
		if env.Seq >= x.Last {
			return errEnd
		}
		return nil
	})
	if errors.Is(err, errEnd) {
		return nil
	}
	return err
}

// checking measures read, which hands every envelope to a checker.
func checking(ring *keyring.Ring, partitions int, read func(func(*events.Envelope) error) error) (replayed, error) {
	var r replayed
	key, err := ring.LogKey()
	if err != nil {
		return r, err
	}
	before, start := usage(), time.Now()
	c := statemachine.NewChecker(statemachine.CheckerConfig{Partitions: partitions, Key: key, NoIndex: true})
	err = read(func(env *events.Envelope) error {
		r.Bytes += int64(len(env.Lines))
		return c.Add(env)
	})
	c.Close(time.Now())
	rep := c.Report()
	r.finish(start, before)
	r.Events, r.Requests, r.Open, r.Violations = rep.Events, rep.Requests, rep.Open, len(rep.Violations)+rep.More
	if !rep.OK() {
		r.First = rep.Violations[0].String()
	}
	return r, err
}

func (r *replayed) finish(start time.Time, before Usage) {
	r.Seconds = time.Since(start).Seconds()
	u := usage()
	r.Used = Usage{CPU: u.CPU - before.CPU, PeakRSS: u.PeakRSS}
}

// runReplay reads a log file.
func runReplay(ctx context.Context, cfg childConfig, _ *slog.Logger, ready func(any)) error {
	f, err := os.Open(cfg.File)
	if err != nil {
		return fmt.Errorf("log file: %w", err)
	}
	defer f.Close()
	in := bufio.NewReaderSize(f, 1<<20)
	var r replayed
	if cfg.Raw {
		r, err = countLines(in)
	} else {
		var ring *keyring.Ring
		if ring, err = keyring.Load(cfg.Keys); err == nil {
			r, err = checking(ring, cfg.Partitions, func(f func(*events.Envelope) error) error { return readEnvelopes(in, f) })
		}
	}
	if err != nil {
		return err
	}
	ready(r)
	<-ctx.Done()
	return nil
}

// readEnvelopes hands over every envelope of a trace. Its own digest is left out: the
// MACs are what is measured.
func readEnvelopes(in io.Reader, f func(*events.Envelope) error) error {
	t, err := replay.NewTrace(in)
	if err != nil {
		return err
	}
	for t.Sum = nil; ; {
		env, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = f(env)
		}
		if err != nil {
			return err
		}
	}
}

// countLines counts a trace's event lines: those that begin as JSON does.
func countLines(in *bufio.Reader) (r replayed, err error) {
	before, start := usage(), time.Now()
	for {
		l, err := in.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			r.finish(start, before)
			return r, nil
		}
		if err != nil {
			return r, fmt.Errorf("read log file: %w", err)
		}
		r.Bytes += int64(len(l))
		if l[0] == '{' {
			r.Events++
		}
	}
}

// runFollow reads the log's stream.
func runFollow(ctx context.Context, cfg childConfig, log *slog.Logger, ready func(any)) error {
	ring, err := keyring.Load(cfg.Keys)
	if err != nil {
		return err
	}
	var r replayed
	if cfg.Raw {
		r, err = countMessages(ctx, cfg, ring, log)
	} else {
		r, err = checking(ring, cfg.Partitions, func(f func(*events.Envelope) error) error { return followLog(ctx, cfg.URL, ring, log, f) })
	}
	if err != nil {
		return err
	}
	ready(r)
	<-ctx.Done()
	return nil
}

// countMessages receives the stream's messages with nats.go's own means.
func countMessages(ctx context.Context, cfg childConfig, ring *keyring.Ring, log *slog.Logger) (r replayed, err error) {
	before, start := usage(), time.Now()
	nc, err := natsclient.Connect(ctx, natsclient.Config{URL: cfg.URL, Ring: ring, User: keyring.Admin, Logger: log})
	if err != nil {
		return r, err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return r, fmt.Errorf("read stream: %w", err)
	}
	s, err := js.Stream(ctx, events.LogStream)
	if err != nil {
		return r, fmt.Errorf("read stream: %w", err)
	}
	c, err := s.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
	if err != nil {
		return r, fmt.Errorf("read stream: %w", err)
	}
	it, err := c.Messages(jetstream.PullMaxMessages(1024))
	if err != nil {
		return r, fmt.Errorf("read stream: %w", err)
	}
	defer it.Stop()
	for end := s.CachedInfo().State.LastSeq; ; {
		m, err := it.Next()
		if err != nil {
			return r, fmt.Errorf("read stream: %w", err)
		}
		r.Events += bytes.Count(m.Data(), []byte{'\n'})
		r.Bytes += int64(len(m.Data()))
		md, err := m.Metadata()
		if err != nil {
			return r, fmt.Errorf("read stream: %w", err)
		}
		if md.Sequence.Stream >= end {
			r.finish(start, before)
			return r, nil
		}
	}
}
