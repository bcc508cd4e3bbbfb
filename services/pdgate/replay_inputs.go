package main

import (
	"archive/zip"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"os"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/events"
	auditlog "github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/events/audit/export"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/statemachine/replay"
	"github.com/pdgate/pdgate/statemachine/replay/importer"
)

// replayBundle verifies an audit bundle, and replays its lines.
func (a *app) replayBundle(cmd *cobra.Command, f *replayFlags, r *replay.Replay, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return &unreadableError{err}
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return &unreadableError{err}
	}
	o, err := f.bundleOptions()
	if err != nil {
		return &usageError{err, cmd}
	}
	verified, err := auditlog.VerifyBundle(file, st.Size(), o)
	if err != nil {
		return &unreadableError{fmt.Errorf("%s: %w", name, err)}
	}
	notes := []string{fmt.Sprintf("%s: the bundle is %s", name, verified.Verdict)}
	for _, p := range verified.Problems {
		if p.Severity > auditlog.Noted {
			notes = append(notes, fmt.Sprintf("%s: %s: %s: %s", name, p.Severity, p.Where, p.What))
		}
	}
	r.Vouch(replay.Severity(verified.Code), notes...)
	z, err := zip.NewReader(file, st.Size())
	if err != nil {
		return &unreadableError{fmt.Errorf("%s: %w", name, err)}
	}
	m, err := bundleManifest(z)
	if err != nil {
		return &unreadableError{fmt.Errorf("%s: %w", name, err)}
	}
	lines, err := z.Open(auditlog.FileLines)
	if err != nil {
		return &unreadableError{fmt.Errorf("%s: %w", name, err)}
	}
	defer lines.Close()
	p := replay.Properties{Unlinked: true, Unplaced: true, Anchored: verified.Code == auditlog.Noted || verified.Code == auditlog.Finding}
	p.Midway = m.Range != nil && m.Range.From > 0 || !m.Filter.IsZero() || len(m.Starts) > 0
	p.Torn = !m.Filter.IsZero() && m.Filter.Tenant == ""
	in := &replay.Input{Name: name, Format: replay.FormatBundle, Bytes: st.Size()}
	for _, x := range m.Files {
		if x.Name == auditlog.FileLines {
			in.SHA256 = x.SHA256
			in.Notes = append(in.Notes, "the digest is that of its "+auditlog.FileLines)
			in.Checkpoint = fmt.Sprintf("%s, size %d, root %s", m.Log, m.End.Size, m.End.Root)
		}
	}
	return r.Add(in, replay.NewLines(&progress{r: lines, w: a.stderr, name: name, ctx: cmd.Context(), quiet: f.quiet}), p)
}

func bundleManifest(z *zip.Reader) (*auditlog.Manifest, error) {
	f, err := z.Open(auditlog.FileManifest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 16<<20))
	if err != nil {
		return nil, err
	}
	return auditlog.ParseManifest(b)
}

// bundleOptions say whom a bundle is believed.
func (f *replayFlags) bundleOptions() (o auditlog.Options, err error) {
	o.OwnKey = f.own
	// Chains that begin in an earlier bundle are no finding here: what began before
	// is not judged anyway.
	o.Midway = true
	switch {
	case f.trust != "":
		b, err := os.ReadFile(f.trust)
		if err != nil {
			return o, fmt.Errorf("trust-policy: %w", err)
		}
		if o.Policy, err = auditlog.ParsePolicy(b); err != nil {
			return o, fmt.Errorf("trust-policy: %w", err)
		}
	case f.vkey != "":
		key, err := auditlog.ParseKey(f.vkey)
		if err != nil {
			return o, fmt.Errorf("vkey: %w", err)
		}
		o.Policy = auditlog.KeyPolicy(key)
	}
	return o, nil
}

// replayStream replays the live log from its beginning to what is its end now.
func (a *app) replayStream(ctx context.Context, f *replayFlags, r *replay.Replay) error {
	s, err := a.openStream(ctx, f)
	if err != nil {
		return err
	}
	defer s.close()
	return r.Add(&replay.Input{Name: events.LogStream, Format: replay.FormatStream}, s, replay.Properties{
		Partitions: s.partitions, Anchored: true, Midway: s.midway,
	})
}

// streamSource hands the follower's envelopes on.
type streamSource struct {
	partitions int
	midway     bool
	ctx        context.Context
	cancel     context.CancelFunc
	all        chan *events.Envelope
	took       chan struct{}
	failed     error // set before all is closed
	closers    []func()
	held       bool             // the follower waits for the envelope to be given back
	first      *events.Envelope // taken already
}

func (s *streamSource) Where() replay.Where { return replay.Where{} }

// Next implements replay.Source. The follower waits while an envelope is in use.
func (s *streamSource) Next() (*events.Envelope, error) {
	if s.held {
		s.held = false
		select {
		case s.took <- struct{}{}:
		case <-s.ctx.Done():
			return nil, context.Cause(s.ctx)
		}
	}
	env, ok := s.first, s.first != nil
	if s.first = nil; !ok {
		env, ok = <-s.all
	}
	if !ok {
		return nil, s.failed
	}
	s.held = true
	return env, nil
}

func (s *streamSource) close() {
	s.cancel()
	for range s.all { // until the follower has stopped
	}
	for i := len(s.closers) - 1; i >= 0; i-- {
		s.closers[i]()
	}
}

var errStreamEnd = errors.New("the end of the log")

func (a *app) openStream(ctx context.Context, f *replayFlags) (*streamSource, error) {
	ring, err := a.load(&f.remote)
	if err != nil {
		return nil, err
	}
	key, err := ring.LogKey()
	if err != nil {
		return nil, err
	}
	nc, err := a.connect(ctx, &f.remote, ring, keyring.LifecycleLog, connectTimeout)
	if err != nil {
		return nil, err
	}
	return newStreamSource(ctx, nc, key, a.log)
}

// newStreamSource follows the log over a connection, which it closes.
func newStreamSource(ctx context.Context, nc *nats.Conn, key []byte, log *slog.Logger) (_ *streamSource, err error) {
	s := &streamSource{all: make(chan *events.Envelope), took: make(chan struct{}), closers: []func(){nc.Close}}
	s.ctx, s.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			s.cancel()
			for _, f := range s.closers {
				f()
			}
		}
	}()
	j, err := journal.OpenJetStream(ctx, nc, journal.Config{Key: key, Logger: log})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, func() { j.Close() })
	s.partitions = j.Partitions()
	end, err := j.Last(ctx)
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(s.all)
		if end == 0 {
			s.failed = io.EOF
			return
		}
		err := j.Follow(s.ctx, 1, func(env *events.Envelope) error {
			select {
			case s.all <- env:
			case <-s.ctx.Done():
				return context.Cause(s.ctx)
			}
			select {
			case <-s.took:
			case <-s.ctx.Done():
				return context.Cause(s.ctx)
			}
			if env.Seq >= end {
				return errStreamEnd
			}
			return nil
		})
		if s.failed = err; errors.Is(err, errStreamEnd) || err == nil {
			s.failed = io.EOF
		}
	}()
	// The first message that is left may not be the log's first one: what ages out of
	// the stream is in the auditor's tiles by then.
	if env, ok := <-s.all; ok {
		s.first, s.midway = env, env.Seq > 1
	}
	return s, nil
}

// ownSource opens one input of our own events, to write it in another form.
func (a *app) ownSource(cmd *cobra.Command, f *replayFlags, files []string) (replay.Source, replay.Properties, func(), error) {
	none := func(err error) (replay.Source, replay.Properties, func(), error) {
		return nil, replay.Properties{}, nil, err
	}
	if f.stream {
		s, err := a.openStream(cmd.Context(), f)
		if err != nil {
			return none(err)
		}
		return s, replay.Properties{Partitions: s.partitions}, s.close, nil
	}
	if len(files) != 1 {
		return none(&usageError{errors.New("export: want one file, or --stream"), cmd})
	}
	file, err := os.Open(files[0])
	if err != nil {
		return none(&unreadableError{err})
	}
	x, err := importer.Open(files[0], file)
	var src replay.Source
	var p replay.Properties
	if err == nil {
		src, p, err = x.Source()
	}
	if err != nil {
		file.Close()
		return none(&unreadableError{err})
	}
	if t, ok := src.(*replay.Trace); ok {
		t.Sum = nil // nobody judges here; the copy has a sum of its own
	}
	return src, p, func() { file.Close() }, nil
}

// exportRecords are a source's events as an export takes them.
func exportRecords(src replay.Source) iter.Seq2[export.Record, error] {
	return func(yield func(export.Record, error) bool) {
		leaf := int64(0)
		for {
			env, err := src.Next()
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(export.Record{}, err)
				return
			}
			stop := errors.New("stopped")
			err = events.Split(env.Lines, func(line int, raw []byte) error {
				if !yield(export.Record{Seq: env.Seq, Line: line, Leaf: leaf, Raw: raw}, nil) {
					return stop
				}
				leaf++
				return nil
			})
			if err != nil {
				if !errors.Is(err, stop) {
					yield(export.Record{}, err)
				}
				return
			}
		}
	}
}
