package gpu

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// Selftest is what [RunSelftest] found.
type Selftest struct {
	Device string `json:"device"` // as it was asked for
	Name   string `json:"name"`   // as its driver calls it
	Parts  []Part `json:"parts"`
}

// Part is one part of the suite, on one size of pages.
type Part struct {
	Name      string  `json:"name"`
	PageBytes int     `json:"page_bytes"`
	Seconds   float64 `json:"seconds"`
	Error     string  `json:"error,omitempty"`
}

// OK says that every part passed.
func (s *Selftest) OK() bool {
	for _, p := range s.Parts {
		if p.Error != "" {
			return false
		}
	}
	return len(s.Parts) > 0
}

// PageSizes are those that the suite runs on: pages that end with each of the eight
// vectors of a thread and behind a whole block, the reference engine's among them,
// and those of large models.
var PageSizes = []int{16, 4096, 8192, 12_288, 16 << 10, 20 << 10, 24 << 10, 28 << 10, 32 << 10, 40 << 10, 64 << 10, 2 << 20}

// RunSelftest runs the suite on a device. Its error is of a device that cannot be
// opened; what failed stands in the parts.
func RunSelftest(ctx context.Context, device string, sizes []int) (*Selftest, error) {
	drv, err := kvpool.OpenDriver(device)
	if err != nil {
		return nil, err
	}
	out := &Selftest{Device: device, Name: drv.Name()}
	run := func(name string, size int, f func() error) {
		if ctx.Err() != nil {
			return
		}
		start := time.Now()
		err := f()
		p := Part{Name: name, PageBytes: size, Seconds: time.Since(start).Seconds()}
		if err != nil {
			p.Error = err.Error()
		}
		out.Parts = append(out.Parts, p)
	}
	for _, size := range sizes {
		run("device", size, func() error { return Device(drv, size) })
	}
	eng, err := engine.New(engine.Config{})
	if err != nil {
		return nil, err
	}
	run("reference engine", eng.Info().PageBytes(), func() error { return Engine(ctx, drv, eng, rand.Uint64()) })
	run("the driver has everything back", 0, drv.Close)
	return out, ctx.Err()
}

// Device runs the pool's conformance suite on pages of one size.
func Device(drv kvpool.Driver, pageBytes int) (err error) {
	const pages = 17
	gpu, err := kvpool.NewGPU(drv, kvpool.GPUConfig{Pages: pages, PageBytes: pageBytes, StageBytes: 3 * pageBytes})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gpu.Close()) }()
	t := kvpool.SelfTest{Device: gpu, Driver: drv, Pages: pages, PageBytes: pageBytes}
	return t.Run()
}

// Engine runs the reference engine on the device and in host memory: the answers
// are equal, and a page that nobody wrote is an error before anything is said.
func Engine(ctx context.Context, drv kvpool.Driver, eng engine.Engine, seed uint64) (err error) {
	const pages = 24
	info := eng.Info()
	gpu, err := kvpool.NewGPU(drv, kvpool.GPUConfig{Pages: pages, PageBytes: info.PageBytes()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, gpu.Close()) }()
	pool, err := kvpool.New(kvpool.Config{Pages: pages, PageBytes: info.PageBytes(), Epoch: 1, Device: gpu})
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(seed, 1))
	if err := scores(ctx, pool, eng, r); err != nil {
		return fmt.Errorf("%w (seed %d)", err, seed)
	}
	for i, n := range []int{1, 63, 64, 65, 200, 1100, 900} {
		prompt := make([]byte, n)
		for j := range prompt { // of few letters, so that heads match
			prompt[j] = "abcd "[r.IntN(5)]
			if i == 6 { // of all
				prompt[j] = byte(j)
			}
		}
		if i%2 == 1 { // an answer to find
			copy(prompt[n/2:], prompt[:n/4])
			copy(prompt[n-n/8:], prompt[n/16:])
		}
		s := engine.Sampling{MaxTokens: 1 + r.IntN(12)}
		want, _, err := engine.Complete(ctx, eng, prompt, s)
		if err != nil {
			return err
		}
		got, err := answer(ctx, pool, eng, prompt, s, -1)
		if err != nil {
			return fmt.Errorf("%d tokens: %w (seed %d)", n, err, seed)
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("%d tokens: another answer than in host memory (seed %d)", n, seed)
		}
		if err := sameKV(ctx, pool, eng, prompt); err != nil {
			return fmt.Errorf("%d tokens: %w (seed %d)", n, err, seed)
		}
		for page := range info.PagesFor(n) {
			if got, err := answer(ctx, pool, eng, prompt, s, page); !errors.Is(err, engine.ErrPoison) || len(got) > 0 {
				return fmt.Errorf("%d tokens, page %d poisoned: %d bytes of answer, %v (seed %d)", n, page, len(got), err, seed)
			}
		}
	}
	if n, err := pool.Audit(); n != 0 || err != nil {
		return fmt.Errorf("%d words of free pages are not scrubbed: %w", n, err)
	}
	return nil
}

// answer runs both legs on one allocation, with a page poisoned in between.
func answer(ctx context.Context, pool *kvpool.Pool, eng engine.Engine, prompt []byte, s engine.Sampling, poison int) (text []byte, err error) {
	a, err := pool.Alloc("r", eng.Info().PagesFor(len(prompt)+s.MaxTokens))
	if err != nil {
		return nil, err
	}
	defer pool.Free(a)
	w, err := pool.BeginWrite(a)
	if err != nil {
		return nil, err
	}
	defer w.End()
	pre, err := eng.Prefill(ctx, engine.PrefillJob{Prompt: prompt, Sampling: s, KV: a})
	if err != nil {
		return nil, err
	}
	if poison >= 0 {
		if err := w.Scatter(poison, bytes.Repeat([]byte{0xff}, pool.PageBytes())); err != nil {
			return nil, err
		}
	}
	_, err = eng.Decode(ctx, engine.DecodeJob{PromptTokens: pre.PromptTokens, First: pre.First, Sampling: s, KV: a}, func(b []byte, _ int) error {
		text = append(text, b...)
		return nil
	})
	return text, err
}

// scores compares the device's scores of a page with those that follow from the
// page's bytes: of queries that agree with a key in each number of heads, and in each
// by more or less.
func scores(ctx context.Context, pool *kvpool.Pool, eng engine.Engine, r *rand.Rand) error {
	const tokens, gain = 150, 12
	prompt := make([]byte, tokens)
	for i := range prompt {
		prompt[i] = byte(r.Uint32())
	}
	a, err := pool.Alloc("r", eng.Info().PagesFor(tokens))
	if err != nil {
		return err
	}
	defer pool.Free(a)
	w, err := pool.BeginWrite(a)
	if err != nil {
		return err
	}
	defer w.End()
	if _, err := eng.Prefill(ctx, engine.PrefillJob{Prompt: prompt, Sampling: engine.Sampling{MaxTokens: 1}, KV: a}); err != nil {
		return err
	}
	kv := make([]byte, a.Pages()*pool.PageBytes())
	word := func(token, i int) uint64 {
		return binary.LittleEndian.Uint64(kv[token/64*pool.PageBytes()+64*(token%64)+8*i:])
	}
	for try := range 64 {
		if try == 40 { // a key whose scale is not one, in one page
			kv[2*pool.PageBytes()+64*3+7*8+5] = 1
			if err := w.Scatter(2, kv[2*pool.PageBytes():]); err != nil {
				return err
			}
		}
		for i := range a.Pages() {
			if err := a.ReadPage(i, kv[i*pool.PageBytes():][:pool.PageBytes()]); err != nil {
				return err
			}
		}
		var q [7]uint64
		from := r.IntN(tokens)
		for j := range q {
			q[j] = word(from, j)
			for range []int{0, 1, gain - 1, gain, r.IntN(9)}[r.IntN(5)] / (1 + try%3) {
				q[j] ^= 1 << r.IntN(64)
			}
		}
		covered := 64 + r.IntN(tokens-64) // of the prompt; the rest counts as generated
		want, odd := make([]int32, a.Pages()), make([]bool, a.Pages())
		for t := range tokens {
			if end := covered; t/64*64 < covered && t >= end {
				continue
			}
			score := int32(0)
			for j := range q {
				d := gain - bits.OnesCount64(word(t, j)^q[j])
				if d <= 0 {
					break
				}
				score += int32(d)
			}
			want[t/64] = max(want[t/64], score)
			odd[t/64] = odd[t/64] || word(t, 7) != 0x3f800000
		}
		got, marked := make([]int32, a.Pages()), make([]bool, a.Pages())
		if err := a.ScanRef(new([256]uint32), &q, covered, tokens, got, func(i int) { marked[i] = true }); err != nil {
			return err
		}
		if !slices.Equal(got, want) || !slices.Equal(marked, odd) {
			return fmt.Errorf("scores %v %v, want %v %v", got, marked, want, odd)
		}
	}
	return nil
}

// sameKV compares the pages that prefill writes on the device with those in host
// memory, bit for bit.
func sameKV(ctx context.Context, pool *kvpool.Pool, eng engine.Engine, prompt []byte) error {
	info := eng.Info()
	host, err := kvpool.New(kvpool.Config{Pages: info.PagesFor(len(prompt)), PageBytes: info.PageBytes(), Epoch: 1})
	if err != nil {
		return err
	}
	var kv [2][]byte
	for i, p := range []*kvpool.Pool{pool, host} {
		if kv[i], err = prefilled(ctx, p, eng, prompt); err != nil {
			return err
		}
	}
	// What lies behind the last token is poison in both.
	if !bytes.Equal(kv[0], kv[1]) {
		return errors.New("prefill writes other pages than in host memory")
	}
	return nil
}

func prefilled(ctx context.Context, p *kvpool.Pool, eng engine.Engine, prompt []byte) ([]byte, error) {
	a, err := p.Alloc("r", eng.Info().PagesFor(len(prompt)))
	if err != nil {
		return nil, err
	}
	defer p.Free(a)
	if _, err := eng.Prefill(ctx, engine.PrefillJob{Prompt: prompt, Sampling: engine.Sampling{MaxTokens: 1}, KV: a}); err != nil {
		return nil, err
	}
	pin, err := p.Pin("r", 1, a.Runs())
	if err != nil {
		return nil, err
	}
	defer pin.Release()
	b := make([]byte, a.Pages()*p.PageBytes())
	return b, pin.Gather(b, 0, a.Pages())
}
