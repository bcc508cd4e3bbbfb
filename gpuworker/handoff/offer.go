package handoff

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// Offer is one request's finished KV, as its owner recorded it. A grant must
// say the same.
type Offer struct {
	RequestID    string
	Model        string
	Tenant       string
	Alloc        *kvpool.Allocation
	PromptTokens int
	Digest       kvpool.Digest // of what is handed off, under Key: all pages; of an account, Reference
	Key          uint64        // see events.KVKey
	Lease        time.Time     // the KV is gone after it
	Reference    []byte        // opaque, see engine.Prefilled
	First        []byte        // the token that prefill computed
}

// offer is an Offer and what became of it. Fields below the line are guarded by
// Server.mu.
type offer struct {
	Offer
	runs []events.PageRun

	last    int  // epoch of the last grant that was served
	left    bool // an engine's reference is on its way to a puller, or was
	open    []*transfer
	revoked bool          // nothing may leave any more
	closing bool          // no further transfer begins
	idle    chan struct{} // made with closing; closed when open is empty
}

// Offer makes a request's KV available to grants. It comes before the worker
// reports the request as prefilled: the first grant may be quicker than the
// answer to the report.
func (s *Server) Offer(o Offer) error {
	switch {
	case o.RequestID == "" || o.Alloc == nil || o.Alloc.Owner() != o.RequestID:
		return errors.New("offer: the pages are not the request's")
	case o.PromptTokens < 1 || o.Lease.IsZero():
		return errors.New("offer: want prompt tokens and a lease")
	case s.account() && len(o.Reference) == 0:
		return errors.New("offer: pages of an account are handed off by the engine's reference, and there is none")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.offers[o.RequestID]; ok {
		return fmt.Errorf("offer: request %s is offered already", o.RequestID)
	}
	s.offers[o.RequestID] = &offer{Offer: o, runs: o.Alloc.Runs()}
	return nil
}

// closed is the channel of an ending that had nothing to wait for.
var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// Revoke ends the offer at once: transfers in flight are cut without waiting
// for their peers, and their staging is wiped. The channel closes when none is
// left; then the offer is forgotten. It is for requests that reached a terminal
// state, and for leases that are over.
func (s *Server) Revoke(requestID string) <-chan struct{} { return s.end(requestID, true) }

// Drain ends the offer gently: transfers in flight come to their own end, no
// other begins. The channel is Revoke's. It is for requests whose KV has
// arrived; deadlines bound how long a slow peer can take.
func (s *Server) Drain(requestID string) <-chan struct{} { return s.end(requestID, false) }

func (s *Server) end(requestID string, cut bool) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.offers[requestID]
	if o == nil {
		return closed
	}
	if !o.closing {
		o.closing, o.idle = true, make(chan struct{})
	}
	if cut {
		o.revoked = true
		for _, t := range o.open {
			t.conn.cut()
		}
	}
	idle := o.idle
	s.settle(o)
	return idle
}

// settle forgets an offer that is closing and idle. Callers hold mu.
func (s *Server) settle(o *offer) {
	if o.closing && len(o.open) == 0 && s.offers[o.RequestID] == o {
		delete(s.offers, o.RequestID)
		close(o.idle)
	}
}

// begin opens a transfer under a verified grant, or says why not. From here on
// the grant is used, whatever becomes of the transfer.
func (s *Server) begin(g *events.Grant, conn *channel) (*transfer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.offers[g.RequestID]
	if o == nil || o.closing {
		if !s.cfg.Guards.NoHeld {
			return nil, events.NewError(events.CodeUnknownRequest, "the request's KV is not offered here")
		}
		if o == nil {
			o = &offer{Offer: Offer{RequestID: g.RequestID, Model: g.Model, Tenant: g.Tenant, PromptTokens: g.PromptTokens, Lease: g.Lease}}
		}
	}
	if !s.cfg.Guards.NoLease && !s.cfg.Clock().Before(o.Lease) {
		return nil, events.NewError(events.CodeLeaseOver, "the lease of the pages is over")
	}
	if err := o.agrees(g, s.cfg.Layout, s.kvBytes(o)); err != nil && !s.cfg.Guards.NoTable {
		return nil, err
	}
	if o.left && !s.cfg.Guards.NoOnce {
		return nil, events.NewError(events.CodeGrantUsed, "the engine's reference has left already")
	}
	if g.GrantEpoch <= o.last && !s.cfg.Guards.NoOnce {
		return nil, events.NewError(events.CodeGrantUsed, fmt.Sprintf("grant epoch %d, epoch %d was served", g.GrantEpoch, o.last))
	}
	pin, err := s.cfg.Pool.Pin(g.RequestID, s.cfg.Epoch, g.Pages)
	if err != nil {
		return nil, err
	}
	for _, t := range o.open {
		t.superseded = true
		t.conn.cut()
	}
	o.last = max(o.last, g.GrantEpoch)
	t := &transfer{offer: o, grant: g, conn: conn, pin: pin}
	o.open = append(o.open, t)
	return t, nil
}

// agrees compares a grant with what is on record here.
func (o *offer) agrees(g *events.Grant, layout string, bytes int64) error {
	switch {
	case !slices.Equal(g.Pages, o.runs):
		code := events.CodePageOwner
		if len(g.Pages) > 0 && len(o.runs) > 0 && g.Pages[0].Generation != o.runs[0].Generation {
			code = events.CodePageGeneration
		}
		return events.NewError(code, "the granted pages are not the request's")
	case g.Tenant != o.Tenant:
		return events.NewError(events.CodeTenantMismatch, "the pages are another tenant's")
	case g.Model != o.Model || g.Layout != layout:
		return events.NewError(events.CodeIncompatible, "model or page layout differs")
	case g.PromptTokens != o.PromptTokens:
		return events.NewError(events.CodeTokenCountMismatch, fmt.Sprintf("%d tokens granted, %d held", g.PromptTokens, o.PromptTokens))
	case g.KVBytes != bytes || g.KVDigest != o.Digest.String():
		return events.NewError(events.CodeDigestMismatch, "size or digest of the KV differs")
	}
	return nil
}

// account says whether the pages only stand for an engine's own memory. What is
// handed off is then the engine's reference to it, and not bytes of pages.
func (s *Server) account() bool { return s.cfg.Pool.PageBytes() == 0 }

// kvBytes is the size of what is handed off.
func (s *Server) kvBytes(o *offer) int64 {
	if s.account() {
		return int64(len(o.Reference))
	}
	return int64(events.Pages(o.runs)) * int64(s.cfg.Pool.PageBytes())
}

// release lets an engine's reference go, which happens once: unlike pages, it
// cannot be copied again, since whoever has it may have used it up. A transfer
// that breaks after this point ends the request.
func (s *Server) release(t *transfer) error {
	if !s.account() {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.offer.left && !s.cfg.Guards.NoOnce:
		return events.NewError(events.CodeGrantUsed, "the engine's reference has left already")
	case t.superseded:
		return events.NewError(events.CodeGrantEpoch, "a later grant took the transfer's place")
	case (t.offer.revoked || t.offer.closing) && !s.cfg.Guards.NoHeld:
		return events.NewError(events.CodeUnknownRequest, "the offer was revoked")
	}
	t.offer.left = true
	return nil
}

// seal is the point after which a transfer counts: it was open, current and
// not revoked here. A revocation that comes later is the lifecycle's to judge,
// which knows the order of both.
func (s *Server) seal(t *transfer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case t.superseded:
		return events.NewError(events.CodeGrantEpoch, "a later grant took the transfer's place")
	case t.offer.revoked && !s.cfg.Guards.NoHeld:
		return events.NewError(events.CodeUnknownRequest, "the offer was revoked")
	}
	return nil
}

// finish takes a transfer off the books and lets go of its pages.
func (s *Server) finish(t *transfer) {
	t.pin.Release() // may scrub, so not under mu
	s.mu.Lock()
	defer s.mu.Unlock()
	o := t.offer
	if i := slices.Index(o.open, t); i >= 0 {
		o.open = slices.Delete(o.open, i, i+1)
	}
	s.settle(o)
}
