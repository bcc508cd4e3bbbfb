package corpus

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"time"
)

// TimeStats writes what two SGLang nodes log of the incident with
// --enable-request-time-stats-logging: n requests, affected of which prefill
// rejected inside and went on with one token. It returns the affected decode legs'
// request ids, in order.
func TimeStats(seed uint64, n, affected int) (prefill, decode []byte, ids []string) {
	r := rand.New(rand.NewPCG(seed, 0x51a6))
	hit := map[int]bool{}
	for len(hit) < affected {
		hit[r.IntN(n)] = true
	}
	at := time.Date(2026, 6, 1, 8, 0, 0, 0, time.UTC)
	var p, d bytes.Buffer
	p.WriteString("[2026-06-01 07:59:58] INFO server_args: disaggregation_mode='prefill'\n")
	d.WriteString("[2026-06-01 07:59:58] INFO server_args: disaggregation_mode='decode'\n")
	line := func(w *bytes.Buffer, kind, rid string, room uint64, in, out int, at time.Time, ms float64) {
		fmt.Fprintf(w, "[%s] ReqTimeStats(rid=%s, bootstrap_room=%d, input_len=%d, cached_input_len=0, output_len=%d, attempts=1, type=%s): bootstrap_duration=1.52ms, forward_duration=%.2fms, entry_time=%.6f\n",
			at.Add(time.Duration(ms*1e6)).Format("2006-01-02 15:04:05"), rid, room, in, out, kind, ms, float64(at.UnixMicro())/1e6)
	}
	// Health checks have room 0.
	line(&p, "prefill", "HEALTH_CHECK_1", 0, 1, 1, at, 1)
	for i := range n {
		at = at.Add(time.Duration(1+r.IntN(60_000)) * time.Millisecond)
		room := r.Uint64() >> 1
		in := 16 + r.IntN(100_000)
		done := in
		pid := fmt.Sprintf("%016x%016x", r.Uint64(), r.Uint64())
		did := fmt.Sprintf("%016x%016x", r.Uint64(), r.Uint64())
		if hit[i] {
			in, done = PrefillPool+1+r.IntN(300_000), 1
			ids = append(ids, did)
		}
		line(&p, "prefill", pid, room, done, 1, at, 5+float64(done)/50)
		line(&d, "decode", did, room, in, 1+r.IntN(400), at.Add(3*time.Millisecond), 900+r.Float64()*5000)
	}
	return p.Bytes(), d.Bytes(), ids
}

// LeaseLog writes what a vLLM prefill node logs of a lease of 30 seconds and a hold
// of 50 to 62 at decode: 42 requests, 8 of which were read after their blocks were
// freed. It returns those.
func LeaseLog() (log []byte, ids []string) {
	r := rand.New(rand.NewPCG(17, 8))
	var b bytes.Buffer
	at := time.Date(2026, 8, 21, 12, 30, 0, 0, time.UTC)
	stamp := func(t time.Time) string { return t.Format("01-02 15:04:05") }
	for i := range 42 {
		at = at.Add(time.Duration(500+r.IntN(4000)) * time.Millisecond)
		id := fmt.Sprintf("cmpl-%016x-0-%08x", r.Uint64(), r.Uint32())
		fmt.Fprintf(&b, "(EngineCore_DP0 pid=271) INFO %s [loggers.py:123] Engine 000: Avg prompt throughput: %d.0 tokens/s, Running: %d reqs\n", stamp(at), 1000+r.IntN(9000), r.IntN(9))
		if i%5 != 2 {
			continue
		}
		over := at.Add(30 * time.Second)
		late := at.Add(time.Duration(50_000+r.IntN(12_000)) * time.Millisecond)
		fmt.Fprintf(&b, "(EngineCore_DP0 pid=271) WARNING %s [nixl_connector.py:1548] Releasing expired KV blocks for request %s which were retrieved by 0 remote worker(s) before lease expired.\n", stamp(over), id)
		fmt.Fprintf(&b, "(EngineCore_DP0 pid=271) ERROR %s [nixl_connector.py:1497] Potentially invalid KV blocks for unrecognized request %s were retrieved by a decode worker. They may have expired.\n", stamp(late), id)
		ids = append(ids, id)
	}
	return b.Bytes(), ids
}
