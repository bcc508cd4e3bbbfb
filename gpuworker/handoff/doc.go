// Package handoff moves one request's KV from the worker that prefilled it to
// the worker that decodes it, on a data plane of its own.
//
// The owner of the pages decides. A [Server] checks every grant on its own
// memory and its own clock, before the copy and after it; what the [Puller]
// checks is a second line. Nothing is sent that is not granted, held, unexpired
// and summed.
//
// # Protocol
//
// One connection is one transfer: TCP under TLS 1.3, or a Unix socket. All
// messages are frames: a type byte, a length of four bytes, a payload. "O" is
// the owner, "P" the puller.
//
//	O: hello    magic, version, owner's nonce
//	P: hello    magic, version, puller's nonce
//	P: grant    events.SignedGrant
//	P: proof    Ed25519 by the key the grant names, over the transcript
//	O: verdict  empty: granted; otherwise the events.Error that ends it
//	O: header   whose KV it is, its size and digest; the first token
//	O: pages    index of the first page, then whole pages; repeated, in order
//	O: trailer  sum, and Ed25519 by the owner's key over transcript, header, sum
//
// A verdict may also stand where pages or the trailer are due: the owner found
// a reason to stop. Without a good trailer nothing was transferred, whatever
// bytes arrived: the owner makes its last checks, the lease among them, between
// the last page and the trailer.
//
// The transcript is a hash over both nonces, the grant's bytes and the channel:
// under TLS its exporter, so that a proof is worth nothing on another
// connection. Certificates are self-signed and serve only to carry the workers'
// identity keys; each side pins the key that the grant names for the other. On
// a Unix socket (mode 0600) there is no encryption, and the same two signatures
// stand.
//
// # One use
//
// Grant epochs of one request rise. The owner remembers the last one it served
// until the pages are gone, and serves each once, whether or not the transfer
// came to its end; a later grant ends the transfer of an earlier one.
//
// # Engines that keep their KV
//
// Where the pool is an account of an engine's own memory, no pages frames are
// sent: the header carries the engine's reference, byte for byte, and the sum is
// the reference's. It leaves once, under whatever grant came first, since it may
// be good for one use only. With it goes what is left of its lease, as a span.
package handoff
