package lifecycle

import (
	"hash/fnv"
	"strconv"
	"sync"
	"time"
)

// Times of the replicas' membership.
const (
	beatEvery  = 250 * time.Millisecond // heartbeats, while the loops make progress
	deadAfter  = time.Second            // silence after which a replica is passed over
	bootQuiet  = 300 * time.Millisecond // listening before the first partition is claimed
	keptFor    = 10 * time.Second       // silence after which a replica's snapshots hold no trim back
	standbyLag = 2 * time.Second        // how much later the others do a preferred replica's chores
)

// members is who else is there, by their heartbeats. It is a hint for routing
// and never for safety: two replicas that both believe to be preferred append
// under the same compare-and-swap.
type members struct {
	self string

	mu   sync.Mutex
	seen map[string]time.Time // guarded by mu
	kept map[string]keeping   // guarded by mu
}

// keeping is what a replica said of its snapshots, and when.
type keeping struct {
	seq uint64
	at  time.Time
}

func newMembers(self string) *members {
	return &members{self: self, seen: map[string]time.Time{}, kept: map[string]keeping{}}
}

// beat notes a sign of life, and says whether it is somebody's first.
func (m *members) beat(name string, now time.Time) (first bool) {
	if name == m.self {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.seen[name]
	m.seen[name] = now
	return !known
}

// bye forgets a replica that stops.
func (m *members) bye(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.seen, name)
	delete(m.kept, name)
}

// keeps notes up to where a replica's snapshots let the log go.
func (m *members) keeps(name string, seq uint64, now time.Time) {
	if name == m.self {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept[name] = keeping{seq, now}
}

// floor is the least sequence that every replica heard of lately can start from,
// and whose it is; own is this one's. One that starts says so before it is alive,
// and one that is silent may be back within a moment.
func (m *members) floor(own uint64, now time.Time) (seq uint64, who string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	seq, who = own, m.self
	for name, k := range m.kept {
		if now.Sub(k.at) >= keptFor {
			delete(m.kept, name)
		} else if k.seq < seq {
			seq, who = k.seq, name
		}
	}
	for name, at := range m.seen {
		if _, told := m.kept[name]; !told && now.Sub(at) < deadAfter && seq > 0 {
			seq, who = 0, name
		}
	}
	return seq, who
}

// live lists the replicas that may be preferred: this one, and those heard of
// lately.
func (m *members) live(now time.Time) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := []string{m.self}
	for name, at := range m.seen {
		if now.Sub(at) < deadAfter {
			all = append(all, name)
		} else {
			delete(m.seen, name)
		}
	}
	return all
}

// preferred picks a partition's replica by rendezvous hashing: every replica
// that sees the same members picks the same one, and a replica that goes or
// comes moves only its own partitions.
func preferred(members []string, partition int) string {
	best, who := uint64(0), ""
	for _, name := range members {
		h := fnv.New64a()
		h.Write([]byte(strconv.Itoa(partition)))
		h.Write([]byte{'/'})
		h.Write([]byte(name))
		v := h.Sum64()
		// FNV of strings that differ in their last byte is close together: finish it.
		v ^= v >> 33
		v *= 0xff51afd7ed558ccd
		v ^= v >> 33
		v *= 0xc4ceb9fe1a85ec53
		v ^= v >> 33
		if who == "" || v > best || v == best && name < who {
			best, who = v, name
		}
	}
	return who
}
