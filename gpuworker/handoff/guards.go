package handoff

// Guards takes checks away. The zero value has all of them and is what runs;
// tests remove one at a time, or a group of those that cover for each other, and
// see what gets through.
type Guards struct {
	// At the owner, before the copy.
	NoSignature bool // a trusted lifecycle key signed the grant
	NoProof     bool // the puller holds the key that the grant names
	NoOwner     bool // the grant names this worker
	NoEpoch     bool // … and this life of it
	NoLease     bool // the lease is not over
	NoHeld      bool // the request's KV is offered here and not revoked
	NoTable     bool // pages and figures in the grant are those on record here
	NoOnce      bool // the grant's epoch is above all that were served

	// At the owner, after the copy.
	NoRecheck  bool // the pages are still the request's
	NoDigest   bool // the bytes have the sum recorded at the offer
	NoLeaseEnd bool // the lease is not over at the end either

	// At the puller.
	NoOwnerKey    bool // the peer holds the owner's key
	NoHeader      bool // the header names the granted request
	NoPullDigest  bool // the bytes that arrived have the granted sum
	NoPullLease   bool // the lease is not over at the end, on this clock too
	NoPullTrailer bool // the owner confirmed the end of the transfer
}
