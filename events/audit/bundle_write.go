package audit

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// Export says what goes into a bundle.
type Export struct {
	Tiles        Tiles // of the log, at the end checkpoint at least
	Key          string
	Policy       []byte // policy.txt; empty: the log's key, and no witness
	Start, End   []byte // signed checkpoints; Start may be the same as End
	Completeness Completeness
	Filter       Filter

	// From and To bound a range. Lines are its leaves that the filter shows, in
	// order; nil: all of them. Proofs are leaves to give a proof of their own.
	From, To int64
	Lines    iter.Seq2[[]byte, error]
	Proofs   []int64

	// A tenant's bundle has the tenant's event lines in Lines, up to the epoch
	// leaves, which follow one another from index Epoch.
	Epoch int64

	// Disclosures open salted digests of the lines, in the order of those. nil: the
	// bundle has no file for them.
	Disclosures iter.Seq2[events.Disclosure, error]

	// Derived writes further files, named derived/…, each made from the lines.
	Derived []DerivedFile
}

// DerivedFile is a file that can be made again from the lines.
type DerivedFile struct {
	Name  string // below derived/
	Write func(io.Writer) error
}

// bundleWriter is a bundle in the making.
type bundleWriter struct {
	x      *Export
	zip    *zip.Writer
	m      *Manifest
	policy *Policy
	end    *SignedCheckpoint
	chains *chains
	types  map[string]bool
}

// WriteBundle writes a bundle as a stream: memory does not grow with the number of
// leaves. It checks what it is given as far as it can on the way; the verifier is
// the judge.
func WriteBundle(w io.Writer, x *Export) (*Manifest, error) {
	b := &bundleWriter{x: x, zip: zip.NewWriter(w), types: map[string]bool{}, chains: newChains(false)}
	if err := b.open(); err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	for _, step := range []func() error{b.lines, b.disclosures, b.leaves, b.proofs, b.small, b.derived, b.manifest, b.zip.Close} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("bundle: %w", err)
		}
	}
	return b.m, nil
}

// open reads the checkpoints, and starts the manifest.
func (b *bundleWriter) open() error {
	key, err := ParseKey(b.x.Key)
	if err != nil {
		return err
	}
	if len(b.x.Policy) == 0 {
		b.x.Policy = fmt.Appendf(nil, "log %s\nquorum none\n", b.x.Key)
	}
	if b.policy, err = ParsePolicy(b.x.Policy); err != nil {
		return err
	}
	start, err := OpenCheckpoint(b.x.Start, KeyPolicy(key))
	if err != nil {
		return fmt.Errorf("start checkpoint: %w", err)
	}
	if b.end, err = OpenCheckpoint(b.x.End, KeyPolicy(key)); err != nil {
		return fmt.Errorf("end checkpoint: %w", err)
	}
	b.m = &Manifest{Format: BundleFormat, Log: key.Name(), Key: keyName(key), Algorithms: algorithms, Completeness: b.x.Completeness,
		Order: "log", Filter: b.x.Filter, Starts: []Link{}, Types: []string{}, Files: []File{},
		Start: TreeHead{start.Tree.N, start.Tree.Hash}, End: TreeHead{b.end.Tree.N, b.end.Tree.Hash}}
	if b.x.Completeness == CompleteTenant {
		return nil
	}
	b.m.Range = &Range{b.x.From, b.x.To}
	if b.x.Lines == nil {
		if !b.x.Filter.IsZero() {
			return errors.New("lines: want them where the filter does not show everything")
		}
		b.x.Lines = b.x.Tiles.Leaves(b.x.From, b.x.To, b.end.Tree.N)
	}
	return nil
}

// file adds a file to zip and manifest. Names carry no time, so that the same
// content makes the same bundle.
func (b *bundleWriter) file(name string, write func(io.Writer) error) error {
	method := zip.Store
	if strings.HasSuffix(name, ".jsonl") || strings.HasPrefix(name, dirDerived) {
		method = zip.Deflate
	}
	f, err := b.zip.CreateHeader(&zip.FileHeader{Name: name, Method: method})
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	sum := &summing{w: f, h: sha256.New()}
	if err := write(sum); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	b.m.Files = append(b.m.Files, File{name, sum.n, hex.EncodeToString(sum.h.Sum(nil))})
	return nil
}

func (b *bundleWriter) bytes(name string, content []byte) error {
	return b.file(name, func(w io.Writer) error {
		_, err := w.Write(content)
		return err
	})
}

func (b *bundleWriter) lines() error {
	return b.file(FileLines, func(w io.Writer) error {
		for line, err := range b.x.Lines {
			if err != nil {
				return err
			}
			if err := b.line(w, line); err != nil {
				return fmt.Errorf("line %d: %w", b.m.Lines+1, err)
			}
		}
		if b.x.Completeness == CompleteTenant {
			return b.epoch(w)
		}
		b.m.Withheld = b.x.To - b.x.From - b.m.Lines
		return nil
	})
}

func (b *bundleWriter) line(w io.Writer, line []byte) error {
	leaf, err := ParseLeaf(line)
	if err != nil {
		return err
	}
	if b.x.Filter.Excludes(leaf) || b.x.Completeness == CompleteTenant && leaf.Event == nil {
		return errors.New("the filter does not show it")
	}
	if e := leaf.Event; e != nil {
		b.types[string(e.Type)] = true
		if b.x.Filter.onlyTenant() && e.TenantSeq > 1 && !b.chains.known(e) {
			b.start(Link{e.TenantSeq - 1, e.TenantPrev})
		}
		if b.x.Filter.onlyTenant() {
			if err := b.chains.add(e, events.Hash(line)); err != nil {
				return err
			}
		}
	}
	b.m.Lines++
	_, err = w.Write(append(line[:len(line):len(line)], '\n'))
	return err
}

// start states where one of the tenant's chains begins in this bundle.
func (b *bundleWriter) start(l Link) {
	b.m.Starts = append(b.m.Starts, l)
	b.chains.begin(b.x.Filter.Tenant, l)
}

// epoch writes the epoch leaves. A chain that has no event in this bundle begins
// where it ends.
func (b *bundleWriter) epoch(w io.Writer) error {
	var all []Head
	b.x.Proofs = nil
	for i := b.x.Epoch; ; i++ {
		line, err := b.x.Tiles.Leaf(i, b.end.Tree.N)
		if err != nil {
			return fmt.Errorf("epoch: %w", err)
		}
		leaf, err := ParseLeaf(line)
		if err != nil || leaf.Epoch == nil || leaf.Epoch.Tenant != b.x.Filter.Tenant {
			return fmt.Errorf("epoch: leaf %d is not one of the tenant", i)
		}
		all = append(all, leaf.Epoch.Chains...)
		b.x.Proofs = append(b.x.Proofs, i)
		b.m.Lines++
		if _, err := w.Write(append(bytes.Clone(line), '\n')); err != nil {
			return err
		}
		if len(leaf.Epoch.Chains) < MaxChains {
			break
		}
	}
	for _, h := range all {
		if _, ok := b.chains.of(b.x.Filter.Tenant)[h.Hash]; !ok {
			b.start(Link{h.Seq, h.Hash})
		}
	}
	return b.chains.matches(b.x.Filter.Tenant, all, true)
}

// leaves writes the hashes of the range, and its proof.
func (b *bundleWriter) leaves() error {
	if b.x.Completeness != CompleteRange {
		return nil
	}
	if !b.x.Filter.IsZero() {
		err := b.file(FileLeaves, func(w io.Writer) error {
			for h, err := range b.x.Tiles.LeafHashes(b.x.From, b.x.To, b.end.Tree.N) {
				if err != nil {
					return err
				}
				if _, err := w.Write(h[:]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	p, err := ProveRange(b.x.From, b.x.To, b.end.Tree, b.x.Tiles.Hashes(b.end.Tree))
	if err != nil {
		return err
	}
	return b.bytes(FileRangeProof, p.Text())
}

func (b *bundleWriter) proofs() error {
	if len(b.x.Proofs) > maxProofs {
		return fmt.Errorf("proofs: want %d at most", maxProofs)
	}
	for _, i := range b.x.Proofs {
		p, err := ProveLeaf(b.end.Tree, i, b.x.Tiles.Hashes(b.end.Tree), b.x.End)
		if err != nil {
			return err
		}
		if err := b.bytes(dirProofs+strconv.FormatInt(i, 10)+proofSuffix, p.Text()); err != nil {
			return err
		}
	}
	return nil
}

func (b *bundleWriter) small() error {
	c, err := ProveConsistency(b.m.Start.Size, b.end.Tree, b.x.Tiles.Hashes(b.end.Tree))
	if err != nil {
		return err
	}
	return errors.Join(
		b.bytes(FileCheckpointStart, b.x.Start), b.bytes(FileCheckpointEnd, b.x.End), b.bytes(FileConsistency, c.Text()),
		b.bytes(FileKey, []byte(b.x.Key+"\n")), b.bytes(FilePolicy, b.x.Policy), b.bytes(FileReadme, readme(b.m)))
}

func (b *bundleWriter) derived() error {
	for _, d := range b.x.Derived {
		if err := b.file(dirDerived+d.Name, d.Write); err != nil {
			return err
		}
	}
	return nil
}

func (b *bundleWriter) manifest() error {
	for t := range b.types {
		b.m.Types = append(b.m.Types, t)
	}
	slices.Sort(b.m.Types)
	slices.SortFunc(b.m.Files, func(x, y File) int { return strings.Compare(x.Name, y.Name) })
	text := canonical(b.m)
	if _, err := ParseManifest(text); err != nil {
		return err
	}
	f, err := b.zip.CreateHeader(&zip.FileHeader{Name: FileManifest, Method: zip.Store})
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return err
}
