package main

import (
	"os"
	"runtime/debug"
	"strings"
	"testing"
)

// TestLicenses: every module that is linked into this package or its tests is in
// the list.
func TestLicenses(t *testing.T) {
	b, err := os.ReadFile("../../docs/licenses.md")
	if err != nil {
		t.Fatal(err)
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || len(info.Deps) == 0 {
		t.Fatal("the test binary does not know its modules")
	}
	for _, d := range info.Deps {
		if !strings.Contains(string(b), "`"+d.Path+"`") {
			t.Errorf("%s is not in docs/licenses.md", d.Path)
		}
	}
}
