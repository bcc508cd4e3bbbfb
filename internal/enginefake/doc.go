// Package enginefake is what the fakes of serving engines share: a model whose
// answers a person can judge, a pool of KV blocks that keeps what was written
// into it, a clock, an HTTP server that can crash and come back, and the
// OpenAI-shaped bodies.
//
// Tokens are bytes. [Next] continues a text as an induction head does, with what
// followed the longest, latest match in the KV. It sees nothing but the KV: a
// block that another request wrote comes out as that request's text. A free
// block keeps its content until somebody writes over it, as memory does.
//
// Package internal/vllmfake and package internal/sglangfake are the engines.
package enginefake
