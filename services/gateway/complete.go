package gateway

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"

	"github.com/pdgate/pdgate/events"
)

// complete serves one completion request, of either kind.
func (g *Gateway) complete(w http.ResponseWriter, r *http.Request, chat bool) {
	if f := g.enter(); f != nil {
		writeFailure(w, f)
		return
	}
	defer g.leave()
	body := lease{from: &g.memory}
	defer body.set(0)
	c, f := g.understand(w, r, chat, &body)
	if f != nil {
		writeFailure(w, f)
		return
	}
	g.register(c)
	defer g.forget(c)
	body.set(0) // what is left of it is the prompt, which has its own lease

	ctx, cancel := context.WithTimeoutCause(r.Context(), g.cfg.Timeouts.Request, errTooLong)
	defer cancel()
	a := w.(*answerWriter)
	fail := c.admit(ctx)
	if fail == nil {
		if c.req.stream {
			fail = c.stream(ctx, a)
		} else {
			fail = c.collect(ctx, a)
		}
	}
	switch {
	case fail == nil:
		// A write may have failed all the same; nothing is open any more.
	case a.broken || fail.code == events.CodeClientGone && r.Context().Err() != nil:
		c.end(ctx, events.CodeClientGone)
		// Nobody may read it, but a client that closed only its own direction does,
		// and silence would be read as 200.
		c.writeFailure(a, fail)
	default:
		if fail.lost {
			c.report(ctx, fail)
		}
		c.writeFailure(a, fail)
		c.end(ctx, events.CodeCancelled)
	}
}

// understand reads a request and makes its call.
func (g *Gateway) understand(w http.ResponseWriter, r *http.Request, chat bool, body *lease) (*call, *failure) {
	x := exchangeOf(r)
	b, f := g.readBody(w, r, body)
	if f != nil {
		return nil, f
	}
	if len(g.cfg.Relays) > 0 {
		if c, f, ours := g.understandRelayed(r, b, chat, body); ours {
			return c, f
		}
	}
	req, err := parseRequest(b, chat, g.cfg.Limits.Choices)
	if err != nil {
		return nil, misread(err)
	}
	tokenizer, ok := g.cfg.Models[req.model]
	if !ok {
		return nil, unknownModel()
	}
	x.model = req.model
	most := g.cfg.MaxTokens.Completion
	prompt := req.prompt
	if chat {
		// The contents were copied out of the body, and the template copies again.
		if !body.set(3 * int64(cap(b))) {
			return nil, newFailure(events.CodeOverloaded, "the gateway has no room for more requests")
		}
		most = g.cfg.MaxTokens.Chat
		var stop []string
		prompt, stop = tokenizer.Chat(req.messages)
		req.stop = append(req.stop, stop...)
		req.messages = nil
		b = prompt
	}
	tokens, err := tokenizer.Count(r.Context(), prompt)
	switch {
	case err != nil:
		return nil, newFailure(events.CodeInternal, "the prompt's tokens cannot be counted")
	case tokens < 1:
		return nil, newFailure(events.CodeInvalidRequest, "the prompt has no tokens")
	}
	if req.maxTokens == 0 {
		req.maxTokens = g.fit(r.Context(), req.model, most, tokens)
	}
	if f := x.tenant.admit(g.cfg.Now(), tokens, req.maxTokens*req.n); f != nil {
		return nil, f
	}
	return g.newCall(r, x, req, prompt, tokens, cap(b))
}

func (g *Gateway) newCall(r *http.Request, x *exchange, req *request, prompt []byte, tokens, pinned int) (*call, *failure) {
	c := &call{
		g: g, id: x.id, req: req, tenant: x.tenant, under: g.keys.Of(x.tenant.Name), trace: traceparent(r), label: personal(r.Header.Get(headerRequest)),
		created: g.cfg.Now(), promptTokens: tokens, maxTokens: req.maxTokens,
		prompt: prompt, lease: lease{from: &g.memory},
		wake: make(chan struct{}, 1), timer: time.NewTimer(g.cfg.Timeouts.Poll),
	}
	if len(c.under.Secret) == 0 {
		return nil, newFailure(events.CodeTenantKey, "the tenant's key cannot be read here")
	}
	if !c.lease.set(int64(pinned)) {
		return nil, newFailure(events.CodeOverloaded, "the gateway has no room for more prompts")
	}
	c.relay = req.relay
	if !req.hasTemperature && !req.relay {
		req.temperature = g.cfg.Temperature
	}
	if !req.hasSeed && !req.relay {
		var b [8]byte
		rand.Read(b[:])
		req.seed = int64(binary.BigEndian.Uint64(b[:]) >> 1)
	}
	c.open.Store(int32(req.n))
	c.heard.Store(c.created.UnixNano())
	for i := range req.n {
		id := x.id
		if i > 0 {
			u, err := uuid.NewV7()
			if err != nil {
				c.freePrompt()
				return nil, newFailure(events.CodeInternal, "no request id can be made")
			}
			id = u.String()
		}
		// The choices of one request differ, also where its seed is fixed.
		how := events.Sampling{MaxTokens: req.maxTokens, Stop: req.stop, Temperature: req.temperature, Seed: req.seed + int64(i)}
		if req.relay {
			how = req.relayed(i)
		}
		sampling, err := events.AppendSampling(nil, &how)
		if err != nil {
			c.freePrompt()
			return nil, newFailure(events.CodeInternal, "the sampling of choice "+strconv.Itoa(i)+" cannot be encoded")
		}
		c.flights = append(c.flights, &flight{
			id: id, choice: i, key: c.under.Request(id), sampling: sampling,
			call: c, state: events.New, outputs: make(map[string]*output),
		})
	}
	req.prompt = nil // the call's is the only one
	return c, nil
}
