package journal

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
)

// delivered is a message of the log as a consumer hands it over.
type delivered struct {
	jetstream.Msg
	header nats.Header
	lines  []byte
}

func (d delivered) Headers() nats.Header { return d.header }
func (d delivered) Data() []byte         { return d.lines }
func (d delivered) Subject() string      { return events.LogSubject(0) }

func deliver(key []byte, seq uint64) delivered {
	lines := fmt.Appendf(nil, "%d\n", seq)
	return delivered{header: nats.Header{
		events.HeaderExpected: {fmt.Sprint(seq - 1)},
		events.HeaderMAC:      {events.MAC(key, 0, seq-1, lines)},
	}, lines: lines}
}

// TestTake walks a follower through lost, doubled and missing messages: what is
// handled is every sequence once, in order.
func TestTake(t *testing.T) {
	cfg, err := Config{Key: make([]byte, minKey)}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	var handled []uint64
	f := follower{j: &JetStream{cfg: cfg, partitions: 1}, next: 3, handle: func(e *events.Envelope) error {
		if Foreign(e) {
			t.Errorf("message %d is foreign", e.Seq)
		}
		handled = append(handled, e.Seq)
		return nil
	}}
	for i, c := range []struct {
		seq  uint64
		want error
	}{
		{2, nil}, // a lagging server began too early
		{3, nil},
		{3, nil},             // doubled
		{5, errLost},         // 4 is not here: perhaps lost on the way
		{4, nil},             // a second consumer has it
		{7, errLost},         // 5 is not here
		{8, errLost},         // a longer gap is another one
		{8, &GapError{5, 8}}, // the same again: it is missing
		{5, nil},             // after the gap was reported, nothing was skipped
		{100, errLost},
	} {
		err := f.take(deliver(cfg.Key, c.seq), c.seq)
		var gap, wantGap *GapError
		if errors.As(c.want, &wantGap) {
			if !errors.As(err, &gap) || *gap != *wantGap {
				t.Errorf("step %d: message %d: %v, want %v", i, c.seq, err, c.want)
			}
		} else if !errors.Is(err, c.want) {
			t.Errorf("step %d: message %d: %v, want %v", i, c.seq, err, c.want)
		}
	}
	if got := fmt.Sprint(handled); got != "[3 4 5]" {
		t.Errorf("handled %s", got)
	}
}

func TestSweep(t *testing.T) {
	now := time.Unix(1000, 0)
	j := &JetStream{cfg: Config{ReplyTimeout: time.Minute}, pending: map[uint64]waiting{
		1: {since: now.Add(-61 * time.Second)},
		2: {since: now.Add(-59 * time.Second)},
	}}
	j.sweep(now)
	if _, old := j.pending[1]; old || len(j.pending) != 1 {
		t.Errorf("pending after the sweep: %v", j.pending)
	}
}
