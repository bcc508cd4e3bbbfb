// Package gateway is the OpenAI-compatible HTTP edge.
//
// # One request
//
//	client                gateway                     lifecycle        workers
//	  │ POST /v1/…          │                             │               │
//	  ├────────────────────►│ key, body, template, count  │               │
//	  │                     ├── admit ───────────────────►│ durable       │
//	  │                     │◄── admitted, receipt ───────┤── work ──────►│
//	  │                     │◄── prompt? ─────────────────────────────────┤ prefill
//	  │                     │◄── notify: transferred ─────┤◄──────────────┤ decode
//	  │                     │◄── output 0, 1, 2 … ────────────────────────┤
//	  │ 200, text … ◄───────┤                             │               │
//	  │                     │◄── notify: decoded ─────────┤◄──────────────┤
//	  │ finish, [DONE] ◄────┤                             │               │
//
// The gateway believes the log and nobody else. Three rules make that so, and
// each can be taken away in a test ([Guards]):
//
//   - Held. No status line leaves before request.transferred is durable and the
//     first output is there; an answer in one piece waits for request.decoded.
//     What a worker sends earlier is kept, bounded, and thrown away if the
//     request ends otherwise.
//   - Origin. Output counts only from the worker that request.transferred
//     names; the worker is a token of the subject, which its NATS user pins.
//   - Whole. Pieces are numbered without gaps, and at the end the tokens and the
//     keyed digest of what arrived must be those of request.decoded. Otherwise
//     the request ends as output_lost, and the client gets an error.
//
// A request that is rejected, fails or is cancelled answers with the status of
// the original error, streamed or not. Once bytes have been sent the status
// cannot change: the stream then ends with an error event and without [DONE].
// Nothing is sent after a final state other than decoded.
//
// # What it keeps
//
// The prompt lives in this process from admission to the request's end, for the
// worker that owns the request to ask for, and nowhere else. If the process
// dies, its requests fail by their deadlines: a worker that asks finds nobody.
//
// Notifications are core NATS and may be lost. A request that hears nothing for
// a second asks the lifecycle service itself, and reads its history.
//
// Neither a prompt, nor a completion, nor a key is ever part of a log line or
// of an error.
package gateway
