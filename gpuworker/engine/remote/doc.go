// Package remote is what the engines behind HTTP have in common: a careful
// client of one node, the stream it answers with, its metrics, its errors, and
// JSON that is put together without being decoded.
//
// A node is trusted to compute and nothing else. What it sends is bounded in
// size and time, redirects are refused, a request is sent once and never again,
// and its error messages are shown only where they repeat nothing of a prompt.
package remote
