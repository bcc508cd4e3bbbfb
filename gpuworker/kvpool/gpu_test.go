package kvpool

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool/kernels"
)

// gpuPool is a pool on the interpreter. Whatever the test does, nothing of the
// device may be left at its end.
func gpuPool(t *testing.T, pages, pageBytes int) *Pool {
	t.Helper()
	drv, err := OpenDriver("interpreter")
	if err != nil {
		t.Fatal(err)
	}
	return poolOn(t, drv, pages, pageBytes)
}

func poolOn(t *testing.T, drv Driver, pages, pageBytes int) *Pool {
	t.Helper()
	g, err := NewGPU(drv, GPUConfig{Pages: pages, PageBytes: pageBytes})
	if err != nil {
		t.Fatal(err)
	}
	p, err := New(Config{Pages: pages, PageBytes: pageBytes, Epoch: testEpoch, Device: g})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(g.Close(), drv.Close()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// A pool on a GPU goes through an allocation's life as one in host memory does.
func TestPoolOnGPU(t *testing.T) {
	const size, pages, key = 48, 5, 9
	p := gpuPool(t, 2*pages, size)
	a, w := scattered(t, p, pages)
	if a.Page(0) != nil || !p.OnDevice() || !a.OnDevice() {
		t.Error("device memory as Go memory")
	}
	src := randomBytes(3, pages*size)
	sum, err := w.Receive(bytes.NewReader(src), key, 0, pages)
	if err != nil {
		t.Fatal(err)
	}
	rest, err := w.Settle()
	if err != nil || sum+rest != Sum(key, 0, src) {
		t.Errorf("sum %x, want %x, %v", sum+rest, Sum(key, 0, src), err)
	}
	w.End()
	pin, err := p.Pin("a", testEpoch, a.Runs())
	if err != nil {
		t.Fatal(err)
	}
	for from := range pages {
		got, err := p.Staging((pages - from) * size)
		if err != nil {
			t.Fatal(err)
		}
		if sum, err := pin.GatherSum(got, from, pages, key); err != nil || !bytes.Equal(got, src[from*size:]) || sum != Sum(key, uint64(from*size/8), got) {
			t.Errorf("from %d: sum %x, %v", from, sum, err)
		}
		if err := p.FreeStaging(got); err != nil {
			t.Error(err)
		}
	}
	if d, err := pin.Digest(key); err != nil || d != Digest(sum+rest) {
		t.Errorf("digest %v, %v", d, err)
	}
	done := p.Free(a)
	if pin.Check() == nil || isClosed(done) {
		t.Error("freed under a reader")
	}
	pin.Release()
	<-done
	if n, err := p.Audit(); n != 0 || err != nil {
		t.Errorf("%d dirty words, %v", n, err)
	}
	if _, err := p.gpu.Gather(make([]byte, size), a.Runs()[:1], a.tag.Owner, 0, 0); code(err) != events.CodePageGeneration {
		t.Errorf("a copy after the free: %v", err)
	}
	if s := p.Stats(); s.Free+s.Held != s.Pages || s.Retired != 0 {
		t.Errorf("%+v", s)
	}
}

// flaky fails one call, the n-th to the device, and all later ones, as a GPU does
// after a fault in a kernel.
type flaky struct {
	Driver
	left   int // calls that work yet
	failed int
}

var errInjected = errors.New("CUDA_ERROR_LAUNCH_FAILED")

func (f *flaky) call() error {
	if f.left--; f.left < 0 {
		f.failed++
		return fmt.Errorf("%w: launch: %w", ErrDevice, errInjected)
	}
	return nil
}

func (f *flaky) Alloc(n int64) (Ptr, error) {
	if err := f.call(); err != nil {
		return 0, err
	}
	return f.Driver.Alloc(n)
}

func (f *flaky) Pinned(n int) ([]byte, error) {
	if err := f.call(); err != nil {
		return nil, err
	}
	return f.Driver.Pinned(n)
}

func (f *flaky) Run(do func(Stream) error) error {
	return f.Driver.Run(func(s Stream) error { return do(flakyStream{s, f}) })
}

type flakyStream struct {
	Stream
	f *flaky
}

func (s flakyStream) CopyIn(dst Ptr, src []byte) error {
	return errors.Join(s.f.call(), s.Stream.CopyIn(dst, src))
}

func (s flakyStream) CopyOut(dst []byte, src Ptr) error {
	if err := s.f.call(); err != nil {
		return err
	}
	return s.Stream.CopyOut(dst, src)
}

func (s flakyStream) Fill(dst Ptr, word uint32, n int64) error {
	if err := s.f.call(); err != nil {
		return err
	}
	return s.Stream.Fill(dst, word, n)
}

func (s flakyStream) Launch(kernel string, x, y int, args ...uint64) error {
	if err := s.f.call(); err != nil {
		return err
	}
	return s.Stream.Launch(kernel, x, y, args...)
}

// The device fails at each call in turn, for good. Whichever it is: the error says
// so, no copy is taken for good that is not, no page is lost from the books or goes
// to anybody else, and the driver gets everything back.
func TestDeviceFailsAtEachCall(t *testing.T) {
	const size, pages = 48, 3
	n := 0
	for ; ; n++ {
		drv, err := Interpret(kernels.PTX)
		if err != nil {
			t.Fatal(err)
		}
		f := &flaky{Driver: drv, left: n}
		err = oneLife(t, f, pages, size)
		if cerr := drv.Close(); cerr != nil {
			t.Fatalf("call %d: %v", n, cerr)
		}
		if f.failed == 0 {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		if !errors.Is(err, ErrDevice) || !errors.Is(err, errInjected) {
			t.Fatalf("call %d: %v", n, err)
		}
	}
	if n < 40 {
		t.Errorf("%d calls to fail", n)
	}
	t.Log(n, "calls")
}

// oneLife is a pool's, from its making to its end, with one request in it.
func oneLife(t *testing.T, drv Driver, pages, size int) (err error) {
	t.Helper()
	g, err := NewGPU(drv, GPUConfig{Pages: pages, PageBytes: size, StageBytes: 2 * size})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.Close()) }()
	p, err := New(Config{Pages: pages, PageBytes: size, Epoch: testEpoch, Device: g})
	if err != nil {
		return err
	}
	src := bytes.Repeat([]byte{0x11}, pages*size)
	a, err := p.Alloc("a", pages)
	if err == nil {
		err = transferred(t, p, a, src)
		<-p.Free(a)
	}
	s := p.Stats()
	if s.Held != 0 || s.Draining != 0 || s.Pinned != 0 || s.Free+s.Retired != pages {
		t.Fatalf("%v: %+v", err, s)
	}
	if err == nil {
		err = p.Err()
	}
	if (err != nil) != isClosed(p.Broken()) {
		t.Fatalf("%v: broken %v", err, isClosed(p.Broken()))
	}
	if err == nil {
		_, err = p.Audit()
	}
	return err
}

// transferred writes the pages and reads them back through staging.
func transferred(t *testing.T, p *Pool, a *Allocation, src []byte) error {
	w, err := p.BeginWrite(a)
	if err != nil {
		return err
	}
	sum, err := w.Receive(bytes.NewReader(src), 5, 0, a.Pages())
	if err == nil {
		var rest uint64
		rest, err = w.Settle()
		sum += rest
	}
	w.End()
	if err != nil {
		return err
	}
	pin, err := p.Pin("a", testEpoch, a.Runs())
	if err != nil {
		return err
	}
	defer pin.Release()
	digest, err := pin.Digest(5)
	if err != nil {
		return err
	}
	got, err := p.Staging(len(src))
	if err != nil {
		return err
	}
	defer p.FreeStaging(got)
	again, err := pin.GatherSum(got, 0, a.Pages(), 5)
	if err != nil {
		if bytes.Count(got, []byte{0}) != len(got) {
			t.Errorf("%v: half a copy is left", err)
		}
		return err
	}
	if !bytes.Equal(got, src) || again != sum || digest != Digest(sum) {
		t.Error("the device failed, and other bytes came out as good")
	}
	return nil
}
