package lifecycle

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// maxSigning bounds the grants that wait to be signed. Above it a grant is signed
// where its answer is born, under the partition's lock: that slows whoever
// grants so many.
const maxSigning = 4096

// signing is a granted answer that lacks its signed grant.
type signing struct {
	to     *caller
	answer events.Answer // a copy: whoever else gets the answer has their own
	grant  *events.Grant
	under  string // fingerprint of the key that the request was admitted under
}

// signer signs grants on a goroutine of its own: a signature takes longer than
// everything else that is done for an event. An answer that a crash keeps it
// from is made again when the worker asks again, byte for byte.
type signer struct {
	svc  *Service
	todo chan signing
	open atomic.Int64 // taken and not answered
}

func newSigner(svc *Service) *signer { return &signer{svc: svc, todo: make(chan signing, maxSigning)} }

// take accepts a grant to sign, if there is room.
func (g *signer) take(x signing) bool {
	g.open.Add(1)
	select {
	case g.todo <- x:
		return true
	default:
		g.open.Add(-1)
		return false
	}
}

// run signs until ctx ends.
func (g *signer) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case x := <-g.todo:
			g.svc.sign(x)
			g.open.Add(-1)
		}
	}
}

// signSoon has the grant signed and the answer sent.
func (s *Service) signSoon(x signing) {
	if s.signer == nil || !s.signer.take(x) {
		s.sign(x)
	}
}

// sign completes the answer with the signed grant and the key of the KV digest,
// and sends it.
func (s *Service) sign(x signing) {
	g, err := events.SignGrant(s.cfg.GrantKey, x.grant)
	if err != nil {
		s.log.Error("grant cannot be signed", "request_id", x.answer.Subject, "err", err)
		s.respond(x.to, nil, events.NewError(events.CodeInternal, "the grant is recorded and cannot be signed"))
		return
	}
	key, ok := s.keys.Under(x.grant.Tenant, x.under)
	if !ok {
		s.log.Warn("grant is not given out: the tenant's key is not here", "request_id", x.answer.Subject, "tenant", x.grant.Tenant, "tenant_key", x.under)
		s.respond(x.to, nil, events.NewError(events.CodeTenantKey, "the key that the request was admitted under is not here: it was erased, or not copied to this replica"))
		return
	}
	x.answer.Grant = g
	x.answer.KVKey = kvKey(key, x.answer.Subject)
	s.respond(x.to, &x.answer, nil)
}

// grantFor is the grant that belongs to the answer to a granted command, nil if
// none does, and the fingerprint of the key that the request is under. It is made
// from folded state only, so the grant is durable before it leaves the service, and
// every replica, however often it is asked, signs the same bytes. A grant that a
// later one replaced is not given out again: the owner would refuse it.
func (s *shard) grantFor(a *events.Answer) (*events.Grant, string) {
	if a.Type != events.TypeTransferGranted || a.Denied != nil {
		return nil, ""
	}
	x := s.find(a.Subject)
	if x == nil || x.r.Grant == nil {
		return nil, ""
	}
	rec, ok := lastGrant(x.r)
	if !ok || a.ID != x.r.ID+"."+strconv.Itoa(rec.N) {
		return nil, ""
	}
	return grantOf(x.r, rec.Pos), x.r.TenantKey
}

// lastGrant is the record of the request's last grant.
func lastGrant(r *statemachine.Request) (statemachine.Recorded, bool) {
	for i := len(r.Recorded) - 1; i >= 0; i-- {
		if rec := r.Recorded[i]; rec.Type == events.TypeTransferGranted {
			return rec, true
		}
	}
	return statemachine.Recorded{}, false
}

func grantOf(r *statemachine.Request, pos events.Position) *events.Grant {
	g := r.Grant
	out := &events.Grant{
		RequestID: r.ID, Model: r.Model, Tenant: r.Tenant, GrantEpoch: g.GrantEpoch, Event: pos.String(),
		Owner: g.Owner, OwnerEpoch: g.OwnerEpoch, OwnerKey: g.OwnerKey, OwnerAddress: g.OwnerAddress,
		Worker: g.Worker, WorkerEpoch: g.WorkerEpoch, WorkerKey: g.WorkerKey, Lease: g.Lease,
	}
	if p := r.Prefill; p != nil {
		out.Pages, out.PromptTokens = p.Pages, p.PromptTokens
		out.KVBytes, out.KVDigest, out.Layout = p.KVBytes, p.KVDigest, p.Layout
	}
	return out
}

// kvKey is the hex form of a request's KV digest key: 16 digits.
func kvKey(key events.DigestKey, requestID string) string {
	return fmt.Sprintf("%016x", events.KVKey(key.Request(requestID)))
}
