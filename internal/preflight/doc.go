// Package preflight looks at a serving fleet before it serves: it reads every
// node, says which engine it is, and judges whether prefill and decode fit each
// other. The public incident was a configuration: a prefill pool below the context
// window, under a decode pool that held all of it.
//
// What a node does not tell is unknown, and said to be so; nothing is guessed. Of
// what a node tells, only the fields of [Facts] are kept: an engine's
// /server_info dumps every argument it was started with, keys and paths too.
package preflight
