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
// and returns a partial [Sum] under key of what lies there then; words count from
// the allocation's first. Pages are verified before each block that is read, as in
// [Write.Scatter]. Where it fails, any of these pages may be overwritten in part.
//
// On a device other than host memory the last block may still be on its way, and
// its part of the sum is that of the next call, or of [Write.Settle].
//
// [Write.End] waits for it, so r must fail where the write is to end.
func (w *Write) Receive(r io.Reader, key uint64, page, count int) (sum uint64, err error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	a, p := w.alloc, w.alloc.pool
	switch {
	case w.ended:
		return 0, fmt.Errorf("receive: %w", ErrReleased)
	case p.cfg.PageBytes == 0:
		return 0, fmt.Errorf("receive: %w", ErrAccount)
	case page < 0 || count < 1 || count > a.Pages()-page:
		return 0, fmt.Errorf("kvpool: %d pages to receive at page %d of %d", count, page, a.Pages())
	}
	step := max(1, receiveBlock/p.cfg.PageBytes)
	for i := 0; i < count; i += step {
		runs := part(a.runs, a.ends, page+i, page+min(i+step, count))
		read := w.receive
		if p.host == nil {
			read = w.stage
		}
		got, err := read(r, key, runs, p.word(page+i))
		if err != nil {
			return 0, fmt.Errorf("receive: %w", err)
		}
		sum += got
	}
	return sum, nil
}

// receive reads pages into host memory. Callers hold w.mu.
func (w *Write) receive(r io.Reader, key uint64, runs []events.PageRun, word uint64) (sum uint64, err error) {
	h := w.alloc.pool.host
	for _, run := range runs {
		for b := h.bytes(run); len(b) > 0; {
			one := []events.PageRun{run}
			if err := w.verify(one); err != nil {
				return 0, err
			}
			if err := h.check(one, w.alloc.tag.Owner, 0); err != nil {
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
	}
	return sum, nil
}

// verify refuses a late writer. Pages that pass do not change hands before w's
// end, since w is counted.
func (w *Write) verify(runs []events.PageRun) error {
	p := w.alloc.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.verifyAgain(w.alloc.owner, p.cfg.Epoch, runs)
}
