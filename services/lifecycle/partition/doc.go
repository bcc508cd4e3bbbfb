// Package partition is the loop that turns commands into log entries: one
// replica's view of one partition of the log.
//
// The loop is leaderless. Any number of replicas run one for the same partition
// and append to the same subject; the log's compare-and-swap makes one of two
// racing envelopes land. It is pure: it does no I/O and reads no clock. Inputs
// are [Loop.Command], [Loop.Followed], the replies [Loop.Stored],
// [Loop.Refused] and [Loop.Unknown], and [Loop.Tick]; outputs go to a [Port].
//
// # State
//
//	applied  the sequence of the partition's last message that was folded
//	attempt  at most one envelope that was sent under applied and is not settled
//	waiting  commands without an answer, in the order of their arrival
//
//	idle ──command──► appending(expected = applied) ──stored: fold own at seq──► idle | appending
//	 ▲                   │        │ ▲
//	 │  followed, own    │        │ └─ silence: decide again, send at the SAME applied
//	 │  or foreign: fold ◄        ▼ refused
//	 └──────────────── behind(hint): until applied ≥ hint, or a short timer
//
// # Rules
//
//  1. There is one fold, and answers come only from it. Folding a line of the
//     log, whoever wrote it, settles the waiter with that command's key.
//  2. An attempt lives only while its expectation equals applied. When applied
//     moves, the attempt either was the message folded or never can land. A
//     reply for another attempt is ignored. Neither a refusal nor a silence is
//     read as "did not happen".
//  3. The loop never asks for the tail. After a silence it decides again and
//     sends at the same applied; after a refusal it waits for the follower or a
//     short timer. So stale reads do no harm.
//  4. Own lines are folded at the acknowledgement or when they are followed,
//     whichever comes first. A sequence at or below applied is skipped.
//  5. Every message names the one before it. A message that names another than
//     applied is a gap: follow again from applied + 1.
//  6. A denial is appended like any event: a denial from memory may rest on
//     stale state. Only recorded answers are given without an append.
//  7. An envelope holds at most one command of a request, so that deciding a
//     command needs no overlay of its request's state.
//  8. A command waits until the log settles it, or its callers' patience ends.
//     A caller that repeats a command joins the waiter.
//  9. One envelope is on its way at a time. After another replica overtook an
//     attempt, the next is sent when the attempt's reply, or a short timer, is
//     in: a replica that is catching up does not send an envelope for each
//     message it folds.
//
// # Callers' errors
//
// A recorded answer is an [events.Answer], denials included. Two things can come
// in its place, and neither is recorded:
//
//   - [events.CodeBackpressure], at once: too many commands wait, or too many of one
//     request. The command was not taken, and this replica will not append it.
//   - [events.CodeUnavailable], after Config.CommandTimeout: the log did not
//     settle the command. It may still land; asking again gives its answer.
//
// An event that cannot be encoded is [events.CodeInternal]: nothing is recorded.
//
// # Foreign messages and broken lines
//
// A message that no holder of the log key wrote takes its place as the tail and
// changes nothing else. A line that cannot be decoded is skipped. Both raise an
// alarm, and neither stops the partition: whoever could stop it with one message
// would.
package partition
