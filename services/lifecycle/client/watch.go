package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// WatchFilter restricts what [Client.Watch] shows. Empty members do not.
type WatchFilter struct {
	Model     string
	RequestID string
	// Wants picks requests by their ids, before anything is decoded; nil: all. It is
	// called as f is.
	Wants func(requestID string) bool
}

// Notice is one durable event, as it was announced.
type Notice struct {
	Event    *events.Event
	Position events.Position
	Raw      []byte // the canonical bytes, as stored: a part of the message, which it keeps in memory
}

// watchBuffer is how many bytes of notices may wait for a slow handler.
const watchBuffer = 64 << 20

// Watch calls f for each event that becomes durable from now on, one at a time,
// until ctx ends; it returns nil then. Notices travel on core NATS: a lost
// connection, or a handler that falls behind, loses some, and the latter is an
// error. The log has them all.
func (c *Client) Watch(ctx context.Context, filter WatchFilter, f func(Notice)) error {
	subject := events.NotifyAll
	if filter.Model != "" || filter.RequestID != "" {
		model, partition := "*", "*"
		if filter.Model != "" {
			if !events.ValidModel(filter.Model) {
				return fmt.Errorf("watch: %q is not a model's name", filter.Model)
			}
			model = filter.Model
		}
		if filter.RequestID != "" {
			if _, err := events.RequestTime(filter.RequestID); err != nil {
				return fmt.Errorf("watch: %w", err)
			}
			partition = strconv.Itoa(events.PartitionOf(filter.RequestID, c.partitions))
		}
		subject = strings.TrimSuffix(events.NotifySubject(model, 0), "0") + partition
	}
	sub, err := c.conn.SubscribeSync(subject)
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer sub.Unsubscribe()
	if err := sub.SetPendingLimits(-1, watchBuffer); err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	// Without the flush, an event caused by the caller's next step could be missed.
	// A server that is away hears of the subscription when the connection is back.
	fctx, cancel := context.WithTimeout(ctx, c.timeout)
	err = c.conn.FlushWithContext(fctx)
	cancel()
	if err != nil && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("watch: %w", err)
	}
	for {
		m, err := sub.NextMsgWithContext(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("watch: %w", err)
		}
		err = events.ReadNotice(m.Header.Get(events.HeaderPosition), m.Data, func(pos events.Position, line []byte) {
			if !filter.wants(string(events.PeekSubject(line))) {
				return
			}
			e, err := events.Decode(line)
			if err != nil {
				c.logger.WarnContext(ctx, "notice is not understood", "subject", m.Subject, "position", pos, "err", err)
				return
			}
			f(Notice{Event: e, Position: pos, Raw: line})
		})
		if err != nil {
			c.logger.WarnContext(ctx, "notices are not understood", "subject", m.Subject, "err", err)
		}
	}
}

func (w *WatchFilter) wants(requestID string) bool {
	return (w.RequestID == "" || w.RequestID == requestID) && (w.Wants == nil || w.Wants(requestID))
}
