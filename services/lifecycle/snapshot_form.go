package lifecycle

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// form is the binary form of a snapshot, for writing it or for reading it: what
// follows names every field once, and its order is that of the bytes. Numbers
// are varints, text has its length before it, and names, of which there are few
// and each comes often, stand once and by their number from then on.
//
// A change here, or of a struct that is named here, is another snapshotFormat.
type form struct {
	w   *bufio.Writer // nil: it reads
	r   *bufio.Reader
	err error // the first one; nothing is written or read after it

	buf    [binary.MaxVarintLen64]byte
	id     [16]byte
	number map[string]uint64 // of names that were written; the first is 1
	name   []string          // names that were read
}

func writeForm(w io.Writer) *form {
	return &form{w: bufio.NewWriterSize(w, 64<<10), number: map[string]uint64{}}
}

func readForm(r io.Reader) *form { return &form{r: bufio.NewReaderSize(r, 64<<10)} }

// maxText bounds one text that is read: more than any event may carry.
const maxText = 1 << 24

var errForm = errors.New("the file does not hold what it should")

func (f *form) writes() bool { return f.w != nil }

// bad is what the bytes are that were read.
func (f *form) bad() {
	if f.err == nil {
		f.err = errForm
	}
}

// read takes the error of a read. An end that comes too early is no end.
func (f *form) read(err error) {
	if f.err = err; errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		f.err = errForm
	}
}

func (f *form) put(b []byte) {
	if f.err == nil {
		_, f.err = f.w.Write(b)
	}
}

func (f *form) uint(v uint64) uint64 {
	switch {
	case f.err != nil:
		return 0
	case f.writes():
		f.put(f.buf[:binary.PutUvarint(f.buf[:], v)])
		return v
	}
	v, err := binary.ReadUvarint(f.r)
	f.read(err)
	return v
}

// get reads n bytes, which the next read may overwrite.
func (f *form) get(n uint64) []byte {
	switch {
	case f.err != nil:
		return nil
	case n > maxText:
		f.bad()
		return nil
	case n <= uint64(f.r.Size()):
		b, err := f.r.Peek(int(n))
		if f.read(err); err != nil {
			return nil
		}
		_, f.err = f.r.Discard(int(n))
		return b
	}
	b := make([]byte, n)
	_, err := io.ReadFull(f.r, b)
	f.read(err)
	return b
}

// number leaves what it writes alone: it is shared with whoever else folded the
// event.
func number[T ~int | ~int64 | ~uint32 | ~uint64](f *form, v *T) {
	if n := f.uint(uint64(*v)); !f.writes() {
		*v = T(n)
	}
}

func text[T ~string](f *form, v *T) {
	n := f.uint(uint64(len(*v)))
	if !f.writes() {
		*v = T(f.get(n))
	} else if f.err == nil {
		_, f.err = f.w.WriteString(string(*v))
	}
}

// name is for text that comes again and again.
func name[T ~string](f *form, v *T) {
	if f.writes() {
		if n := f.number[string(*v)]; n > 0 {
			f.uint(n)
			return
		}
		f.number[string(*v)] = uint64(len(f.number) + 1)
		f.uint(0)
		text(f, v)
		return
	}
	switch n := f.uint(0); {
	case f.err != nil:
	case n == 0:
		text(f, v)
		f.name = append(f.name, string(*v))
	case n > uint64(len(f.name)):
		f.bad()
	default:
		*v = T(f.name[n-1])
	}
}

func (f *form) flag(v bool) bool {
	n := uint64(0)
	if v {
		n = 1
	}
	return f.uint(n) == 1
}

// time keeps nanoseconds, and the zero time as it is; what is read is in UTC.
func (f *form) time(t *time.Time) {
	if !f.flag(!t.IsZero()) {
		return
	}
	s, ns := t.Unix(), t.Nanosecond()
	number(f, &s)
	number(f, &ns)
	if !f.writes() {
		*t = time.Unix(s, int64(ns)).UTC()
	}
}

// optional is what a pointer leads to, or that it leads nowhere.
func optional[T any](f *form, p **T, fields func(*form, *T)) {
	if !f.flag(*p != nil) {
		return
	}
	if *p == nil {
		*p = new(T)
	}
	fields(f, *p)
}

// list is the elements of s; an empty one is read as nil. Room is made as they
// come, not as the number before them promises.
func list[T any](f *form, s *[]T, fields func(*form, *T)) {
	n := f.uint(uint64(len(*s)))
	if f.writes() {
		for i := range *s {
			fields(f, &(*s)[i])
		}
		return
	}
	if n > 0 {
		*s = make([]T, 0, min(n, 64))
	}
	for i := uint64(0); i < n && f.err == nil; i++ {
		*s = append(*s, *new(T))
		fields(f, &(*s)[i])
	}
}

// table is the entries of m, in any order.
func table[V any](f *form, m *map[string]V, fields func(*form, *V)) {
	n := f.uint(uint64(len(*m)))
	if f.writes() {
		for k, v := range *m {
			text(f, &k)
			fields(f, &v)
		}
		return
	}
	*m = map[string]V{}
	for i := uint64(0); i < n && f.err == nil; i++ {
		var k string
		var v V
		text(f, &k)
		fields(f, &v)
		(*m)[k] = v
	}
}

func formPosition(f *form, p *events.Position) {
	number(f, &p.Seq)
	number(f, &p.Line)
}

func formRun(f *form, r *events.PageRun) {
	number(f, &r.Start)
	number(f, &r.Count)
	number(f, &r.Generation)
}

func formRequest(f *form, r *statemachine.Request) {
	text(f, &r.ID)
	name(f, &r.State)
	number(f, &r.N)
	formPosition(f, &r.Pos)
	text(f, &r.Hash)
	name(f, &r.Tenant)
	name(f, &r.Model)
	name(f, &r.Gateway)
	text(f, &r.Traceparent)
	number(f, &r.PromptTokens)
	number(f, &r.MaxTokens)
	text(f, &r.PromptDigest)
	name(f, &r.TenantKey)
	f.time(&r.AdmittedAt)
	f.time(&r.UpdatedAt)
	f.time(&r.Deadline)
	f.time(&r.StateBy)
	optional(f, &r.Error, formError)
	optional(f, &r.Prefill, formPrefilled)
	optional(f, &r.Grant, formGranted)
	optional(f, &r.Transfer, formTransferred)
	optional(f, &r.Decoded, formDecoded)
	list(f, &r.Held, formHolding)
	list(f, &r.Recorded, formRecorded)
	text(f, &r.Tainted)
}

func formHolding(f *form, h *statemachine.Holding) {
	name(f, &h.Worker)
	number(f, &h.Epoch)
	name(f, &h.Role)
	number(f, &h.Generation)
	number(f, &h.Pages)
}

func formRecorded(f *form, a *statemachine.Recorded) {
	text(f, &a.Key)
	name(f, &a.Met)
	name(f, &a.State)
	name(f, &a.Type)
	number(f, &a.N)
	formPosition(f, &a.Pos)
	text(f, &a.Hash)
	optional(f, &a.Denied, formDenial)
}

func formDenial(f *form, d *events.Denial) {
	name(f, &d.Code)
	text(f, &d.Message)
	name(f, &d.State)
}

func formError(f *form, e *events.Error) {
	name(f, &e.Code)
	text(f, &e.Message)
	number(f, &e.Status)
}

func formPrefilled(f *form, d *events.RequestPrefilled) {
	name(f, &d.Worker)
	number(f, &d.WorkerEpoch)
	number(f, &d.PromptTokens)
	list(f, &d.Pages, formRun)
	number(f, &d.PageTokens)
	name(f, &d.Layout)
	number(f, &d.KVBytes)
	text(f, &d.KVDigest)
	text(f, &d.Reference)
	f.time(&d.Lease)
}

func formGranted(f *form, d *events.TransferGranted) {
	number(f, &d.GrantEpoch)
	name(f, &d.Owner)
	number(f, &d.OwnerEpoch)
	name(f, &d.Worker)
	number(f, &d.WorkerEpoch)
	name(f, &d.WorkerKey)
	name(f, &d.OwnerKey)
	name(f, &d.OwnerAddress)
	list(f, &d.Pages, formRun)
	number(f, &d.ReservedTokens)
	f.time(&d.Lease)
}

func formTransferred(f *form, d *events.RequestTransferred) {
	number(f, &d.GrantEpoch)
	name(f, &d.Worker)
	number(f, &d.WorkerEpoch)
	number(f, &d.KVBytes)
	text(f, &d.KVDigest)
	number(f, &d.DurationUS)
	f.time(&d.DecodeBy)
}

func formDecoded(f *form, d *events.RequestDecoded) {
	name(f, &d.Worker)
	number(f, &d.WorkerEpoch)
	number(f, &d.PromptTokens)
	number(f, &d.CompletionTokens)
	name(f, &d.FinishReason)
	text(f, &d.OutputDigest)
}

func formOps(f *form, o *statemachine.Ops) {
	formPosition(f, &o.Pos)
	table(f, &o.Workers, func(f *form, w **events.WorkerJoined) { optional(f, w, formJoined) })
	table(f, &o.Quarantined, formQuarantine)
	table(f, &o.Erased, func(f *form, keys *[]string) { list(f, keys, text) })
	table(f, &o.Subjects, formSubject)
	optional(f, &o.Trimmed, formTrimmed)
}

func formTrimmed(f *form, d *events.LogTrimmed) {
	number(f, &d.BelowSeq)
	text(f, &d.Bound)
	text(f, &d.Origin)
	number(f, &d.TreeSize)
	text(f, &d.TreeRoot)
	number(f, &d.CompleteUntil)
}

func formQuarantine(f *form, q *statemachine.Quarantine) {
	text(f, &q.Reason)
	name(f, &q.By)
	f.time(&q.Since)
	text(f, &q.Position)
	q.Cancel = f.flag(q.Cancel)
	text(f, &q.Evidence)
}

func formSubject(f *form, s *statemachine.OpsSubject) {
	number(f, &s.N)
	formPosition(f, &s.Pos)
	number(f, &s.Changed)
	number(f, &s.Epoch)
	list(f, &s.Recorded, formRecorded)
}

func formJoined(f *form, w *events.WorkerJoined) {
	name(f, &w.Worker)
	name(f, &w.Role)
	name(f, &w.Model)
	number(f, &w.Epoch)
	name(f, &w.PublicKey)
	name(f, &w.Address)
	name(f, &w.Engine)
	name(f, &w.Version)
	number(f, &w.ContextTokens)
	number(f, &w.MaxInputTokens)
	number(f, &w.PoolPages)
	number(f, &w.PageTokens)
	number(f, &w.TokenBytes)
	name(f, &w.Layout)
}

func formChain(f *form, c *chain) {
	number(f, &c.Seq)
	text(f, &c.Hash)
}

func formEntry(f *form, e *snapshotEntry) {
	if e.r == nil {
		e.r = new(statemachine.Request)
	}
	formRequest(f, e.r)
	f.time(&e.since)
	number(f, &e.first)
}

func formPartition(f *form, p *snapshotPartition) {
	number(f, &p.applied)
	f.time(&p.horizon)
	table(f, &p.tenants, formChain)
	list(f, &p.open, formEntry)
	list(f, &p.closed, formEntry)
	n := f.uint(uint64(len(p.gone) + len(p.ended)))
	if f.writes() {
		for i := range p.gone {
			f.put(p.gone[i][:])
		}
		for _, id := range p.ended {
			f.id = compact(id)
			f.put(f.id[:])
		}
		return
	}
	for i := uint64(0); i < n && f.err == nil; i++ {
		if b := f.get(16); f.err == nil {
			p.gone = append(p.gone, [16]byte(b))
		}
	}
}
