package kvpool

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/pdgate/pdgate/gpuworker/kvpool/kernels"
)

// Ptr is an address in a device's memory. 0 is none.
type Ptr uint64

// Driver is a device as its driver offers it: raw memory, and the kernels of
// package kernels. Its methods may be called concurrently.
type Driver interface {
	Name() string
	// Alloc gives device memory with whatever is in it.
	Alloc(bytes int64) (Ptr, error)
	Free(Ptr) error
	// Pinned gives host memory that the device copies to and from by itself.
	Pinned(bytes int) ([]byte, error)
	FreePinned([]byte) error
	// Run has f put work in line, in order, after all work of earlier calls, and
	// returns once all of it is done: also where f or the work fails.
	Run(f func(Stream) error) error
	// Time is Run, and how long the device took.
	Time(f func(Stream) error) (time.Duration, error)
	Close() error
}

// Stream takes work in order. It is valid within [Driver.Run] only, and the byte
// slices given to it until that returns.
type Stream interface {
	CopyIn(dst Ptr, src []byte) error
	CopyOut(dst []byte, src Ptr) error
	Copy(dst, src Ptr, bytes int64) error
	// Fill writes the word n times.
	Fill(dst Ptr, word uint32, n int64) error
	// Launch runs a kernel in gridX by gridY blocks of kernels.Threads threads.
	Launch(kernel string, gridX, gridY int, args ...uint64) error
}

// Devices are the kinds of device that [OpenDriver] takes, besides "host".
func Devices() []string { return []string{"host", "interpreter", "cuda", "cuda:N"} }

// CheckDevice says whether name is one of [Devices], without opening it.
func CheckDevice(name string) error {
	_, _, err := parseDevice(name)
	return err
}

func parseDevice(name string) (kind string, ordinal int, err error) {
	kind, number, ok := strings.Cut(name, ":")
	if ok {
		ordinal, err = strconv.Atoi(number)
	}
	switch {
	case err == nil && ordinal >= 0 && kind == "cuda":
		return kind, ordinal, nil
	case !ok && (kind == "host" || kind == "interpreter"):
		return kind, 0, nil
	}
	return "", 0, fmt.Errorf("device %q is none of %s", name, strings.Join(Devices(), ", "))
}

// OpenDriver opens a device by name: "interpreter", which runs the GPU's kernels
// on the CPU, or "cuda:N", a GPU by its ordinal.
func OpenDriver(name string) (Driver, error) {
	kind, ordinal, err := parseDevice(name)
	if err != nil {
		return nil, err
	}
	switch kind {
	case "cuda":
		return openCUDA(ordinal)
	case "interpreter":
		return Interpret(kernels.PTX)
	}
	return nil, fmt.Errorf("device %q has no driver", name)
}
