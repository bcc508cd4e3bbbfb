package audit

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
)

const (
	proofHeader = "c2sp.org/tlog-proof@v1"
	maxPath     = 63 // hashes of the longest proof
	// MaxProof bounds a proof in bytes: a leaf in base64, a checkpoint and hashes.
	MaxProof = MaxLeaf*4/3 + MaxCheckpoint + 4096
)

// Proof is the proof that a leaf is in the tree of a checkpoint: a C2SP tlog-proof.
//
//	c2sp.org/tlog-proof@v1
//	extra <base64>
//	index <leaf index>
//	<base64 hash>…
//
//	<signed checkpoint>
//
// Without its first line it is what torchwood's spicy reads.
type Proof struct {
	Index      int64
	Path       tlog.RecordProof
	Checkpoint []byte // signed
	Extra      []byte // the leaf, where the proof answers a receipt; nil: none
}

// ErrProof is what every malformed proof is; [ErrNotIncluded] what a well-formed
// one is that does not prove its leaf.
var (
	ErrProof       = errors.New("proof is malformed")
	ErrNotIncluded = errors.New("proof does not lead from the leaf to the checkpoint's root")
)

// ProveLeaf makes the proof of one leaf. tree is the checkpoint's, hashes reads it.
func ProveLeaf(tree tlog.Tree, index int64, hashes tlog.HashReader, checkpoint []byte) (*Proof, error) {
	if index < 0 || index >= tree.N {
		return nil, fmt.Errorf("leaf %d: the tree has %d", index, tree.N)
	}
	path, err := tlog.ProveRecord(tree.N, index, hashes)
	if err != nil {
		return nil, fmt.Errorf("prove leaf %d: %w", index, err)
	}
	return &Proof{Index: index, Path: path, Checkpoint: checkpoint}, nil
}

// Text is the proof's file.
func (p *Proof) Text() []byte {
	var b bytes.Buffer
	b.WriteString(proofHeader + "\n")
	if p.Extra != nil {
		fmt.Fprintf(&b, "extra %s\n", base64.StdEncoding.EncodeToString(p.Extra))
	}
	fmt.Fprintf(&b, "index %d\n", p.Index)
	for _, h := range p.Path {
		fmt.Fprintf(&b, "%s\n", h)
	}
	b.WriteByte('\n')
	b.Write(p.Checkpoint)
	return b.Bytes()
}

// ParseProof reads the form of [Proof.Text] and no other. It verifies nothing.
func ParseProof(text []byte) (*Proof, error) {
	if len(text) > MaxProof {
		return nil, fmt.Errorf("%d bytes: %w", len(text), ErrProof)
	}
	head, checkpoint, ok := bytes.Cut(text, []byte("\n\n"))
	lines := strings.Split(string(head), "\n")
	if !ok || lines[0] != proofHeader {
		return nil, fmt.Errorf("want %q first: %w", proofHeader, ErrProof)
	}
	p := &Proof{Checkpoint: bytes.Clone(checkpoint)}
	lines = lines[1:]
	if len(lines) > 0 {
		if s, ok := strings.CutPrefix(lines[0], "extra "); ok {
			b, err := base64.StdEncoding.Strict().DecodeString(s)
			if err != nil {
				return nil, fmt.Errorf("extra: want base64: %w", ErrProof)
			}
			p.Extra, lines = append([]byte{}, b...), lines[1:]
		}
	}
	if len(lines) == 0 || len(lines)-1 > maxPath {
		return nil, ErrProof
	}
	index, ok := strings.CutPrefix(lines[0], "index ")
	n, err := strconv.ParseInt(index, 10, 64)
	if !ok || err != nil || n < 0 {
		return nil, fmt.Errorf("index: want a number from 0: %w", ErrProof)
	}
	p.Index = n
	for _, l := range lines[1:] {
		h, ok := parseHash(l)
		if !ok {
			return nil, fmt.Errorf("want a line a hash, in base64: %w", ErrProof)
		}
		p.Path = append(p.Path, h)
	}
	if !bytes.Equal(p.Text(), text) {
		return nil, ErrProof
	}
	return p, nil
}

// Verify checks that the leaf stands at the proof's index in the tree of its
// checkpoint, and that the checkpoint is the log's.
func (p *Proof) Verify(policy *Policy, leaf []byte) (*SignedCheckpoint, error) {
	c, err := OpenCheckpoint(p.Checkpoint, policy)
	if err != nil {
		return nil, err
	}
	if err := tlog.CheckRecord(p.Path, c.Tree.N, c.Tree.Hash, p.Index, tlog.RecordHash(leaf)); err != nil {
		return c, ErrNotIncluded
	}
	return c, nil
}
