package audit

import (
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"
)

// RangeProof proves that leaves From to To-1 are those of a tree, all of them and
// nothing else: the roots of the subtrees to their left and to their right, from
// left to right. 100,000 leaves of a million take about two dozen.
type RangeProof struct {
	From  int64       `json:"from"`
	To    int64       `json:"to"`
	Size  int64       `json:"size"` // of the tree
	Left  []tlog.Hash `json:"left"`
	Right []tlog.Hash `json:"right"`
}

// ErrRange means that leaves are not the range that a proof is about.
var ErrRange = errors.New("the leaves and the range proof do not lead to the checkpoint's root")

// ProveRange makes the proof of leaves from to to-1 of a tree, which hashes reads.
func ProveRange(from, to int64, tree tlog.Tree, hashes tlog.HashReader) (*RangeProof, error) {
	p := &RangeProof{From: from, To: to, Size: tree.N}
	if err := p.checkBounds(); err != nil {
		return nil, err
	}
	left, right := spans(0, from), spans(to, tree.N)
	var index []int64
	for _, s := range append(left, right...) {
		index = append(index, tlog.StoredHashIndex(s.level, s.index))
	}
	h := []tlog.Hash{}
	if len(index) > 0 {
		var err error
		if h, err = hashes.ReadHashes(index); err != nil {
			return nil, fmt.Errorf("prove range: %w", err)
		}
	}
	p.Left, p.Right = h[:len(left):len(left)], h[len(left):]
	return p, nil
}

func (p *RangeProof) checkBounds() error {
	if p.From < 0 || p.To < p.From || p.Size < p.To {
		return fmt.Errorf("range %d to %d of %d leaves: want ascending bounds within the tree", p.From, p.To, p.Size)
	}
	return nil
}

// Text is the proof's file.
func (p *RangeProof) Text() []byte { return canonical(p) }

// ParseRangeProof reads the form of [RangeProof.Text] and no other.
func ParseRangeProof(b []byte) (*RangeProof, error) {
	p := &RangeProof{}
	if err := parseCanonical(b, p); err != nil {
		return nil, fmt.Errorf("range proof: %w", err)
	}
	if p.Left == nil || p.Right == nil {
		return nil, fmt.Errorf("range proof: left and right: want lists: %w", ErrJSON)
	}
	if err := p.checkBounds(); err != nil {
		return nil, err
	}
	if len(p.Left) != len(spans(0, p.From)) || len(p.Right) != len(spans(p.To, p.Size)) {
		return nil, fmt.Errorf("range proof: %d and %d hashes do not fit range and size", len(p.Left), len(p.Right))
	}
	return p, nil
}

// RangeCheck takes the leaves' hashes one after the other. Its memory does not
// grow with their number.
type RangeCheck struct {
	p    *RangeProof
	c    compact
	next int64
}

// NewRangeCheck starts a check of a proof from [ParseRangeProof] or [ProveRange].
func NewRangeCheck(p *RangeProof) *RangeCheck {
	r := &RangeCheck{p: p, next: p.From}
	for i, s := range spans(0, p.From) {
		r.c.push(s.level, p.Left[i])
	}
	return r
}

// Add takes the next leaf's hash.
func (r *RangeCheck) Add(h tlog.Hash) {
	if r.next < r.p.To { // more leaves than the range has are found in Check
		r.c.push(0, h)
	}
	r.next++
}

// Check says whether the leaves were the range's, whole, in a tree of the given
// head.
func (r *RangeCheck) Check(tree tlog.Tree) error {
	if r.next != r.p.To {
		return fmt.Errorf("%w: %d leaves, want %d", ErrRange, r.next-r.p.From, r.p.To-r.p.From)
	}
	if r.p.Size != tree.N {
		return fmt.Errorf("%w: the proof is for a tree of %d leaves, the checkpoint has %d", ErrRange, r.p.Size, tree.N)
	}
	for i, s := range spans(r.p.To, r.p.Size) {
		r.c.push(s.level, r.p.Right[i])
	}
	if r.c.root() != tree.Hash {
		return ErrRange
	}
	return nil
}
