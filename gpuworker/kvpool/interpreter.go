package kvpool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/pdgate/pdgate/gpuworker/kvpool/kernels"
	"github.com/pdgate/pdgate/internal/ptx"
)

// interpreter is a driver that runs the embedded kernels on the CPU. It is slow,
// and stricter than a GPU.
type interpreter struct {
	module *ptx.Module

	mu     sync.Mutex
	mem    ptx.Memory
	pinned int // slices that were not given back
}

// Interpret makes a driver that runs PTX on the CPU: the embedded kernels, or others
// of the same names, as a test of the tests has them.
func Interpret(source string) (Driver, error) {
	m, err := ptx.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDevice, err)
	}
	for name, want := range kernels.Params {
		if n, ok := m.Params(name); !ok || n != want {
			return nil, fmt.Errorf("%w: kernel %s with %d parameters, want %d", ErrDevice, name, n, want)
		}
	}
	return &interpreter{module: m}, nil
}

func (d *interpreter) Name() string { return "interpreter" }

func (d *interpreter) Alloc(n int64) (Ptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.mem.Alloc(n)
	return Ptr(p), failed("allocate", err)
}

func (d *interpreter) Free(p Ptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return failed("free", d.mem.Free(uint64(p)))
}

func (d *interpreter) Pinned(n int) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pinned++
	return make([]byte, n), nil
}

func (d *interpreter) FreePinned([]byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pinned--
	return nil
}

func (d *interpreter) Run(f func(Stream) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return f(interpreted{d})
}

func (d *interpreter) Time(f func(Stream) error) (time.Duration, error) {
	start := time.Now()
	err := d.Run(f)
	return time.Since(start), err
}

// Close says what was not given back.
func (d *interpreter) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.mem.Allocations(); n != 0 || d.pinned != 0 {
		return fmt.Errorf("interpreter: %d allocations and %d pinned ones were not given back", n, d.pinned)
	}
	return nil
}

// failed is a driver's error as the pool knows it.
func failed(what string, err error) error {
	if err == nil || errors.Is(err, ErrDevice) {
		return err
	}
	return fmt.Errorf("%w: %s: %w", ErrDevice, what, err)
}

// interpreted is the interpreter's stream: work is done at once. The caller
// holds mu.
type interpreted struct{ d *interpreter }

func (s interpreted) CopyIn(dst Ptr, src []byte) error {
	b, err := s.d.mem.Bytes(uint64(dst), len(src))
	copy(b, src)
	return failed("copy in", err)
}

func (s interpreted) CopyOut(dst []byte, src Ptr) error {
	b, err := s.d.mem.Bytes(uint64(src), len(dst))
	copy(dst, b)
	return failed("copy out", err)
}

func (s interpreted) Copy(dst, src Ptr, n int64) error {
	to, err := s.d.mem.Bytes(uint64(dst), int(n))
	if err == nil {
		var from []byte
		from, err = s.d.mem.Bytes(uint64(src), int(n))
		copy(to, from)
	}
	return failed("copy", err)
}

func (s interpreted) Fill(dst Ptr, word uint32, n int64) error {
	b, err := s.d.mem.Bytes(uint64(dst), 4*int(n))
	for ; len(b) > 0; b = b[4:] {
		binary.LittleEndian.PutUint32(b, word)
	}
	return failed("fill", err)
}

func (s interpreted) Launch(kernel string, gridX, gridY int, args ...uint64) error {
	return failed("launch", s.d.module.Run(&s.d.mem, ptx.Launch{
		Kernel: kernel, GridX: uint32(gridX), GridY: uint32(gridY), Threads: kernels.Threads, Args: args,
	}))
}
