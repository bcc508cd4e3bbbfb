package export

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
)

// Requests of the test's log.
const (
	decoded  = "01890a5d-ac96-774b-bcce-b302099a8001" // whole
	rejected = "01890a5d-ac96-774b-bcce-b302099a8002"
	failed   = "01890a5d-ac96-774b-bcce-b302099a8003" // denied once, and its pages are still held
	open     = "01890a5d-ac96-774b-bcce-b302099a8004"
	before   = "01890a5d-ac96-774b-bcce-b302099a8005" // began before the log's excerpt
	unknown  = "01890a5d-ac96-774b-bcce-b302099a8006" // denied, and never admitted
	traced   = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
)

// longMessage fills a cell, and is a formula to a spreadsheet.
var longMessage = "=HYPERLINK(\"http://example.com\",\"é 日本 🙂 \u2028\")\r\n" + strings.Repeat("many tokens, ", 300)

type logOf struct {
	t   testing.TB
	all []Record
	seq uint64
	n   map[string]int
}

func (l *logOf) add(raw []byte) {
	l.all = append(l.all, Record{Seq: l.seq, Leaf: int64(100 + len(l.all)), Raw: raw})
}

func (l *logOf) event(tenant, subject, principal, trace string, d events.Data) {
	l.t.Helper()
	l.seq++
	l.n[subject]++
	e := &events.Event{ID: fmt.Sprintf("%s.%d", subject, l.n[subject]), N: l.n[subject], Source: "/pdgate/lifecycle/lc1", Type: d.EventType(), Subject: subject,
		Time: time.Date(2026, 1, 2, 3, 4, 5, int(l.seq)*1_001_000, time.UTC), Principal: principal, Tenant: tenant, Traceparent: trace, Data: d}
	if principal != "" {
		e.Command = "5b1c0a9d8e7f60514233241506f7e8d9"
	}
	if tenant != "" {
		e.TenantSeq = l.seq
	}
	if subject == unknown {
		e.N, e.ID = 0, subject+".denied"
	}
	raw, err := events.Append(nil, e)
	if err != nil {
		l.t.Fatal(err)
	}
	l.add(raw)
}

// testLog is a small log in which everything happens that a format shows.
func testLog(t testing.TB) []Record {
	l := &logOf{t: t, seq: 40, n: map[string]int{before: 2}}
	const kv = "kvsum64:00ff10ee20dd30cc"
	at := time.Date(2026, 1, 2, 3, 9, 0, 0, time.UTC)
	admitted := func(tenant, id, trace string) {
		l.event(tenant, id, "gateway.gw1", trace, &events.RequestAdmitted{Model: "llama-3.1", Gateway: "gw1", PromptTokens: 681_000, MaxTokens: 256,
			PromptDigest: "hmac-sha256:" + strings.Repeat("0f", 32), Stream: true, PrefillBy: at, Deadline: at})
	}
	prefilled := func(tenant, id string, gen uint64, runs ...events.PageRun) {
		l.event(tenant, id, "prefill.p1", "", &events.RequestPrefilled{Worker: "p1", WorkerEpoch: 7, PromptTokens: 681_000, Pages: runs, PageTokens: 64,
			Layout: "ref/64x192/1", KVBytes: 130_752_000, KVDigest: kv, Lease: at})
	}
	l.event("", "p1", "prefill.p1", "", &events.WorkerJoined{Worker: "p1", Role: events.RolePrefill, Model: "llama-3.1", Epoch: 7, Address: "tcp://10.0.0.7:7001", PoolPages: 16_384})
	admitted("acme", decoded, traced)
	prefilled("acme", decoded, 3, events.PageRun{Start: 0, Count: 12, Generation: 3}, events.PageRun{Start: 4096, Count: 1, Generation: 3})
	l.event("acme", decoded, "decode.d1", "", &events.TransferGranted{GrantEpoch: 1, Owner: "p1", OwnerEpoch: 7, Worker: "d1", WorkerEpoch: 8,
		OwnerAddress: "tcp://10.0.0.7:7001", Pages: []events.PageRun{{Start: 9, Count: 13, Generation: 1<<64 - 1}}, ReservedTokens: 681_256, Lease: at})
	l.event("acme", decoded, "decode.d1", "", &events.RequestTransferred{GrantEpoch: 1, Worker: "d1", WorkerEpoch: 8, KVBytes: 130_752_000, KVDigest: kv, DurationUS: 48_211, DecodeBy: at})
	l.event("acme", decoded, "decode.d1", "", &events.RequestDecoded{Worker: "d1", WorkerEpoch: 8, PromptTokens: 681_000, CompletionTokens: 256,
		FinishReason: events.FinishLength, OutputDigest: "hmac-sha256:" + strings.Repeat("0f", 32)})
	l.event("acme", rejected, "gateway.gw1", "", &events.RequestRejected{Error: *events.NewError(events.CodeContextLength, longMessage), Stage: "admission", Model: "llama-3.1", PromptTokens: 681_281, MaxTokens: 16})
	release := func(tenant, id, worker string, epoch uint64, role events.Role, drained bool) {
		l.event(tenant, id, string(role)+"."+worker, "", &events.RequestReleased{Worker: worker, WorkerEpoch: epoch, Role: role, Generation: 3, Pages: 13, Drained: drained, Scrubbed: true, Reason: "done"})
	}
	release("acme", decoded, "p1", 7, events.RolePrefill, true)
	release("acme", decoded, "d1", 8, events.RoleDecode, false)
	admitted("globex", failed, "")
	many := make([]events.PageRun, 300)
	for i := range many {
		many[i] = events.PageRun{Start: uint32(2 * i), Count: 1, Generation: 4}
	}
	prefilled("globex", failed, 4, many...)
	l.event("globex", failed, "decode.d2", "", &events.CommandDenied{Command: events.CmdGrant, State: events.Prefilled, Code: events.CodePageGeneration,
		Message: "page 4096 of worker p1 has another generation", Expected: "4", Actual: "5"})
	l.event("globex", failed, "", "", &events.RequestFailed{Error: *events.NewError(events.CodeWorkerLost, "worker d1: no heartbeat for 3 s"), From: events.Prefilled, Stage: "transfer", Worker: "d1"})
	// Two messages are missing, and one is not the log's own.
	l.seq++
	l.add((&audit.Gap{From: l.seq, To: l.seq + 1}).Append(nil))
	l.seq += 2
	l.add(audit.NewForeign(l.seq, "pdgate.log.3", []byte("{}")).Append(nil))
	admitted("globex", open, "")
	l.event("globex", before, "", "", &events.RequestCancelled{Reason: events.CodeClientGone, From: events.Transferred})
	l.event("acme", decoded, "decode.d1", "", &events.CommandDenied{Command: events.CmdDecoded, State: events.Decoded, Code: events.CodeIllegalState, Message: "decoded is not legal in state decoded"})
	l.event("", unknown, "decode.d1", "", &events.CommandDenied{Command: events.CmdGrant, State: events.New, Code: events.CodeUnknownRequest, Message: "unknown"})
	l.event("", "llama-3.1", "operator.ann", "", &events.ModelQuarantined{Model: "llama-3.1", Reason: "canary text in answer \"42\"\n\x01<é\u2028\\>"})
	for _, e := range audit.NewEpochs(events.Position{Seq: l.seq}, "acme", nil) {
		l.add(e.Append(nil))
	}
	return l.all
}

func sequence(all []Record) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for _, r := range all {
			if !yield(r, nil) {
				return
			}
		}
	}
}

var errBroken = errors.New("the tiles are damaged")

// broken gives n records and then an error.
func broken(all []Record, n int) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for _, r := range all[:n] {
			if !yield(r, nil) {
				return
			}
		}
		yield(Record{}, errBroken)
	}
}

func write(t testing.TB, f Format, all []Record) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, f, sequence(all)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}
