// Package importer reads what others write: compressed files, what engines log, and
// what tracing tools export. It tells formats by their content, never by a name.
//
// Engines and traces tell of legs: a prefill and a decode, each with what its node
// knows. A [Joiner] puts the two together, by bootstrap room or by request id, and
// makes of them the events that pdgate would have recorded; what nobody told is
// zero, and not judged. Such a life names no pages and has no digests.
//
// Malformed input is an error that names the line, the byte and what was expected.
// A line of a server's log that is none of those that are known is counted, and is
// no error.
package importer
