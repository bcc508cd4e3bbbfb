package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"golang.org/x/mod/sumdb/tlog"
)

// Files of a bundle. Derived formats, which can be made again from the lines, lie
// below derived/.
const (
	FileManifest        = "manifest.json"
	FileLines           = "events.jsonl"
	FileLeaves          = "leaves.bin"
	FileRangeProof      = "range-proof.json"
	FileCheckpointStart = "checkpoint.start"
	FileCheckpointEnd   = "checkpoint.end"
	FileConsistency     = "consistency.json"
	FileKey             = "log.vkey"
	FilePolicy          = "policy.txt"
	FileReadme          = "VERIFY.md"
	dirProofs           = "proofs/"
	dirDerived          = "derived/"
	proofSuffix         = ".tlog-proof"
)

// BundleFormat is the version of the bundle's layout.
const BundleFormat = "pdgate-bundle/1"

const (
	maxManifest = 4 << 20
	maxSmall    = 256 << 10 // of every other file but lines, leaves and derived ones
	maxProofs   = 1024
	maxStarts   = 4096
)

// Completeness is what a bundle is complete in.
type Completeness string

const (
	// CompleteRange bundles account for each leaf of a range: shown, or withheld
	// and there as a hash. A range proof binds them to the end checkpoint.
	CompleteRange Completeness = "range"
	// CompleteTenant bundles show a tenant's events whole. Their chains are dense,
	// and end where an epoch leaf says, which is proven to be in the log.
	CompleteTenant Completeness = "tenant"
)

// Manifest says what a bundle holds. Everything in it is checked against the
// content, or stated as not proven.
type Manifest struct {
	Format       string       `json:"format"`
	Log          string       `json:"log"`        // the log's name
	Key          string       `json:"key"`        // "<name>+<hash>" of the log's key
	Algorithms   []string     `json:"algorithms"` // of leaves and tree, and of signatures
	Completeness Completeness `json:"completeness"`
	Order        string       `json:"order"` // "log": ascending by position
	Filter       Filter       `json:"filter"`
	Range        *Range       `json:"range,omitempty"` // of completeness "range"
	Starts       []Link       `json:"starts"`          // events before the first shown ones of the tenant's chains
	Lines        int64        `json:"lines"`
	Withheld     int64        `json:"withheld"`
	Types        []string     `json:"types"` // of the events, with their versions, sorted
	Start        TreeHead     `json:"checkpoint_start"`
	End          TreeHead     `json:"checkpoint_end"`
	Files        []File       `json:"files"` // all others of the bundle, by name
}

// Range is leaves From to To-1.
type Range struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// TreeHead is a checkpoint's tree.
type TreeHead struct {
	Size int64     `json:"size"`
	Root tlog.Hash `json:"root"`
}

// File is one file of a bundle.
type File struct {
	Name   string `json:"name"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // in hex
}

var algorithms = []string{"rfc6962-sha256", "ed25519"}

// ParseManifest reads a manifest in the form that [WriteBundle] gives it, and
// checks what can be checked without the content.
func ParseManifest(b []byte) (*Manifest, error) {
	m := &Manifest{}
	if err := parseCanonical(b, m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	if err := m.check(); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return m, nil
}

func (m *Manifest) check() error {
	switch {
	case m.Format != BundleFormat:
		return fmt.Errorf("format: want %q", BundleFormat)
	case !slices.Equal(m.Algorithms, algorithms):
		return fmt.Errorf("algorithms: want %q", algorithms)
	case m.Order != "log":
		return errors.New(`order: want "log"`)
	case m.Starts == nil || m.Types == nil || m.Files == nil:
		return errors.New("starts, types and files: want lists")
	case m.Lines < 0 || m.Withheld < 0:
		return errors.New("lines and withheld: want 0 or more")
	case !slices.IsSorted(m.Types) || len(slices.Compact(slices.Clone(m.Types))) != len(m.Types):
		return errors.New("types: want each once, sorted")
	case len(m.Starts) > maxStarts:
		return fmt.Errorf("starts: want %d at most", maxStarts)
	case len(m.Starts) > 0 && !m.Filter.onlyTenant():
		return errors.New("starts: want none where the filter is not a tenant's")
	case !micros(m.Filter.Since) || !micros(m.Filter.Until):
		return errors.New("filter: want times in UTC, in microseconds")
	}
	for i, s := range m.Starts {
		if s.Seq == 0 || !validHash(s.Hash) {
			return fmt.Errorf("starts[%d]: want a tenantseq from 1 and a hash", i)
		}
	}
	return errors.Join(m.checkCompleteness(), m.checkFiles())
}

func micros(t time.Time) bool { return t == t.UTC() && t.Truncate(time.Microsecond).Equal(t) }

func (m *Manifest) checkCompleteness() error {
	switch m.Completeness {
	case CompleteRange:
		switch {
		case m.Range == nil:
			return errors.New("range: want one")
		case m.Range.From < 0 || m.Range.To < m.Range.From || m.Range.To > m.End.Size:
			return errors.New("range: want ascending bounds within the end checkpoint's tree")
		case m.Range.From == 0 && len(m.Starts) > 0:
			return errors.New("starts: want none where the range starts with the log")
		case m.Lines > m.Range.To-m.Range.From || m.Withheld != m.Range.To-m.Range.From-m.Lines:
			return errors.New("lines and withheld: want them to add up to the range")
		}
		return nil
	case CompleteTenant:
		if m.Range != nil || m.Withheld != 0 || !m.Filter.onlyTenant() {
			return errors.New("completeness tenant: want a tenant for filter, no range and nothing withheld")
		}
		return nil
	}
	return errors.New("completeness: want range or tenant")
}

func (m *Manifest) checkFiles() error {
	missing := m.wants()
	for i, f := range m.Files {
		if i > 0 && f.Name <= m.Files[i-1].Name {
			return fmt.Errorf("files[%d]: want each once, by name", i)
		}
		if f.Size < 0 || len(f.SHA256) != 64 || strings.Trim(f.SHA256, "0123456789abcdef") != "" {
			return fmt.Errorf("files[%d]: want a size and 64 hex digits in lower case", i)
		}
		switch n := slices.Index(missing, f.Name); {
		case !fs.ValidPath(f.Name):
			return fmt.Errorf("files[%d]: want a relative path", i)
		case n >= 0:
			missing = slices.Delete(missing, n, n+1)
		case f.Name == FileDisclosures, strings.HasPrefix(f.Name, dirProofs), strings.HasPrefix(f.Name, dirDerived):
		default:
			return fmt.Errorf("files[%d]: not a file of such a bundle", i)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("files: %s is missing", missing[0])
	}
	return nil
}

// wants are the files that the bundle must have.
func (m *Manifest) wants() []string {
	names := []string{FileLines, FileCheckpointStart, FileCheckpointEnd, FileConsistency, FileKey, FilePolicy, FileReadme}
	if m.Completeness == CompleteRange {
		names = append(names, FileRangeProof)
		if !m.Filter.IsZero() {
			names = append(names, FileLeaves)
		}
	}
	return names
}
