package projection

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
)

// cut is the book without what is before a sequence.
func (b *book) cut(first uint64) *book {
	part := &book{}
	for _, env := range b.all {
		if env.Seq >= first {
			part.all = append(part.all, env)
		}
	}
	return part
}

// A read side of a log that has lost its beginning says where it begins, has a row
// of every request that begins behind it, and none of half a request.
func TestBeginsWithTheLog(t *testing.T) {
	b := &book{}
	b.write(t, 0, 40)
	whole := open(t, Config{})
	feed(t, whole, b)
	want := list(t, whole, events.ListQuery{Limit: 1000})
	begun := map[string]uint64{} // where each request's first event is
	for _, env := range b.all {
		_ = events.Split(env.Lines, func(_ int, line []byte) error {
			if e, err := events.Decode(line); err == nil && e.N == 1 {
				begun[e.Subject] = env.Seq
			}
			return nil
		})
	}
	for first := uint64(2); first < uint64(len(b.all)); first += 3 {
		path := filepath.Join(t.TempDir(), "requests.db")
		p := open(t, Config{Path: path, Begin: func(context.Context) (uint64, error) { return first, nil }})
		part := b.cut(first)
		feedTo(t, p, part, uint64(len(b.all)))
		var left []events.RequestView
		for _, v := range want {
			if begun[v.RequestID] >= first {
				left = append(left, v)
			}
		}
		if diff := cmp.Diff(left, list(t, p, events.ListQuery{Limit: 1000})); diff != "" {
			t.Errorf("from %d (-want +got):\n%s", first, diff)
		}
		if seq, since := p.Begins(); seq != first || !since.IsZero() {
			t.Errorf("begins at %d, %v, want %d", seq, since, first)
		}
		// And after a start.
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		p = open(t, Config{Path: path})
		if v, err := p.List(t.Context(), events.ListQuery{}); err != nil || v.Begin != first {
			t.Errorf("after a start it begins at %d: %v", v.Begin, err)
		}
	}
}

// A read side that stood still while the log went on without it begins anew: what is
// between is not there any more.
func TestLeftBehind(t *testing.T) {
	b := &book{}
	b.write(t, 0, 40)
	path := filepath.Join(t.TempDir(), "requests.db")
	p := open(t, Config{Path: path})
	feed(t, p, &book{all: b.all[:20]})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	p = open(t, Config{Path: path, Begin: func(context.Context) (uint64, error) { return 60, nil }})
	feedTo(t, p, b.cut(60), uint64(len(b.all)))
	for _, v := range list(t, p, events.ListQuery{Limit: 1000}) {
		if pos, err := events.ParsePosition(v.Position); err != nil || pos.Seq < 60 {
			t.Errorf("a row from before: %+v", v)
		}
	}
	if seq, _ := p.Begins(); seq != 60 {
		t.Errorf("begins at %d", seq)
	}
}

// Rows of ended requests go when they are told to, others stay, and the file does
// not grow with what was in it.
func TestPrune(t *testing.T) {
	path := filepath.Join(t.TempDir(), "requests.db")
	b := &book{}
	p := open(t, Config{Path: path, Interval: time.Millisecond})
	size := func(p *Projection, path string) int64 {
		if _, err := p.db.Load().ExecContext(t.Context(), "PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return fi.Size()
	}
	const each = 600
	for round := range 5 {
		b.write(t, round*each, each)
		feed(t, p, b)
		before := start.Add(time.Duration((round+1)*each-100) * time.Millisecond) // ids are a millisecond apart
		if err := p.drop(t.Context(), before); err != nil {
			t.Fatal(err)
		}
	}
	// A quarter of the requests hold pages, and stay.
	all := filepath.Join(t.TempDir(), "requests.db")
	kept := open(t, Config{Path: all, Interval: time.Millisecond})
	feed(t, kept, b)
	if pruned, whole := size(p, path), size(kept, all); pruned > whole/2 {
		t.Errorf("the file has %d bytes, and %d with all rows", pruned, whole)
	}
	v, err := p.List(t.Context(), events.ListQuery{Limit: 1000})
	if err != nil {
		t.Fatal(err)
	}
	want := start.Add(time.Duration(5*each-100) * time.Millisecond)
	if !v.Since.Equal(want) {
		t.Errorf("complete since %v, want %v", v.Since, want)
	}
	young, held := 0, 0
	for _, r := range v.Requests {
		switch {
		case r.RequestID >= id(5*each-100):
			young++
		case len(r.Held) > 0 || !r.State.Final():
			held++
		default:
			t.Errorf("left: %+v", r)
		}
	}
	if young != 100 || held == 0 {
		t.Errorf("%d young rows, want 100; %d that hold pages, want some", young, held)
	}
}

// feedTo is feed for a log whose last sequence is given.
func feedTo(t testing.TB, p *Projection, b *book, last uint64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, b.follow) }()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); p.Applied() < last; <-tick.C {
		select {
		case err := <-done:
			t.Fatalf("ended: %v", err)
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("applied %d of %d", p.Applied(), last)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
