package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdgate/pdgate/events"
)

// call is one completion request of a client, with a lifecycle for each of its
// n choices. Its goroutine is the HTTP handler's; notifications and output come
// from NATS and only wake it.
type call struct {
	g            *Gateway
	id           string // of the first lifecycle
	req          *request
	relay        bool // the engine reads the client's body, and writes the pieces of the answer
	tenant       *Tenant
	under        events.DigestKey // what the digests of the request are derived from
	trace        string
	label        string
	created      time.Time
	promptTokens int
	maxTokens    int
	flights      []*flight

	open  atomic.Int32  // flights whose end is not known
	wake  chan struct{} // holds one signal
	heard atomic.Int64  // when anything was last heard, in nanoseconds
	timer *time.Timer

	mu     sync.Mutex
	prompt []byte
	lease  lease // of the prompt
}

// signal wakes the call. Signals that pile up are one.
func (c *call) signal() {
	c.heard.Store(c.g.cfg.Now().UnixNano())
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *call) promptBytes() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.prompt
}

// freePrompt lets go of the prompt: no lifecycle is left that needs it.
func (c *call) freePrompt() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.prompt = nil
	c.lease.set(0)
}

// admit opens all lifecycles. The admission of one may be durable although its
// answer is late, so a client that leaves does not interrupt it: what landed is
// cancelled by end.
func (c *call) admit(ctx context.Context) *failure {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.g.cfg.Timeouts.Admit)
	defer cancel()
	if len(c.flights) == 1 {
		return c.admitOne(ctx, c.flights[0])
	}
	failures := make([]*failure, len(c.flights))
	var wg sync.WaitGroup
	for i, f := range c.flights {
		wg.Go(func() { failures[i] = c.admitOne(ctx, f) })
	}
	wg.Wait()
	for _, f := range failures {
		if f != nil {
			return f
		}
	}
	return nil
}

func (c *call) admitOne(ctx context.Context, f *flight) *failure {
	a := &events.Admit{
		Tenant: c.tenant.Name, TenantLimit: c.tenant.MaxInFlight, Model: c.req.model,
		PromptTokens: c.promptTokens, MaxTokens: c.maxTokens,
		PromptDigest: events.Digest(f.key, events.KindPrompt, c.promptBytes()),
		Stream:       c.req.stream, Choice: f.choice,
	}
	if len(c.flights) > 1 {
		a.Group = c.id
	}
	a.TenantKey = c.under.Fingerprint
	fields := c.personal(f, a)
	f.asked = true
	answer, err := c.do(ctx, f, events.CmdAdmit, a)
	if err != nil {
		fail := refused(err)
		if fail.code == events.CodeBackpressure || fail.code == events.CodeInternal {
			f.asked = false // refused before the log saw it
		}
		return fail
	}
	switch {
	case answer.Denied != nil && answer.Denied.Code == events.CodeTenantKey:
		f.asked = false
		c.g.cfg.Logger.Error("the tenant's key is not the one that lifecycle holds", "request_id", f.id, "tenant", c.tenant.Name, "why", answer.Denied.Message)
		if keys := c.g.keys.Tenants; keys != nil {
			keys.Refresh()
		}
		return newFailure(events.CodeTenantKey, "gateway and lifecycle hold different keys of the tenant")
	case answer.Denied != nil:
		f.asked = false
		return newFailure(events.CodeInternal, "the admission was denied: "+string(answer.Denied.Code))
	case answer.Error != nil:
		if keys := c.g.keys.Tenants; keys != nil && answer.Error.Code == events.CodeTenantErased {
			keys.Forget(c.tenant.Name, c.under.Fingerprint)
		}
		return recorded(answer.Error)
	}
	c.g.disclose(ctx, c, f, fields)
	return nil
}

func (c *call) do(ctx context.Context, f *flight, t events.CommandType, d events.CommandData) (*events.Answer, error) {
	a, err := c.g.cfg.Client.Do(ctx, &events.Command{
		Type: t, Subject: f.id, Role: events.RoleGateway, Principal: c.g.cfg.Name, Traceparent: c.trace, Data: d,
	})
	if err == nil {
		f.answered(a)
	}
	return a, err
}

// wait blocks until something may have changed. ctx is the client's.
func (c *call) wait(ctx context.Context) *failure {
	c.timer.Reset(c.g.cfg.Timeouts.Poll)
	select {
	case <-c.wake:
	case <-ctx.Done():
		if context.Cause(ctx) == errTooLong {
			return newFailure(events.CodeDeadline, "the request took longer than the gateway allows")
		}
		return newFailure(events.CodeClientGone, "the client went away")
	case <-c.g.halted:
		return newFailure(events.CodeUnavailable, "the gateway is stopping")
	case <-c.timer.C:
		return c.poll(ctx)
	}
	return nil
}

// poll asks lifecycle itself: notifications may be lost.
func (c *call) poll(ctx context.Context) *failure {
	ctx, cancel := context.WithTimeout(ctx, 2*c.g.cfg.Timeouts.Poll)
	defer cancel()
	for _, f := range c.flights {
		state, _ := f.stands()
		if state.Final() {
			continue
		}
		v, err := c.g.cfg.Client.Get(ctx, f.id)
		if err != nil {
			continue // silence is judged below
		}
		c.heard.Store(c.g.cfg.Now().UnixNano())
		if order(v.State) > order(state) {
			c.catchUp(ctx, f)
		}
	}
	if silent := c.g.cfg.Now().UnixNano() - c.heard.Load(); silent > int64(c.g.cfg.Timeouts.Silence) {
		return newFailure(events.CodeUnavailable, "nothing is heard of the lifecycle service")
	}
	return nil
}

func (c *call) catchUp(ctx context.Context, f *flight) {
	h, err := c.g.cfg.Client.History(ctx, f.id)
	if err != nil {
		return // the next poll tries again
	}
	for i, raw := range h.Events {
		e, err := events.Decode(raw)
		if err != nil || e.Subject != f.id || i >= len(h.Positions) {
			c.g.cfg.Logger.Warn("history cannot be read", "request_id", f.id)
			return
		}
		f.observe(e, raw, h.Positions[i])
	}
}

// report tells lifecycle what went missing here. If the output was decoded, the
// command is denied, and the denial is the evidence that no client got it.
func (c *call) report(ctx context.Context, fail *failure) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.g.cfg.Timeouts.Cancel)
	defer cancel()
	for _, f := range c.flights {
		f.mu.Lock()
		lost := f.lost != nil
		f.mu.Unlock()
		if !lost || f.ending {
			continue
		}
		f.ending = true
		_, err := c.do(ctx, f, events.CmdFail, &events.Fail{
			Stage: "output", Error: events.Error{Code: fail.code, Message: fail.message, Status: fail.status},
		})
		if err != nil {
			c.g.cfg.Logger.Warn("lost output is not recorded", "request_id", f.id, "code", refused(err).code)
		}
	}
}

// end cancels what is still open. Nobody waits for it any more, so it has a
// time of its own; if lifecycle does not hear it, the deadlines in the log end
// the request, and its worker finds no prompt here.
func (c *call) end(ctx context.Context, reason events.Code) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.g.cfg.Timeouts.Cancel)
	defer cancel()
	var wg sync.WaitGroup
	for _, f := range c.flights {
		if state, _ := f.stands(); state.Final() || !f.asked || f.ending {
			continue
		}
		f.ending = true
		wg.Go(func() {
			if _, err := c.do(ctx, f, events.CmdCancel, &events.Cancel{Reason: reason}); err != nil {
				c.g.cfg.Logger.Warn("request is not cancelled", "request_id", f.id, "code", refused(err).code)
			}
		})
	}
	wg.Wait()
}
