package audit

import (
	"bytes"
	"testing"
)

// What a parser takes, it writes back byte for byte.
func FuzzParseLeaf(f *testing.F) {
	w := newWorld(f, "log")
	for _, b := range w.leaves[30:50] {
		f.Add(b)
	}
	f.Add(w.leaves[w.epoch])
	f.Add((&Gap{1, 2}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := ParseLeaf(b)
		if err != nil {
			return
		}
		var out []byte
		switch {
		case l.Gap != nil:
			out = l.Gap.Append(nil)
		case l.Foreign != nil:
			out = l.Foreign.Append(nil)
		case l.Epoch != nil:
			out = l.Epoch.Append(nil)
		default:
			return // events have a fuzz test of their own
		}
		if !bytes.Equal(out, b) {
			t.Errorf("%q was written as %q", b, out)
		}
	})
}

func FuzzParseCheckpoint(f *testing.F) {
	f.Add((&Checkpoint{Origin: testOrigin, CompleteUntil: 7}).Text())
	f.Fuzz(func(t *testing.T, s string) {
		if c, err := ParseCheckpoint(s); err == nil && c.Text() != s {
			t.Errorf("%q was written as %q", s, c.Text())
		}
	})
}

func FuzzParseProof(f *testing.F) {
	for _, b := range unzip(f, newWorld(f, "log").bundles["range"]) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, err := ParseProof(b); err == nil && !bytes.Equal(p.Text(), b) {
			t.Errorf("%q was written as %q", b, p.Text())
		}
		if p, err := ParseRangeProof(b); err == nil && !bytes.Equal(p.Text(), b) {
			t.Errorf("%q was written as %q", b, p.Text())
		}
		if c, err := ParseConsistency(b); err == nil && !bytes.Equal(c.Text(), b) {
			t.Errorf("%q was written as %q", b, c.Text())
		}
		if m, err := ParseManifest(b); err == nil && !bytes.Equal(canonical(m), b) {
			t.Errorf("%q was written as %q", b, canonical(m))
		}
	})
}

func FuzzParsePolicy(f *testing.F) {
	w := newWorld(f, "log")
	f.Add(w.policyText, w.end)
	f.Fuzz(func(_ *testing.T, policy, signed []byte) {
		if p, err := ParsePolicy(policy); err == nil {
			_, _ = OpenCheckpoint(signed, p)
		}
	})
}

func FuzzParseTilePath(f *testing.F) {
	f.Add("tile/entries/x001/234.p/17")
	f.Add("tile/0/000")
	f.Fuzz(func(t *testing.T, s string) {
		if tile, err := ParseTilePath(s); err == nil && TilePath(tile) != s {
			t.Errorf("%q was written as %q", s, TilePath(tile))
		}
	})
}

// A bundle that verifies holds what was exported, whatever was done to its bytes.
func FuzzVerifyBundle(f *testing.F) {
	w := newWorld(f, "log")
	want, policy := unzip(f, w.bundles["tenant"]), w.trusted()
	f.Add(w.bundles["tenant"], uint32(0), byte(0))
	f.Fuzz(func(t *testing.T, b []byte, at uint32, flip byte) {
		if len(b) > 0 {
			b = bytes.Clone(b)
			b[int(at)%len(b)] ^= flip
		}
		if r := verify(t, b, Options{Policy: policy}); r.Exit == 0 && !bytes.Equal(unzip(t, b)[FileLines], want[FileLines]) {
			t.Error("verified, with other lines")
		}
	})
}
