package handoff

import (
	"sync"

	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// staging is where pages lie between the pool and the peer: in frames that are one
// transfer's at a time, and wiped before they are another's.
type staging struct {
	pool *kvpool.Pool
	size int

	mu   sync.Mutex
	idle [][]byte // as the pool gave them
}

const (
	frameAlign = 64 // of the pages in a frame: a device copies to it by itself
	framePad   = (frameAlign - frameHead - pagesHead) % frameAlign
	maxIdle    = 16 // frames that are kept for the next transfer
)

func newStaging(pool *kvpool.Pool, size int) *staging { return &staging{pool: pool, size: size} }

// get takes the memory of one frame, or of two; see frame.
func (s *staging) get(two bool) (frames [][]byte, err error) {
	n := 1
	if two {
		n = 2
	}
	s.mu.Lock()
	for len(frames) < n && len(s.idle) > 0 {
		last := len(s.idle) - 1
		frames, s.idle = append(frames, s.idle[last]), s.idle[:last]
	}
	s.mu.Unlock()
	for len(frames) < n {
		b, err := s.pool.Staging(framePad + s.size)
		if err != nil {
			s.put(frames, 0)
			return nil, err
		}
		frames = append(frames, b)
	}
	return frames, nil
}

// frame is the part of the memory that is sent.
func frame(b []byte) []byte { return b[framePad:] }

// put wipes the used part of frames and gives them back. A crash before it costs
// nothing: the memory goes with the process.
func (s *staging) put(frames [][]byte, used int) {
	for _, f := range frames {
		clear(frame(f)[:used])
	}
	s.mu.Lock()
	keep := min(len(frames), max(0, maxIdle-len(s.idle)))
	s.idle = append(s.idle, frames[:keep]...)
	s.mu.Unlock()
	for _, f := range frames[keep:] {
		_ = s.pool.FreeStaging(f) // the pool takes note of a failure
	}
}

// close gives the memory of idle frames back.
func (s *staging) close() {
	s.mu.Lock()
	idle := s.idle
	s.idle = nil
	s.mu.Unlock()
	for _, f := range idle {
		_ = s.pool.FreeStaging(f) // the pool takes note of a failure
	}
}
