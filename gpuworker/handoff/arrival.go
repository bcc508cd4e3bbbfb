package handoff

import (
	"crypto/ed25519"
	"encoding/binary"
	"fmt"
	"io"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// arrival is KV that is coming in: what the puller checks, without the
// connection that it comes on.
type arrival struct {
	p     *Puller
	grant *events.Grant
	key   uint64 // of the digest
	write *kvpool.Write

	began time.Time // by this clock, before anything was asked

	script []byte // see transcript
	raw    []byte // the header's bytes
	header *header
	at     int    // next page
	sum    uint64 // of the pages before it
}

// head takes the header.
func (in *arrival) head(raw []byte) (err error) {
	if in.header, err = parseHeader(raw); err != nil {
		return err
	}
	in.raw = raw
	if err := agrees(in.header, in.grant); err != nil && !in.p.cfg.Guards.NoHeader {
		return err
	}
	if in.p.account() {
		if int64(len(in.header.Reference)) != in.grant.KVBytes && !in.p.cfg.Guards.NoPullDigest {
			return events.NewError(events.CodeReferenceMismatch, "the engine's reference has another length than was granted")
		}
		in.sum = kvpool.Sum(in.key, 0, in.header.Reference)
	}
	return nil
}

// due is how many pages are to come: of an account, none.
func (in *arrival) due() int {
	if in.p.account() {
		return 0
	}
	return events.Pages(in.grant.Pages)
}

// agrees compares the header with the grant.
func agrees(h *header, g *events.Grant) error {
	switch {
	case h.RequestID != g.RequestID || h.GrantEpoch != g.GrantEpoch:
		return events.NewError(events.CodePageOwner, "the owner sends another request's KV")
	case h.PromptTokens != g.PromptTokens:
		return events.NewError(events.CodeTokenCountMismatch, fmt.Sprintf("%d tokens sent, %d granted", h.PromptTokens, g.PromptTokens))
	case h.Pages != events.Pages(g.Pages) || h.KVBytes != g.KVBytes || h.KVDigest != g.KVDigest:
		return events.NewError(events.CodeDigestMismatch, "size or digest of the KV differs")
	case h.Layout != g.Layout:
		return events.NewError(events.CodeIncompatible, "page layouts differ")
	}
	return nil
}

// pages takes the next n pages, of which first is the number of the first, from
// r. They go to their places at once: nobody else may use those before the end,
// and what fails half-way is scrubbed with them.
func (in *arrival) pages(first uint32, n int, r io.Reader) error {
	if uint64(first) != uint64(in.at) {
		return fmt.Errorf("%w: page %d where %d is due", errFrame, first, in.at)
	}
	sum, err := in.write.Receive(r, in.key, in.at, n)
	if err != nil {
		return err
	}
	in.sum += sum
	in.at += n
	return nil
}

// settle waits for pages that are still on their way to their places. It is called
// once all have come in.
func (in *arrival) settle() error {
	sum, err := in.write.Settle()
	in.sum += sum
	return err
}

// trailer takes the owner's sum and signature.
func (in *arrival) trailer(b []byte) error {
	guards := &in.p.cfg.Guards
	if binary.BigEndian.Uint64(b) != in.sum && !guards.NoPullDigest {
		return events.NewError(events.CodeDigestMismatch, "what arrived is not what was sent")
	}
	key, err := decodeKey(in.grant.OwnerKey)
	if !guards.NoOwnerKey && (err != nil || !ed25519.Verify(key, trailerMessage(in.script, in.raw, binary.BigEndian.Uint64(b)), b[8:])) {
		return events.NewError(events.CodeWrongWorker, "the trailer is not signed by the owner")
	}
	return nil
}

// end judges what arrived. The sum is over what lies in our pages, whatever the
// trailer says.
func (in *arrival) end() (*Pulled, error) {
	g, guards := in.grant, &in.p.cfg.Guards
	if digest := kvpool.Digest(in.sum).String(); digest != g.KVDigest && !guards.NoPullDigest {
		return nil, events.NewError(events.CodeDigestMismatch, "what arrived is not what was granted")
	}
	if !in.p.cfg.Clock().Before(g.Lease) && !guards.NoPullLease {
		return nil, events.NewError(events.CodeLeaseOver, "the lease ended during the copy")
	}
	lease := g.Lease
	if in.p.account() {
		// Counted from before the owner looked at its clock.
		if by := in.began.Add(time.Duration(in.header.LeaseUS) * time.Microsecond); by.Before(lease) {
			lease = by
		}
	}
	return &Pulled{
		Lease: lease,
		Grant: g, KVRequest: in.header.RequestID, PromptTokens: in.header.PromptTokens, KVBytes: g.KVBytes,
		KVDigest: kvpool.Digest(in.sum).String(), Reference: in.header.Reference, First: in.header.First,
	}, nil
}
