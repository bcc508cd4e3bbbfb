package engine

import (
	"context"
	"unsafe"
)

// refDevice is a [KV] whose pages a device holds, out of the engine's reach. What
// ref does to every token runs there: writing keys and values, and the score of a
// query against all keys, both in integers. Softmax and the weighted sum are over
// the few pages that can still matter; those are copied here and go through the same
// code as any, in float64, which is why the answer is the same byte for byte.
type refDevice interface {
	KV
	OnDevice() bool
	// FillRef writes tokens, the first of which is number first. history is what
	// stands before it, as far as a key sees.
	FillRef(codes *[256]uint32, history, tokens []byte, first int) error
	// ScanRef gives each page's best score, and calls odd for pages that hold a key
	// whose scale is not one. Pages that begin in the prompt are covered to its end.
	ScanRef(codes *[256]uint32, q *[refKeyWords]uint64, prompt, tokens int, best []int32, odd func(page int)) error
	// ReadPage copies a page.
	ReadPage(i int, dst []byte) error
}

// refRemote is a sequence's pages on a device, with copies of those that were read.
type refRemote struct {
	dev  refDevice
	near map[int]*refPage
}

// refNear is how many copies are kept: 3 MB of them.
const refNear = 256

func (r *refRemote) page(i int) (*refPage, error) {
	if p := r.near[i]; p != nil {
		return p, nil
	}
	if len(r.near) == refNear {
		r.forget()
	}
	p := new(refPage)
	if err := r.dev.ReadPage(i, unsafe.Slice((*byte)(unsafe.Pointer(p)), len(p)*8)); err != nil {
		return nil, err
	}
	r.near[i] = p
	return p, nil
}

// forget wipes the copies.
func (r *refRemote) forget() {
	for _, p := range r.near {
		clear(p[:])
	}
	clear(r.near)
}

// push writes token number at, there and in the copy.
func (r *refRemote) push(at int, h *refHistory, b byte) error {
	text := h.bytes()
	if err := r.dev.FillRef(&refCodes, text[:], []byte{b}, at); err != nil {
		return err
	}
	if p := r.near[at/refPageTokens]; p != nil {
		p.write(at%refPageTokens, h, b)
	}
	return nil
}

// fill writes the prompt, and looks at ctx every few milliseconds.
func (r *refRemote) fill(ctx context.Context, prompt []byte) error {
	const step = 64 << 10
	for at := 0; at < len(prompt); at += step {
		if err := ctx.Err(); err != nil {
			return err
		}
		end := min(at+step, len(prompt))
		if err := r.dev.FillRef(&refCodes, prompt[max(0, at-refWindow):at], prompt[at:end], at); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (r *refRemote) scan(s *refSequence, q *refKey) error {
	var odd []int
	err := r.dev.ScanRef(&refCodes, (*[refKeyWords]uint64)(q), s.prompt, s.len, s.best, func(page int) { odd = append(odd, page) })
	for _, i := range odd {
		s.best[i] |= refOdd
	}
	return err
}

// bytes are the history's, the oldest first.
func (h *refHistory) bytes() (b [refWindow]byte) {
	for i := range b {
		n := refWindow - 1 - i // bytes after it
		b[i] = byte(h[n/8] >> (8 * (n % 8)))
	}
	return b
}
