package kernels

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/internal/ptx"
)

// The embedded module is what its source compiles to, where the compiler is here.
func TestRebuild(t *testing.T) {
	clang := os.Getenv("CLANG")
	if clang == "" {
		clang = "clang-19"
	}
	if _, err := exec.LookPath(clang); err != nil {
		t.Skipf("the kernels are not compiled again: no %s", clang)
	}
	dir := t.TempDir() // another folder: nothing of the place is in the module
	for _, f := range []string{"build.sh", "kernels.cu", "pages.h", "ref.h", "device.h"} {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, f), b, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("./build.sh")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	got, err := os.ReadFile(filepath.Join(dir, "kernels.ptx"))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != PTX {
		t.Error("kernels.ptx is not what the source compiles to: run build.sh and commit it")
	}
}

// The module holds the kernels that are listed, and no others.
func TestParams(t *testing.T) {
	m, err := ptx.Parse(PTX)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range Params {
		if n, ok := m.Params(name); !ok || n != want {
			t.Errorf("%s: %d parameters, want %d", name, n, want)
		}
	}
	if n := len(m.Kernels()); n != len(Params) {
		t.Errorf("%d kernels, want %d", n, len(Params))
	}
	if !strings.Contains(PTX, ".target sm_80") {
		t.Error("not for sm_80 and later")
	}
}
