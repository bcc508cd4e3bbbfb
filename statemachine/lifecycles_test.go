package statemachine

import (
	"bytes"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

var logKey = []byte("0123456789abcdef0123456789abcdef")

// lifecycles is the log of whole lives in one partition, as the service writes it
// under load: n requests, inFlight of them open at a time, perEnvelope events to
// an envelope, under MACs.
func lifecycles(t testing.TB, n, inFlight, perEnvelope int) []*events.Envelope {
	t.Helper()
	const pages = 12
	var log []*events.Envelope
	var lines []byte
	line, seq, now := 0, uint64(1), start
	tenants := map[string]chainEnd{}
	flush := func() {
		if line == 0 {
			return
		}
		env := &events.Envelope{Seq: seq, Expected: seq - 1, ID: fmt.Sprintf("lc1-%d", seq), Lines: bytes.Clone(lines)}
		env.MAC = events.MAC(logKey, 0, env.Expected, env.Lines)
		log = append(log, env)
		seq, line, lines = seq+1, 0, lines[:0]
	}
	type open struct {
		id     string
		n      int
		prev   events.Position
		gen    uint64
		at     uint32
		tenant string
		lease  time.Time
	}
	step := func(o *open) {
		now = now.Add(10 * time.Microsecond)
		o.n++
		e := &events.Event{
			ID: fmt.Sprintf("%s.%d", o.id, o.n), Source: "/pdgate/lifecycle/lc1", Subject: o.id, Time: now, N: o.n, Prev: o.prev,
			Command: fmt.Sprintf("%032x", seq<<16+uint64(line)), Tenant: o.tenant, Principal: "decode.d1",
		}
		run, more := runs(o.at, pages, o.gen), now.Add(time.Minute)
		switch o.n {
		case 1:
			e.Principal = "gateway.gw1"
			e.Data = &events.RequestAdmitted{Model: model, Gateway: "gw1", PromptTokens: 150, MaxTokens: 20, PromptDigest: digest("a"), Stream: true,
				PrefillBy: more, Deadline: more, Facts: events.AdmissionFacts{ContextTokens: 4096, MaxInputTokens: 4096, MaxDecodeTokens: 4096,
					PrefillNodes: 1, DecodeNodes: 1, QueueDepth: 7, TenantOpen: inFlight, Policy: "sha256:5f2b"}}
		case 2:
			o.lease = now.Add(30 * time.Second)
			e.Principal = "prefill.p1"
			e.Data = &events.RequestPrefilled{Worker: "p1", WorkerEpoch: 1767323045678901, PromptTokens: 150, Pages: run, PageTokens: perPage, Layout: layout,
				KVBytes: 150 * 64, KVDigest: "kvsum64:00ff10ee20dd30cc", Lease: o.lease}
		case 3:
			e.Data = &events.TransferGranted{GrantEpoch: 1, Owner: "p1", OwnerEpoch: 1767323045678901, Worker: "d1", WorkerEpoch: 1767323045678902,
				WorkerKey: "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", OwnerKey: "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=",
				OwnerAddress: "tcp://127.0.0.1:7001", Pages: run, ReservedTokens: 170, Lease: o.lease}
		case 4:
			e.Data = &events.RequestTransferred{GrantEpoch: 1, Worker: "d1", WorkerEpoch: 1767323045678902, KVBytes: 150 * 64, KVDigest: "kvsum64:00ff10ee20dd30cc",
				DurationUS: 812, DecodeBy: more}
		case 5:
			e.Data = &events.RequestDecoded{Worker: "d1", WorkerEpoch: 1767323045678902, PromptTokens: 150, CompletionTokens: 20, FinishReason: events.FinishLength, OutputDigest: digest("d")}
		case 6:
			e.Principal = "prefill.p1"
			e.Data = &events.RequestReleased{Worker: "p1", WorkerEpoch: 1767323045678901, Role: events.RolePrefill, Generation: o.gen, Pages: pages, Drained: true, Scrubbed: true, Reason: "done"}
		case 7:
			e.Data = &events.RequestReleased{Worker: "d1", WorkerEpoch: 1767323045678902, Role: events.RoleDecode, Generation: o.gen, Pages: pages, Drained: true, Scrubbed: true, Reason: "done"}
		}
		e.Type = e.Data.EventType()
		end := tenants[o.tenant]
		e.TenantSeq, e.TenantPrev = end.seq+1, end.hash
		from := len(lines)
		b, err := events.Append(lines, e)
		if err != nil {
			t.Fatal(err)
		}
		tenants[o.tenant] = chainEnd{e.TenantSeq, events.Hash(b[from:])}
		o.prev = events.Position{Seq: seq, Line: line}
		lines = append(b, '\n')
		if line++; line == perEnvelope {
			flush()
		}
	}
	// Each round takes every open request one step further.
	slots := make([]open, inFlight)
	for begun, ended := 0, 0; ended < n; {
		for i := range slots {
			o := &slots[i]
			if o.n == 7 {
				*o = open{gen: o.gen}
				ended++
			}
			if o.n == 0 {
				if begun == n {
					continue
				}
				*o = open{id: id(begun, now), gen: o.gen + 1, at: uint32(i * pages), tenant: "acme"}
				begun++
			}
			step(o)
		}
	}
	flush()
	return log
}

func TestLifecyclesAreLegal(t *testing.T) {
	c := NewChecker(CheckerConfig{Partitions: 1, Key: logKey, NoIndex: true})
	for _, env := range lifecycles(t, 50, 16, 10) {
		if err := c.Add(env); err != nil {
			t.Fatal(err)
		}
	}
	if r := c.Report(); !r.OK() || r.Requests != 50 || r.Events != 350 || r.Open != 0 {
		t.Fatalf("%+v", r)
	}
}

func BenchmarkChecker(b *testing.B) {
	log := lifecycles(b, 20_000, 256, 64)
	n := 0
	for _, env := range log {
		n += bytes.Count(env.Lines, []byte{'\n'})
	}
	b.ReportAllocs()
	before := cpuTime(b)
	for b.Loop() {
		c := NewChecker(CheckerConfig{Partitions: 1, Key: logKey, NoIndex: true})
		for _, env := range log {
			if err := c.Add(env); err != nil {
				b.Fatal(err)
			}
		}
		if r := c.Report(); !r.OK() || r.Open != 0 || r.Events != n {
			b.Fatalf("%+v", r)
		}
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N*n), "cpu-ns/event")
}

// cpuTime is what the process has used: unlike the clock, it tells little of what
// else the machine does.
func cpuTime(t testing.TB) time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		t.Fatal(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}
