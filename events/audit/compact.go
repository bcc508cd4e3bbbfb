package audit

import (
	"math/bits"

	"golang.org/x/mod/sumdb/tlog"
)

// compact is the left part of a tree as the roots of its complete subtrees, the
// largest first: 64 hashes at most, whatever was pushed.
type compact struct {
	nodes []subtree
	base  int // level of the hashes that pushTile pushes
}

type subtree struct {
	level int
	hash  tlog.Hash
}

// push adds the root of the complete subtree that comes next. Two neighbours of
// one level are one subtree of the next: nodes start at 0, so the left one of two
// is always a left child.
func (c *compact) push(level int, h tlog.Hash) {
	for n := len(c.nodes); n > 0 && c.nodes[n-1].level == level; n-- {
		h = tlog.NodeHash(c.nodes[n-1].hash, h)
		c.nodes = c.nodes[:n-1]
		level++
	}
	c.nodes = append(c.nodes, subtree{level, h})
}

// pushTile pushes a tile's hashes.
func (c *compact) pushTile(data []byte) {
	for ; len(data) > 0; data = data[tlog.HashSize:] {
		c.push(c.base, tlog.Hash(data[:tlog.HashSize]))
	}
}

// root is the root of the tree that ends here.
func (c *compact) root() tlog.Hash {
	n := len(c.nodes)
	if n == 0 {
		return emptyRoot
	}
	h := c.nodes[n-1].hash
	for i := n - 2; i >= 0; i-- {
		h = tlog.NodeHash(c.nodes[i].hash, h)
	}
	return h
}

// span is one complete subtree: index counts those of its level from 0.
type span struct {
	level int
	index int64
}

// spans are the largest complete subtrees that make up the leaves from to to-1.
func spans(from, to int64) []span {
	var out []span
	for from < to {
		level := bits.Len64(uint64(to-from)) - 1
		if from > 0 {
			level = min(level, bits.TrailingZeros64(uint64(from)))
		}
		out = append(out, span{level, from >> level})
		from += 1 << level
	}
	return out
}
