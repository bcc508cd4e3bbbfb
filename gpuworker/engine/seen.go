package engine

import (
	"crypto/sha256"
	"sync"
)

// mostSeen is how many references are remembered; the lease of older ones is
// long over.
const mostSeen = 1 << 16

// seen remembers references by their digests.
type seen struct {
	mu   sync.Mutex
	have map[[sha256.Size]byte]bool
	ring [][sha256.Size]byte // in the order in which they came
	next int
}

// again takes note of a reference, and says whether it was noted before.
func (s *seen) again(reference []byte) bool {
	id := sha256.Sum256(reference)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.have[id] {
		return true
	}
	if s.have == nil {
		s.have = make(map[[sha256.Size]byte]bool)
	}
	if len(s.ring) < mostSeen {
		s.ring = append(s.ring, id)
	} else {
		delete(s.have, s.ring[s.next])
		s.ring[s.next] = id
		s.next = (s.next + 1) % mostSeen
	}
	s.have[id] = true
	return false
}
