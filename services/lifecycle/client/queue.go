package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
)

// Queue takes work of one model and role from its work queue. It speaks the
// pull protocol by hand: a worker's NATS user may ask its consumer for messages
// and acknowledge them, and may look at nothing else.
//
// At most one pull is open, however many callers of [Queue.Next] wait. What
// arrives after its caller gave up waits for the next one, so no item rests
// unseen until its acknowledgement is overdue.
type Queue struct {
	c       *Client
	pull    string // subject that asks for messages
	inbox   string
	sub     *nats.Subscription
	back    chan nats.Status // the connection was lost and is back; owned by the turn
	msgs    chan *nats.Msg   // at most one item, and a few words about pulls that are over
	turn    chan struct{}    // holds one token: who has it may pull and receive
	open    uint64           // number of the open pull; 0: none. Owned by the turn
	pulls   uint64           // owned by the turn
	expires time.Time        // when the open pull is over at the latest; owned by the turn
}

// pullExpires is how long the server keeps a pull open. One that was lost with its
// connection is asked for again when that is back.
const pullExpires = 2 * time.Second

// Queue opens the queue of a model's work for a role. The consumer behind it is
// made by the lifecycle service when a worker of the model registers; until
// then Next waits.
func (c *Client) Queue(_ context.Context, model string, role events.Role) (*Queue, error) {
	if !events.ValidModel(model) {
		return nil, fmt.Errorf("queue: %q is not a model's name", model)
	}
	if role != events.RolePrefill && role != events.RoleDecode {
		return nil, fmt.Errorf("queue: no work for role %q", role)
	}
	q := &Queue{
		c:     c,
		pull:  "$JS.API.CONSUMER.MSG.NEXT." + events.WorkStream + "." + events.WorkConsumer(model, role),
		inbox: c.conn.NewRespInbox(),
		msgs:  make(chan *nats.Msg, 64),
		turn:  make(chan struct{}, 1),
	}
	sub, err := c.conn.ChanSubscribe(q.inbox+".*", q.msgs)
	if err != nil {
		return nil, fmt.Errorf("queue: %w", err)
	}
	q.sub, q.back = sub, c.conn.StatusChanged(nats.CONNECTED)
	q.turn <- struct{}{}
	return q, nil
}

// Next waits for one work item until ctx ends.
func (q *Queue) Next(ctx context.Context) (*Item, error) {
	select {
	case <-q.turn:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { q.turn <- struct{}{} }()
	pause := firstPause
	for {
		if q.open == 0 || !time.Now().Before(q.expires) {
			if err := q.ask(); err != nil {
				return nil, err
			}
		}
		m, err := q.receive(ctx)
		switch {
		case ctx.Err() != nil && m == nil:
			return nil, context.Cause(ctx)
		case errors.Is(err, errPullSilent):
			q.open = 0
			continue
		case errors.Is(err, nats.ErrNoResponders):
			// No consumer yet: nats.go makes an error of the status. Lifecycle makes it
			// when the first worker of the model registers, which may be this one.
			q.open = 0
			if !sleep(ctx, pause) {
				return nil, context.Cause(ctx)
			}
			pause = min(2*pause, lastPause)
			continue
		case err != nil:
			return nil, fmt.Errorf("queue: %w", err)
		}
		status := m.Header.Get("Status")
		if status == "" || m.Reply != "" {
			q.open = 0
			it, err := newItem(q.c.conn, m)
			if err != nil {
				// It can never be carried out; whoever sent it was not lifecycle.
				// The error may quote what it found, and that may be a prompt: where the item
				// lay says enough.
				var at uint64
				if md, err := m.Metadata(); err == nil {
					at = md.Sequence.Stream
				}
				q.c.logger.ErrorContext(ctx, "work item is not understood and is dropped", "stream_seq", at, "bytes", len(m.Data))
				_ = ack(q.c.conn, m.Reply, "+TERM") // else it comes again, and is dropped then
				continue
			}
			return it, nil
		}
		if n, _ := strconv.ParseUint(m.Subject[len(q.inbox)+1:], 10, 64); n != q.open {
			continue // about a pull that is over
		}
		q.open = 0
		if status == "404" || status == "408" {
			pause = firstPause
			continue // it expired; ask again
		}
		// 503: no consumer yet, or the memory behind it was lost and lifecycle is
		// about to make it anew. 409: the consumer was deleted, or the server stops.
		if !sleep(ctx, pause) {
			return nil, context.Cause(ctx)
		}
		pause = min(2*pause, lastPause)
	}
}

func (q *Queue) ask() error {
	for len(q.back) > 0 {
		<-q.back // of a connection before the one that is asked on
	}
	q.pulls++
	body := []byte(`{"batch":1,"expires":` + strconv.FormatInt(int64(pullExpires), 10) + `}`)
	if err := q.c.conn.PublishRequest(q.pull, q.inbox+"."+strconv.FormatUint(q.pulls, 10), body); err != nil {
		return fmt.Errorf("queue: %w", err)
	}
	q.open, q.expires = q.pulls, time.Now().Add(pullExpires+pullExpires/2)
	return nil
}

// errPullSilent means that the open pull ended without a word: its connection was
// lost.
var errPullSilent = errors.New("the pull is over and nothing came")

// receive waits for a message until the open pull must be over.
func (q *Queue) receive(ctx context.Context) (*nats.Msg, error) {
	t := time.NewTimer(time.Until(q.expires))
	defer t.Stop()
	select {
	case m, ok := <-q.msgs:
		if !ok {
			return nil, fmt.Errorf("queue: %w", nats.ErrConnectionClosed)
		}
		return m, nil
	case <-t.C:
		return nil, errPullSilent
	case _, ok := <-q.back:
		if !ok {
			q.back = nil
		}
		return nil, errPullSilent
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close gives back what arrived and was not taken. The server is told first, and
// then asked for a sign that nothing more is on its way: an item that nobody
// reads would rest until its acknowledgement is overdue.
func (q *Queue) Close() error {
	<-q.turn
	defer func() { q.turn <- struct{}{} }()
	if q.back != nil {
		q.c.conn.RemoveStatusListener(q.back)
		q.back = nil
	}
	err := q.sub.Drain()
	flush := func() {
		if err == nil && q.c.conn.IsConnected() { // else nothing comes, and what is lost comes to another
			err = q.c.conn.FlushTimeout(q.c.timeout)
		}
	}
	flush()
	for {
		select {
		case m, ok := <-q.msgs:
			if ok && m.Reply != "" {
				_ = ack(q.c.conn, m.Reply, "-NAK") // else its acknowledgement is overdue after a while
			}
			if ok {
				continue
			}
		default:
		}
		break
	}
	flush()
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("queue: %w", err)
	}
	return nil
}

// Item is one piece of work, held until it is acknowledged, given back, or
// silent for the queue's acknowledgement time (30 seconds).
type Item struct {
	Work       *events.Work
	Deliveries int // 1: nobody had it before

	conn  *nats.Conn
	reply string
}

var errWorkReply = errors.New("work item: reply subject is not an acknowledgement's")

func newItem(nc *nats.Conn, m *nats.Msg) (*Item, error) {
	if !strings.HasPrefix(m.Reply, "$JS.ACK.") {
		return nil, errWorkReply
	}
	w, err := events.DecodeWork(m.Data)
	if err != nil {
		return nil, fmt.Errorf("work item: %w", err)
	}
	md, err := m.Metadata()
	if err != nil {
		return nil, fmt.Errorf("work item: %w", err)
	}
	return &Item{Work: w, Deliveries: int(md.NumDelivered), conn: nc, reply: m.Reply}, nil
}

// Ack says that the item is done with, whatever came of it.
func (i *Item) Ack() error { return ack(i.conn, i.reply, "+ACK") }

// Nak gives the item back, to be delivered again after the delay.
func (i *Item) Nak(delay time.Duration) error {
	if delay <= 0 {
		return ack(i.conn, i.reply, "-NAK")
	}
	b, err := json.Marshal(struct {
		Delay time.Duration `json:"delay"`
	}{delay})
	if err != nil {
		return fmt.Errorf("encode nak: %w", err)
	}
	return ack(i.conn, i.reply, "-NAK "+string(b))
}

// Progress says that the item is still being worked on.
func (i *Item) Progress() error { return ack(i.conn, i.reply, "+WPI") }

// Term drops the item for good: nobody can do it.
func (i *Item) Term() error { return ack(i.conn, i.reply, "+TERM") }

func ack(nc *nats.Conn, reply, word string) error {
	if err := nc.Publish(reply, []byte(word)); err != nil {
		return fmt.Errorf("acknowledge work: %w", err)
	}
	return nil
}
