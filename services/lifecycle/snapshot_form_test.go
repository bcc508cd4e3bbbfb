package lifecycle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// written is the binary form that fill writes.
func written(t testing.TB, fill func(*form)) []byte {
	t.Helper()
	var b bytes.Buffer
	f := writeForm(&b)
	fill(f)
	if f.err != nil {
		t.Fatal(f.err)
	}
	if err := f.w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// fill gives every field of v another value, whatever fields there are.
func fill(t testing.TB, v reflect.Value, n *int) {
	t.Helper()
	*n++
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0), n)
		fill(t, v.Index(1), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		e := reflect.New(v.Type().Elem()).Elem()
		fill(t, e, n)
		v.SetMapIndex(reflect.ValueOf("key"+strconv.Itoa(*n)), e)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(int64(*n), int64(*n)).UTC()))
			return
		}
		for i := range v.NumField() {
			fill(t, v.Field(i), n)
		}
	case reflect.String:
		v.SetString("text" + strconv.Itoa(*n))
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(*n) << 20)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n) << 10)
	default:
		t.Fatalf("the snapshot form has no %s", v.Type())
	}
}

// No field of what a snapshot holds is missing in its form: one that is added to
// a struct and not to the form is lost here.
func TestSnapshotFormHasEveryField(t *testing.T) {
	n := 0
	var r statemachine.Request
	var ops statemachine.Ops
	fill(t, reflect.ValueOf(&r).Elem(), &n)
	fill(t, reflect.ValueOf(&ops).Elem(), &n)
	b := written(t, func(f *form) { formRequest(f, &r); formOps(f, &ops); formRequest(f, &r) })
	var gotR, again statemachine.Request
	var gotOps statemachine.Ops
	f := readForm(bytes.NewReader(b))
	formRequest(f, &gotR)
	formOps(f, &gotOps)
	formRequest(f, &again)
	if f.err != nil {
		t.Fatal(f.err)
	}
	for _, diff := range []string{cmp.Diff(r, gotR), cmp.Diff(ops, gotOps), cmp.Diff(r, again)} {
		if diff != "" {
			t.Errorf("read back (-want +got):\n%s", diff)
		}
	}
}

// Values at the edges come back as they were.
func TestSnapshotFormEdges(t *testing.T) {
	want := statemachine.Request{
		ID: strings.Repeat("x", 100<<10), N: -1, PromptTokens: 1<<63 - 1, Hash: "\x00\xff",
		AdmittedAt: time.Unix(-1, 999_999_999).UTC(), Deadline: time.Unix(1<<40, 0).UTC(), UpdatedAt: time.Unix(0, 0).UTC(),
		Prefill: &events.RequestPrefilled{WorkerEpoch: 1<<64 - 1, KVBytes: -1 << 63, Pages: []events.PageRun{{Start: 1<<32 - 1}}},
	}
	var got statemachine.Request
	f := readForm(bytes.NewReader(written(t, func(f *form) { formRequest(f, &want) })))
	formRequest(f, &got)
	if diff := cmp.Diff(want, got); diff != "" || f.err != nil {
		t.Errorf("%v; read back (-want +got):\n%s", f.err, diff)
	}
}

// What is cut anywhere is an error, and a number that promises much takes no
// memory for it.
func TestSnapshotFormDamaged(t *testing.T) {
	p := snapshotPartition{
		applied: 7, horizon: time.Unix(1, 0), tenants: map[string]chain{"acme": {1, "hash"}},
		open: []snapshotEntry{{sampleRequest(t, 1), time.Unix(2, 0), 3}}, gone: [][16]byte{{1}}, ended: []string{newID(t)},
	}
	b := written(t, func(f *form) { formPartition(f, &p) })
	for n := range b {
		f := readForm(bytes.NewReader(b[:n]))
		var got snapshotPartition
		if formPartition(f, &got); f.err == nil {
			t.Fatalf("%d bytes of %d are read as if they were whole", n, len(b))
		}
	}
	for _, b := range [][]byte{
		bytes.Repeat([]byte{0xff}, 64),                           // a number without end
		{1, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x7f},                  // requests
		{1, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x7f},                  // the length of a tenant's name
		{1, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0x7f, 1, 2, 3},   // ids
		{1, 0, 0, 1, 1, 'x', 0x05},                               // a name that was never written
		{1, 0, 0, 1, 1, 'x', 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, // neither was this one
	} {
		f := readForm(bytes.NewReader(b))
		var got snapshotPartition
		if allocs := testing.AllocsPerRun(1, func() { formPartition(f, &got) }); f.err == nil || allocs > 100 {
			t.Errorf("% x: %v, %v allocations", b, f.err, allocs)
		}
	}
}

// sampleRequest is what a whole lifecycle leaves.
func sampleRequest(t testing.TB, n int) *statemachine.Request {
	at := time.UnixMicro(1_800_000_000_000_000 + int64(n))
	sum := "hmac-sha256:" + strings.Repeat("0f", 32)
	runs := []events.PageRun{{Start: 1, Count: 8, Generation: uint64(n)}}
	r := &statemachine.Request{
		ID: newID(t), State: events.Decoded, N: 7, Pos: events.Position{Seq: 1 << 30, Line: 3}, Hash: strings.Repeat("h", 43),
		Tenant: "acme", Model: "ref", Gateway: "gw1", PromptTokens: 512, MaxTokens: 64, PromptDigest: sum, TenantKey: "0123456789abcdef",
		AdmittedAt: at, UpdatedAt: at, Deadline: at,
		Prefill:  &events.RequestPrefilled{Worker: "p1", WorkerEpoch: 1 << 50, PromptTokens: 512, Pages: runs, PageTokens: 64, Layout: "ref/1", KVBytes: 1 << 20, KVDigest: sum, Lease: at},
		Grant:    &events.TransferGranted{GrantEpoch: 1, Owner: "p1", OwnerEpoch: 1 << 50, Worker: "d1", WorkerEpoch: 1 << 50, WorkerKey: strings.Repeat("k", 43), OwnerKey: strings.Repeat("o", 43), OwnerAddress: "tcp://127.0.0.1:7070", Pages: runs, ReservedTokens: 576, Lease: at},
		Transfer: &events.RequestTransferred{GrantEpoch: 1, Worker: "d1", WorkerEpoch: 1 << 50, KVBytes: 1 << 20, KVDigest: sum, DurationUS: 900, DecodeBy: at},
		Decoded:  &events.RequestDecoded{Worker: "d1", WorkerEpoch: 1 << 50, PromptTokens: 512, CompletionTokens: 64, FinishReason: "length", OutputDigest: sum},
	}
	for i := range 7 {
		r.Recorded = append(r.Recorded, statemachine.Recorded{Key: fmt.Sprintf("%032d", i), Met: events.Prefilled, State: events.Transferred, Type: events.TypeTransferred, N: i, Pos: r.Pos, Hash: r.Hash})
	}
	return r
}

// What was copied out of a partition is one state: whatever is folded or
// forgotten before it is written does not show.
func TestSnapshotCopyIsOneState(t *testing.T) {
	r := newRig(t)
	x := r.start("lc1", nil)
	i := r.populate()
	held, ended := newID(t), newID(t)
	i.admitted(held)
	pre := i.p1.prefill()
	i.p1.did(held, pre)
	i.gw.did(held, &events.Cancel{Reason: events.CodeClientGone})
	i.lifecycle(ended)
	n, m := x.nodeOf(events.CmdAdmit, held), x.nodeOf(events.CmdAdmit, ended)
	var p, q snapshotPartition
	bytesOf := func() []byte { return written(t, func(f *form) { formPartition(f, &p); formPartition(f, &q) }) }
	for p, n := range map[*snapshotPartition]*node{&p: n, &q: m} {
		n.mu.Lock()
		n.shard.horizon = time.Time{}
		n.shard.going, n.shard.gone = append(n.shard.going, compact(newID(t))), map[[16]byte]bool{}
		n.shard.copy(p, n.loop.Applied())
		n.mu.Unlock()
	}
	before := bytesOf()
	i.d1.do(ended, i.d1.grant(1)) // denied, and recorded
	for k := range 70 {           // so often that answers are dropped
		i.d1.do(held, i.d1.grant(k+1))
	}
	i.p1.did(held, i.p1.release(pre.Pages))
	for range 20 {
		i.lifecycle(newID(t))
	}
	for _, n := range []*node{n, m} {
		n.mu.Lock()
		n.shard.evict(time.Now().Add(2 * retain))
		n.mu.Unlock()
	}
	if !bytes.Equal(before, bytesOf()) {
		t.Error("what was copied has changed")
	}
}

// A disk that fills up in the middle of a snapshot costs the snapshot. What was
// being written is the service's own state, and stays as it is.
func TestFailedWriteLeavesStateAlone(t *testing.T) {
	r := sampleRequest(t, 7)
	want, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	f := writeForm(io.Discard)
	f.err = errors.New("no space left on device")
	formRequest(f, r)
	got, err := json.Marshal(r)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, the request is now %s", err, got)
	}
}

// benchPartition is a partition as full as a snapshot keeps it.
func benchPartition(b *testing.B) *shard {
	s := newShard(&Service{counts: newCounts()}, 0)
	for n := range maxClosed {
		r := sampleRequest(b, n)
		s.closed[r.ID] = &entry{r: r, since: r.UpdatedAt}
		s.endings = append(s.endings, r.ID)
	}
	s.tenants["acme"] = chain{1, "hash"}
	return s
}

// The time that the partition's lock is held for.
func BenchmarkSnapshotCopy(b *testing.B) {
	s := benchPartition(b)
	var p snapshotPartition
	b.ReportAllocs()
	for b.Loop() {
		s.copy(&p, 1)
	}
}

// What is done without the lock, seal and all.
func BenchmarkSnapshotWrite(b *testing.B) {
	s := benchPartition(b)
	var p snapshotPartition
	s.copy(&p, 1)
	var size bytes.Buffer
	fill := func(f *form) error { formPartition(f, &p); return nil }
	if err := sealed(&size, []byte("key"), fill); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(size.Len()))
	b.ReportAllocs()
	for b.Loop() {
		if err := sealed(io.Discard, []byte("key"), fill); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSnapshotRead(b *testing.B) {
	s := benchPartition(b)
	var p snapshotPartition
	s.copy(&p, 1)
	file := written(b, func(f *form) { formPartition(f, &p) })
	b.SetBytes(int64(len(file)))
	b.ReportAllocs()
	for b.Loop() {
		var got snapshotPartition
		f := readForm(bytes.NewReader(file))
		if formPartition(f, &got); f.err != nil {
			b.Fatal(f.err)
		}
	}
}
