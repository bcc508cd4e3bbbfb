package auditor

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pdgate/pdgate/events"
)

// forget closes all windows, as if their second was over.
func (l *ledger) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.open {
		w.since = time.Time{}
	}
}

// slowRecorder answers after a while.
type slowRecorder struct {
	reads
	wait time.Duration
}

func (s *slowRecorder) Audit(ctx context.Context, d *events.Audit) (*events.Answer, error) {
	time.Sleep(s.wait) // in a bubble
	return s.reads.Audit(ctx, d)
}

// Reads within a second share an event, which is durable before the first of them
// is answered, and are all counted in the end.
func TestLedgerCoalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &slowRecorder{wait: 100 * time.Millisecond}
		l := newLedger(rec, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = l.run(ctx) })
		began := time.Now()
		var all sync.WaitGroup
		for i := range 40 {
			all.Go(func() {
				if err := l.read(ctx, reading{"r", "http", events.ReadEntries}, uint64(10+i), uint64(20+i)); err != nil {
					t.Error(err)
				}
				if time.Since(began) < rec.wait {
					t.Error("answered before the event was durable")
				}
			})
		}
		all.Wait()
		if err := l.read(ctx, reading{"other", "http", events.ReadEntries}, 1, 1); err != nil {
			t.Error(err)
		}
		cancel()
		run.Wait()
		total := 0
		got := rec.take()
		for _, d := range got {
			if d.Reader == "r" {
				total += d.Reads
			}
		}
		if len(got) != 3 || total != 40 || got[0].Reads != 1 || got[2].FromSeq != 10 && got[2].FromSeq != 11 || got[2].ToSeq < 58 {
			t.Errorf("%d reads in %+v", total, got)
		}
	})
}

// While nothing can be recorded nothing is answered, and what was answered before
// is still counted afterwards.
func TestLedgerFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &reads{}
		l := newLedger(rec, slog.New(slog.DiscardHandler))
		who := reading{"r", "nats", events.ReadReceipt}
		for range 3 {
			if err := l.read(t.Context(), who, 5, 5); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(readWindow)
		rec.fail = errors.New("no log")
		if err := l.read(t.Context(), who, 6, 6); err == nil {
			t.Fatal("answered without a record")
		}
		rec.fail = nil
		if err := l.read(t.Context(), who, 7, 7); err != nil {
			t.Fatal(err)
		}
		got := rec.take()
		if len(got) != 2 || got[0].Reads != 1 || got[1].Reads != 3 || got[1].FromSeq != 5 || got[1].ToSeq != 7 {
			t.Errorf("recorded %+v", got)
		}
	})
}
