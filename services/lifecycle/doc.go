// Package lifecycle is the service that owns the state of requests: the only
// writer of the log.
//
// # Replicas
//
// Any number of replicas run at once. Each follows the whole log and keeps every
// open request in memory; each may append to every partition, under the
// compare-and-swap that makes one of two racing decisions void. Heartbeats pick
// a preferred replica for each partition, by rendezvous hashing, and only route:
// commands go to it first, and it does the partition's chores, such as
// deadlines, two seconds before the others would.
//
// # One command
//
//	bus ─► endpoint ─► node.submit ─► partition loop ─► journal.Append
//	                                        ▲                 │
//	       answer ◄─ node.Answer ◄─ shard.Fold ◄── reply, or the follower
//	       notice, work ◄─ node.Committed ◄─┘
//
// The endpoint reads role and principal off the subject, which the NATS user's
// permissions pin, and never waits: micro handlers of one subject run one after
// the other. The partition loop (package partition) is pure; a node joins it to
// the journal, and a shard to the state machine. Nothing leaves the service, be
// it an answer, a grant, a notice or a work item, before the event behind it is
// durable and folded.
//
// # Two connections
//
// The log lies in a NATS account of its own. Commands arrive on the bus, on a
// connection that has no right in that account and may publish to no command
// subject: a reply subject chosen by a peer can reach neither. Besides, only
// replies that begin with "_INBOX." are answered.
//
// # What a crash costs
//
// Memory is the log, folded. A replica that starts loads its last snapshot, if
// that is sound and of this log, and follows from there; without one it reads
// the log from the start, or, of a trimmed log, takes another replica's. What a replica had committed and not yet announced,
// the partition's next preferred replica dispatches again; gateways and workers
// ask for what they missed.
//
// # Retention
//
// With a [Retention] the replica that is preferred for operations lets the log's
// beginning leave: trim.go has the commit points, trim_bound.go what each trim
// must leave alone, and docs/adr/0006 why.
package lifecycle
