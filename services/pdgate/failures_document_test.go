package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/internal/sglangfake"
	"github.com/pdgate/pdgate/internal/vllmfake"
)

// A test as docs/failures.md names it.
var namedTest = regexp.MustCompile("`([a-z/]+)\\.(Test[A-Za-z0-9_]+)`")

// TestFailuresDocument checks that docs/failures.md has every public failure,
// that each is shown by a test, and that the tests it names exist.
func TestFailuresDocument(t *testing.T) {
	root := filepath.Join("..", "..")
	b, err := os.ReadFile(filepath.Join(root, "docs", "failures.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "| F") {
			rows[line[2:5]] = line
		}
	}
	exists := map[string]bool{} // "package.Test"
	for i := 1; i <= 30; i++ {
		id := fmt.Sprintf("F%02d", i)
		tests := namedTest.FindAllStringSubmatch(rows[id], -1)
		if len(tests) == 0 {
			t.Errorf("%s: no row, or no test in it", id)
		}
		for _, m := range tests {
			if !exists[m[0]] {
				exists[m[0]] = declared(t, filepath.Join(root, filepath.FromSlash(m[1])), m[2])
			}
			if !exists[m[0]] {
				t.Errorf("%s: %s does not exist", id, m[0])
			}
		}
	}
	// A fault that a fake engine shows on its wire is shown with the gate and
	// without.
	wired := func(row, engine, fake string) {
		guarded := strings.Contains(rows[row], "`services/pdgate.Test"+row+"_"+engine)
		if !guarded || !strings.Contains(rows[row], "`internal/"+fake+".Test"+row+"Unguarded"+engine+"`") {
			t.Errorf("%s: want a test on the wire of %s behind the gate, and one without it", row, engine)
		}
	}
	for _, sc := range vllmfake.Scenarios() {
		wired(sc.Row, "VLLM", "vllmfake")
	}
	for _, sc := range sglangfake.Scenarios() {
		wired(sc.Row, "SGLang", "sglangfake")
	}
	if len(rows) != 30 {
		t.Errorf("%d rows, want 30", len(rows))
	}
	if declared(t, ".", "TestF00_NobodyWroteThis") {
		t.Error("a test is found that nobody wrote")
	}
}

// declared says whether a package's tests have one of this name.
func declared(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "\nfunc "+name+"(t *testing.T)") {
			return true
		}
	}
	return false
}
