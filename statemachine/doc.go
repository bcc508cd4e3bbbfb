// Package statemachine is the life of one request as a pure function: a table
// of transitions, the guards beside it, and a fold over recorded events. It
// reads no clock and does no I/O; whoever calls it gathers the facts first and
// appends the result afterwards.
//
// # The table
//
// [Table] is the one list of transitions. Everything derives from it: the
// looplab/fsm instance that decides, the compiled table that folds, the diagram
// in docs/states.md, and the tests over every pair of state and event.
//
//	new ──► admitted ──► prefilled ──► transferred ──► decoded
//	  └──────► rejected ◄──┘ (from admitted)
//	admitted, prefilled, transferred ──► failed | cancelled
//
// rejected, decoded, failed and cancelled are final: the only events after them
// say that pages came back, or that a command was denied.
//
// # Deciding
//
// [Machine.Decide] turns a command into the payload of the event to append. It
// always has an answer: what was wanted, a rejection, or a denial. A denial is
// an event too, since a worker that asks for a rejected request's KV is
// evidence, and since a denial from memory alone may rest on a stale state.
// Nothing has happened until the event is durable.
//
// # Folding
//
// [Fold] is the only place where a [Request] changes, and applies what the log
// holds, whoever wrote it. It trusts nobody: an event that is not legal where it
// stands marks the request as tainted and changes no state. A tainted request
// can end and give its pages back, and can do nothing else.
//
// # Checking
//
// [Checker] reads a whole log, and nothing but the log, and says which of the
// safety claims it breaks. Simulation, chaos tests and forensics share it.
package statemachine

//go:generate go test -run ^TestStatesDocument$ -update .
