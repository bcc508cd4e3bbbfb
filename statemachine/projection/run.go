package projection

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Run keeps the rows up to date until ctx ends, which is no error. It takes what
// is offered, and what the window does not hold any more it reads from the log by
// itself, until it is back in the window. A file that turns out to be damaged is
// made anew, and the log is read from its start.
func (p *Projection) Run(ctx context.Context, follow Follow) error {
	for {
		err := p.run(ctx, follow)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if p.cfg.Path == "" || !errors.Is(err, errDamaged) && !corrupt(err) {
			return err
		}
		if err := p.anew(ctx, err); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("projection: %w", err)
		}
	}
}

// errDamaged means that a read found the file damaged.
var errDamaged = errors.New("a read found the file damaged")

// reading is a read of the log for what the window does not hold. It is held back
// while a batch is written, so it never queues more than one envelope.
type reading struct {
	in   chan *events.Envelope
	done chan error // how it ended; nil: it does not run
	stop context.CancelFunc
}

// begin reads from sequence next on.
func (r *reading) begin(ctx context.Context, follow Follow, next uint64) {
	ctx, stop := context.WithCancel(ctx)
	in, done := make(chan *events.Envelope), make(chan error, 1)
	r.in, r.done, r.stop = in, done, stop
	go func() {
		done <- follow(ctx, next, func(env *events.Envelope) error {
			select {
			case in <- env:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
}

// end stops the reading and waits for its end.
func (r *reading) end() {
	if r.done != nil {
		r.stop()
		<-r.done
		*r = reading{}
	}
}

// gather is how long a batch waits for company after a time without one.
const gather = 5 * time.Millisecond

func (p *Projection) run(ctx context.Context, follow Follow) error {
	b := newBatch()
	at := p.applied.Load() // everything up to it is in the rows or in the batch
	timer := time.NewTimer(p.cfg.Interval)
	defer timer.Stop()
	var last time.Time // of the commit before
	var log reading
	defer log.end()
	for {
		wake := p.tail.wake
		if log.done != nil {
			wake = nil
		} else if !p.tail.reaches(at) {
			if first, err := p.first(ctx); err != nil {
				return err
			} else if first > at+1 {
				// What is between has left the log: rows from before it would stand
				// still for ever.
				if err := p.restart(ctx, first-1); err != nil {
					return err
				}
				b, at = newBatch(), first-1
			}
			log.begin(ctx, follow, at+1)
			continue
		}
		empty := b.envelopes == 0
		due := false
		select {
		case <-ctx.Done():
			// What is in the batch is read again at the next start; a clean stop
			// need not wait for a disk.
			return nil
		case <-p.damaged:
			return errDamaged
		case err := <-log.done:
			log.done <- err
			return errors.Join(p.commit(ctx, b), err)
		case env := <-log.in:
			if err := p.fold(ctx, b, &Envelope{env.Seq, env.MAC, p.decode(env)}); err != nil {
				return err
			}
			if at = env.Seq; p.tail.reaches(at) {
				log.end()
				p.tail.poke()
			}
		case <-wake:
			envs, _ := p.tail.take(at)
			for i := range envs {
				if err := p.fold(ctx, b, &envs[i]); err != nil {
					return err
				}
				at = envs[i].Seq
			}
		case <-timer.C:
			due = true
		case before := <-p.prune:
			if err := p.drop(ctx, before); err != nil {
				return err
			}
		}
		if empty && b.envelopes > 0 {
			// A lone event is shown at once; under load, commits are an interval
			// apart, so that most of a request's events share one.
			timer.Reset(max(gather, p.cfg.Interval-time.Since(last)))
		}
		if due || b.events >= p.cfg.Batch {
			if err := p.commit(ctx, b); err != nil {
				return err
			}
			last = time.Now()
		}
	}
}

// maxKept bounds the rows of open requests that stay in memory between batches.
const maxKept = 1 << 16

// batch is what one transaction will write.
type batch struct {
	rows      map[string]*row // changed since the last commit
	kept      map[string]*row // of open requests: not read again for their next event
	events    int
	envelopes int
	seq       uint64
	mac       string
}

func newBatch() *batch { return &batch{rows: map[string]*row{}, kept: map[string]*row{}} }

// decode reads an envelope's events. A line that this build cannot read is passed
// over: the row's number of events then shows a hole, and the log, not the row, is
// the evidence.
func (p *Projection) decode(env *events.Envelope) []Event {
	if env.Partition < 0 || len(env.Lines) == 0 {
		return nil // operations, or a message that is not ours
	}
	var es []Event
	err := events.Split(env.Lines, func(line int, raw []byte) error {
		e, err := events.Decode(raw)
		if err != nil {
			p.cfg.Logger.Error("read side passes over an event", "seq", env.Seq, "line", line, "err", err)
			return nil
		}
		es = append(es, Event{e, line})
		return nil
	})
	if err != nil {
		p.cfg.Logger.Error("read side passes over an envelope", "seq", env.Seq, "err", err)
	}
	return es
}

// fold applies an envelope's events to the batch.
func (p *Projection) fold(ctx context.Context, b *batch, env *Envelope) error {
	b.envelopes++
	b.seq, b.mac = env.Seq, env.MAC
	b.events += len(env.Events)
	for _, e := range env.Events {
		if e.N == 0 {
			continue // a denial outside of any history
		}
		r := b.rows[e.Subject]
		if r == nil {
			if r = b.kept[e.Subject]; r == nil {
				var err error
				if r, err = p.row(ctx, e.Event); err != nil {
					return err
				}
				if r == nil {
					continue
				}
			}
			b.rows[e.Subject] = r
		}
		r.fold(e.Event, events.Position{Seq: env.Seq, Line: e.Line})
	}
	return nil
}

// row gets the stored row, or an empty one; nil for a request whose beginning has
// left the log.
func (p *Projection) row(ctx context.Context, e *events.Event) (*row, error) {
	if e.N == 1 {
		return &row{v: events.RequestView{RequestID: e.Subject, State: events.New}}, nil
	}
	v, ok, err := p.Get(ctx, e.Subject)
	if err != nil {
		return nil, err
	}
	if !ok && (p.begin.Load() > 0 || p.since.Load() > 0) {
		return nil, nil
	}
	if !ok {
		v = events.RequestView{RequestID: e.Subject, State: events.New}
	}
	return &row{v: v}, nil
}

// upsert leaves alone what an index covers and no later event changes.
const upsert = `INSERT INTO request VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)
	ON CONFLICT (id) DO UPDATE SET state = excluded.state,
	completion_tokens = excluded.completion_tokens, finish_reason = excluded.finish_reason,
	error_code = excluded.error_code, error_message = excluded.error_message, error_status = excluded.error_status,
	prefill_worker = excluded.prefill_worker, decode_worker = excluded.decode_worker, grant_epoch = excluded.grant_epoch,
	updated_at = excluded.updated_at, position = excluded.position, events = excluded.events, held = excluded.held`

// commit writes the batch and its position in one transaction: the commit
// point. A crash before it costs the batch, which is read again.
func (p *Projection) commit(ctx context.Context, b *batch) error {
	if b.envelopes == 0 {
		return nil
	}
	tx, err := p.db.Load().BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("projection: begin: %w", err)
	}
	defer tx.Rollback()
	stmt, err := tx.PrepareContext(ctx, upsert)
	if err != nil {
		return fmt.Errorf("projection: prepare: %w", err)
	}
	defer stmt.Close()
	for _, r := range b.rows {
		args, err := r.args()
		if err != nil {
			return fmt.Errorf("projection: %w", err)
		}
		if _, err := stmt.ExecContext(ctx, args...); err != nil {
			return fmt.Errorf("projection: write row: %w", err)
		}
	}
	if _, err := tx.ExecContext(ctx, "UPDATE meta SET applied = ?, mac = ?", int64(b.seq), b.mac); err != nil {
		return fmt.Errorf("projection: write position: %w", err)
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("projection: commit: %w", err)
	}
	p.applied.Store(b.seq)
	for id, r := range b.rows {
		switch {
		case r.v.State.Final() && len(r.v.Held) == 0:
			delete(b.kept, id)
		case len(b.kept) < maxKept:
			b.kept[id] = r
		}
	}
	clear(b.rows)
	b.events, b.envelopes = 0, 0
	return nil
}
