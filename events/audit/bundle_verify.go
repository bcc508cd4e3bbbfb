package audit

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
)

// Options say what the verifier knows from elsewhere.
type Options struct {
	// Policy names the log's key and witnesses. Without one the bundle's own is
	// taken, and the outcome is inconclusive unless OwnKey says that this is meant.
	Policy *Policy
	OwnKey bool
	Start  *Checkpoint // the start checkpoint must be this one; nil: any
	// Midway says that a tenant's chains may begin behind events that the bundle
	// states and does not hold, since an earlier bundle holds them. Otherwise such
	// a bundle is incomplete.
	Midway bool
	Strict bool // notes are findings
}

// ErrNotBundle means that a file is no zip, or is cut off.
var ErrNotBundle = errors.New("not a bundle: want a whole zip file")

// bundle is a bundle under verification. Each step adds what it finds to the
// report; a step that cannot go on without an earlier one's outcome is left out.
type bundle struct {
	*Report
	o     Options
	files map[string]*zip.File
	sums  map[string]File // of the manifest, those not yet compared
	m     *Manifest

	policy     *Policy
	start, end *SignedCheckpoint
	proofs     map[int64]*Proof
	witnessed  bool
	unbound    bool // lines came by that nothing binds to the log
}

// VerifyBundle checks everything in a bundle. An error means that it cannot be
// read at all; whatever else is wrong is in the report. Memory grows with the
// number of files, of tenants and of partitions, and not with that of leaves.
func VerifyBundle(r io.ReaderAt, size int64, o Options) (*Report, error) {
	z, err := zip.NewReader(r, size)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotBundle, err)
	}
	b := &bundle{Report: NewReport("bundle"), o: o, files: map[string]*zip.File{}, sums: map[string]File{}, proofs: map[int64]*Proof{}}
	if b.list(z) && b.checkpoints() {
		b.readProofs()
		b.content()
		b.NotProven = limits(b.m, b.o.Policy == nil, b.witnessed)
		if !b.unbound {
			b.Proven = claims(b.m)
		}
	}
	b.rest()
	b.Close(o.Strict)
	return b.Report, nil
}

// list reads the manifest, and compares it with the zip's own list of files.
func (b *bundle) list(z *zip.Reader) bool {
	for _, f := range z.File {
		if b.files[f.Name] != nil {
			b.Add(Broken, f.Name, "stands twice in the zip")
			continue
		}
		b.files[f.Name] = f
	}
	text, ok := b.read(FileManifest, maxManifest)
	if !ok {
		return false
	}
	m, err := ParseManifest(text)
	if err != nil {
		b.Add(Broken, FileManifest, "%v", err)
		return false
	}
	b.m = m
	for _, f := range m.Files {
		b.sums[f.Name] = f
		if b.files[f.Name] == nil {
			b.Add(Broken, f.Name, "the manifest lists it, the zip does not have it")
			delete(b.sums, f.Name)
		}
	}
	for name := range b.files {
		if _, ok := b.sums[name]; !ok && name != FileManifest {
			b.Add(Broken, name, "is not in the manifest")
		}
	}
	b.fact("log", "%s", m.Log)
	b.fact("completeness", "%s", m.Completeness)
	if !m.Filter.IsZero() {
		b.fact("filter", "%s", bytes.TrimSpace(canonical(m.Filter)))
	}
	return b.Code < Broken
}

// read reads a small file whole, and compares it with the manifest.
func (b *bundle) read(name string, limit int) ([]byte, bool) {
	f := b.files[name]
	if f == nil {
		b.Add(Broken, name, "is missing")
		return nil, false
	}
	r, err := f.Open()
	if err != nil {
		b.Add(Broken, name, "%v", err)
		return nil, false
	}
	defer r.Close()
	text, err := io.ReadAll(io.LimitReader(r, int64(limit)+1))
	if err == nil && len(text) > limit {
		err = fmt.Errorf("want %d bytes at most", limit)
	}
	if err != nil {
		b.Add(Broken, name, "%v", err)
		return nil, false
	}
	sum := sha256.Sum256(text)
	return text, name == FileManifest || b.compare(name, int64(len(text)), sum[:])
}

// compare holds what was read against the manifest.
func (b *bundle) compare(name string, size int64, sum []byte) bool {
	want := b.sums[name]
	delete(b.sums, name)
	if want.Size != size || want.SHA256 != hex.EncodeToString(sum) {
		b.Add(Broken, name, "size or SHA-256 is not what the manifest says")
		return false
	}
	return true
}

// checkpoints opens both, under the policy of whoever verifies.
func (b *bundle) checkpoints() bool {
	own, ok := b.ownPolicy()
	if !ok {
		return false
	}
	b.policy = b.o.Policy
	if b.policy == nil {
		b.policy = own
		if !b.o.OwnKey {
			b.Add(Incomplete, FileKey, "the bundle vouches for itself: name the log's key with a trust policy or --vkey, or say --own-key")
		}
	}
	b.start, b.end = b.checkpoint(FileCheckpointStart, b.m.Start), b.checkpoint(FileCheckpointEnd, b.m.End)
	if b.start == nil || b.end == nil {
		return false
	}
	b.witnessed = b.policy.WantsWitnesses() && b.end.QuorumErr == nil
	b.facts("checkpoint", b.end)
	if b.start.CompleteUntil > b.end.CompleteUntil {
		b.Add(Broken, FileCheckpointEnd, "is complete until %d, the start checkpoint until %d", b.end.CompleteUntil, b.start.CompleteUntil)
	}
	if s := b.o.Start; s != nil && (s.Origin != b.start.Origin || s.Tree != b.start.Tree) {
		b.Add(Broken, FileCheckpointStart, "is not the checkpoint that was given: size %d and not %d, or another root", b.start.Tree.N, s.Tree.N)
	}
	text, ok := b.read(FileConsistency, maxSmall)
	if !ok {
		return false
	}
	c, err := ParseConsistency(text)
	if err == nil {
		err = c.Verify(b.start.Tree, b.end.Tree)
	}
	if err != nil {
		b.Add(Broken, FileConsistency, "%v", err)
	}
	return err == nil
}

// ownPolicy reads the key and the policy of the bundle, which must agree.
func (b *bundle) ownPolicy() (*Policy, bool) {
	vkey, ok1 := b.read(FileKey, maxSmall)
	text, ok2 := b.read(FilePolicy, MaxPolicy)
	if !ok1 || !ok2 {
		return nil, false
	}
	key, err := ParseKey(strings.TrimSuffix(string(vkey), "\n"))
	if err != nil {
		b.Add(Broken, FileKey, "%v", err)
		return nil, false
	}
	if b.m.Key != keyName(key) || b.m.Log != key.Name() {
		b.Add(Broken, FileManifest, "log and key are not those of %s", FileKey)
		return nil, false
	}
	own, err := ParsePolicy(text)
	if err == nil && own.Log != nil && keyName(own.Log) != keyName(key) {
		err = errors.New("names another log than " + FileKey)
	}
	if err != nil {
		b.Add(Broken, FilePolicy, "%v", err)
		return nil, false
	}
	own.Log = key
	return own, true
}

func (b *bundle) checkpoint(name string, head TreeHead) *SignedCheckpoint {
	text, ok := b.read(name, MaxCheckpoint)
	if !ok {
		return nil
	}
	c, err := OpenCheckpoint(text, b.policy)
	if err != nil {
		b.Add(Broken, name, "%v", err)
		return nil
	}
	if c.Tree != (tlog.Tree{N: head.Size, Hash: head.Root}) {
		b.Add(Broken, name, "is not the tree that the manifest names")
		return nil
	}
	if c.QuorumErr != nil {
		b.Add(Finding, name, "%v", c.QuorumErr)
	}
	return c
}

// readProofs reads the proofs of single leaves; their leaves come by later.
func (b *bundle) readProofs() {
	for _, f := range b.m.Files {
		n, ok := strings.CutPrefix(f.Name, dirProofs)
		if !ok {
			continue
		}
		if len(b.proofs) == maxProofs {
			b.Add(Broken, f.Name, "want %d proofs at most", maxProofs)
			return
		}
		text, ok := b.read(f.Name, MaxProof)
		if !ok {
			continue
		}
		p, err := ParseProof(text)
		if err == nil && n != strconv.FormatInt(p.Index, 10)+proofSuffix {
			err = errors.New("is the proof of another leaf")
		}
		if err != nil {
			b.Add(Broken, f.Name, "%v", err)
			continue
		}
		b.proofs[p.Index] = p
	}
}

// proof checks that the leaf is where its proof says, in the bundle's end tree.
func (b *bundle) proof(index int64, leaf tlog.Hash) {
	p := b.proofs[index]
	delete(b.proofs, index)
	name := dirProofs + strconv.FormatInt(index, 10) + proofSuffix
	c, err := OpenCheckpoint(p.Checkpoint, b.policy)
	switch {
	case err != nil:
		b.Add(Broken, name, "%v", err)
	case c.Tree != b.end.Tree:
		b.Add(Broken, name, "leads to another checkpoint than %s", FileCheckpointEnd)
	case tlog.CheckRecord(p.Path, c.Tree.N, c.Tree.Hash, index, leaf) != nil:
		b.Add(Broken, name, "%v", ErrNotIncluded)
	case c.QuorumErr != nil:
		b.Add(Finding, name, "%v", c.QuorumErr)
	}
}

// rest digests the files that no other step read, and so finds what nobody asked
// for.
func (b *bundle) rest() {
	for index := range b.proofs {
		b.Add(Broken, dirProofs+strconv.FormatInt(index, 10)+proofSuffix, "its leaf is not in the bundle")
	}
	names := make([]string, 0, len(b.sums))
	for name := range b.sums {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		s, err := b.stream(name)
		if err == nil {
			_, err = io.Copy(io.Discard, s)
		}
		b.finish(name, s, err)
	}
}

// stream reads a file of any size. finish compares it with the manifest.
func (b *bundle) stream(name string) (*fileStream, error) {
	f := b.files[name]
	if f == nil {
		return nil, errors.New("is missing")
	}
	r, err := f.Open()
	if err != nil {
		return nil, err
	}
	return &fileStream{r: r, sum: &summing{w: io.Discard, h: sha256.New()}}, nil
}

func (b *bundle) finish(name string, s *fileStream, err error) bool {
	if s != nil {
		s.r.Close()
	}
	if err != nil {
		b.Add(Broken, name, "%v", err)
		delete(b.sums, name)
		return false
	}
	return b.compare(name, s.sum.n, s.sum.h.Sum(nil))
}

// fileStream digests what is read from a file of the zip.
type fileStream struct {
	r   io.ReadCloser
	sum *summing
}

func (s *fileStream) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.sum.Write(p[:n])
	return n, err
}
