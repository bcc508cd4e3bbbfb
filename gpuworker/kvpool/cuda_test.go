//go:build cuda

package kvpool

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// These tests run on a GPU, or on testdata/fakecuda in its place.

func TestCUDAConforms(t *testing.T) {
	for _, size := range append(conformanceSizes, 64<<10, 2<<20) {
		drv, err := OpenDriver("cuda")
		if err != nil {
			t.Fatal(err)
		}
		var g *GPU
		conform(t, size, func(pages, size int) (Device, Driver) {
			if g, err = NewGPU(drv, GPUConfig{Pages: pages, PageBytes: size, StageBytes: 3 * size}); err != nil {
				t.Fatal(err)
			}
			return g, drv
		})
		if took, err := drv.Time(func(s Stream) error { return s.Fill(g.stage, 0, 4) }); err != nil || took <= 0 {
			t.Errorf("time of a fill: %v, %v", took, err)
		}
		if err := errors.Join(g.Close(), drv.Close(), drv.Close()); err != nil {
			t.Error(err)
		}
		if _, err := drv.Alloc(16); !errors.Is(err, ErrDevice) {
			t.Errorf("after the end: %v", err)
		}
	}
}

func TestCUDAOrdinal(t *testing.T) {
	if _, err := OpenDriver("cuda:4096"); err == nil || !strings.Contains(err.Error(), "this machine has") {
		t.Error(err)
	}
}

// The pretended driver fails at each call in turn, as after a fault in a kernel.
// Whichever it is, the error has the call's name and CUDA's, no page is lost and no
// wrong byte leaves, and the driver gets everything back.
func TestCUDAFailsAtEachCall(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	t.Setenv("FAKECUDA_LOG", log)
	if drv, err := OpenDriver("cuda"); err != nil {
		t.Fatal(err)
	} else if name := drv.Name(); !strings.HasPrefix(name, "pretended") {
		t.Skipf("a real GPU, %s, does not fail on demand", name)
	} else if err := drv.Close(); err != nil {
		t.Fatal(err)
	}
	n := 1
	for ; ; n++ {
		t.Setenv("FAKECUDA_FAIL", strconv.Itoa(n))
		drv, err := OpenDriver("cuda:1")
		if err == nil {
			err = errors.Join(oneLife(t, drv, 3, 48), drv.Close())
		}
		b, rerr := os.ReadFile(log)
		if errors.Is(rerr, os.ErrNotExist) {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		got := strings.TrimSpace(string(b))
		call, _, _ := strings.Cut(strings.Fields(got)[0], "_v2")
		if strings.Contains(got, "leak") {
			t.Errorf("call %d: %s", n, got)
		}
		if !errors.Is(err, ErrDevice) || !strings.Contains(err.Error(), call) || !strings.Contains(err.Error(), "CUDA_ERROR_LAUNCH_FAILED") {
			t.Errorf("call %d, %s: %v", n, call, err)
		}
		if err := os.Remove(log); err != nil {
			t.Fatal(err)
		}
	}
	if n < 60 {
		t.Errorf("%d calls to fail", n)
	}
	t.Log(n, "calls")
}
