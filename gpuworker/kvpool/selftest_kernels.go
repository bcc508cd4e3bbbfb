package kvpool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/pdgate/pdgate/gpuworker/kvpool/kernels"
)

// torn asks the kernels alone for what a [Device] gives no way to: jobs with a bad
// slot, and a page that changes hands between the copy and the second look.
func (t *SelfTest) torn() error {
	if t.Driver == nil {
		return nil
	}
	const pages, slots = 4, 6
	vectors := uint64(t.PageBytes / 16)
	l := &lab{drv: t.Driver}
	defer l.close()
	data := t.random(pages * t.PageBytes)
	tags := words64(7, 70, 8, 80, 9, 90, 0, 0)
	pool, meta := l.memory(data), l.memory(tags)
	jobs := words64(
		2, 1, 9, 90, // good
		0, 5, 7, 70, // torn later
		1, 6, 8, 80, // a slot that does not exist
		1, 1<<63, 8, 80,
		3, 3, 0, 0, // nobody's
		0, 0, 7, 71, // refused, and stays so
	)
	want := []uint64{0, kernels.StatusOwner | kernels.StatusGeneration | kernels.StatusTorn, kernels.StatusSlot, kernels.StatusSlot, kernels.StatusOwner, kernels.StatusGeneration}
	n := len(want)
	before := t.random(slots * t.PageBytes)
	list, stage, outs := l.memory(jobs), l.memory(before), l.memory(make([]byte, 16*n))
	chunks := (t.PageBytes + kernels.Chunk - 1) / kernels.Chunk
	got, mid, result := make([]byte, len(before)), make([]byte, len(before)), make([]byte, 16*n)
	if l.err != nil {
		return l.err
	}
	err := l.drv.Run(func(s Stream) error {
		return errors.Join(
			s.Launch("kv_gather", chunks, n, uint64(pool), uint64(meta), pages, vectors, uint64(list), uint64(stage), slots, uint64(outs), t.key),
			s.CopyOut(mid, stage),
			s.CopyIn(meta, words64(0, 71)), // page 0 was given back
			s.Launch("kv_finalize", chunks, n, uint64(meta), pages, vectors, uint64(list), uint64(stage), slots, uint64(outs)),
			s.CopyOut(got, stage), s.CopyOut(result, outs))
	})
	if err != nil {
		return err
	}
	for i, w := range want {
		if st := binary.LittleEndian.Uint64(result[16*i:]); st != w {
			return statusError(i, st, w)
		}
	}
	zero := make([]byte, t.PageBytes)
	slot := func(b []byte, i int) []byte { return b[i*t.PageBytes:][:t.PageBytes] }
	page := func(i int) []byte { return slot(data, i) }
	// Job 0's words are the copy's first.
	if sum := binary.LittleEndian.Uint64(result[8:]); sum != Sum(t.key, 0, page(2)) {
		return differs("sum", sum, Sum(t.key, 0, page(2)))
	}
	if sum := binary.LittleEndian.Uint64(result[24:]); sum != Sum(t.key, 2*vectors, page(0)) {
		return differs("sum of a second page", sum, Sum(t.key, 2*vectors, page(0)))
	}
	for i, w := range [][2][]byte{
		{slot(before, 0), zero}, {page(2), page(2)}, {slot(before, 2), slot(before, 2)},
		{slot(before, 3), zero}, {slot(before, 4), slot(before, 4)}, {page(0), zero},
	} {
		if !bytes.Equal(slot(mid, i), w[0]) {
			return fmt.Errorf("slot %d after the copy: other bytes than wanted", i)
		}
		if !bytes.Equal(slot(got, i), w[1]) {
			return fmt.Errorf("slot %d after the second look: other bytes than wanted", i)
		}
	}
	return t.tornScatter(l, pool, meta, stage, list, got)
}

// tornScatter: the same jobs the other way. Page 0's are refused by now.
func (t *SelfTest) tornScatter(l *lab, pool, meta, stage, list Ptr, staged []byte) error {
	const pages, slots, n = 4, 6, 6
	vectors := uint64(t.PageBytes / 16)
	chunks := (t.PageBytes + kernels.Chunk - 1) / kernels.Chunk
	src := t.random(len(staged))
	outs := l.memory(make([]byte, 16*n))
	result, got, was := make([]byte, 16*n), make([]byte, pages*t.PageBytes), make([]byte, pages*t.PageBytes)
	if l.err != nil {
		return l.err
	}
	err := l.drv.Run(func(s Stream) error {
		return errors.Join(
			s.CopyOut(was, pool), s.CopyIn(stage, src),
			s.Launch("kv_scatter", chunks, n, uint64(pool), uint64(meta), pages, vectors, uint64(list), uint64(stage), slots, uint64(outs), t.key),
			s.CopyOut(got, pool), s.CopyOut(result, outs))
	})
	if err != nil {
		return err
	}
	for i, w := range []uint64{0, kernels.StatusOwner | kernels.StatusGeneration, kernels.StatusSlot, kernels.StatusSlot, kernels.StatusOwner, kernels.StatusOwner} {
		if st := binary.LittleEndian.Uint64(result[16*i:]); st != w {
			return statusError(i, st, w)
		}
	}
	copy(was[2*t.PageBytes:], src[t.PageBytes:2*t.PageBytes])
	if !bytes.Equal(got, was) {
		return errors.New("scatter: other pages than the good one have changed, or that one has not")
	}
	return nil
}

// missing asks the kernels that go by a list for pages that are not there, which a
// [GPU] never does, and the reference engine's for pages of another owner.
func (t *SelfTest) missing() error {
	if t.Driver == nil {
		return nil
	}
	const pages = 2
	vectors := uint64(t.PageBytes / 16)
	chunks := (t.PageBytes + kernels.Chunk - 1) / kernels.Chunk
	l := &lab{drv: t.Driver}
	defer l.close()
	data := t.random(pages * t.PageBytes)
	pool, meta := l.memory(data), l.memory(words64(0, 0, 7, 70))
	list := l.memory(words64(1, 2, 1<<40))
	scrubbed, audited, retagged := l.memory(make([]byte, 24)), l.memory(make([]byte, 24)), l.memory(make([]byte, 8))
	got, tags, result := make([]byte, len(data)), make([]byte, 32), make([]byte, 56)
	if l.err != nil {
		return l.err
	}
	err := l.drv.Run(func(s Stream) error {
		return errors.Join(
			s.Launch("kv_scrub", chunks, 3, uint64(pool), uint64(meta), pages, vectors, uint64(list), Poison, uint64(scrubbed)),
			s.Launch("kv_audit", chunks, 3, uint64(pool), pages, vectors, uint64(list), Poison, uint64(audited)),
			s.Launch("kv_retag", 1, 1, uint64(meta), pages, uint64(list), 3, 7, 71, 9, 90, uint64(retagged)),
			s.CopyOut(got, pool), s.CopyOut(tags, meta),
			s.CopyOut(result[:24], scrubbed), s.CopyOut(result[24:48], audited), s.CopyOut(result[48:], retagged))
	})
	if err != nil {
		return err
	}
	threads := uint64(chunks * kernels.Threads)
	for i, want := range []uint64{kernels.StatusOwner, kernels.StatusRange, kernels.StatusRange, vectors * 2, threads, threads, kernels.StatusGeneration | kernels.StatusRange} {
		if v := leWord(result[8*i:]); v != want {
			return differs(fmt.Sprintf("result %d", i), v, want)
		}
	}
	if !bytes.Equal(got, data) || !bytes.Equal(tags, words64(0, 0, 7, 70)) {
		return errors.New("a page or a tag was changed that was not to be")
	}
	if t.PageBytes != refPageBytes {
		return nil
	}
	return t.foreignRef(l, pool, meta, data)
}

const refPageBytes = refPageTokens * 192

// foreignRef: page 1 is 7's, and is asked for as 8's and in another generation.
func (t *SelfTest) foreignRef(l *lab, pool, meta Ptr, data []byte) error {
	const pages, vectors = 2, refPageBytes / 16
	jobs := l.memory(words64(1, 0, 8, 70, 1, 0, 7, 71))
	text, codes := l.memory(make([]byte, refWindow+2*refPageTokens)), l.memory(make([]byte, 256*8))
	filled, scanned := l.memory(make([]byte, 8)), l.memory(make([]byte, 32))
	got, result := make([]byte, len(data)), make([]byte, 40)
	if l.err != nil {
		return l.err
	}
	err := l.drv.Run(func(s Stream) error {
		return errors.Join(
			s.Launch("ref_fill", 1, 1, uint64(pool), uint64(meta), pages, vectors, uint64(jobs), uint64(text), uint64(codes), 0, 2*refPageTokens, uint64(filled)),
			s.Launch("ref_scan", 1, 1, uint64(pool), uint64(meta), pages, vectors, uint64(jobs), 2*refPageTokens, 2*refPageTokens, uint64(scanned), 0, 0, 0, 0, 0, 0, 0),
			s.CopyOut(got, pool), s.CopyOut(result[:8], filled), s.CopyOut(result[8:], scanned))
	})
	if err != nil {
		return err
	}
	for i, want := range []uint64{kernels.StatusOwner | kernels.StatusGeneration, 0, kernels.StatusOwner, 0, kernels.StatusGeneration} {
		if v := leWord(result[8*i:]); v != want {
			return differs(fmt.Sprintf("reference engine: result %d", i), v, want)
		}
	}
	if !bytes.Equal(got, data) {
		return errors.New("reference engine: another owner's page was written")
	}
	return nil
}

// lab is memory of a check, on the device. The first error stays.
type lab struct {
	drv   Driver
	owned []Ptr
	err   error
}

func (l *lab) memory(b []byte) Ptr {
	p := l.room(int64(len(b)))
	if l.err == nil {
		l.err = l.drv.Run(func(s Stream) error { return s.CopyIn(p, b) })
	}
	return p
}

// room is memory with whatever is in it.
func (l *lab) room(n int64) Ptr {
	if l.err != nil {
		return 0
	}
	p, err := l.drv.Alloc(n)
	if err != nil {
		l.err = err
		return 0
	}
	l.owned = append(l.owned, p)
	return p
}

func (l *lab) close() {
	for _, p := range l.owned {
		_ = l.drv.Free(p)
	}
}

func leWord(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

func words64(v ...uint64) []byte {
	b := make([]byte, 0, 8*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return b
}
