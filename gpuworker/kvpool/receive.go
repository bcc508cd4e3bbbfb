package kvpool

import (
	"fmt"
	"io"

	"github.com/pdgate/pdgate/events"
)

// receiveBlock is how much is read at once: it is summed while the processor has
// it in its cache, and a late writer comes no further between two checks.
const receiveBlock = 256 << 10

// Receive reads count pages from r straight into the allocation, from page on,
// and returns the partial [Sum] under key of what lies there then; words count
// from the allocation's first. Pages are verified before each block that is read,
// as in [Write.Scatter]. Where it fails, any of these pages may be overwritten
// in part.
//
// [Write.End] waits for it, so r must fail where the write is to end.
func (w *Write) Receive(r io.Reader, key uint64, page, count int) (sum uint64, err error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	a, size := w.alloc, w.alloc.pool.cfg.PageBytes
	switch {
	case w.ended:
		return 0, fmt.Errorf("receive: %w", ErrReleased)
	case size == 0:
		return 0, fmt.Errorf("receive: %w", ErrAccount)
	case page < 0 || count < 1 || count > a.Pages()-page:
		return 0, fmt.Errorf("kvpool: %d pages to receive at page %d of %d", count, page, a.Pages())
	}
	step := max(1, receiveBlock/size)
	err = stretches(a.runs, a.ends, page, page+count, func(start, count, page int) error {
		for i := 0; i < count; i += step {
			part, err := w.receive(r, key, start+i, min(step, count-i), page+i)
			if err != nil {
				return fmt.Errorf("receive: %w", err)
			}
			sum += part
		}
		return nil
	})
	return sum, err
}

// receive reads neighbouring pages: count of them, page in the allocation and
// start in the pool. Callers hold w.mu.
func (w *Write) receive(r io.Reader, key uint64, start, count, page int) (sum uint64, err error) {
	p, size := w.alloc.pool, w.alloc.pool.cfg.PageBytes
	run := []events.PageRun{{Start: uint32(start), Count: uint32(count), Generation: w.alloc.gen}}
	var to []byte
	if p.host != nil {
		to = p.host.bytes(start, count)
	} else {
		to = make([]byte, count*size)
		defer clear(to)
	}
	word := uint64(page) * uint64(size/8)
	for b := to; len(b) > 0; {
		if err := w.verify(run); err != nil {
			return 0, err
		}
		n := min(len(b), receiveBlock)
		if _, err := io.ReadFull(r, b[:n]); err != nil {
			return 0, err
		}
		sum += Sum(key, word, b[:n])
		word += uint64(n / 8)
		b = b[n:]
	}
	if p.host != nil {
		return sum, nil
	}
	if err := w.verify(run); err != nil {
		return 0, err
	}
	return sum, p.dev.Scatter(start, count, to)
}

// verify refuses a late writer. Pages that pass do not change hands before w's
// end, since w is counted.
func (w *Write) verify(runs []events.PageRun) error {
	p := w.alloc.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.verifyAgain(w.alloc.owner, p.cfg.Epoch, runs)
}
