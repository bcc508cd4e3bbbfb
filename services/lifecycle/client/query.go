package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
)

// Get asks for one request: as the answering replica's memory has it, or its
// read model. An unknown one is an [*events.Error] with code not_found.
func (c *Client) Get(ctx context.Context, requestID string) (*events.RequestView, error) {
	return query[events.RequestView](ctx, c, events.QueryGet, events.GetQuery{RequestID: requestID})
}

// History asks for one request's events, oldest first.
func (c *Client) History(ctx context.Context, requestID string) (*events.HistoryView, error) {
	return query[events.HistoryView](ctx, c, events.QueryHistory, events.HistoryQuery{RequestID: requestID})
}

// List asks for one page of requests, newest first.
func (c *Client) List(ctx context.Context, q events.ListQuery) (*events.ListView, error) {
	return query[events.ListView](ctx, c, events.QueryList, q)
}

// Workers asks for all workers.
func (c *Client) Workers(ctx context.Context) (*events.WorkersView, error) {
	return query[events.WorkersView](ctx, c, events.QueryWorkers, events.WorkersQuery{})
}

// Info asks a replica about itself and the models that are served.
func (c *Client) Info(ctx context.Context) (*events.InfoView, error) {
	return query[events.InfoView](ctx, c, events.QueryInfo, events.InfoQuery{})
}

// query asks any replica, and again while nobody answers, until ctx ends.
func query[V any](ctx context.Context, c *Client, name string, q any) (*V, error) {
	payload, err := json.Marshal(q)
	if err != nil {
		return nil, fmt.Errorf("encode query %s: %w", name, err)
	}
	subject := events.QuerySubject(c.role, c.principal, name)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		m, err := c.request(ctx, subject, payload, c.timeout)
		if err == nil {
			refused := refusal(m)
			if refused == nil {
				v := new(V)
				if err := json.Unmarshal(m.Data, v); err != nil {
					return nil, fmt.Errorf("query %s: %w: %w", name, errReply, err)
				}
				return v, nil
			}
			err = refused
		}
		var refused *events.Error
		switch {
		case ctx.Err() != nil:
			return nil, c.ended(ctx, "query "+name, err)
		case errors.As(err, &refused) && refused.Code != events.CodeUnavailable:
			return nil, refused
		case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrMaxPayload):
			return nil, fmt.Errorf("query %s: %w", name, err)
		case !sleep(ctx, pause):
			return nil, c.ended(ctx, "query "+name, err)
		}
	}
}

// Heartbeat publishes a sign of life. It is not answered.
func (c *Client) Heartbeat(b events.Heartbeat) error {
	payload, err := events.AppendHeartbeat(nil, &b)
	if err != nil {
		return fmt.Errorf("encode heartbeat: %w", err)
	}
	if err := c.conn.Publish(events.HeartbeatSubject(c.role, c.principal), payload); err != nil {
		return fmt.Errorf("publish heartbeat: %w", err)
	}
	return nil
}
