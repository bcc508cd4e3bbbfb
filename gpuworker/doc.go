// Package gpuworker runs a worker beside an engine: it takes work, keeps the
// pages it promised, and reports what happened.
//
// # Prefill
//
//	take work → reserve pages → fetch the prompt → engine → offer → prefilled
//	  … pulls are served by the hand-off …
//	transferred, terminal, or lease over → drain → free → released
//
// # Decode
//
//	take work → reserve pages for prompt and answer → grant → pull → transferred
//	  → engine, output as it comes → decoded → free → released
//
// # What must hold
//
// A worker takes no more work than its pool holds: at most one item waits for
// pages, and it waits in line, so a large request is not starved by small ones
// and the others stay in the queue, where another worker finds them.
//
// Every step that others rely on is durable before the next one begins: KV is
// offered to pulls before it is reported, but nothing is pulled without a grant;
// decode starts the engine only with the answer to transferred in hand; work is
// acknowledged only after its command is settled.
//
// Pages are given back after whatever reads or writes them has ended, never on
// a timeout alone, and the lifecycle is told.
//
// The package knows no NATS: what it needs of the outside stands in the
// interfaces below, and the composition connects them.
package gpuworker
