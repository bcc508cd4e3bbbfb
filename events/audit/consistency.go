package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"
)

// Consistency is the proof that a tree of size To starts with the tree of size
// From. Its file is this object in JSON, as [Consistency.Text] writes it.
type Consistency struct {
	From   int64       `json:"from"`
	To     int64       `json:"to"`
	Hashes []tlog.Hash `json:"hashes"`
}

// ErrInconsistent means that a later tree does not continue an earlier one: the
// log was rewritten, or there are two.
var ErrInconsistent = errors.New("the later tree does not continue the earlier one")

// ErrJSON means that a proof's JSON is not in the one form that this package writes.
var ErrJSON = errors.New("json is not in canonical form")

// ProveConsistency makes the proof from size from to tree; hashes reads the latter.
func ProveConsistency(from int64, tree tlog.Tree, hashes tlog.HashReader) (*Consistency, error) {
	c := &Consistency{From: from, To: tree.N, Hashes: []tlog.Hash{}}
	if from < 0 || from > tree.N {
		return nil, fmt.Errorf("prove consistency: size %d is beyond the tree's %d", from, tree.N)
	}
	if from == 0 || from == tree.N {
		return c, nil
	}
	p, err := tlog.ProveTree(tree.N, from, hashes)
	if err != nil {
		return nil, fmt.Errorf("prove consistency from %d to %d: %w", from, tree.N, err)
	}
	c.Hashes = append(c.Hashes, p...)
	return c, nil
}

// Verify checks that now continues before.
func (c *Consistency) Verify(before, now tlog.Tree) error {
	switch {
	case c.From != before.N || c.To != now.N:
		return fmt.Errorf("%w: the proof is from size %d to %d, the trees have %d and %d", ErrInconsistent, c.From, c.To, before.N, now.N)
	case c.From > c.To:
		return fmt.Errorf("%w: it is smaller", ErrInconsistent)
	case c.From == 0 || c.From == c.To:
		// Nothing to lead over: the proof is empty.
		if len(c.Hashes) != 0 || c.From == 0 && before.Hash != emptyRoot || c.From == c.To && before.Hash != now.Hash {
			return ErrInconsistent
		}
		return nil
	}
	if tlog.CheckTree(c.Hashes, now.N, now.Hash, before.N, before.Hash) != nil {
		return ErrInconsistent
	}
	return nil
}

// Text is the proof's file.
func (c *Consistency) Text() []byte { return canonical(c) }

// ParseConsistency reads the form of [Consistency.Text] and no other.
func ParseConsistency(b []byte) (*Consistency, error) {
	c := &Consistency{}
	if err := parseCanonical(b, c); err != nil {
		return nil, fmt.Errorf("consistency proof: %w", err)
	}
	if c.Hashes == nil {
		return nil, fmt.Errorf("consistency proof: hashes: want a list: %w", ErrJSON)
	}
	return c, nil
}

// canonical is v in JSON: one line, names and order of the struct.
func canonical(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // the structs of this package always marshal
	}
	return b.Bytes()
}

// parseCanonical reads what canonical writes into v. encoding/json takes doubled
// and case-folded names, white space and more; only the form that comes out again
// is taken here, so that no two readers disagree about the same bytes.
func parseCanonical(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %w", ErrJSON, err)
	}
	if !bytes.Equal(canonical(v), b) {
		return ErrJSON
	}
	return nil
}
