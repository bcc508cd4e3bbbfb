package ptx

import (
	"fmt"
	"slices"
	"sort"
)

// Memory is a device's memory. Allocations lie apart, so that no access out of
// one lands in another. It is not safe for concurrent use.
type Memory struct {
	regions []region // in order of base
	top     uint64
	last    int // where the last access was
}

type region struct {
	base  uint64
	bytes []byte
}

const (
	firstBase = 0x7f00_0000_0000
	guardGap  = 4096
)

// Alloc makes an allocation. Its bytes are not zero: whoever reads what it did
// not write gets nonsense, as on a device.
func (m *Memory) Alloc(n int64) (uint64, error) {
	if n < 1 {
		return 0, fmt.Errorf("ptx: allocation of %d bytes", n)
	}
	if m.top == 0 {
		m.top = firstBase
	}
	r := region{m.top, make([]byte, n)}
	for i := range r.bytes {
		r.bytes[i] = 0xcd
	}
	m.regions = append(m.regions, r)
	m.top += uint64(n+guardGap-1)&^(guardGap-1) + guardGap
	return r.base, nil
}

// Free ends an allocation. Its addresses are not used again.
func (m *Memory) Free(base uint64) error {
	i := m.find(base)
	if i < 0 || m.regions[i].base != base {
		return fmt.Errorf("ptx: free of %#x, where no allocation begins", base)
	}
	m.regions = slices.Delete(m.regions, i, i+1)
	m.last = 0
	return nil
}

// Allocations counts those that were not freed.
func (m *Memory) Allocations() int { return len(m.regions) }

// Bytes is the memory at an address. It is an error where not all of it lies in
// one allocation.
func (m *Memory) Bytes(at uint64, n int) ([]byte, error) {
	if i := m.find(at); i >= 0 && n >= 0 {
		r := &m.regions[i]
		if off := at - r.base; off <= uint64(len(r.bytes)) && uint64(n) <= uint64(len(r.bytes))-off {
			return r.bytes[off : off+uint64(n) : off+uint64(n)], nil
		}
	}
	return nil, fmt.Errorf("illegal address %#x, %d bytes", at, n)
}

// access is Bytes for an instruction: 1, 8 or 16 bytes at their natural place.
func (m *Memory) access(at uint64, n int) ([]byte, error) {
	if at%uint64(n) != 0 {
		return nil, fmt.Errorf("misaligned access of %d bytes at %#x", n, at)
	}
	return m.Bytes(at, n)
}

// find is the last region that begins at or before an address, -1 for none.
func (m *Memory) find(at uint64) int {
	if i := m.last; i >= 0 && i < len(m.regions) && at >= m.regions[i].base && at-m.regions[i].base < uint64(len(m.regions[i].bytes)) {
		return i
	}
	m.last = sort.Search(len(m.regions), func(i int) bool { return m.regions[i].base > at }) - 1
	return m.last
}
