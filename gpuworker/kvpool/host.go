package kvpool

import (
	"fmt"
	"unsafe"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool/kernels"
)

// host is the reference device: a slab of ordinary memory.
type host struct {
	words     []uint64
	tags      []Tag
	pageWords int
	guards    *guards // nil: all
}

func newHost(pages, pageBytes int) *host {
	return &host{words: make([]uint64, pages*(pageBytes/8)), tags: make([]Tag, pages), pageWords: pageBytes / 8}
}

func (h *host) span(start, count int) []uint64 {
	lo, hi := start*h.pageWords, (start+count)*h.pageWords
	return h.words[lo:hi:hi]
}

// blind says that a test has the tags not looked at.
func (h *host) blind() bool { return h.guards != nil && !h.guards.tags }

// bytes is a run's memory.
func (h *host) bytes(r events.PageRun) []byte {
	w := h.span(int(r.Start), int(r.Count))
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), 8*len(w))
}

// exist refuses pages that are not there.
func (h *host) exist(runs []events.PageRun) error {
	for _, r := range runs {
		if uint64(r.Start)+uint64(r.Count) > uint64(len(h.tags)) {
			return refusal(r.Start, kernels.StatusRange)
		}
	}
	return nil
}

// check refuses pages that do not carry the tag. torn marks the look after a copy.
func (h *host) check(runs []events.PageRun, owner Owner, torn uint64) error {
	if h.blind() {
		return nil
	}
	if err := h.exist(runs); err != nil {
		return err
	}
	for _, r := range runs {
		for i := r.Start; i < r.Start+r.Count; i++ {
			var bad uint64
			if h.tags[i].Owner != owner || owner == 0 {
				bad |= kernels.StatusOwner
			}
			if h.tags[i].Generation != r.Generation {
				bad |= kernels.StatusGeneration
			}
			if bad != 0 {
				return refusal(i, bad|torn)
			}
		}
	}
	return nil
}

// copyBlock is copied and summed at once, from the processor's nearest cache.
const copyBlock = 16 << 10

// copySum copies src to dst, and sums what lies in dst then.
func copySum(dst, src []byte, key, word uint64) (sum uint64) {
	for len(src) > 0 {
		n := copy(dst[:min(len(dst), copyBlock)], src)
		sum += Sum(key, word, dst[:n])
		dst, src, word = dst[n:], src[n:], word+uint64(n/8)
	}
	return sum
}

func (h *host) Gather(dst []byte, runs []events.PageRun, owner Owner, key, word uint64) (sum uint64, err error) {
	if err := checkSize(len(dst), runs, 8*h.pageWords); err != nil {
		return 0, err
	}
	if err := h.check(runs, owner, 0); err != nil {
		clear(dst)
		return 0, err
	}
	to := dst
	for _, r := range runs {
		src := h.bytes(r)
		sum += copySum(to[:len(src)], src, key, word)
		to, word = to[len(src):], word+uint64(len(src)/8)
	}
	if err := h.check(runs, owner, kernels.StatusTorn); err != nil {
		clear(dst)
		return 0, err
	}
	return sum, nil
}

func (h *host) Scatter(runs []events.PageRun, src []byte, owner Owner, key, word uint64) (sum uint64, err error) {
	if err := checkSize(len(src), runs, 8*h.pageWords); err != nil {
		return 0, err
	}
	if err := h.check(runs, owner, 0); err != nil {
		return 0, err
	}
	for _, r := range runs {
		dst := h.bytes(r)
		sum += copySum(dst, src[:len(dst)], key, word)
		src, word = src[len(dst):], word+uint64(len(dst)/8)
	}
	return sum, nil
}

func (h *host) Sum(runs []events.PageRun, owner Owner, key, word uint64) (sum uint64, err error) {
	if err := h.check(runs, owner, 0); err != nil {
		return 0, err
	}
	for _, r := range runs {
		b := h.bytes(r)
		sum += Sum(key, word, b)
		word += uint64(len(b) / 8)
	}
	return sum, nil
}

func (h *host) Scrub(runs []events.PageRun, pattern uint64) error {
	if err := h.exist(runs); err != nil {
		return err
	}
	for _, r := range runs {
		for i := r.Start; i < r.Start+r.Count; i++ {
			if h.tags[i].Owner != 0 && !h.blind() {
				return refusal(i, kernels.StatusOwner)
			}
		}
		w := h.span(int(r.Start), int(r.Count))
		for len(w) >= 4 {
			w[0], w[1], w[2], w[3] = pattern, pattern, pattern, pattern
			w = w[4:]
		}
		for i := range w {
			w[i] = pattern
		}
	}
	return nil
}

func (h *host) Audit(runs []events.PageRun, pattern uint64) (n int, err error) {
	if err := h.exist(runs); err != nil {
		return 0, err
	}
	for _, r := range runs {
		for _, w := range h.span(int(r.Start), int(r.Count)) {
			if w != pattern {
				n++
			}
		}
	}
	return n, nil
}

func (h *host) Retag(runs []events.PageRun, from, to Tag) error {
	if err := h.exist(runs); err != nil {
		return err
	}
	for _, r := range runs {
		for i := r.Start; i < r.Start+r.Count; i++ {
			if h.tags[i] != from && !h.blind() {
				return fmt.Errorf("retag: %w", refusal(i, kernels.StatusOwner))
			}
			h.tags[i] = to
		}
	}
	return nil
}
