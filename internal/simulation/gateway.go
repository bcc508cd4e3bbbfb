package simulation

import (
	"fmt"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/services/gateway"
)

// gate is one gateway, over all of its lives. What it holds dies with it.
type gate struct {
	w       *world
	name    string
	life    *life
	clients []*client // open here
}

// client is one HTTP request, and what its sender sees.
type client struct {
	w      *world
	g      *gate
	life   *life // of the gateway that took it
	id     string
	tenant string
	prompt []byte
	most   int // tokens
	stream bool
	limit  int // of the tenant
	expiry time.Duration
	hold   *gateway.Hold
	call   *call

	asked    bool // an admission was sent, and may have landed
	over     bool
	status   int // 0: the connection broke before there was one
	text     []byte
	complete bool
}

const (
	admitFor = 5 * time.Second
	silence  = 40 * time.Second
)

func newGate(w *world, name string) *gate {
	g := &gate{w: w, name: name}
	g.boot()
	return g
}

func (g *gate) boot() {
	g.life, g.clients = &life{name: g.name}, nil
	g.w.every(g.life, 900*time.Millisecond, 1300*time.Millisecond, g.poll)
}

// crash takes the clients' connections along, and their prompts.
func (g *gate) crash(down time.Duration) {
	if g.life.dead {
		return
	}
	g.life.dead = true
	g.w.say("%s crashes", g.name)
	g.w.seen["gateway crash"]++
	for _, c := range g.clients {
		c.over = true
	}
	g.w.after(down, g.boot)
}

// mark is text that no other tenant's prompt holds.
func mark(tenant string) string { return strings.Repeat(tenant[len(tenant)-1:], 3) }

// canary is what a tenant would not like to see in another one's answer.
func canary(tenant string) string { return "<" + mark(tenant) + "-secret-of-" + tenant + ">" }

// compose writes a prompt that makes the engine quote it: it ends as it began,
// before the canary.
func (w *world) compose(tenant string, tokens int) []byte {
	lead := fmt.Sprintf("note %d of %s: ", w.rnd.IntN(1000), tenant)
	p := lead + canary(tenant) + "; "
	for len(p)+len(lead) < tokens {
		p += fmt.Sprintf("%s %s, ", mark(tenant), []string{"green", "seven", "north", "paper", "quiet"}[w.rnd.IntN(5)])
	}
	return []byte(p[:max(tokens-len(lead), 0)] + lead)
}

// enroll has clients come.
func (w *world) enroll() {
	tenants := 2 + w.rnd.IntN(3)
	for i := range 4 + w.rnd.IntN(8) {
		c := &client{w: w, g: w.gateways[w.rnd.IntN(len(w.gateways))], tenant: fmt.Sprintf("tenant-%c", 'A'+w.rnd.IntN(tenants))}
		tokens := 50 + w.rnd.IntN(inputTokens-50)
		if w.faults.LongOnly && i%2 == 1 || w.rnd.IntN(10) == 0 {
			tokens = inputTokens + 1 + w.rnd.IntN(contextTokens-inputTokens-40)
		}
		if w.faults.MixPrompt {
			tokens = 100
		}
		c.prompt = w.compose(c.tenant, tokens)
		c.most = 8 + w.rnd.IntN(24)
		c.stream = w.rnd.IntN(2) == 0
		if w.rnd.IntN(4) == 0 {
			c.limit = 2
		}
		if w.rnd.IntN(4) == 0 {
			c.expiry = w.between(3*time.Second, 15*time.Second)
		}
		w.clients = append(w.clients, c)
		at := w.between(0, arrivals)
		w.after(at, c.arrive)
		if w.rnd.IntN(5) == 0 {
			w.after(at+w.between(0, 3*time.Second), c.leave)
		}
	}
}

// arrive sends the request; nobody answers at a gateway that is down.
func (c *client) arrive() {
	w, g := c.w, c.g
	ms := w.now.UnixMilli()
	w.names++
	c.id = fmt.Sprintf("%08x-%04x-7000-8000-%012x", ms>>16, ms&0xffff, w.names)
	if g.life.dead || g.life.still.After(w.now) || c.over {
		c.over = true
		return
	}
	c.life = g.life
	g.clients = append(g.clients, c)
	key := events.RequestKey(w.secret, c.id)
	sampling, err := events.AppendSampling(nil, &events.Sampling{MaxTokens: c.most})
	if err != nil {
		panic(err) // plain numbers
	}
	c.hold = gateway.NewHold(gateway.HoldConfig{
		RequestID: c.id, Key: key, Prompt: c.prompt, Sampling: sampling, Now: func() time.Time { return w.now },
		Output: 2 * time.Second, Guards: w.cfg.Guards.Gateway,
	})
	c.asked = true
	w.say("%s asks %s for %s: %d tokens, at most %d more", c.tenant, g.name, short(c.id), len(c.prompt), c.most)
	c.call = w.do(c.life, events.RoleGateway, g.name, c.id, &events.Admit{
		Tenant: c.tenant, TenantLimit: c.limit, Model: model, PromptTokens: len(c.prompt), MaxTokens: c.most,
		PromptDigest: events.Digest(key, events.KindPrompt, c.prompt), Stream: c.stream, TimeoutMS: c.expiry.Milliseconds(),
	}, func(a *events.Answer, err *events.Error) {
		switch {
		case c.over:
		case err != nil:
			c.end(500)
		case a.Denied != nil:
			c.end(500)
		default:
			c.hold.Answered(a)
			c.look()
		}
	})
	w.on(c.life, admitFor, func() {
		if !c.over && c.hold.State() == events.New {
			c.end(503)
		}
	})
	w.on(c.life, silence, func() {
		if !c.over {
			c.end(503)
		}
	})
}

// leave is the client going away.
func (c *client) leave() {
	switch {
	case c.over:
	case c.hold == nil:
		c.over = true // it never came
	default:
		c.w.let(c.life, func() {
			if !c.over {
				c.w.seen["client leaves"]++
				c.end(499)
			}
		})
	}
}

// look gives the client what it may have, as the gateway's handlers do.
func (c *client) look() {
	if c.over {
		return
	}
	if !c.stream {
		j := c.hold.Look()
		switch {
		case j.Failed != nil:
			c.fail(j)
		case j.Done:
			c.text = c.hold.Take().Text
			c.complete = true
			c.end(200)
		}
		return
	}
	j := c.hold.Take()
	if j.Failed != nil {
		c.fail(j)
		return
	}
	if j.Open {
		c.status = 200
		c.text = append(c.text, j.Text...)
	}
	if j.Done {
		c.complete = true
		c.end(200)
	}
}

func (c *client) fail(j gateway.Judgement) {
	if j.Lost {
		c.w.stop("gateway compares the output", j.Failed)
		c.over = true
		c.w.do(c.life, events.RoleGateway, c.g.name, c.id, &events.Fail{Stage: "output", Error: *j.Failed}, func(*events.Answer, *events.Error) {})
	}
	c.over = false
	c.end(j.Failed.HTTPStatus())
}

// end is the client's answer. What is still open is cancelled.
func (c *client) end(status int) {
	c.over = true
	if c.status == 0 {
		c.status = status
	}
	c.w.say("%s gets %d for %s, %d bytes, complete %v", c.tenant, c.status, short(c.id), len(c.text), c.complete)
	c.w.seen[fmt.Sprintf("status %d", c.status)]++
	c.call.drop()
	if state := c.hold.State(); !state.Final() && c.asked {
		reason := events.CodeCancelled
		if status == 499 {
			reason = events.CodeClientGone
		}
		c.w.do(c.life, events.RoleGateway, c.g.name, c.id, &events.Cancel{Reason: reason}, func(*events.Answer, *events.Error) {})
	}
}

func (g *gate) find(id string) *client {
	for _, c := range g.clients {
		if c.id == id && !c.over {
			return c
		}
	}
	return nil
}

// notice takes a recorded event.
func (g *gate) notice(e *events.Event, raw []byte, pos string) {
	if c := g.find(e.Subject); c != nil {
		c.hold.Observe(e, raw, pos)
		c.look()
	}
}

// poll asks about what is open, and reads its history: notifications may be lost.
func (g *gate) poll() {
	for _, c := range g.clients {
		if c.over {
			continue
		}
		c.look()
		g.w.ask(g.life, c.id, func(v *events.RequestView) {
			if v == nil || c.over {
				return
			}
			pos, err := events.ParsePosition(v.Position)
			if err != nil {
				g.w.breach(RuleRefused, "view: %v", err)
				return
			}
			all, err := journal.History(noTime, &writer{w: g.w}, pos)
			if err != nil {
				g.w.breach(RuleRefused, "history of %s: %v", short(c.id), err)
			}
			for _, r := range all {
				if e, err := events.Decode(r.Line); err == nil {
					c.hold.Observe(e, r.Line, r.Pos.String())
				}
			}
			c.look()
		})
	}
}

// fetch asks a request's gateway for a part of it.
func (w *world) fetch(l *life, work *events.Work, role events.Role, part string, done func([]byte, *events.Error)) {
	over := false
	once := func(b []byte, err *events.Error) {
		if !over {
			over = true
			done(b, err)
		}
	}
	gone := events.NewError(events.CodePromptUnavailable, "the gateway does not give the "+part)
	w.on(l, 2*time.Second, func() { once(nil, gone) })
	var g *gate
	for _, x := range w.gateways {
		if x.name == work.Gateway {
			g = x
		}
	}
	if g == nil {
		return
	}
	w.deliver("", func() {
		w.let(g.life, func() {
			var b []byte
			if c := g.find(work.RequestID); c != nil && (role == events.RolePrefill || part == events.PartSampling) {
				b = c.hold.Part(part)
				if w.faults.MixPrompt && part == events.PartPrompt && w.chance(0.5) {
					b = w.clients[w.rnd.IntN(len(w.clients))].prompt
				}
			}
			w.deliver("", func() {
				w.let(l, func() {
					if b == nil {
						once(nil, gone)
					} else {
						once(b, nil)
					}
				})
			})
		})
	})
}

// output carries a piece of output.
func (w *world) output(from string, work *events.Work, c events.OutputChunk) {
	frame := events.AppendOutputChunk(nil, c)
	for _, g := range w.gateways {
		if g.name != work.Gateway {
			continue
		}
		w.deliver("output of "+short(work.RequestID), func() {
			w.let(g.life, func() {
				c, err := events.ParseOutputChunk(frame)
				if err != nil {
					w.breach(RuleRefused, "output: %v", err)
					return
				}
				if x := g.find(work.RequestID); x != nil {
					x.hold.Output(from, c)
					x.look()
				}
			})
		})
	}
}

// expect is what the engine answers to the client's prompt, by itself; nil where
// it must refuse.
func (c *client) expect() []byte {
	if len(c.prompt) > inputTokens {
		return nil
	}
	b, _, err := engine.Complete(noTime, c.w.engines["ref"], c.prompt, engine.Sampling{MaxTokens: c.most})
	if err != nil {
		panic(err)
	}
	return b
}
