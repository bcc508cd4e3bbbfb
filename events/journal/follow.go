package journal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
)

const (
	pullMessages  = 1024
	pullBytes     = 8 << 20
	pullExpiry    = 10 * time.Second
	pullHeartbeat = time.Second // two missed ones mean that the consumer is gone

	retryMin = 20 * time.Millisecond
	retryMax = time.Second
)

var (
	errReconnected = errors.New("connection was lost and is back")
	errLost        = errors.New("messages were lost on the way")
)

// handlerError carries what the handler returned through the retry loop.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }

// Follow implements [Journal].
//
// It pulls through an ephemeral consumer and takes one message at a time: the
// callbacks of an ordered consumer may overlap after a reset. Whatever goes
// wrong with the consumer, the remedy is a fresh one from the sequence after the
// last one handled; nothing is kept on the server that a crash could leave
// wrong.
func (j *JetStream) Follow(ctx context.Context, next uint64, handle func(*events.Envelope) error, known ...Known) error {
	f := follower{j: j, next: max(next, 1), handle: handle, known: known}
	status := j.nc.StatusChanged(nats.CONNECTED)
	defer j.nc.RemoveStatusListener(status)
	wait := retryMin
	for {
		from := f.next
		err := f.pull(ctx, status)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var he *handlerError
		var gap *GapError
		switch {
		case errors.As(err, &he):
			return he.err
		case errors.As(err, &gap):
			return gap
		case j.nc.IsClosed():
			return fmt.Errorf("journal: follow: %w", nats.ErrConnectionClosed)
		}
		if f.next > from {
			wait = retryMin
		}
		j.cfg.Logger.Warn("follow log again", "next", f.next, "cause", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, retryMax)
	}
}

// follower is one run of Follow.
type follower struct {
	j      *JetStream
	next   uint64 // sequence wanted next: everything before it was handled
	handle func(*events.Envelope) error
	known  []Known

	// A gap counts once a second consumer shows the same one: a message can
	// also be lost on the way.
	suspect GapError
}

// pull reads from one consumer until something is wrong with it.
func (f *follower) pull(ctx context.Context, status <-chan nats.Status) error {
	create, cancel := context.WithTimeout(ctx, apiTimeout)
	defer cancel()
	c, err := f.j.stream.CreateConsumer(create, jetstream.ConsumerConfig{
		Description:       "pdgate follower",
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       f.next,
		AckPolicy:         jetstream.AckNonePolicy,
		InactiveThreshold: 30 * time.Second,
		Replicas:          1,
		MemoryStorage:     true,
	})
	if err != nil {
		return fmt.Errorf("create consumer: %w", err)
	}
	it, err := c.Messages(jetstream.PullMaxMessagesWithBytesLimit(pullMessages, pullBytes), jetstream.PullExpiry(pullExpiry), jetstream.PullHeartbeat(pullHeartbeat))
	if err != nil {
		return fmt.Errorf("pull: %w", err)
	}
	defer it.Stop()
	// A message that left the server while the connection was down is lost,
	// and the consumer counts it as delivered: after each reconnect a fresh
	// consumer is quicker than waiting for the missing heartbeat.
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-status:
			it.Stop()
		case <-ctx.Done():
			it.Stop()
		case <-done:
		}
	}()
	for delivered := uint64(1); ; delivered++ {
		m, err := it.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) && ctx.Err() == nil {
			return errReconnected
		}
		if err != nil {
			return err
		}
		md, err := m.Metadata()
		if err != nil {
			return err
		}
		if md.Sequence.Consumer != delivered {
			return errLost
		}
		if err := f.take(m, md.Sequence.Stream); err != nil {
			return err
		}
	}
}

// take handles one message. A crash after handle and before next moves on costs
// nothing: next lives in memory, and the caller says where to begin.
func (f *follower) take(m jetstream.Msg, seq uint64) error {
	if seq < f.next {
		return nil // a lagging server began earlier than asked
	}
	if seq > f.next {
		gap := GapError{From: f.next, To: seq}
		if f.suspect != gap {
			f.suspect = gap
			return errLost
		}
		return &gap
	}
	h := m.Headers()
	msg := message{m.Subject(), seq, h.Get(events.HeaderExpected), h.Get(events.HeaderEnvelope), h.Get(events.HeaderMAC), m.Data()}
	if msg.known(f.j.partitions, f.known) {
		f.next++
		return nil
	}
	env, foreign := msg.open(f.j.cfg.Key, f.j.partitions)
	if foreign != nil {
		f.j.cfg.foreign(foreign)
	}
	if err := f.handle(env); err != nil {
		return &handlerError{err}
	}
	f.next++
	return nil
}
