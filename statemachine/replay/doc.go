// Package replay reads traces and says what broke: the same fold and the same
// checker as in production, over anything that tells of requests.
//
// # Inputs
//
// A [Source] yields envelopes with their provenance. Our own formats hold them:
// the trace file ([TraceWriter]), lines of events, a bundle's lines, the live
// stream. Package importer makes them of what engines and tracing tell; such lives
// have no pages and no digests, and the result says so ([LifecycleOnly]).
//
// # Result
//
// [Replay] feeds a checker, a ledger of what pages hold, and what was asked for
// besides, and ends in one [Result], from which the text, the JSON, the report and
// the HTML page are all printed. Memory is bounded by the requests that are open,
// by the pools' spans and by the requests that are affected.
//
// The package is pure: readers come from outside, there is no clock.
package replay
