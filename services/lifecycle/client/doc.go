// Package client is the typed Go client of the lifecycle service's NATS API. It
// holds all that a gateway, a worker or another team's program needs to know of
// NATS subjects, and nothing of how decisions are made.
//
// # Commands
//
// [Client.Do] sends one command and returns its recorded [events.Answer]. The
// subject names the sender, and the NATS user's permissions pin it:
//
//	pdgate.v1.<role>.<principal>.<command>.<partition>
//
// A command is idempotent by content. Do sends the same bytes again until it has
// an answer or its context ends: first to the partition's preferred replica,
// then, when that one is missing or silent, to a subject that every replica
// hears. However often a command arrives, one event is recorded, and every reply
// is that event's answer.
//
// There are three outcomes:
//
//   - an answer: the event in it is durable. A denial is an answer too, with
//     Denied set: the command met a state or facts in which it is not legal.
//   - an [*events.Error]: the service refused to record anything (malformed,
//     forbidden), or could not (backpressure, unavailable). After unavailable
//     the command may still be recorded: asking again with the same content
//     tells.
//   - the context's error, joined to an unavailable error.
//
// # Work
//
// [Queue] hands out work items, one at a time and each until it is acknowledged.
// An item holds no prompt: [Client.FetchPrompt] asks the gateway for it.
package client
