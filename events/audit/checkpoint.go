package audit

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// completePrefix starts the extension line that says how far the tree is whole.
const completePrefix = "pdgate complete-until "

// MaxCheckpoint bounds a signed checkpoint in bytes.
const MaxCheckpoint = 64 << 10

// ErrCheckpoint is what every malformed checkpoint is.
var ErrCheckpoint = errors.New("checkpoint is malformed")

// Checkpoint is a tree head as it is signed.
type Checkpoint struct {
	Origin        string // the log's name
	Tree          tlog.Tree
	CompleteUntil uint64   // the tree holds all of the stream up to this sequence; 0: it does not say
	Other         []string // extension lines of others, without newlines
}

// Text is what is signed.
func (c *Checkpoint) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%d\n%s\n", c.Origin, c.Tree.N, c.Tree.Hash)
	if c.CompleteUntil != 0 {
		fmt.Fprintf(&b, "%s%d\n", completePrefix, c.CompleteUntil)
	}
	for _, l := range c.Other {
		b.WriteString(l)
		b.WriteByte('\n')
	}
	return b.String()
}

// ParseCheckpoint reads the form of [Checkpoint.Text]. Extension lines that it
// does not know are kept.
func ParseCheckpoint(text string) (*Checkpoint, error) {
	if len(text) > MaxCheckpoint {
		return nil, fmt.Errorf("%d bytes: %w", len(text), ErrCheckpoint)
	}
	lines := strings.Split(text, "\n")
	if len(lines) < 4 || lines[len(lines)-1] != "" || !validOrigin(lines[0]) {
		return nil, ErrCheckpoint
	}
	n, err := strconv.ParseInt(lines[1], 10, 64)
	h, ok := parseHash(lines[2])
	if err != nil || n < 0 || !ok {
		return nil, ErrCheckpoint
	}
	c := &Checkpoint{Origin: lines[0], Tree: tlog.Tree{N: n, Hash: h}}
	for i, l := range lines[3 : len(lines)-1] {
		if s, ok := strings.CutPrefix(l, completePrefix); ok && i == 0 {
			if c.CompleteUntil, err = strconv.ParseUint(s, 10, 64); err != nil || c.CompleteUntil == 0 {
				return nil, fmt.Errorf("%q: want a sequence from 1: %w", completePrefix, ErrCheckpoint)
			}
			continue
		}
		if l == "" || strings.HasPrefix(l, completePrefix) {
			return nil, ErrCheckpoint
		}
		c.Other = append(c.Other, l)
	}
	if c.Text() != text { // "+1" and "01" are numbers to strconv
		return nil, ErrCheckpoint
	}
	if n == 0 && h != emptyRoot {
		return nil, fmt.Errorf("root of no leaves is not the empty tree's: %w", ErrCheckpoint)
	}
	return c, nil
}

// validOrigin says whether s can name a log: its key has the same name.
func validOrigin(s string) bool {
	return s != "" && utf8.ValidString(s) && strings.IndexFunc(s, unicode.IsSpace) < 0 && !strings.Contains(s, "+")
}

// SignCheckpoint makes the signed note. What signs a tree that is smaller than,
// or not a continuation of, one that was signed before is for the caller to stop.
func SignCheckpoint(c *Checkpoint, signers ...note.Signer) ([]byte, error) {
	text := c.Text()
	if _, err := ParseCheckpoint(text); err != nil {
		return nil, fmt.Errorf("sign checkpoint: %w", err)
	}
	b, err := note.Sign(&note.Note{Text: text}, signers...)
	if err != nil {
		return nil, fmt.Errorf("sign checkpoint: %w", err)
	}
	return b, nil
}

// SignedCheckpoint is a checkpoint whose signature by its log was verified.
type SignedCheckpoint struct {
	Checkpoint
	Witnesses []Cosignature // those that the policy knows, verified
	QuorumErr error         // which part of the policy's quorum is missing; nil: none
}

// Cosignature is a witness's statement that it saw the checkpoint, and no other
// history of the log.
type Cosignature struct {
	Name string `json:"name"`
	Time int64  `json:"time"` // Unix seconds, by the witness's clock
}

// ErrSignature means that a checkpoint is not signed by the log that the policy
// names, or that a signature of a known key is wrong.
var ErrSignature = errors.New("checkpoint signature does not verify")

// OpenCheckpoint verifies a signed checkpoint: the log's signature must stand,
// and whatever cosignatures there are must be right. Whether they are enough is in
// QuorumErr, since a log without its witnesses is still the log.
func OpenCheckpoint(signed []byte, p *Policy) (*SignedCheckpoint, error) {
	if len(signed) > MaxCheckpoint {
		return nil, fmt.Errorf("%d bytes: %w", len(signed), ErrCheckpoint)
	}
	n, err := note.Open(signed, p)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrSignature, err)
	}
	for _, sig := range n.Sigs { // note takes base64 with stray bits
		if _, err := base64.StdEncoding.Strict().DecodeString(sig.Base64); err != nil {
			return nil, fmt.Errorf("%w: signature of %s: %w", ErrSignature, sig.Name, err)
		}
	}
	c, err := ParseCheckpoint(n.Text)
	if err != nil {
		return nil, err
	}
	if p.Log == nil || c.Origin != p.Log.Name() || !signedBy(n, p.Log) {
		return nil, fmt.Errorf("%w: want it from the log %s", ErrSignature, p.name())
	}
	s := &SignedCheckpoint{Checkpoint: *c, QuorumErr: p.quorum(n)}
	for _, sig := range n.Sigs {
		if p.Log.Name() == sig.Name && p.Log.KeyHash() == sig.Hash {
			continue
		}
		t, err := cosignatureTime(sig)
		if err != nil {
			return nil, fmt.Errorf("cosignature of %s: %w", sig.Name, err)
		}
		s.Witnesses = append(s.Witnesses, Cosignature{Name: sig.Name, Time: t})
	}
	return s, nil
}

func signedBy(n *note.Note, v note.Verifier) bool {
	for _, sig := range n.Sigs {
		if sig.Name == v.Name() && sig.Hash == v.KeyHash() {
			return true
		}
	}
	return false
}
