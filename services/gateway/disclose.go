package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/pdgate/pdgate/events"
)

// maxDisclosing bounds the disclosures that are on their way to the store. Above
// it a request's are not kept, rather than the request waits for them.
const maxDisclosing = 1024

// disclosing counts them.
type disclosing struct {
	wg   sync.WaitGroup
	open atomic.Int64
	lost atomic.Uint64 // requests whose personal fields were not stored
}

// personal is a personal value as it can be kept, "" for one that cannot.
func personal(s string) string {
	if len(s) > events.MaxField || !utf8.ValidString(s) {
		return ""
	}
	return s
}

// personal puts the salted digests of the call's personal fields into the command,
// and returns what opens them.
func (c *call) personal(f *flight, a *events.Admit) []events.Disclosure {
	var all []events.Disclosure
	for _, p := range [...]struct {
		field, value string
		digest       *string
	}{{events.FieldLabel, c.label, &a.Label}, {events.FieldUser, c.req.user, &a.User}} {
		if p.value == "" {
			continue
		}
		d := c.under.Disclose(events.AdmissionID(f.id), p.field, p.value)
		*p.digest = d.Digest()
		all = append(all, d)
	}
	return all
}

// disclose stores what opens a request's personal fields, once its admission is
// durable, so that nothing is kept of a request that was refused. The request
// does not wait for it, nor for a client that leaves: what is not stored within
// its time leaves the digests, which nobody can open then.
func (g *Gateway) disclose(ctx context.Context, c *call, f *flight, fields []events.Disclosure) {
	if len(fields) == 0 || g.cfg.Disclosures == nil {
		return
	}
	if g.kept.open.Add(1) > maxDisclosing {
		g.kept.open.Add(-1)
		g.withheld(f.id, "too many are on their way")
		return
	}
	tenant, under := c.tenant.Name, c.under
	ctx = context.WithoutCancel(ctx)
	g.kept.wg.Go(func() { // ends with its time
		defer g.kept.open.Add(-1)
		ctx, cancel := context.WithTimeout(ctx, g.cfg.Timeouts.Disclose)
		defer cancel()
		if err := g.cfg.Disclosures.Put(ctx, under, tenant, f.id, fields); err != nil {
			g.withheld(f.id, err.Error())
		}
	})
}

func (g *Gateway) withheld(requestID, why string) {
	g.kept.lost.Add(1)
	g.cfg.Logger.Warn("personal fields are not stored: they cannot be disclosed", "request_id", requestID, "why", why)
}
