package journaltest

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
)

func checkFollowFrom(ctx context.Context, l *Log) error {
	j, err := l.Open(nil)
	if err != nil {
		return err
	}
	seqs, err := fill(ctx, j, 10)
	if err != nil {
		return err
	}
	var want []string
	for i, s := range seqs {
		want = append(want, fmt.Sprintf("%d:e%d", s, i+1))
	}
	for _, i := range []int{0, 1, 6, 9} {
		got, err := collect(ctx, j, seqs[i], 10-i)
		if err != nil {
			return err
		}
		if d := cmp.Diff(want[i:], ids(got)); d != "" {
			return fmt.Errorf("from %d (-want +got):\n%s", seqs[i], d)
		}
	}
	return nil
}

// following runs Follow beside the check and hands envelopes over one by one.
type following struct {
	got    chan *events.Envelope
	ended  chan error
	cancel context.CancelFunc
}

func follow(ctx context.Context, j journal.Journal, next uint64) *following {
	ctx, cancel := context.WithCancel(ctx)
	f := &following{make(chan *events.Envelope), make(chan error, 1), cancel}
	go func() {
		f.ended <- j.Follow(ctx, next, func(e *events.Envelope) error {
			select {
			case f.got <- e:
			case <-ctx.Done():
			}
			return nil
		})
	}()
	return f
}

func (f *following) next(ctx context.Context) (*events.Envelope, error) {
	select {
	case e := <-f.got:
		return e, nil
	case err := <-f.ended:
		f.ended <- err
		return nil, fmt.Errorf("follow ended: %w", err)
	case <-ctx.Done():
		return nil, fmt.Errorf("follow: nothing came: %w", ctx.Err())
	}
}

// stop ends Follow, which must return its context's error.
func (f *following) stop(ctx context.Context) error {
	f.cancel()
	select {
	case err := <-f.ended:
		if !errors.Is(err, context.Canceled) {
			return fmt.Errorf("follow returned %v, want its context's error", err)
		}
		return nil
	case <-ctx.Done():
		return errors.New("follow did not stop with its context")
	}
}

func checkFollowLater(ctx context.Context, l *Log) error {
	a, err := l.Open(nil)
	if err != nil {
		return err
	}
	b, err := l.Open(nil)
	if err != nil {
		return err
	}
	f := follow(ctx, b, 1)
	tail := uint64(0)
	for i := range 5 {
		id := fmt.Sprintf("later%d", i)
		if tail, err = stored(ctx, a, envelope(0, tail, id)); err != nil {
			return err
		}
		e, err := f.next(ctx)
		if err != nil {
			return err
		}
		if e.Seq != tail || e.ID != id {
			return fmt.Errorf("followed %v, want %s at %d", ids([]*events.Envelope{e}), id, tail)
		}
	}
	return f.stop(ctx)
}

func checkHandlerError(ctx context.Context, l *Log) error {
	j, err := l.Open(nil)
	if err != nil {
		return err
	}
	if _, err := fill(ctx, j, 3); err != nil {
		return err
	}
	stop := errors.New("stop")
	calls := 0
	err = j.Follow(ctx, 1, func(*events.Envelope) error {
		calls++
		if calls == 2 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || calls != 2 {
		return fmt.Errorf("follow returned %v after %d calls, want the handler's error after 2", err, calls)
	}
	return nil
}

// checkRestart takes the log away under a follower and a writer: both go on by
// themselves, and nothing is skipped, doubled or lost.
func checkRestart(ctx context.Context, l *Log) error {
	j, err := l.Open(nil)
	if err != nil {
		return err
	}
	f := follow(ctx, j, 1)
	tail := uint64(0)
	for round := range 2 {
		for i := range 3 {
			id := fmt.Sprintf("r%d.%d", round, i)
			if tail, err = insist(ctx, j, 0, tail, id); err != nil {
				return err
			}
			e, err := f.next(ctx)
			if err != nil {
				return err
			}
			if e.Seq != tail || e.ID != id {
				return fmt.Errorf("round %d: followed %v, want %s at %d", round, ids([]*events.Envelope{e}), id, tail)
			}
		}
		if round == 0 {
			if err := l.Restart(); err != nil {
				return err
			}
		}
	}
	return f.stop(ctx)
}

// insist appends until the log says yes. A reply that never comes is silence;
// the log was empty of the envelope then, or the append is refused.
func insist(ctx context.Context, j journal.Journal, p int, expected uint64, id string) (uint64, error) {
	var last journal.Reply
	for ctx.Err() == nil {
		got := make(chan journal.Reply, 8)
		if err := j.Append(envelope(p, expected, id), func(r journal.Reply) { got <- r }); err != nil {
			return 0, err
		}
		wait, cancel := context.WithTimeout(ctx, patience/40)
		select {
		case last = <-got:
		case <-wait.Done():
		}
		cancel()
		switch last.Kind {
		case journal.Stored:
			return last.Seq, nil
		case journal.Refused:
			// An earlier copy landed: it is the message after expected.
			envs, err := collect(ctx, j, expected+1, 1)
			if err != nil {
				return 0, err
			}
			return envs[0].Seq, nil
		}
	}
	return 0, fmt.Errorf("append %s: last reply %+v: %w", id, last, ctx.Err())
}

func checkRead(ctx context.Context, l *Log) error {
	j, err := l.Open(nil)
	if err != nil {
		return err
	}
	seqs, err := fill(ctx, j, 3)
	if err != nil {
		return err
	}
	all, err := collect(ctx, j, 1, 3)
	if err != nil {
		return err
	}
	for i, s := range seqs {
		e, err := eventually(ctx, j, s)
		if err != nil {
			return err
		}
		if d := cmp.Diff(all[i], e); d != "" {
			return fmt.Errorf("read %d differs from followed (-followed +read):\n%s", s, d)
		}
	}
	if _, err := j.Read(ctx, seqs[2]+1); !errors.Is(err, journal.ErrNotFound) {
		return fmt.Errorf("read past the end: got %v, want ErrNotFound", err)
	}
	seq, err := l.Inject(events.LogSubject(0), nil, []byte("garbage\n"))
	if err != nil {
		return err
	}
	var foreign *journal.ForeignError
	if _, err := eventually(ctx, j, seq); !errors.As(err, &foreign) || foreign.Seq != seq {
		return fmt.Errorf("read garbage: got %v, want a ForeignError", err)
	}
	return nil
}

// eventually reads until the replica that answers has the message.
func eventually(ctx context.Context, j journal.Journal, seq uint64) (*events.Envelope, error) {
	for {
		e, err := j.Read(ctx, seq)
		if !errors.Is(err, journal.ErrNotFound) || ctx.Err() != nil {
			return e, err
		}
	}
}

// checkKnown: a message that the follower claims is neither opened nor handed
// over, and everything else is judged as ever, a genuine envelope that was
// changed under its own name included.
func checkKnown(ctx context.Context, l *Log) error {
	alarms := make(chan *journal.ForeignError, 64)
	j, err := l.Open(func(e *journal.ForeignError) { alarms <- e })
	if err != nil {
		return err
	}
	seqs, err := fill(ctx, j, 6)
	if err != nil {
		return err
	}
	all, err := collect(ctx, j, 1, len(seqs))
	if err != nil {
		return err
	}
	changed := all[3]
	tail := all[5].Seq // the server compares what an injected message names
	var tampered [2]uint64
	for i := range tampered {
		head := map[string]string{events.HeaderEnvelope: changed.ID, events.HeaderMAC: changed.MAC, events.HeaderExpected: strconv.FormatUint(tail, 10)}
		if tampered[i], err = l.Inject(events.LogSubject(changed.Partition), head, append([]byte("x"), changed.Lines...)); err != nil {
			return err
		}
		tail = tampered[i]
	}
	end, err := stored(ctx, j, envelope(2, 0, "end"))
	if err != nil {
		return err
	}
	mine := map[uint64]string{seqs[1]: all[1].MAC, seqs[2]: all[2].MAC, seqs[5]: all[5].MAC, tampered[1]: changed.MAC}
	partition := map[uint64]int{seqs[1]: 1, seqs[2]: 0, seqs[5]: 1, tampered[1]: changed.Partition}
	var asked []string
	known := func(p int, seq uint64, mac string) bool {
		asked = append(asked, strconv.FormatUint(seq, 10))
		m, ok := mine[seq]
		if ok && (m != mac || p != partition[seq]) {
			asked = append(asked, fmt.Sprintf("of partition %d with another MAC", p))
		}
		return ok
	}
	got, err := readUntil(ctx, j, end, known)
	if err != nil {
		return err
	}
	want := []string{fmt.Sprintf("%d:e1", seqs[0]), fmt.Sprintf("%d:e4", seqs[3]), fmt.Sprintf("%d:e5", seqs[4]), fmt.Sprintf("%d:foreign", tampered[0]), fmt.Sprintf("%d:end", end)}
	if d := cmp.Diff(want, ids(got)); d != "" {
		return fmt.Errorf("handed over (-want +got):\n%s", d)
	}
	var each []string
	for _, seq := range append(append(seqs, tampered[:]...), end) {
		each = append(each, strconv.FormatUint(seq, 10))
	}
	if d := cmp.Diff(each, asked); d != "" {
		return fmt.Errorf("asked for (-want +got):\n%s", d)
	}
	if len(alarms) != 1 {
		return fmt.Errorf("%d alarms, want one for the message that nobody claims", len(alarms))
	}
	if a := <-alarms; a.Seq != tampered[0] {
		return fmt.Errorf("alarm %+v, want one for %d", a, tampered[0])
	}
	return nil
}

// checkGap deletes the log's beginning: a follower from there must say so, and
// one from behind it must not.
func checkGap(ctx context.Context, l *Log) error {
	j, err := l.Open(nil)
	if err != nil {
		return err
	}
	seqs, err := fill(ctx, j, 6)
	if err != nil {
		return err
	}
	if err := l.Delete(seqs[2]); err != nil {
		return err
	}
	var gap *journal.GapError
	envs, err := collect(ctx, j, seqs[1], 1)
	if !errors.As(err, &gap) || gap.From != seqs[1] || gap.To != seqs[3] {
		return fmt.Errorf("follow into a gap: got %v and %v, want a gap from %d to %d", ids(envs), err, seqs[1], seqs[3])
	}
	if len(envs) > 0 {
		return fmt.Errorf("follow handed over %v beyond a gap", ids(envs))
	}
	_, err = collect(ctx, j, gap.To, 3)
	return err
}
