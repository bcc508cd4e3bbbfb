package projection

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pdgate/pdgate/events"
)

// offer hands over envelopes as the service's follower does.
func offer(p *Projection, envs []*events.Envelope) {
	for _, env := range envs {
		p.Offer(Envelope{Seq: env.Seq, MAC: env.MAC, Events: p.decode(env)})
	}
}

// running runs p until the test ends. reads are the sequences from which it read
// the log by itself.
func running(t *testing.T, p *Projection, b *book) (reads chan uint64) {
	t.Helper()
	reads = make(chan uint64, 1024)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- p.Run(ctx, func(ctx context.Context, next uint64, handle func(*events.Envelope) error) error {
			reads <- next
			return b.follow(ctx, next, handle)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return reads
}

func reach(t *testing.T, p *Projection, seq uint64) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); p.Applied() < seq; <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("applied %d of %d", p.Applied(), seq)
		}
	}
}

func wantRows(t *testing.T, p *Projection, b *book) {
	t.Helper()
	whole := open(t, Config{})
	feed(t, whole, b)
	q := events.ListQuery{Limit: events.MaxListLimit}
	if diff := cmp.Diff(list(t, whole, q), list(t, p, q), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("rows (-read from the log +offered):\n%s", diff)
	}
	if err := p.Check(t.Context(), b.mac); err != nil || p.Applied() != uint64(len(b.all)) {
		t.Errorf("the position is not that of the log: applied %d of %d, %v", p.Applied(), len(b.all), err)
	}
}

// What the follower offers is not read from the log, and what was offered before
// is ignored.
func TestOffered(t *testing.T) {
	b := &book{}
	b.write(t, 0, 60)
	p := open(t, Config{Interval: time.Millisecond})
	offer(p, b.all[:1])
	reads := running(t, p, b)
	for i := range b.all {
		offer(p, b.all[max(0, i-3):i+1])
	}
	reach(t, p, uint64(len(b.all)))
	if len(reads) != 0 {
		t.Errorf("read the log from %d", <-reads)
	}
	wantRows(t, p, b)
}

// Rows that are behind the follower, as after a start without a snapshot's worth
// of them, are brought up from the log, and then the window is used.
func TestCatchesUp(t *testing.T) {
	b := &book{}
	b.write(t, 0, 30)
	p := open(t, Config{Interval: time.Millisecond})
	end := uint64(len(b.all))
	p.Skip(end)
	reads := running(t, p, b)
	reach(t, p, end)
	if from := <-reads; from != 1 {
		t.Errorf("read the log from %d, want 1", from)
	}
	more := &book{all: b.all[:end:end]}
	more.write(t, 500, 10) // not in the book that is read
	offer(p, more.all[end:])
	reach(t, p, uint64(len(more.all)))
	if len(reads) != 0 {
		t.Errorf("read the log from %d", <-reads)
	}
	wantRows(t, p, more)
}

// A writer that is stopped holds up nobody, and what the window has no room for is
// read from the log.
func TestWindowIsBounded(t *testing.T) {
	b := &book{}
	b.write(t, 0, 12)
	p := open(t, Config{Interval: time.Millisecond})
	es := p.decode(b.all[0])[:1]
	heavy := make([]Event, maxWindow/2)
	for i := range heavy {
		heavy[i] = es[0]
	}
	for i, env := range b.all {
		e := Envelope{Seq: env.Seq, MAC: env.MAC, Events: p.decode(env)}
		if i == 2 || i == 3 {
			e.Events = heavy
		}
		p.Offer(e)
	}
	if p.tail.events > maxWindow || p.tail.reaches(2) || !p.tail.reaches(3) {
		t.Fatalf("%d events in the window, want at most %d and none of the second half's", p.tail.events, maxWindow)
	}
	p.tail.drop() // the other heavy one is no row
	reads := running(t, p, b)
	reach(t, p, uint64(len(b.all)))
	if from := <-reads; from != 1 {
		t.Errorf("read the log from %d, want 1", from)
	}
	wantRows(t, p, b)
}

// Envelopes whose events the follower could not keep are read from the log.
func TestSkipped(t *testing.T) {
	b := &book{}
	b.write(t, 0, 40)
	p := open(t, Config{Interval: time.Millisecond})
	running(t, p, b)
	for i, env := range b.all {
		if i%7 == 3 {
			p.Skip(env.Seq)
		} else {
			offer(p, b.all[i:i+1])
		}
	}
	reach(t, p, uint64(len(b.all)))
	wantRows(t, p, b)
}

// Trouble while the log is read ends Run, and the next one goes on where the rows
// are.
func TestCatchUpFails(t *testing.T) {
	b := &book{}
	b.write(t, 0, 20)
	p := open(t, Config{Interval: time.Millisecond})
	offer(p, b.all[len(b.all)-1:])
	broken := errors.New("broken")
	var handed atomic.Uint64
	err := p.Run(t.Context(), func(ctx context.Context, next uint64, handle func(*events.Envelope) error) error {
		for _, env := range b.all[:5] {
			if err := handle(env); err != nil {
				return err
			}
			handed.Store(env.Seq)
		}
		return broken
	})
	if !errors.Is(err, broken) || p.Applied() != handed.Load() {
		t.Fatalf("%v, applied %d of %d handed over", err, p.Applied(), handed.Load())
	}
	reads := running(t, p, b)
	reach(t, p, uint64(len(b.all)))
	if from := <-reads; from != 6 {
		t.Errorf("read the log from %d, want 6", from)
	}
	wantRows(t, p, b)
}
