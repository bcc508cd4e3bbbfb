package kvpool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pdgate/pdgate/gpuworker/kvpool/kernels"
)

// Measured is one operation of a [Measure] run: bytes of memory that it touches, so
// a copy counts twice, and how long the device took each time.
type Measured struct {
	Name  string
	Bytes int64
	Took  []time.Duration
}

// Rate is the median, in bytes a second.
func (m Measured) Rate() float64 {
	t := slices.Sorted(slices.Values(m.Took))
	return float64(m.Bytes) / t[len(t)/2].Seconds()
}

// Names of what is measured.
const (
	MeasuredCopy   = "plain device copy"
	MeasuredFill   = "plain memset"
	MeasuredBare   = "gather without check"
	MeasuredGather = "gather with check and sum"
	MeasuredBoth   = "gather and second check"
	MeasuredScrub  = "scrub"
	MeasuredSum    = "sum in place"
	MeasuredAudit  = "audit"
)

// Measure times the page kernels on a driver beside its own copy and memset of as
// many bytes, in the same run, in turn. Pages lie in random order. total is the
// bytes of pages, several times what the device caches; rounds follow two that warm
// it up. Every result is checked before its time counts.
func Measure(drv Driver, pageBytes int, total int64, rounds int) (out []Measured, err error) {
	pages := int(total / int64(pageBytes))
	if pages < 1 || pages > kernels.MaxJobs || pageBytes%16 != 0 || rounds < 1 {
		return nil, fmt.Errorf("kvpool: a measurement of %d bytes in pages of %d", total, pageBytes)
	}
	bytesOfPages := int64(pages) * int64(pageBytes)
	l := &lab{drv: drv}
	defer l.close()
	r := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	var jobs, list, meta []byte
	for slot, page := range r.Perm(pages) {
		jobs = append(jobs, words64(uint64(page), uint64(slot), 0x1234, uint64(1000+page))...)
		list = append(list, words64(uint64(page))...)
	}
	for page := range pages {
		meta = append(meta, words64(0x1234, uint64(1000+page))...)
	}
	pool, stage := l.room(bytesOfPages), l.room(bytesOfPages)
	tags, free, jobList, pageList, outs := l.memory(meta), l.memory(make([]byte, len(meta))), l.memory(jobs), l.memory(list), l.memory(make([]byte, 16*pages))
	if l.err != nil {
		return nil, l.err
	}
	vectors, n := uint64(pageBytes/16), uint64(pages)
	chunks := (pageBytes + kernels.Chunk - 1) / kernels.Chunk
	launch := func(s Stream, kernel string, args ...uint64) error { return s.Launch(kernel, chunks, pages, args...) }
	gather := func(s Stream) error {
		return launch(s, "kv_gather", uint64(pool), uint64(tags), n, vectors, uint64(jobList), uint64(stage), n, uint64(outs), 7)
	}
	finalize := func(s Stream) error {
		return launch(s, "kv_finalize", uint64(tags), n, vectors, uint64(jobList), uint64(stage), n, uint64(outs))
	}
	ops := []struct {
		name  string
		bytes int64
		run   func(Stream) error
	}{
		{MeasuredCopy, 2 * bytesOfPages, func(s Stream) error { return s.Copy(stage, pool, bytesOfPages) }},
		{MeasuredFill, bytesOfPages, func(s Stream) error { return s.Fill(stage, 0x5a5a5a5a, bytesOfPages/4) }},
		{MeasuredBare, 2 * bytesOfPages, func(s Stream) error {
			return launch(s, "bench_gather", uint64(pool), vectors, uint64(jobList), uint64(stage))
		}},
		{MeasuredGather, 2 * bytesOfPages, gather},
		{MeasuredBoth, 2 * bytesOfPages, func(s Stream) error { return errors.Join(gather(s), finalize(s)) }},
		{MeasuredSum, bytesOfPages, func(s Stream) error {
			return launch(s, "kv_sum", uint64(pool), uint64(tags), n, vectors, uint64(jobList), uint64(outs), 7)
		}},
		{MeasuredScrub, bytesOfPages, func(s Stream) error {
			return launch(s, "kv_scrub", uint64(stage), uint64(free), n, vectors, uint64(pageList), Poison, uint64(outs))
		}},
		{MeasuredAudit, bytesOfPages, func(s Stream) error {
			return launch(s, "kv_audit", uint64(stage), n, vectors, uint64(pageList), Poison, uint64(outs))
		}},
	}
	// Random pages, each different from its neighbours.
	block := make([]byte, min(int64(4<<20), bytesOfPages))
	for at := int64(0); at < bytesOfPages; at += int64(len(block)) {
		for i := 0; i+8 <= len(block); i += 8 {
			binary.LittleEndian.PutUint64(block[i:], r.Uint64())
		}
		part := block[:min(int64(len(block)), bytesOfPages-at)]
		if err := drv.Run(func(s Stream) error { return s.CopyIn(pool+Ptr(at), part) }); err != nil {
			return nil, err
		}
	}
	for _, op := range ops {
		out = append(out, Measured{Name: op.name, Bytes: op.bytes})
	}
	m := measurement{drv: drv, pool: pool, stage: stage, outs: outs, jobs: jobs, pageBytes: pageBytes}
	for round := range rounds + 2 {
		for i, op := range ops {
			if err := drv.Run(func(s Stream) error { return s.Fill(outs, 0, int64(4*pages)) }); err != nil {
				return nil, err
			}
			took, err := drv.Time(op.run)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", op.name, err)
			}
			if round < 2 {
				continue
			}
			out[i].Took = append(out[i].Took, took)
			if err := m.check(op.name, r.IntN(pages)); err != nil {
				return nil, fmt.Errorf("%s: %w", op.name, err)
			}
		}
	}
	return out, nil
}

// measurement is what a measured operation left behind.
type measurement struct {
	drv               Driver
	pool, stage, outs Ptr
	jobs              []byte
	pageBytes         int
}

// check looks at the results of an operation, and at one page of its copy: at all of
// them where there are few.
func (m *measurement) check(name string, slot int) error {
	pages := len(m.jobs) / jobBytes
	switch name {
	case MeasuredAudit:
		result := make([]byte, 8*pages)
		err := m.drv.Run(func(s Stream) error { return s.CopyOut(result, m.outs) })
		if err == nil && !bytes.Equal(result, make([]byte, 8*pages)) {
			err = errors.New("a scrubbed page is not clean")
		}
		return err
	case MeasuredBare, MeasuredBoth:
	default:
		return nil
	}
	first, last := slot, slot
	if pages <= 16 {
		first, last = 0, pages-1
	}
	for slot := first; slot <= last; slot++ {
		got, want, result := make([]byte, m.pageBytes), make([]byte, m.pageBytes), make([]byte, outBytes)
		page := int(leWord(m.jobs[jobBytes*slot:]))
		err := m.drv.Run(func(s Stream) error {
			return errors.Join(s.CopyOut(result, m.outs+Ptr(outBytes*slot)), s.CopyOut(got, m.stage+Ptr(slot*m.pageBytes)), s.CopyOut(want, m.pool+Ptr(page*m.pageBytes)))
		})
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("slot %d does not hold page %d", slot, page)
		}
		if sum := Sum(7, uint64(slot*m.pageBytes/8), want); name == MeasuredBoth && (leWord(result) != 0 || leWord(result[8:]) != sum) {
			return fmt.Errorf("slot %d: status %d, sum %x, want %x", slot, leWord(result), leWord(result[8:]), sum)
		}
	}
	return nil
}
