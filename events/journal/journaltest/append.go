package journaltest

import (
	"context"
	"fmt"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
)

func checkAppend(ctx context.Context, l *Log) error {
	j, err := l.Open(nil)
	if err != nil {
		return err
	}
	env := envelope(2, 0, "first")
	env.Lines = append(env.Lines, "second line\n"...)
	want := *env
	if want.Seq, err = stored(ctx, j, env); err != nil {
		return err
	}
	want.MAC = events.MAC(Key, 2, 0, want.Lines)
	got, err := collect(ctx, j, 1, 1)
	if err != nil {
		return err
	}
	if d := cmp.Diff([]*events.Envelope{&want}, got); d != "" {
		return fmt.Errorf("followed differs from appended (-want +got):\n%s", d)
	}
	last, err := j.Last(ctx)
	if err != nil {
		return err
	}
	if last != want.Seq {
		return fmt.Errorf("last is %d, want %d", last, want.Seq)
	}
	return nil
}

func checkExpectation(ctx context.Context, l *Log) error {
	j, err := l.Open(nil)
	if err != nil {
		return err
	}
	seqs, err := fill(ctx, j, 4) // e1 and e3 in partition 0
	if err != nil {
		return err
	}
	for i, expected := range []uint64{0, seqs[0], seqs[3], seqs[3] + 1, seqs[2] + 100} {
		r, err := appendWait(ctx, j, envelope(0, expected, fmt.Sprintf("wrong%d", i)))
		if err != nil {
			return err
		}
		if r.Kind != journal.Refused || r.Hint != 0 && r.Hint != seqs[2] {
			return fmt.Errorf("append under %d, tail %d: got %+v, want it refused", expected, seqs[2], r)
		}
	}
	seq, err := stored(ctx, j, envelope(0, seqs[2], "right"))
	if err != nil {
		return err
	}
	got, err := collect(ctx, j, 1, 5)
	if err != nil {
		return err
	}
	if g := ids(got)[4]; g != fmt.Sprintf("%d:right", seq) {
		return fmt.Errorf("last message is %s, want right at %d", g, seq)
	}
	return nil
}

// The two codes of a failed compare-and-swap.
const (
	wrongSequence      = 10071
	wrongSequenceOther = 10164
)

// checkRace has racers append under one expectation, from two writers.
func checkRace(ctx context.Context, l *Log) error {
	n := l.Racers
	if n == 0 {
		n = 200
	}
	var js [2]journal.Journal
	for i := range js {
		var err error
		if js[i], err = l.Open(nil); err != nil {
			return err
		}
	}
	// A stored envelope elsewhere shows that the log has a leader.
	if _, err := stored(ctx, js[0], envelope(2, 0, "begin")); err != nil {
		return err
	}
	got := make(chan journal.Reply, 2*n)
	for i := range n {
		if err := js[i%2].Append(envelope(1, 0, fmt.Sprintf("racer%d", i)), func(r journal.Reply) { got <- r }); err != nil {
			return err
		}
	}
	winners := map[uint64]bool{}
	for i := range n {
		select {
		case r := <-got:
			switch r.Kind {
			case journal.Stored:
				winners[r.Seq] = true
			case journal.Unknown:
				return fmt.Errorf("a racer got no yes or no: %+v", r)
			case journal.Refused:
				if r.Code != wrongSequence && r.Code != wrongSequenceOther {
					return fmt.Errorf("a racer was refused with code %d", r.Code)
				}
			}
		case <-ctx.Done():
			return fmt.Errorf("%d of %d racers got a reply: %w", i, n, ctx.Err())
		}
	}
	// A marker behind the race ends the reading: whatever a racer stored lies
	// before it.
	end, err := stored(ctx, js[0], envelope(0, 0, "end"))
	if err != nil {
		return err
	}
	envs, err := readUntil(ctx, js[1], end)
	if err != nil {
		return err
	}
	if len(envs) != 3 || len(winners) != 1 || !winners[envs[1].Seq] {
		return fmt.Errorf("%d winners were told so, the log holds %d envelopes besides begin and end", len(winners), len(envs)-2)
	}
	return noMore(got)
}

// noMore wants no second reply to anybody.
func noMore(got <-chan journal.Reply) error {
	select {
	case r := <-got:
		return fmt.Errorf("a reply came twice: %+v", r)
	default:
		return nil
	}
}

// readUntil follows the whole log up to sequence end.
func readUntil(ctx context.Context, j journal.Journal, end uint64, known ...journal.Known) ([]*events.Envelope, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var out []*events.Envelope
	reached := false
	err := j.Follow(ctx, 1, func(e *events.Envelope) error {
		out = append(out, e)
		if e.Seq >= end {
			reached = true
			cancel()
		}
		return nil
	}, known...)
	if reached {
		err = nil
	}
	return out, err
}

// checkLostReply forgets a reply and appends the same again: the log holds one
// of the two, and both writers' views agree on which.
func checkLostReply(ctx context.Context, l *Log) error {
	j, err := l.Open(nil)
	if err != nil {
		return err
	}
	if _, err := stored(ctx, j, envelope(2, 0, "begin")); err != nil {
		return err
	}
	first := envelope(3, 0, "once")
	again := *first
	if err := j.Append(first, func(journal.Reply) {}); err != nil {
		return err
	}
	r, err := appendWait(ctx, j, &again)
	if err != nil {
		return err
	}
	if r.Kind != journal.Refused {
		return fmt.Errorf("the same envelope again: got %+v, want it refused", r)
	}
	end, err := stored(ctx, j, envelope(0, 0, "end"))
	if err != nil {
		return err
	}
	envs, err := readUntil(ctx, j, end)
	if err != nil {
		return err
	}
	if len(envs) != 3 || envs[1].ID != "once" {
		return fmt.Errorf("the log holds %v, want begin, once, end", ids(envs))
	}
	return nil
}

// checkFence lets a writer fall behind another: it cannot append until it has
// followed.
func checkFence(ctx context.Context, l *Log) error {
	a, err := l.Open(nil)
	if err != nil {
		return err
	}
	b, err := l.Open(nil)
	if err != nil {
		return err
	}
	first, err := stored(ctx, a, envelope(0, 0, "a1"))
	if err != nil {
		return err
	}
	second, err := stored(ctx, b, envelope(0, first, "b1"))
	if err != nil {
		return err
	}
	r, err := appendWait(ctx, a, envelope(0, first, "a2"))
	if err != nil {
		return err
	}
	if r.Kind != journal.Refused {
		return fmt.Errorf("a writer that is behind: got %+v, want it refused", r)
	}
	envs, err := collect(ctx, a, first+1, 1)
	if err != nil {
		return err
	}
	if envs[0].Seq != second || envs[0].Expected != first {
		return fmt.Errorf("followed %d under %d, want %d under %d", envs[0].Seq, envs[0].Expected, second, first)
	}
	_, err = stored(ctx, a, envelope(0, second, "a2"))
	return err
}
