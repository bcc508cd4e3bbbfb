package auditor

import (
	"bytes"
	"crypto/ed25519"
	"testing"

	"github.com/pdgate/pdgate/events/audit"
)

// A commit of as many leaves as one takes, on this disk.
func BenchmarkCommit(b *testing.B) {
	const leaves = 4096
	s, err := openStore(b.TempDir(), func(string) error { return nil })
	if err != nil {
		b.Fatal(err)
	}
	defer s.close()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		b.Fatal(err)
	}
	a := &Auditor{cfg: Config{Key: key}, store: s, tree: audit.NewTree(s), heads: newHeads(), next: 1}
	if err := a.name("example.com/log"); err != nil {
		b.Fatal(err)
	}
	leaf := bytes.Repeat([]byte("x"), 543)
	for b.Loop() {
		for range leaves / 16 {
			m := message{seq: a.next, next: a.next + 1}
			for range 16 {
				m.leaves = append(m.leaves, leaf)
			}
			if err := a.take(m); err != nil {
				b.Fatal(err)
			}
		}
		if err := a.commit(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(leaves)*float64(b.N)/b.Elapsed().Seconds(), "leaves/s")
}
