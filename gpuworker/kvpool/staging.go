package kvpool

import (
	"fmt"
	"io"

	"github.com/pdgate/pdgate/events"
)

// Staging is memory for copies between a pool's device and a socket: of one
// transfer at a time, and wiped by whoever is done with it. A GPU copies to it by
// itself, without the driver's own staging in between.
func (p *Pool) Staging(bytes int) ([]byte, error) {
	if p.gpu == nil {
		return make([]byte, bytes), nil
	}
	b, err := p.gpu.drv.Pinned(bytes)
	return b, p.noted(err)
}

// FreeStaging wipes staging and gives it back.
func (p *Pool) FreeStaging(b []byte) error {
	clear(b)
	if p.gpu == nil {
		return nil
	}
	return p.noted(p.gpu.drv.FreePinned(b))
}

// OnDevice says whether copies are the device's work, so that a processor has time
// for something else meanwhile.
func (p *Pool) OnDevice() bool { return p.host == nil }

// incoming is what a Write has on its way to a device: while one block is copied
// there, the next is read into the other buffer. One goroutine receives.
type incoming struct {
	pool    *Pool
	buffers [2][]byte
	turn    int
	copying chan copied // of the block on its way; nil: none
}

type copied struct {
	sum uint64
	err error
}

// stage reads pages and starts their copy to the device. The sum is that of the
// block before. Callers hold w.mu.
func (w *Write) stage(r io.Reader, key uint64, runs []events.PageRun, word uint64) (sum uint64, err error) {
	in, p := &w.incoming, w.alloc.pool
	n := pagesIn(runs) * p.cfg.PageBytes
	if in.buffers[0] == nil {
		in.pool = p
		for i := range in.buffers {
			if in.buffers[i], err = p.Staging(max(receiveBlock, p.cfg.PageBytes)); err != nil {
				return 0, err
			}
		}
	}
	b := in.buffers[in.turn][:n]
	for at := 0; at < n; at += receiveBlock {
		if err := w.verify(runs); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(r, b[at:min(at+receiveBlock, n)]); err != nil {
			return 0, err
		}
	}
	if sum, err = in.wait(); err != nil {
		return 0, err
	}
	if err := w.verify(runs); err != nil {
		return 0, err
	}
	in.turn = 1 - in.turn
	done, owner := make(chan copied, 1), w.alloc.tag.Owner
	in.copying = done
	go func() {
		sum, err := p.dev.Scatter(runs, b, owner, key, word)
		done <- copied{sum, p.noted(err)}
	}()
	return sum, nil
}

// wait is for the block that is on its way.
func (in *incoming) wait() (uint64, error) {
	if in.copying == nil {
		return 0, nil
	}
	c := <-in.copying
	in.copying = nil
	return c.sum, c.err
}

// drop waits for what is on its way, and gives the buffers back.
func (in *incoming) drop() {
	_, _ = in.wait()
	for i, b := range in.buffers {
		if b != nil {
			_ = in.pool.FreeStaging(b) // a failure is noted
		}
		in.buffers[i] = nil
	}
}

// Settle waits until everything that was received lies in its pages, and returns
// the rest of the sum.
func (w *Write) Settle() (sum uint64, err error) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if w.ended {
		return 0, fmt.Errorf("receive: %w", ErrReleased)
	}
	if sum, err = w.incoming.wait(); err != nil {
		return 0, fmt.Errorf("receive: %w", err)
	}
	return sum, nil
}
