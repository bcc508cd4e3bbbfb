package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"
	"go.opentelemetry.io/otel/propagation"

	"github.com/pdgate/pdgate/events"
)

// Config says who the client speaks as.
type Config struct {
	Conn       *nats.Conn
	Role       events.Role
	Principal  string
	Partitions int           // of the stream; 0: New asks the service
	Timeout    time.Duration // of one try; 0: one second
	Logger     *slog.Logger  // nil: nothing is logged
}

// Client speaks to the lifecycle service as one principal. It is safe for
// concurrent use and owns no goroutine; its connection belongs to the caller.
type Client struct {
	conn       *nats.Conn
	role       events.Role
	principal  string
	partitions int
	timeout    time.Duration
	logger     *slog.Logger
	hedges     *hedges
}

// Waits between tries that nobody heard, or that were refused for now.
const (
	firstPause = 20 * time.Millisecond
	lastPause  = 500 * time.Millisecond
)

// New checks the configuration. With Partitions 0 it asks the service for the
// number of partitions, and waits for an answer until ctx ends.
func New(ctx context.Context, cfg Config) (*Client, error) {
	switch {
	case cfg.Conn == nil:
		return nil, errors.New("lifecycle client: Conn is missing")
	case !cfg.Role.Known():
		return nil, fmt.Errorf("lifecycle client: role %q is not known", cfg.Role)
	case !events.ValidName(cfg.Principal):
		return nil, fmt.Errorf("lifecycle client: principal %q is not a valid name", cfg.Principal)
	case cfg.Partitions < 0 || cfg.Partitions > events.MaxPartitions:
		return nil, fmt.Errorf("lifecycle client: %d partitions: want 0 to %d", cfg.Partitions, events.MaxPartitions)
	case cfg.Timeout < 0:
		return nil, fmt.Errorf("lifecycle client: timeout %s is negative", cfg.Timeout)
	}
	c := &Client{conn: cfg.Conn, role: cfg.Role, principal: cfg.Principal, partitions: cfg.Partitions, timeout: cfg.Timeout, logger: cfg.Logger}
	var err error
	if c.hedges, err = newHedges(); err != nil {
		return nil, fmt.Errorf("lifecycle client: %w", err)
	}
	if c.timeout == 0 {
		c.timeout = time.Second
	}
	if c.logger == nil {
		c.logger = slog.New(slog.DiscardHandler)
	}
	if c.partitions == 0 {
		// Nobody else says why nothing happens.
		slow := time.AfterFunc(c.timeout, func() { c.logger.Warn("no lifecycle service answers yet, asking again") })
		info, err := c.Info(ctx)
		slow.Stop()
		if err != nil {
			return nil, fmt.Errorf("ask for the number of partitions: %w", err)
		}
		if info.Partitions < 1 || info.Partitions > events.MaxPartitions {
			return nil, fmt.Errorf("lifecycle client: the service names %d partitions: want 1 to %d", info.Partitions, events.MaxPartitions)
		}
		c.partitions = info.Partitions
	}
	return c, nil
}

// Partitions is the number of partitions that commands are spread over.
func (c *Client) Partitions() int { return c.partitions }

// Do sends cmd as the client's principal and returns the recorded answer. It
// sets cmd's Role and Principal, and its Traceparent from ctx if it has none.
//
// Backpressure is told to whoever admits: its client can go elsewhere. Any other
// command reports on work already done and is worth a wait, so Do tries again.
//
// The preferred replica is given a fraction of the timeout before all are asked,
// once a command: it may hang. It hears that, too, and what it knew already
// makes one answer of both.
func (c *Client) Do(ctx context.Context, cmd *events.Command) (*events.Answer, error) {
	cmd.Role, cmd.Principal = c.role, c.principal
	if cmd.Traceparent == "" {
		cmd.Traceparent = traceparent(ctx)
	}
	payload, err := events.AppendCommand(nil, cmd)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", cmd.Type, err)
	}
	partition := events.OpsPartition
	if !ops(cmd.Type) {
		partition = events.PartitionOf(cmd.Subject, c.partitions)
	}
	preferred := events.CommandSubject(c.role, c.principal, cmd.Type, partition)
	everyone := events.CommandSubjectAny(c.role, c.principal, cmd.Type, partition)

	subject, pause, last := preferred, firstPause, error(nil)
	patience, hedge := c.hedges.patience(c.timeout)
	open := false // what an earlier try sent may still be recorded
	begun, first := time.Now(), true
	for {
		a, err := c.try(ctx, subject, payload, patience)
		var refused *events.Error
		switch {
		case err == nil:
			if first && time.Since(begun) <= hedgeAfter {
				c.hedges.answered()
			}
			return a, nil
		case ctx.Err() != nil:
			return nil, c.ended(ctx, string(cmd.Type), errors.Join(last, err))
		case errors.As(err, &refused):
			switch {
			case refused.Code == events.CodeUnavailable, refused.Code == events.CodeBackpressure && cmd.Type != events.CmdAdmit:
			case refused.Code == events.CodeBackpressure && open:
				// Not taken by this replica, but perhaps by the one that was silent.
				return nil, events.NewError(events.CodeUnavailable, "the lifecycle service is busy; what was asked may still be recorded")
			default:
				return nil, refused
			}
		case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrMaxPayload), errors.Is(err, errReply):
			return nil, fmt.Errorf("send %s: %w", cmd.Type, err)
		}
		last = err
		silent := errors.Is(err, context.DeadlineExceeded)
		open = open || silent || refused != nil && refused.Code == events.CodeUnavailable
		if hedge && silent {
			c.hedges.count(ctx, cmd.Type)
		}
		patience, hedge, first = c.timeout, false, false
		if subject == preferred && refused == nil {
			// Nobody there, or a silent one: the others are asked at once.
			subject = everyone
			continue
		}
		c.logger.DebugContext(ctx, "command is sent again", "command", cmd.Type, "request_id", cmd.Subject, "cause", err)
		if !sleep(ctx, pause) {
			return nil, c.ended(ctx, string(cmd.Type), last)
		}
		pause = min(2*pause, lastPause)
		subject = preferred
	}
}

// ended is the error of a call whose context ended before an answer came.
func (c *Client) ended(ctx context.Context, what string, last error) error {
	var refused *events.Error
	if !errors.As(last, &refused) {
		refused = events.NewError(events.CodeUnavailable, "the lifecycle service did not answer in time; what was asked may still be recorded")
	}
	return fmt.Errorf("%s: %w: %w", what, refused, context.Cause(ctx))
}

// errReply means that a reply is not one that the service sends.
var errReply = errors.New("reply is not understood")

// try is one request and its reply.
func (c *Client) try(ctx context.Context, subject string, payload []byte, patience time.Duration) (*events.Answer, error) {
	m, err := c.request(ctx, subject, payload, patience)
	if err != nil {
		return nil, err
	}
	a, err := events.DecodeAnswer(m.Data)
	if err == nil {
		return a, nil
	}
	if refused := refusal(m); refused != nil {
		return nil, refused
	}
	return nil, fmt.Errorf("%w: %w", errReply, err)
}

// request sends one message and waits for one reply, at most for patience. What
// the server forbids shows on the connection only: it is turned into a clear
// error here.
func (c *Client) request(ctx context.Context, subject string, payload []byte, patience time.Duration) (*nats.Msg, error) {
	tctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := c.conn.RequestWithContext(tctx, subject, payload)
	if err != nil {
		if forbidden(c.conn, subject) {
			return nil, events.NewError(events.CodeForbidden, "the NATS user may not publish to "+subject+": it speaks for another role or principal")
		}
		return nil, err
	}
	return m, nil
}

func traceparent(ctx context.Context) string {
	m := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, m)
	return m["traceparent"]
}

// sleep waits for d, or says false when ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
