package journaltest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
)

// trimLine is an event of operations that lets leave what is below a sequence.
func trimLine(n int, prev events.Position, below uint64) ([]byte, error) {
	b, err := events.Append(nil, &events.Event{
		ID: fmt.Sprintf("%s.%d", events.LogStream, n), Source: "test", Type: events.TypeLogTrimmed, Subject: events.LogStream, N: n, Prev: prev,
		Time: time.Unix(1_800_000_000, 0), Data: &events.LogTrimmed{BelowSeq: below, Bound: "retention"},
	})
	return append(b, '\n'), err
}

// checkExtent trims a log, with an event that lets it and without.
func checkExtent(ctx context.Context, l *Log) error {
	j, err := l.Open(nil)
	if err != nil {
		return err
	}
	want := func(what string, first, last, below uint64, ok bool) error {
		x, err := eventualExtent(ctx, j, first, last)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		err = x.Check(ctx, patient{j})
		var cut *journal.CutError
		if (err == nil) != ok || err != nil && (!errors.As(err, &cut) || cut.First != first || cut.Below != below) {
			return fmt.Errorf("%s: %+v: what may leave is below %d; %v", what, x, below, err)
		}
		if x.Messages != last-first+1 {
			return fmt.Errorf("%s: %d messages, want %d", what, x.Messages, last-first+1)
		}
		return nil
	}
	if x, err := j.Extent(ctx); err != nil || x.Last != 0 || x.Messages != 0 || x.Check(ctx, j) != nil {
		return fmt.Errorf("an empty log: %+v, %w", x, err)
	}
	if _, err := fill(ctx, j, 10); err != nil {
		return err
	}
	if err := want("a whole log", 1, 10, 0, true); err != nil {
		return err
	}
	if err := l.Trim(4); err != nil {
		return err
	}
	if err := want("a log that was cut", 4, 10, 0, false); err != nil {
		return err
	}
	var gap *journal.GapError
	if _, err := collect(ctx, j, 1, 1); !errors.As(err, &gap) || gap.From != 1 || gap.To != 4 {
		return fmt.Errorf("follow from before the beginning: %w, want a gap", err)
	}
	line, err := trimLine(1, events.Position{}, 6)
	if err != nil {
		return err
	}
	if _, err := stored(ctx, j, &events.Envelope{Partition: events.OpsPartition, ID: "t1", Lines: line}); err != nil {
		return err
	}
	if err := want("recorded and not done yet", 4, 11, 6, true); err != nil {
		return err
	}
	if err := l.Trim(6); err != nil {
		return err
	}
	// Other messages of operations, one of them foreign, stand behind the event.
	if _, err := l.Inject(events.LogOps, nil, []byte("foreign")); err != nil {
		return err
	}
	other := envelope(events.OpsPartition, 12, "o1")
	if _, err := stored(ctx, j, other); err != nil {
		return err
	}
	if err := want("trimmed", 6, 13, 6, true); err != nil {
		return err
	}
	if err := l.Trim(8); err != nil {
		return err
	}
	if err := want("cut above what was recorded", 8, 13, 6, false); err != nil {
		return err
	}
	return nil
}

// eventualExtent asks until the answer is of the whole log: a replica may lag.
func eventualExtent(ctx context.Context, j journal.Journal, first, last uint64) (*journal.Extent, error) {
	for {
		x, err := j.Extent(ctx)
		if err == nil && x.Last == last && x.First == first {
			return x, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%+v, want %d to %d: %w", x, first, last, errors.Join(err, ctx.Err()))
		}
	}
}
