package kvpool

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/iotest"

	"github.com/pdgate/pdgate/events"
)

// scattered is an allocation in several runs, open for writing.
func scattered(tb testing.TB, p *Pool, pages int) (*Allocation, *Write) {
	tb.Helper()
	var holes []*Allocation
	for i := range 2 * pages {
		a := alloc(tb, p, "hole", 1)
		if i%2 == 0 {
			holes = append(holes, a)
		}
	}
	for _, a := range holes {
		<-p.Free(a)
	}
	a := alloc(tb, p, "a", pages)
	w, err := p.BeginWrite(a)
	if err != nil {
		tb.Fatal(err)
	}
	return a, w
}

// bufferDevice is memory that Go code cannot write in place.
type bufferDevice struct{ *host }

// What is received lies in its pages, and the sum is of what lies there: for
// pages smaller and larger than a block, in host memory and on a device, however
// the bytes come in.
func TestReceive(t *testing.T) {
	const pages, key = 5, 9
	for _, size := range []int{32, 24 << 10, receiveBlock + 8, 2*receiveBlock + 64} {
		for _, device := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/%t", size, device), func(t *testing.T) {
				cfg := Config{Pages: 2 * pages, PageBytes: size, Epoch: testEpoch}
				if device {
					cfg.Device = bufferDevice{newHost(cfg.Pages, size)}
				}
				p, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				a, w := scattered(t, p, pages)
				src := randomBytes(3, pages*size)
				sum, err := w.Receive(iotest.HalfReader(bytes.NewReader(src)), key, 0, 2)
				if err != nil {
					t.Fatal(err)
				}
				rest, err := w.Receive(bytes.NewReader(src[2*size:]), key, 2, pages-2)
				if err != nil {
					t.Fatal(err)
				}
				last, err := w.Settle()
				if err != nil || !device && last != 0 {
					t.Fatal(last, err)
				}
				rest += last
				w.End()
				if sum+rest != Sum(key, 0, src) {
					t.Error("sum differs")
				}
				pin, err := p.Pin("a", testEpoch, a.Runs())
				if err != nil {
					t.Fatal(err)
				}
				defer pin.Release()
				got := make([]byte, len(src))
				if again, err := pin.GatherSum(got, 0, pages, key); err != nil || again != sum+rest || !bytes.Equal(got, src) {
					t.Errorf("other bytes or another sum: %v", err)
				}
			})
		}
	}
}

func TestReceiveRefused(t *testing.T) {
	p := newPool(t, 4)
	a := alloc(t, p, "a", 2)
	w, err := p.BeginWrite(a)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]int{{-1, 1}, {0, 0}, {0, 3}, {2, 1}} {
		if _, err := w.Receive(bytes.NewReader(make([]byte, 96)), 0, c[0], c[1]); err == nil {
			t.Errorf("%d pages at page %d", c[1], c[0])
		}
	}
	if _, err := w.Receive(bytes.NewReader(make([]byte, 31)), 0, 0, 1); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("short: %v", err)
	}
	w.End()
	if _, err := w.Receive(bytes.NewReader(make([]byte, 32)), 0, 0, 1); !errors.Is(err, ErrReleased) {
		t.Errorf("after the end: %v", err)
	}
	if _, err := w.Settle(); !errors.Is(err, ErrReleased) {
		t.Errorf("settled after the end: %v", err)
	}
}

// freeing gives an allocation back while its bytes come in.
type freeing struct {
	io.Reader
	after int // bytes
	free  func()
}

func (f *freeing) Read(b []byte) (int, error) {
	n, err := f.Reader.Read(b)
	if f.after -= n; f.after <= 0 && f.free != nil {
		f.free()
		f.free = nil
	}
	return n, err
}

// A request that gives its pages back while they are received stops its writer
// at the next block, within a page too; nobody has the pages before.
func TestReceiveStopsWhenFreed(t *testing.T) {
	for _, device := range []bool{false, true} {
		cfg := Config{Pages: 1, PageBytes: 3 * receiveBlock, Epoch: testEpoch}
		if device {
			cfg.Device = bufferDevice{newHost(1, cfg.PageBytes)}
		}
		p, err := New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		a := alloc(t, p, "a", 1)
		w, err := p.BeginWrite(a)
		if err != nil {
			t.Fatal(err)
		}
		var done <-chan struct{}
		src := bytes.NewReader(make([]byte, cfg.PageBytes))
		_, err = w.Receive(&freeing{src, receiveBlock, func() { done = p.Free(a) }}, 0, 0, 1)
		if code(err) != events.CodePageGeneration || src.Len() != 2*receiveBlock {
			t.Errorf("%d bytes left: %v", src.Len(), err)
		}
		if isClosed(done) {
			t.Error("free while a writer is counted")
		}
		w.End()
		<-done
		if n, err := p.Audit(); n != 0 || err != nil {
			t.Errorf("audit: %d, %v", n, err)
		}
	}
}

// The last block's check covers the copy to a device.
func TestReceiveStopsBeforeTheDevice(t *testing.T) {
	dev := &countingDevice{host: newHost(1, 32)}
	p, err := New(Config{Pages: 1, PageBytes: 32, Epoch: testEpoch, Device: dev})
	if err != nil {
		t.Fatal(err)
	}
	a := alloc(t, p, "a", 1)
	w, err := p.BeginWrite(a)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Receive(&freeing{bytes.NewReader(make([]byte, 32)), 32, func() { p.Free(a) }}, 0, 0, 1)
	if code(err) != events.CodePageGeneration || dev.scatters != 0 {
		t.Errorf("%d copies: %v", dev.scatters, err)
	}
	w.End()
}

type countingDevice struct {
	*host
	scatters int
}

func (d *countingDevice) Scatter(runs []events.PageRun, src []byte, owner Owner, key, word uint64) (uint64, error) {
	d.scatters++
	return d.host.Scatter(runs, src, owner, key, word)
}
