package audit

import (
	"hash"
	"io"
)

// summing counts and digests what is written to w.
type summing struct {
	w io.Writer
	h hash.Hash
	n int64
}

func (s *summing) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.h.Write(p[:n])
	s.n += int64(n)
	return n, err
}
