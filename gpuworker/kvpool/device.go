package kvpool

import (
	"fmt"
	"unsafe"
)

// Device is the memory behind a pool. It knows page indices and bytes, never
// owners: the pool has verified and fenced before it calls. Ranges are pages
// [start, start+count) and always inside the pool; byte slices are exactly
// count pages long, as they lie in memory. Calls on different pages may be
// concurrent.
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

// bytes is span as bytes.
func (h *host) bytes(start, count int) []byte {
	w := h.span(start, count)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), 8*len(w))
}

func (h *host) Gather(dst []byte, start, count int) error {
	src := h.bytes(start, count)
	if len(dst) != len(src) {
		return fmt.Errorf("kvpool: gather of %d bytes into %d", len(src), len(dst))
	}
	copy(dst, src)
	return nil
}

func (h *host) Scatter(start, count int, src []byte) error {
	dst := h.bytes(start, count)
	if len(src) != len(dst) {
		return fmt.Errorf("kvpool: scatter of %d bytes into %d", len(src), len(dst))
	}
	copy(dst, src)
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
