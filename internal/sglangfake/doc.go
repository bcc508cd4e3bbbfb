// Package sglangfake is a stateful fake of SGLang with prefill-decode
// disaggregation: a real HTTP server whose decode takes pages for the whole
// prompt, tells prefill where they are under the bootstrap room, and attends over
// them once prefill has written there.
//
// A write names pages and asks nobody, as RDMA does: a page that was freed and
// given to another request is written all the same, and a page that nobody wrote
// holds what its last owner left. Both come out as text under 200.
//
//	p, err := sglangfake.New(sglangfake.Config{Role: sglangfake.Prefill})
//	d, err := sglangfake.New(sglangfake.Config{Role: sglangfake.Decode})
//	defer p.Close()
//	defer d.Close()
//
// Both legs are sent at once, with bootstrap_host "127.0.0.1", bootstrap_port
// p.BootstrapPort() and a room.
//
// [Node.Hold], [Node.Let] and [Node.Waiting] stop requests at a stage, so that a
// test needs no sleeps. [Node.Stats] accounts for every page. [Node.Generations]
// has the bodies that arrived, and whether their client left. [Node.Cut],
// [Node.Crash] and [Node.Restart] are what happens to a node; [Node.Fill] are
// earlier owners of its free pages. [Faults] are published faults, [Incident] is
// the public incident.
//
// [Scenarios] are those faults as a client meets them. [Scenario.RunNaive] plays
// one through a proxy that checks nothing. A test of a gate plays the same steps:
//
//	w, err := s.Open()
//	defer w.Close()
//	w.Front, w.Guarded = gate.URL, true // a gate before w.Prefill and w.Decode
//	err = s.Steps(ctx, w)
//	// w.Reply(i) is what a client saw: judge it.
package sglangfake
