// Package audit is what a third party needs to check pdgate's log without
// trusting the one that keeps it: leaves, tree arithmetic, tiles, checkpoints,
// proofs, and the bundle that carries them.
//
// # Leaves
//
// The log is a Merkle tree (RFC 6962, SHA-256) over the event stream, in stream
// order: by sequence of the message, then by line. A leaf is the exact bytes of
// one event line, or one of three markers in canonical JSON, which no event can be
// mistaken for, since events start with {"specversion":
//
//	{"pdgate_gap":{"from":7,"to":9}}               the stream has no such sequences
//	{"pdgate_foreign":{"seq":7,"sha256":"5f…"}}    a message that no holder of the log key wrote
//	{"pdgate_epoch":{"seq":7,"line":0,"tenant":"acme","chains":[
//	   {"partition":0,"seq":17,"head":"q3Zc…"},…]}} where a tenant's chains end
//
// The tree is a function of the stream alone, so whoever has the stream can build
// it again and must get the same root.
//
// # Tiles and checkpoints
//
// Tiles are laid out as C2SP tlog-tiles: tile/<level>/<index>[.p/<width>] holds up
// to 256 hashes, tile/entries/<index>[.p/<width>] as many leaves, each after its
// length in two bytes. A checkpoint is a C2SP tlog-checkpoint, a note that the log
// signs with Ed25519:
//
//	example.com/log
//	923748
//	nND/nri/U0xuHUrYSy0HtMeal2vzD9V4k/BO79C+QeI=
//	pdgate complete-until 81233
//
//	— example.com/log …
//
// The last line says up to which stream sequence the tree holds everything.
// Witnesses add cosignatures (C2SP tlog-cosignature); a [Policy] says which are
// asked for. A [Proof] of one leaf is a C2SP tlog-proof.
//
// # Bundles
//
// A bundle is a zip of an excerpt of the log with all that is needed to check it
// offline; see [Manifest]. [VerifyBundle] reads one in memory that does not grow
// with the number of leaves.
//
// The package imports the standard library, golang.org/x/mod/sumdb and package
// events. It reads no clock, opens no file and no connection.
package audit
