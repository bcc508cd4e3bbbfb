//go:build cuda

package kvpool

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/pdgate/pdgate/gpuworker/kvpool/internal/cudadriver"
	"github.com/pdgate/pdgate/gpuworker/kvpool/kernels"
)

// cuda is a GPU through the CUDA driver. All calls are made on one OS thread, on
// which the device's primary context is current, and all work goes through one
// stream.
type cuda struct {
	name    string
	device  cu.Device
	module  cu.Module
	kernels map[string]cu.Function
	stream  cu.Stream
	start   cu.Event
	end     cu.Event

	mu     sync.RWMutex // held by each call, and for writing by Close
	closed bool
	calls  chan func()
}

func openCUDA(ordinal int) (Driver, error) {
	d := &cuda{kernels: map[string]cu.Function{}, calls: make(chan func())}
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		for f := range d.calls {
			f()
		}
	}()
	if err := d.do(func() error { return d.open(ordinal) }); err != nil {
		close(d.calls)
		return nil, err
	}
	return d, nil
}

// open is the first call on the thread.
func (d *cuda) open(ordinal int) error {
	n, err := cu.NumDevices()
	if err != nil {
		return named("cuDeviceGetCount", err)
	}
	if ordinal >= n {
		return fmt.Errorf("%w: device cuda:%d: this machine has %d", ErrDevice, ordinal, n)
	}
	if d.device, err = cu.GetDevice(ordinal); err != nil {
		return named("cuDeviceGet", err)
	}
	if d.name, err = d.device.Name(); err != nil {
		return named("cuDeviceGetName", err)
	}
	ctx, err := d.device.RetainPrimaryCtx() // the one that an engine in this process uses
	if err != nil {
		return named("cuDevicePrimaryCtxRetain", err)
	}
	if err := d.prepare(ctx); err != nil {
		return errors.Join(err, d.release())
	}
	return nil
}

func (d *cuda) prepare(ctx cu.CUContext) (err error) {
	if err := cu.SetCurrentContext(ctx); err != nil {
		return named("cuCtxSetCurrent", err)
	}
	if d.module, err = cu.LoadData(kernels.PTX); err != nil {
		return named("cuModuleLoadData: the kernels need an sm_80 or later, and a driver of CUDA 11.8 or later", err)
	}
	for name := range kernels.Params {
		if d.kernels[name], err = d.module.Function(name); err != nil {
			return named("cuModuleGetFunction "+name, err)
		}
	}
	if d.stream, err = cu.MakeStream(cu.NonBlocking); err != nil {
		return named("cuStreamCreate", err)
	}
	if d.start, err = cu.MakeEvent(cu.DefaultEvent); err != nil {
		return named("cuEventCreate", err)
	}
	if d.end, err = cu.MakeEvent(cu.DefaultEvent); err != nil {
		return named("cuEventCreate", err)
	}
	return nil
}

// release gives back what was made, as far as it came, and returns the first failure.
func (d *cuda) release() (err error) {
	if d.end != (cu.Event{}) {
		err = cmp.Or(err, named("cuEventDestroy", cu.DestroyEvent(&d.end)))
	}
	if d.start != (cu.Event{}) {
		err = cmp.Or(err, named("cuEventDestroy", cu.DestroyEvent(&d.start)))
	}
	if d.stream != (cu.Stream{}) {
		err = cmp.Or(err, named("cuStreamDestroy", d.stream.Destroy()))
	}
	if d.module != (cu.Module{}) {
		err = cmp.Or(err, named("cuModuleUnload", d.module.Unload()))
	}
	return cmp.Or(err, named("cuDevicePrimaryCtxRelease", d.device.ReleasePrimaryCtx()))
}

// do runs f on the driver's thread.
func (d *cuda) do(f func() error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	if d.closed {
		return fmt.Errorf("%w: it was closed", ErrDevice)
	}
	done := make(chan error, 1)
	d.calls <- func() { done <- f() }
	return <-done
}

// named is a CUDA error with the call and the name that its documentation uses.
func named(call string, err error) error {
	if err == nil {
		return nil
	}
	name := err.Error()
	if v := reflect.ValueOf(err); v.CanInt() { // cu's error type is its own
		name = cudadriver.ErrorName(int(v.Int()))
	}
	return fmt.Errorf("%w: %s: %s", ErrDevice, call, name)
}

func (d *cuda) Name() string { return d.name }

func (d *cuda) Alloc(n int64) (p Ptr, err error) {
	err = d.do(func() error {
		q, err := cu.MemAlloc(n)
		p = Ptr(q)
		return named(fmt.Sprintf("cuMemAlloc of %d bytes", n), err)
	})
	return p, err
}

func (d *cuda) Free(p Ptr) error {
	return d.do(func() error { return named("cuMemFree", cu.MemFree(cu.DevicePtr(p))) })
}

func (d *cuda) Pinned(n int) (b []byte, err error) {
	err = d.do(func() error {
		var code int
		if b, code = cudadriver.HostAlloc(n); code != 0 {
			return fmt.Errorf("%w: cuMemHostAlloc of %d bytes: %s", ErrDevice, n, cudadriver.ErrorName(code))
		}
		return nil
	})
	return b, err
}

func (d *cuda) FreePinned(b []byte) error {
	return d.do(func() error { return named("cuMemFreeHost", cu.MemFreeHost(unsafe.Pointer(unsafe.SliceData(b)))) })
}

func (d *cuda) Run(f func(Stream) error) error {
	return d.do(func() error { return d.run(f) })
}

// run never leaves work behind that still reads or writes the caller's memory.
func (d *cuda) run(f func(Stream) error) error {
	err := f(cudaStream{d})
	return cmp.Or(err, named("cuStreamSynchronize", d.stream.Synchronize()))
}

func (d *cuda) Time(f func(Stream) error) (took time.Duration, err error) {
	err = d.do(func() error {
		err := d.run(func(s Stream) error {
			if err := d.start.Record(d.stream); err != nil {
				return named("cuEventRecord", err)
			}
			err := f(s)
			return cmp.Or(err, named("cuEventRecord", d.end.Record(d.stream)))
		})
		if err != nil {
			return err
		}
		ms, err := d.start.Elapsed(d.end)
		took = time.Duration(ms * float64(time.Millisecond))
		return named("cuEventElapsedTime", err)
	})
	return took, err
}

func (d *cuda) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	done := make(chan error, 1)
	d.calls <- func() { done <- d.release() }
	close(d.calls)
	return <-done
}

// cudaStream puts work into the stream.
type cudaStream struct{ d *cuda }

func (s cudaStream) CopyIn(dst Ptr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	return named("cuMemcpyHtoDAsync", cu.MemcpyHtoDAsync(cu.DevicePtr(dst), unsafe.Pointer(unsafe.SliceData(src)), int64(len(src)), s.d.stream))
}

func (s cudaStream) CopyOut(dst []byte, src Ptr) error {
	if len(dst) == 0 {
		return nil
	}
	return named("cuMemcpyDtoHAsync", cu.MemcpyDtoHAsync(unsafe.Pointer(unsafe.SliceData(dst)), cu.DevicePtr(src), int64(len(dst)), s.d.stream))
}

func (s cudaStream) Copy(dst, src Ptr, n int64) error {
	return named("cuMemcpyDtoDAsync", cu.MemcpyDtoDAsync(cu.DevicePtr(dst), cu.DevicePtr(src), n, s.d.stream))
}

func (s cudaStream) Fill(dst Ptr, word uint32, n int64) error {
	if n == 0 {
		return nil
	}
	return named("cuMemsetD32Async", cu.MemsetD32Async(cu.DevicePtr(dst), uint(word), n, s.d.stream))
}

func (s cudaStream) Launch(kernel string, gridX, gridY int, args ...uint64) error {
	if want, ok := kernels.Params[kernel]; !ok || want != len(args) {
		return fmt.Errorf("%w: kernel %s with %d arguments", ErrDevice, kernel, len(args))
	}
	ptrs := make([]unsafe.Pointer, len(args))
	for i := range args {
		ptrs[i] = unsafe.Pointer(&args[i])
	}
	return named("cuLaunchKernel "+kernel, s.d.kernels[kernel].Launch(gridX, gridY, 1, kernels.Threads, 1, 1, 0, s.d.stream, ptrs))
}
