// Package simulation runs the whole system in one goroutine: lifecycle replicas
// over one log, gateways with their clients, prefill and decode workers, and a
// thief. A seed fixes everything, so a failure is repeated by its seed.
//
// # What is real
//
// The code that decides is the product's: the partition loops, shards, deadlines
// and chores of a replica ([lifecycle.Core]), with statemachine's Decide and Fold
// below them; the codec, since everything travels in its wire form; the page
// pool; signing, opening and verifying grants and every check of a transfer
// (package handoff, step by step); the engines; and the gateway's judgement of
// what a client may see ([gateway.Hold]). What is written anew here are the
// things that have goroutines and sockets of their own: a worker's loops, a
// client's retries, the work queue, and the log itself, with its
// compare-and-swap.
//
// # What happens
//
// A heap holds deliveries by virtual time. Until the calm, messages are delayed,
// doubled, reordered and lost, appends are refused although they landed,
// connections break in the middle of a copy, processes crash between any two
// steps and come back under a new epoch, or stand still and come back as what
// they were. Clients leave. Some engines have the bug of the public incident,
// some workers claim more than their engine takes, memory flips, and the thief
// tries what it overheard. Then nothing fails any more, and everything must
// settle: every request ends, every page comes back, every client has an answer.
//
// # What must hold
//
// The checker judges the log alone; answers and clients' outcomes are held
// against the log; each text is held against the monolithic engine's own answer
// to the same prompt; each pool is counted and read, page by page. See
// [Result.Violations].
//
// [Guards] takes checks away. A guard whose absence nobody notices is no guard,
// or stands behind another one: the tests name which.
package simulation
