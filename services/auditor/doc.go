// Package auditor follows the log, keeps it as a Merkle tree in files, signs the
// tree, and serves it to those who check.
//
// # From the stream to a signature
//
//	stream ─► leaves ─► tiles ─► index ─► state.json ─► signature ─► record ─► checkpoint
//	          follow    ╰────────── commit ──────────╯   ╰─────────── sign ───────────╯
//
// The tree is a function of the stream alone (package events/audit): any replica
// builds the same one, at any time. So a crash costs work and nothing else. Each
// commit point, and what a crash there leaves:
//
//   - tiles: files that nobody refers to; written again with the same bytes.
//   - index: records beyond the count in state.json; cut off at the next start.
//   - state.json: the tree is as large as it says, and not signed. The next start
//     signs it.
//   - signature: made in memory and gone. Ed25519 makes the same one again.
//   - record: the signature stands; the file checkpoint is behind, and is written
//     from the record at the next start.
//   - heads: the file of chain heads is behind; the next start reads what it lacks
//     from the tiles.
//
// # One history
//
// The last signed tree is one message of a JetStream stream, replaced under a
// compare-and-swap: two replicas cannot both go on from the same tree. A tree is
// signed only after its tiles prove that it continues the last signed one, and
// never when it is smaller. A replica that does not sign builds its own tiles and
// compares their root at each signed size. Whatever does not fit is an [ErrFork]:
// the replica stops, and signs nothing more.
//
// The message also says up to which stream sequence the signed tree holds
// everything, which is what may be taken off the stream; see [Signed].
package auditor
