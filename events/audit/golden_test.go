package audit

import (
	"bytes"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"testing"
)

var update = flag.Bool("update", false, "write the golden bundle")

// The bundle in testdata stays readable, and what is exported stays as it is: a
// change of its bytes is a change of the format.
func TestGoldenBundle(t *testing.T) {
	l := newWorld(t, "log")
	if *update {
		for name, b := range map[string][]byte{"tenant.zip": l.bundles["tenant"], "policy.txt": l.policyText} {
			if err := os.WriteFile(filepath.Join("testdata", name), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	b, err := os.ReadFile(filepath.Join("testdata", "tenant.zip"))
	if err != nil {
		t.Fatal(err)
	}
	policy, err := os.ReadFile(filepath.Join("testdata", "policy.txt"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := ParsePolicy(policy)
	if err != nil {
		t.Fatal(err)
	}
	if r := verify(t, b, Options{Policy: p}); r.Exit != 0 {
		t.Errorf("exit %d: %+v", r.Exit, r.Problems)
	}
	if !maps.EqualFunc(unzip(t, b), unzip(t, l.bundles["tenant"]), bytes.Equal) {
		t.Error("the export makes other files; run with -update if that is meant")
	}
}
