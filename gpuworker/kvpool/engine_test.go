package kvpool_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/engine/enginetest"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// node is a worker's pool on a device of its own.
type node struct {
	pool *kvpool.Pool
	gpu  *kvpool.GPU
	drv  kvpool.Driver
}

func newNode(t *testing.T, eng engine.Engine, pages int) *node {
	t.Helper()
	drv, err := kvpool.OpenDriver(testDevice)
	if err != nil {
		t.Fatal(err)
	}
	size := eng.Info().PageBytes()
	gpu, err := kvpool.NewGPU(drv, kvpool.GPUConfig{Pages: pages, PageBytes: size})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := kvpool.New(kvpool.Config{Pages: pages, PageBytes: size, Epoch: 7, Device: gpu})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(gpu.Close(), drv.Close()); err != nil {
			t.Error(err)
		}
	})
	return &node{pool, gpu, drv}
}

func newRef(t *testing.T) engine.Engine {
	t.Helper()
	eng, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return eng
}

// legs runs prefill on one node and decode on the other. spoil, if there is one,
// has its way with the decode node's pages in between.
func legs(ctx context.Context, eng engine.Engine, from, to *node, prompt []byte, s engine.Sampling, spoil func(*kvpool.Allocation) error) (text []byte, err error) {
	a, err := from.pool.Alloc("r", eng.Info().PagesFor(len(prompt)))
	if err != nil {
		return nil, err
	}
	defer from.pool.Free(a)
	w, err := from.pool.BeginWrite(a)
	if err != nil {
		return nil, err
	}
	pre, err := eng.Prefill(ctx, engine.PrefillJob{Prompt: prompt, Sampling: s, KV: a})
	w.End()
	if err != nil {
		return nil, err
	}
	pin, err := from.pool.Pin("r", 7, a.Runs())
	if err != nil {
		return nil, err
	}
	defer pin.Release()
	kv, err := from.pool.Staging(a.Pages() * from.pool.PageBytes())
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, from.pool.FreeStaging(kv)) }()
	sum, err := pin.GatherSum(kv, 0, a.Pages(), 3)
	if err != nil {
		return nil, err
	}
	b, err := to.pool.Alloc("r", eng.Info().PagesFor(len(prompt)+s.MaxTokens))
	if err != nil {
		return nil, err
	}
	defer to.pool.Free(b)
	in, err := to.pool.BeginWrite(b)
	if err != nil {
		return nil, err
	}
	defer in.End()
	got, err := in.Receive(bytes.NewReader(kv), 3, 0, a.Pages())
	if err == nil {
		var rest uint64
		rest, err = in.Settle()
		got += rest
	}
	if err == nil && got != sum {
		err = fmt.Errorf("sum %x, want %x", got, sum)
	}
	if err == nil && spoil != nil {
		err = spoil(b)
	}
	if err != nil {
		return nil, err
	}
	_, err = eng.Decode(ctx, engine.DecodeJob{PromptTokens: pre.PromptTokens, First: pre.First, Sampling: s, KV: b}, func(p []byte, _ int) error {
		text = append(text, p...)
		return nil
	})
	return text, err
}

// Prefill and decode on devices, with the hand-off between them, answer what a run
// in plain memory answers, byte for byte.
func TestRefOnDeviceEqualsHost(t *testing.T) {
	eng := newRef(t)
	from, to := newNode(t, eng, 64), newNode(t, eng, 64)
	r := rand.New(rand.NewPCG(3, 3))
	n := 14
	if testing.Short() {
		n = 5
	}
	for i := range n {
		prompt := enginetest.Prose(uint64(i), 1+r.IntN(1500))
		switch i {
		case 0:
			prompt = prompt[:1]
		case 1:
			prompt = enginetest.Prose(1, 64)
		case 2: // every key alike
			prompt = bytes.Repeat([]byte("a"), 1200)
		case 3, 4:
			for j := range prompt {
				prompt[j] = byte(r.Uint32())
			}
		}
		s := engine.Sampling{MaxTokens: 1 + r.IntN(40), Seed: int64(i)}
		if i%2 == 1 {
			s.Temperature = 20
		}
		want, _, err := engine.Complete(t.Context(), eng, prompt, s)
		if err != nil {
			t.Fatal(err)
		}
		got, err := legs(t.Context(), eng, from, to, prompt, s, nil)
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("prompt %d of %d tokens: %q, want %q, %v", i, len(prompt), got, want, err)
		}
	}
	for _, n := range []*node{from, to} {
		if s := n.pool.Stats(); s.Free != s.Pages {
			t.Errorf("%+v", s)
		}
		if dirty, err := n.pool.Audit(); dirty != 0 || err != nil {
			t.Errorf("%d dirty words, %v", dirty, err)
		}
	}
}

// A page on the device that nobody wrote for this request is an error before the
// first piece of output, wherever it stands; zeros are legal arithmetic, as on the
// host.
func TestRefOnDeviceMeetsPoison(t *testing.T) {
	eng := newRef(t)
	from, to := newNode(t, eng, 16), newNode(t, eng, 16)
	prompt, size := enginetest.Prose(8, 5*64+3), eng.Info().PageBytes()
	for page := range 6 {
		for fill, want := range map[byte]error{0xff: engine.ErrPoison, 0: nil} {
			got, err := legs(t.Context(), eng, from, to, prompt, engine.Sampling{MaxTokens: 5}, func(a *kvpool.Allocation) error {
				w, err := to.pool.BeginWrite(a)
				if err != nil {
					return err
				}
				defer w.End()
				return w.Scatter(page, bytes.Repeat([]byte{fill}, size))
			})
			if !errors.Is(err, want) || want != nil && got != nil {
				t.Errorf("page %d filled with %#x: %q, %v", page, fill, got, err)
			}
		}
	}
}

// The device looks at the tags in each step: pages that were given back are not
// computed on.
func TestRefOnDeviceAfterFree(t *testing.T) {
	eng := newRef(t)
	n := newNode(t, eng, 8)
	a, err := n.pool.Alloc("r", 4)
	if err != nil {
		t.Fatal(err)
	}
	job := engine.PrefillJob{Prompt: enginetest.Prose(1, 200), Sampling: engine.Sampling{MaxTokens: 1}, KV: a}
	if _, err := eng.Prefill(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	<-n.pool.Free(a)
	if _, err := eng.Prefill(t.Context(), job); !errors.Is(err, kvpool.ErrReleased) {
		t.Errorf("%v", err)
	}
	job.Prompt = enginetest.Prose(1, 5*64)
	if _, err := eng.Prefill(t.Context(), job); !errors.Is(err, engine.ErrKVSize) {
		t.Errorf("%v", err)
	}
}
