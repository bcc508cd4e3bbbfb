package client

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/pdgate/pdgate/events"
)

func (c *Client) send(ctx context.Context, subject string, d events.CommandData) (*events.Answer, error) {
	return c.Do(ctx, &events.Command{Type: d.CommandType(), Subject: subject, Data: d})
}

// Admit asks for a lifecycle. The answer's event is request.admitted.v1, or
// request.rejected.v1 with the error that the client of the gateway gets.
func (c *Client) Admit(ctx context.Context, requestID string, d *events.Admit) (*events.Answer, error) {
	return c.send(ctx, requestID, d)
}

// Reject reports that the engine refused the prompt before any KV existed.
func (c *Client) Reject(ctx context.Context, requestID string, d *events.Reject) (*events.Answer, error) {
	return c.send(ctx, requestID, d)
}

// Prefilled reports finished KV.
func (c *Client) Prefilled(ctx context.Context, requestID string, d *events.Prefill) (*events.Answer, error) {
	return c.send(ctx, requestID, d)
}

// Grant asks for the right to pull the KV. The answer carries the signed grant
// and the key of the KV digest.
func (c *Client) Grant(ctx context.Context, requestID string, d *events.GrantTransfer) (*events.Answer, error) {
	return c.send(ctx, requestID, d)
}

// Transferred reports that the KV arrived.
func (c *Client) Transferred(ctx context.Context, requestID string, d *events.Transfer) (*events.Answer, error) {
	return c.send(ctx, requestID, d)
}

// Decoded reports a complete output.
func (c *Client) Decoded(ctx context.Context, requestID string, d *events.DecodeDone) (*events.Answer, error) {
	return c.send(ctx, requestID, d)
}

// Fail reports an error that ends the request.
func (c *Client) Fail(ctx context.Context, requestID string, d *events.Fail) (*events.Answer, error) {
	return c.send(ctx, requestID, d)
}

// Cancel ends a request that is no longer wanted.
func (c *Client) Cancel(ctx context.Context, requestID string, d *events.Cancel) (*events.Answer, error) {
	return c.send(ctx, requestID, d)
}

// Released reports that pages are free again.
func (c *Client) Released(ctx context.Context, requestID string, d *events.Release) (*events.Answer, error) {
	return c.send(ctx, requestID, d)
}

// Register announces one life of a worker.
func (c *Client) Register(ctx context.Context, worker string, d *events.Register) (*events.Answer, error) {
	return c.send(ctx, worker, d)
}

// Leave ends one life of a worker.
func (c *Client) Leave(ctx context.Context, worker string, d *events.Leave) (*events.Answer, error) {
	return c.send(ctx, worker, d)
}

// Quarantine stops admissions of a model.
func (c *Client) Quarantine(ctx context.Context, model string, d *events.Quarantine) (*events.Answer, error) {
	return c.send(ctx, model, d)
}

// Erase records that a tenant's key is given up.
func (c *Client) Erase(ctx context.Context, tenant string, d *events.Erase) (*events.Answer, error) {
	return c.send(ctx, tenant, d)
}

// Audit records a read of the audit log under a new id.
func (c *Client) Audit(ctx context.Context, d *events.Audit) (*events.Answer, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("id of a read: %w", err)
	}
	return c.send(ctx, id.String(), d)
}

// Notify records that a tenant was told of an incident.
func (c *Client) Notify(ctx context.Context, tenant string, d *events.Notify) (*events.Answer, error) {
	return c.send(ctx, tenant, d)
}

// Restore allows admissions of a model again.
func (c *Client) Restore(ctx context.Context, model string, d *events.Restore) (*events.Answer, error) {
	return c.send(ctx, model, d)
}
