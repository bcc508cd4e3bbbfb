package audit

import (
	"fmt"

	"github.com/pdgate/pdgate/events"
)

// Link is a place in a tenant's chain: the tenantseq of an event, and its hash.
type Link struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// chains follows the chains of tenants. A tenant has one a partition; which is
// which need not be known, since each event names the one before by its hash.
type chains struct {
	heads map[string]map[string]uint64 // tenant → hash of a chain's last event → its tenantseq
	// midway allows chains to begin anywhere: the excerpt does not start at the
	// log's first leaf, and where it starts is not stated.
	midway bool
}

func newChains(midway bool) *chains {
	return &chains{heads: map[string]map[string]uint64{}, midway: midway}
}

func (c *chains) of(tenant string) map[string]uint64 {
	h := c.heads[tenant]
	if h == nil {
		h = map[string]uint64{}
		c.heads[tenant] = h
	}
	return h
}

// begin states that one of the tenant's chains goes on behind l.
func (c *chains) begin(tenant string, l Link) { c.of(tenant)[l.Hash] = l.Seq }

// known says whether the event continues what was seen.
func (c *chains) known(e *events.Event) bool {
	if e.TenantSeq <= 1 {
		return e.TenantPrev == ""
	}
	seq, ok := c.of(e.Tenant)[e.TenantPrev]
	return ok && seq == e.TenantSeq-1
}

// add takes the next event. hash is that of its line.
func (c *chains) add(e *events.Event, hash string) error {
	if e.TenantSeq == 0 {
		return nil // not part of a chain
	}
	if !c.known(e) && (!c.midway || e.TenantPrev == "") {
		return fmt.Errorf("event %s: nothing shown is the event before it in its tenant's chain (tenantseq %d)", e.ID, e.TenantSeq)
	}
	h := c.of(e.Tenant)
	delete(h, e.TenantPrev)
	h[hash] = e.TenantSeq
	return nil
}

// matches checks where the tenant's chains end. Without all, chains that the
// excerpt has no event of may be among the epoch's.
func (c *chains) matches(tenant string, epoch []Head, all bool) error {
	h := c.of(tenant)
	found := 0
	for _, e := range epoch {
		seq, ok := h[e.Hash]
		switch {
		case ok && seq == e.Seq:
			found++
		case ok || all:
			return fmt.Errorf("epoch: the chain in partition %d ends at tenantseq %d, which is not shown", e.Partition, e.Seq)
		}
	}
	if found != len(h) {
		return fmt.Errorf("epoch: %d of %d chains end elsewhere than the log says: events are missing", len(h)-found, len(h))
	}
	return nil
}
