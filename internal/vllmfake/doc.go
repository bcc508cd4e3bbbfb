// Package vllmfake is a stateful fake of vLLM with NixlConnector: a real HTTP
// server whose prefill leaves KV blocks behind under a lease and whose decode
// reads them from the other node.
//
// What decode reads is what is in the blocks. A reference that is used, expired
// or out of range does what vllm#52234 measured, and one whose blocks belong to
// another request by now returns that request's text under 200.
//
//	p, err := vllmfake.New(vllmfake.Config{Role: vllmfake.Prefill})
//	d, err := vllmfake.New(vllmfake.Config{Role: vllmfake.Decode})
//	defer p.Close()
//	defer d.Close()
//
// [Node.Hold], [Node.Let] and [Node.Waiting] stop requests at a stage, so that a
// test needs no sleeps. [Node.Stats] accounts for every block. [Node.Generations]
// has the bodies that arrived, and whether their client left. [Node.Cut],
// [Node.Crash] and [Node.Restart] are what happens to a node; [Node.Fill] is other
// traffic that takes its free blocks. [Faults] are published faults.
//
// [Scenarios] are those faults as a client meets them. [Scenario.RunNaive] plays
// one through a proxy that checks nothing. A test of a gate plays the same steps:
//
//	w, err := s.Open()
//	defer w.Close()
//	w.Front, w.Guarded = gate.URL, true // a gate before w.Prefill and w.Decode
//	err = s.Steps(ctx, w)
//	// w.Reply(i) is what a client saw: judge it.
package vllmfake
