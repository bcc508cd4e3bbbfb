package auditor

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Recorder puts reads into the log: a lifecycle client of role auditor. It answers
// when the event is durable.
type Recorder interface {
	Audit(ctx context.Context, d *events.Audit) (*events.Answer, error)
}

// logRecorder writes a line for each read, where nobody gave a Recorder.
type logRecorder struct{ log *slog.Logger }

func (l logRecorder) Audit(ctx context.Context, d *events.Audit) (*events.Answer, error) {
	if d.Kind == events.ReadExport {
		return nil, errors.New("reads are not recorded in the log here, and an export has to be")
	}
	l.log.LogAttrs(ctx, slog.LevelInfo, "audit read", slog.String("reader", d.Reader), slog.String("via", d.Via),
		slog.String("kind", d.Kind), slog.Int("reads", d.Reads), slog.Uint64("from_seq", d.FromSeq), slog.Uint64("to_seq", d.ToSeq))
	return &events.Answer{}, nil
}

const (
	// readWindow is how long an event covers the reader's further reads. They are
	// counted in the next one.
	readWindow = time.Second
	// recordTimeout bounds the wait for one event.
	recordTimeout = 5 * time.Second
)

// reading is what an event may stand for together.
type reading struct{ reader, via, kind string }

// ledger has reads recorded: one event for each reader, way and kind in a second,
// before the first of them is answered.
type ledger struct {
	to  Recorder
	log *slog.Logger

	mu   sync.Mutex
	open map[reading]*window
}

// window is a reading's last event and what was answered since.
type window struct {
	since    time.Time     // when the event was durable
	flight   chan struct{} // closed when the event on its way has an answer; nil: none is
	err      error         // of the last flight
	reads    int           // answered under it, and in no event yet
	from, to uint64        // their stream sequences
}

func newLedger(to Recorder, log *slog.Logger) *ledger {
	return &ledger{to: to, log: log, open: map[reading]*window{}}
}

// read records a read of the messages from to to. It returns nil once an event that
// covers it is durable.
func (l *ledger) read(ctx context.Context, r reading, from, to uint64) error {
	for {
		l.mu.Lock()
		w := l.open[r]
		if w == nil {
			w = &window{}
			l.open[r] = w
		}
		if w.flight == nil && time.Since(w.since) < readWindow {
			w.add(1, from, to)
			l.mu.Unlock()
			return nil
		}
		if flight := w.flight; flight != nil {
			l.mu.Unlock()
			select {
			case <-flight:
			case <-ctx.Done():
				return ctx.Err()
			}
			l.mu.Lock()
			err := w.err
			l.mu.Unlock()
			if err != nil {
				return err
			}
			continue
		}
		was := *w
		w.add(1, from, to)
		err := l.fly(ctx, r, w)
		if err != nil {
			w.reads, w.from, w.to = was.reads, was.from, was.to // this one is not answered
		}
		l.mu.Unlock()
		return err
	}
}

func (w *window) add(reads int, from, to uint64) {
	if w.reads == 0 || from < w.from {
		w.from = from
	}
	w.to = max(w.to, to)
	w.reads += reads
}

// fly records the window's reads, with the lock released while it waits. On an
// error they are in no event, as before.
func (l *ledger) fly(ctx context.Context, r reading, w *window) error {
	d := &events.Audit{Reader: r.reader, Kind: r.kind, Via: r.via, Reads: w.reads, FromSeq: w.from, ToSeq: w.to}
	flight := make(chan struct{})
	w.flight = flight
	l.mu.Unlock()
	// Others wait for it, too: it does not end with this reader's patience.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	a, err := l.to.Audit(ctx, d)
	cancel()
	if err == nil {
		err = a.Err()
	}
	l.mu.Lock()
	w.flight, w.err = nil, err
	if err == nil {
		w.since, w.reads, w.from, w.to = time.Now(), 0, 0, 0
	}
	close(flight)
	return err
}

// run records what was answered in windows that are over, so that the last reads
// are counted though none follows. It returns when ctx ends, with all recorded
// that can be.
func (l *ledger) run(ctx context.Context) error {
	tick := time.NewTicker(readWindow)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		l.flush(ctx)
	}
	return ctx.Err()
}

// flush closes windows; all of them when ctx has ended.
func (l *ledger) flush(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for r, w := range l.open {
		switch {
		case w.flight != nil || ctx.Err() == nil && time.Since(w.since) < readWindow:
		case w.reads == 0:
			delete(l.open, r)
		default:
			if err := l.fly(ctx, r, w); err != nil {
				l.log.Error("reads that were answered are counted later", "reader", r.reader, "kind", r.kind, "reads", w.reads, "err", err)
			}
		}
	}
}

// recorded has a read recorded, and counts it.
func (a *Auditor) recorded(ctx context.Context, r reading, from, to uint64) *refusal {
	if err := a.ledger.read(ctx, r, from, to); err != nil {
		a.cfg.Logger.Error("audit read is not recorded, and not answered", "reader", r.reader, "kind", r.kind, "err", err)
		f := refuse(503, events.CodeUnavailable, "the read cannot be recorded now")
		f.retry = time.Second
		return f
	}
	a.metrics.read(r.kind, r.via)
	return nil
}
