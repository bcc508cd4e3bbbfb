// Package bench measures pdgate beside its raw ceilings.
//
// A figure alone says little: it depends on the machine, its disk and what else
// runs there. So every case measures two things in the same run. One is pdgate.
// The other does the same work with everything that pdgate adds left out, on the
// same server, disk and sockets: publishing without a journal, calls that are
// merely echoed, a plain copy. Rounds are interleaved and change their order, a
// ratio is taken within each round, and what is reported is the median of the
// rounds. The absolute figures are of this machine; the ratio carries over.
//
// # Latency
//
// A closed loop keeps a number of calls in flight, and sends the next one when an
// answer comes: it measures throughput. Its latencies flatter a server that
// stalls, since nobody asks anything meanwhile. An open loop sends on a schedule,
// whatever has been answered, and counts each call from when it was meant to
// begin (see [Schedule]): a stall is in the latency of all that it delayed.
//
// # Processes
//
// Where it matters who spends the time, the parts run as processes of their own:
// this program, started again with [Options.Child] (see [RunChild]). They end
// when their standard input does, so none outlives the one that measures, and
// they report their own processor time.
package bench
