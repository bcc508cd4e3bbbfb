package kvpool

import (
	"fmt"
	"testing"
	"time"
)

// conform runs the conformance suite of devices on one kind of device.
func conform(t *testing.T, pageBytes int, open func(pages, pageBytes int) (Device, Driver)) {
	t.Helper()
	const pages = 17
	dev, drv := open(pages, pageBytes)
	s := SelfTest{Device: dev, Driver: drv, Pages: pages, PageBytes: pageBytes}
	if err := s.Run(); err != nil {
		t.Error(err)
	}
}

// Pages that end with each of the eight vectors of a thread, and behind a whole
// block; those of ref are among them.
var conformanceSizes = []int{16, 4096, 8192, 12_288, 16 << 10, 20 << 10, 24 << 10, 28 << 10, 32 << 10, 40 << 10}

func TestHostConforms(t *testing.T) {
	for _, size := range append(conformanceSizes, 24) {
		conform(t, size, func(pages, size int) (Device, Driver) { return newHost(pages, size), nil })
	}
}

func TestInterpreterConforms(t *testing.T) {
	sizes := conformanceSizes
	if testing.Short() {
		sizes = []int{4096, 12_288}
	}
	for _, size := range sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			start := time.Now()
			drv, err := OpenDriver("interpreter")
			if err != nil {
				t.Fatal(err)
			}
			var g *GPU
			conform(t, size, func(pages, size int) (Device, Driver) {
				// Staging of three pages: most copies take several launches.
				g, err = NewGPU(drv, GPUConfig{Pages: pages, PageBytes: size, StageBytes: 3 * size})
				if err != nil {
					t.Fatal(err)
				}
				return g, drv
			})
			if err := g.Close(); err != nil {
				t.Error(err)
			}
			if err := drv.Close(); err != nil {
				t.Error(err)
			}
			t.Log(time.Since(start))
		})
	}
}
