package lifecycle

import (
	"fmt"
	"strconv"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// attach puts the signed grant and the key of the KV digest into the answer to
// a granted command. It works from folded state only, so the grant is durable
// before it leaves the service, and every replica, however often it is asked,
// signs the same bytes. A grant that a later one replaced is not given out
// again: the owner would refuse it.
func (s *shard) attach(a *events.Answer) error {
	if a.Type != events.TypeTransferGranted || a.Denied != nil {
		return nil
	}
	x := s.find(a.Subject)
	if x == nil || x.r.Grant == nil {
		return nil
	}
	rec, ok := lastGrant(x.r)
	if !ok || a.ID != x.r.ID+"."+strconv.Itoa(rec.N) {
		return nil
	}
	if x.grant == nil || x.granted != rec.N {
		g, err := events.SignGrant(s.svc.cfg.GrantKey, grantOf(x.r, rec.Pos))
		if err != nil {
			return fmt.Errorf("sign grant: %w", err)
		}
		x.grant, x.granted = g, rec.N
	}
	a.Grant = x.grant
	a.KVKey = kvKey(s.svc.cfg.DigestSecret, x.r.ID)
	return nil
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
func kvKey(secret []byte, requestID string) string {
	return fmt.Sprintf("%016x", events.KVKey(events.RequestKey(secret, requestID)))
}
