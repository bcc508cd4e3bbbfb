package journal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
)

// JetStream is the log in a NATS server.
type JetStream struct {
	cfg        Config
	nc         *nats.Conn
	js         jetstream.JetStream
	stream     jetstream.Stream
	partitions int
	inbox      string // of all replies; the token is appended
	sub        *nats.Subscription

	mu      sync.Mutex
	token   uint64             // of the last append; mu
	pending map[uint64]waiting // appends without a reply; mu
	closed  bool               // mu
}

// waiting is an append that has no reply.
type waiting struct {
	reply func(Reply)
	since time.Time
}

// sweepEvery is how many appends pass between two looks for replies that never
// came.
const sweepEvery = 1024

// OpenJetStream creates the log's stream, or checks the one that is there: a
// *WeakStreamError lists what is weaker than asked for. The connection stays
// the caller's; it should reconnect for ever.
func OpenJetStream(ctx context.Context, nc *nats.Conn, cfg Config) (*JetStream, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	js, err := newJetStream(nc, cfg.Domain)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	stream, partitions, err := settle(ctx, js, cfg)
	if err != nil {
		return nil, explain(err, nc, cfg)
	}
	j := &JetStream{cfg: cfg, nc: nc, js: js, stream: stream, partitions: partitions, inbox: nc.NewInbox() + ".", pending: map[uint64]waiting{}}
	// One subscription for all replies, so that an append costs no
	// subscription, and replies stay in order.
	j.sub, err = nc.Subscribe(j.inbox+"*", j.replied)
	if err != nil {
		return nil, fmt.Errorf("journal: subscribe to replies: %w", err)
	}
	if err := j.sub.SetPendingLimits(-1, -1); err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return j, nil
}

func newJetStream(nc *nats.Conn, domain string) (jetstream.JetStream, error) {
	if domain == "" {
		return jetstream.New(nc)
	}
	return jetstream.NewWithDomain(nc, domain)
}

// Partitions is the stream's number of partitions.
func (j *JetStream) Partitions() int { return j.partitions }

// MaxPayload is the most bytes of lines that one envelope may hold here: what
// the server takes, less the headers.
func (j *JetStream) MaxPayload() int { return int(j.nc.MaxPayload()) - 1024 }

// Close ends the replies. What was sent may still be stored.
func (j *JetStream) Close() error {
	j.mu.Lock()
	j.closed = true
	clear(j.pending)
	j.mu.Unlock()
	if err := j.sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("journal: close: %w", err)
	}
	return nil
}

// Append implements [Journal]. While the connection is down nats.go buffers the
// message and sends it later: the expectation makes that harmless.
func (j *JetStream) Append(env *events.Envelope, reply func(Reply)) error {
	env.MAC = events.MAC(j.cfg.Key, env.Partition, env.Expected, env.Lines)
	now := time.Now()
	j.mu.Lock()
	if j.closed {
		j.mu.Unlock()
		return ErrClosed
	}
	j.token++
	token := j.token
	j.pending[token] = waiting{reply, now}
	if token%sweepEvery == 0 {
		j.sweep(now)
	}
	j.mu.Unlock()

	err := j.nc.PublishMsg(&nats.Msg{
		Subject: events.LogSubject(env.Partition),
		Reply:   j.inbox + strconv.FormatUint(token, 10),
		Data:    env.Lines,
		Header: nats.Header{
			events.HeaderExpected: {strconv.FormatUint(env.Expected, 10)},
			events.HeaderEnvelope: {env.ID},
			events.HeaderMAC:      {env.MAC},
			events.HeaderContent:  {events.ContentEvents},
		},
	})
	if err != nil {
		j.take(token)
		if errors.Is(err, nats.ErrMaxPayload) {
			return fmt.Errorf("journal: envelope of %d bytes, the server takes %d: raise max_payload there, or lower the envelope size: %w", len(env.Lines), j.nc.MaxPayload(), err)
		}
		return fmt.Errorf("journal: append: %w", err)
	}
	return nil
}

// sweep forgets appends whose reply is not to be expected any more; j.mu is held.
func (j *JetStream) sweep(now time.Time) {
	for t, w := range j.pending {
		if now.Sub(w.since) > j.cfg.ReplyTimeout {
			delete(j.pending, t)
		}
	}
}

// take removes an append from those that wait, so that its reply is used once.
func (j *JetStream) take(token uint64) func(Reply) {
	j.mu.Lock()
	defer j.mu.Unlock()
	w := j.pending[token]
	delete(j.pending, token)
	return w.reply
}

func (j *JetStream) replied(m *nats.Msg) {
	token, err := strconv.ParseUint(m.Subject[len(j.inbox):], 10, 64)
	if err != nil {
		return
	}
	if reply := j.take(token); reply != nil {
		reply(parseAck(m.Data))
	}
}

// Read implements [Journal], by a direct get: any replica may answer.
func (j *JetStream) Read(ctx context.Context, seq uint64) (*events.Envelope, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	m, err := j.stream.GetMsg(ctx, seq)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("journal: read %d: %w", seq, err)
	}
	msg := message{m.Subject, m.Sequence, m.Header.Get(events.HeaderExpected), m.Header.Get(events.HeaderEnvelope), m.Header.Get(events.HeaderMAC), m.Data}
	env, foreign := msg.open(j.cfg.Key, j.partitions)
	if foreign != nil {
		return nil, foreign
	}
	return env, nil
}

// Last implements [Journal].
func (j *JetStream) Last(ctx context.Context) (uint64, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	info, err := j.stream.Info(ctx)
	if err != nil {
		return 0, fmt.Errorf("journal: last sequence: %w", err)
	}
	return info.State.LastSeq, nil
}

// Extent implements [Journal].
func (j *JetStream) Extent(ctx context.Context) (*Extent, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	info, err := j.stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("journal: extent: %w", err)
	}
	st := info.State
	e := &Extent{First: st.FirstSeq, Last: st.LastSeq, Messages: st.Msgs, Bytes: st.Bytes}
	if e.First <= 1 {
		return e, nil
	}
	m, err := j.stream.GetLastMsgForSubject(ctx, events.LogOps)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return e, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journal: end of operations: %w", err)
	}
	e.Ops = m.Sequence
	return e, nil
}

// bounded gives ctx a deadline if it has none.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, apiTimeout)
}
