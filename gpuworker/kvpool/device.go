package kvpool

import (
	"encoding/binary"
	"fmt"
)

// Device is the memory behind a pool. It knows page indices and bytes, never
// owners: the pool has verified and fenced before it calls. Ranges are pages
// [start, start+count) and always inside the pool; byte slices are exactly
// count pages long, words in little-endian order. Calls on different pages may
// be concurrent.
type Device interface {
	// Gather copies pages out.
	Gather(dst []byte, start, count int) error
	// Scatter copies pages in.
	Scatter(start, count int, src []byte) error
	// Scrub overwrites pages with the pattern. It returns after the last store
	// is visible to every later Gather.
	Scrub(start, count int, pattern uint64) error
	// Audit counts the words that differ from the pattern.
	Audit(start, count int, pattern uint64) (int, error)
}

// host is the reference device: a slab of ordinary memory.
type host struct {
	words     []uint64
	pageWords int
}

func newHost(pages, pageBytes int) *host {
	return &host{words: make([]uint64, pages*(pageBytes/8)), pageWords: pageBytes / 8}
}

func (h *host) span(start, count int) []uint64 {
	lo, hi := start*h.pageWords, (start+count)*h.pageWords
	return h.words[lo:hi:hi]
}

func (h *host) Gather(dst []byte, start, count int) error {
	src := h.span(start, count)
	if len(dst) != 8*len(src) {
		return fmt.Errorf("kvpool: gather of %d bytes into %d", 8*len(src), len(dst))
	}
	for len(src) >= 4 && len(dst) >= 32 { // the lengths are in the condition to drop bounds checks
		binary.LittleEndian.PutUint64(dst[0:8], src[0])
		binary.LittleEndian.PutUint64(dst[8:16], src[1])
		binary.LittleEndian.PutUint64(dst[16:24], src[2])
		binary.LittleEndian.PutUint64(dst[24:32], src[3])
		src, dst = src[4:], dst[32:]
	}
	for i, w := range src {
		binary.LittleEndian.PutUint64(dst[8*i:], w)
	}
	return nil
}

func (h *host) Scatter(start, count int, src []byte) error {
	dst := h.span(start, count)
	if len(src) != 8*len(dst) {
		return fmt.Errorf("kvpool: scatter of %d bytes into %d", len(src), 8*len(dst))
	}
	for len(dst) >= 4 && len(src) >= 32 {
		dst[0] = binary.LittleEndian.Uint64(src[0:8])
		dst[1] = binary.LittleEndian.Uint64(src[8:16])
		dst[2] = binary.LittleEndian.Uint64(src[16:24])
		dst[3] = binary.LittleEndian.Uint64(src[24:32])
		dst, src = dst[4:], src[32:]
	}
	for i := range dst {
		dst[i] = binary.LittleEndian.Uint64(src[8*i:])
	}
	return nil
}

func (h *host) Scrub(start, count int, pattern uint64) error {
	w := h.span(start, count)
	for len(w) >= 4 {
		w[0], w[1], w[2], w[3] = pattern, pattern, pattern, pattern
		w = w[4:]
	}
	for i := range w {
		w[i] = pattern
	}
	return nil
}

func (h *host) Audit(start, count int, pattern uint64) (int, error) {
	n := 0
	for _, w := range h.span(start, count) {
		if w != pattern {
			n++
		}
	}
	return n, nil
}
