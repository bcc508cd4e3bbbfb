package enginefake

import (
	"context"
	"fmt"
	"sync"
)

// Pool is paged KV memory. It is as trusting as an engine's: it knows who owns a
// block, and lets anybody read and write any block by its id.
type Pool struct {
	size  int // tokens a block
	first int // id of the first block

	mu      sync.Mutex
	mem     []byte   // under mu
	owner   []string // under mu; empty: free
	uses    []int    // under mu; how often a block was given out
	free    []int    // under mu; ids, the longest free first
	changed chan struct{}
}

// NewPool makes a pool of n blocks with ids from first up. Their content is noise.
func NewPool(n, size, first int) *Pool {
	p := &Pool{
		size: size, first: first, mem: noise(first+size, n*size),
		owner: make([]string, n), uses: make([]int, n), changed: make(chan struct{}),
	}
	for i := range n {
		p.free = append(p.free, first+i)
	}
	return p
}

// For is how many blocks n tokens take.
func (p *Pool) For(n int) int { return (n + p.size - 1) / p.size }

// Blocks is the size of the pool, Free what is left of it.
func (p *Pool) Blocks() int { return len(p.owner) }

// Free is the number of blocks without an owner.
func (p *Pool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.free)
}

// Alloc gives n blocks to owner, or none.
func (p *Pool) Alloc(owner string, n int) ([]int, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.alloc(owner, n)
}

func (p *Pool) alloc(owner string, n int) ([]int, bool) {
	if n > len(p.free) {
		return nil, false
	}
	ids := append([]int(nil), p.free[:n]...)
	p.free = append(p.free[:0:0], p.free[n:]...)
	for _, id := range ids {
		p.owner[id-p.first] = owner
		p.uses[id-p.first]++
	}
	return ids, true
}

// Acquire is Alloc that waits for blocks.
func (p *Pool) Acquire(ctx context.Context, owner string, n int) ([]int, error) {
	for {
		p.mu.Lock()
		ids, ok := p.alloc(owner, n)
		changed := p.changed
		p.mu.Unlock()
		if ok {
			return ids, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %d blocks: %w", n, context.Cause(ctx))
		case <-changed:
		}
	}
}

// Release frees those of the blocks that owner has. They keep their content.
func (p *Pool) Release(owner string, ids []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		if i := id - p.first; i >= 0 && i < len(p.owner) && p.owner[i] == owner {
			p.owner[i] = ""
			p.free = append(p.free, id)
		}
	}
	close(p.changed)
	p.changed = make(chan struct{})
}

// Uses says how often each block has been given out: a reference of old whose
// uses differ has lost its blocks to another request.
func (p *Pool) Uses(ids []int) []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]int, len(ids))
	for i, id := range ids {
		if at := id - p.first; at >= 0 && at < len(p.uses) {
			out[i] = p.uses[at]
		}
	}
	return out
}

// Has says whether all ids are blocks of this pool.
func (p *Pool) Has(ids []int) bool {
	for _, id := range ids {
		if id < p.first || id-p.first >= len(p.owner) {
			return false
		}
	}
	return true
}

// Write puts text into the blocks, from token at on. It asks no owner. What lies
// outside of the blocks or the pool is lost.
func (p *Pool) Write(ids []int, at int, text []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(text) > 0 && at/p.size < len(ids) {
		n := min(len(text), p.size-at%p.size)
		if i := ids[at/p.size] - p.first; i >= 0 && i < len(p.owner) {
			copy(p.mem[i*p.size+at%p.size:], text[:n])
		}
		text, at = text[n:], at+n
	}
}

// Read is what the first n tokens of the blocks hold, whoever wrote it, and noise
// for ids that the pool does not have.
func (p *Pool) Read(ids []int, n int) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]byte, 0, n)
	for _, id := range ids {
		if len(out) >= n {
			break
		}
		if i := id - p.first; i >= 0 && i < len(p.owner) {
			out = append(out, p.mem[i*p.size:(i+1)*p.size]...)
		} else {
			out = append(out, noise(id, p.size)...)
		}
	}
	if len(out) < n {
		out = append(out, noise(n, n-len(out))...)
	}
	return out[:n]
}
