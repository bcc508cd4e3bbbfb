package audit

import (
	"bytes"
	"testing"

	"golang.org/x/mod/sumdb/tlog"
)

type discard struct{}

func (discard) WriteTile(tlog.Tile, []byte) error { return nil }

var benchLeaf = bytes.Repeat([]byte("x"), 543)

func BenchmarkAppend(b *testing.B) {
	b.ReportAllocs()
	b.SetBytes(int64(len(benchLeaf)))
	tree := NewTree(discard{})
	for b.Loop() {
		if err := tree.Append(benchLeaf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkHashOnly(b *testing.B) {
	b.ReportAllocs()
	b.SetBytes(int64(len(benchLeaf)))
	for b.Loop() {
		tlog.RecordHash(benchLeaf)
	}
}

// Per leaf: allocations of a verification that do not grow with the leaves are
// spread over all of them.
func BenchmarkVerifyBundle(b *testing.B) {
	l := &world{testLog: newTestLog(b, "log")}
	l.fill(20_000)
	l.start = l.sign()
	l.end = l.start
	z := l.export(Export{Completeness: CompleteRange, To: l.tree.Size()})
	size := 0
	for _, leaf := range l.leaves {
		size += len(leaf)
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		if r := verify(b, z, Options{OwnKey: true}); r.Exit != 0 {
			b.Fatal(r.Problems)
		}
	}
}
