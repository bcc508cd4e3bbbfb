// Package canary asks the gateway what any client could ask, as two tenants of its
// own, and compares the answers with known ones. Each prompt holds a sentinel that
// stands nowhere else. An answer with another prompt's sentinel is somebody else's
// data, and quarantines the model at once; a wrong answer does so when it comes
// twice in a row. Prompts above a limit must come back as 400, and the log must
// show that no engine saw them.
//
// Lengths are taken from what workers registered: just below and just above each
// limit, and beside page boundaries. That is where the public failure was.
package canary
