package kvpool

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/pdgate/pdgate/gpuworker/kvpool/kernels"
)

// What the engine "ref" computes where the pages lie. An [Allocation] offers it on
// a GPU; in host memory the engine has [Allocation.Page]. The kernels look at each
// page's tag, as every copy does.

// compute is an allocation's list of jobs and its results, in the GPU's memory
// while the allocation lives: a step of attention is then one launch.
type compute struct {
	mu   sync.Mutex
	jobs Ptr
	outs Ptr
	text Ptr // RefWindow bytes, then up to refTextTokens tokens
	code Ptr // 256 words
}

const (
	refWindow     = 40 // bytes before a token that its key sees
	refPageTokens = 64
	refTextTokens = 64 << 10 // of one launch
)

// OnDevice says whether the pages are a GPU's.
func (a *Allocation) OnDevice() bool { return a.pool.gpu != nil }

// openCompute makes the lists at their first use. Callers hold a.compute.mu.
func (a *Allocation) openCompute(codes *[256]uint32) error {
	g := a.pool.gpu
	switch {
	case g == nil:
		return errors.New("kvpool: the pages are not a GPU's")
	case a.gone.Load():
		return fmt.Errorf("compute: %w", ErrReleased)
	case a.compute.jobs != 0:
		return nil
	}
	for _, m := range []struct {
		at    *Ptr
		bytes int64
	}{
		{&a.compute.jobs, int64(a.Pages()) * jobBytes}, {&a.compute.outs, int64(a.Pages()) * outBytes},
		{&a.compute.text, refWindow + refTextTokens}, {&a.compute.code, 256 * 8},
	} {
		p, err := g.drv.Alloc(m.bytes)
		if err != nil {
			return err
		}
		*m.at = p
	}
	var jobs, table []byte
	for _, r := range a.runs {
		for i := range r.Count {
			one := r
			one.Start += i
			jobs = appendJob(jobs, one, 0, a.tag.Owner)
		}
	}
	for _, c := range codes {
		table = binary.LittleEndian.AppendUint64(table, uint64(c))
	}
	return g.drv.Run(func(s Stream) error {
		return cmp.Or(s.CopyIn(a.compute.jobs, jobs), s.CopyIn(a.compute.code, table))
	})
}

// dropCompute gives the lists back. The text is wiped: it is the request's.
func (a *Allocation) dropCompute() error {
	c := &a.compute
	c.mu.Lock()
	defer c.mu.Unlock()
	if a.pool.gpu == nil || c.jobs == 0 && c.outs == 0 && c.text == 0 && c.code == 0 {
		return nil
	}
	drv := a.pool.gpu.drv
	var errs []error
	if c.text != 0 {
		errs = append(errs, drv.Run(func(s Stream) error { return s.Fill(c.text, 0, (refWindow+refTextTokens)/4) }))
	}
	for _, p := range []*Ptr{&c.jobs, &c.outs, &c.text, &c.code} {
		if *p != 0 {
			errs = append(errs, drv.Free(*p))
			*p = 0
		}
	}
	return errors.Join(errs...)
}

// FillRef writes tokens into the pages, from token first on. history is what stands
// before the first, as far as a key sees; codes are the signs of the value vectors.
func (a *Allocation) FillRef(codes *[256]uint32, history, tokens []byte, first int) error {
	c, g := &a.compute, a.pool.gpu
	c.mu.Lock()
	defer c.mu.Unlock()
	if first < 0 || len(tokens) > a.Pages()*refPageTokens-first {
		return fmt.Errorf("kvpool: %d tokens at %d do not fit %d pages", len(tokens), first, a.Pages())
	}
	err := a.openCompute(codes)
	for err == nil && len(tokens) > 0 {
		n := min(len(tokens), refTextTokens)
		err = a.fill(g, history, tokens[:n], first)
		history = append(history[:len(history):len(history)], tokens[:n]...)
		history = history[max(0, len(history)-refWindow):]
		tokens, first = tokens[n:], first+n
	}
	if err != nil {
		return fmt.Errorf("fill: %w", a.pool.noted(err))
	}
	return nil
}

func (a *Allocation) fill(g *GPU, history, tokens []byte, first int) error {
	c := &a.compute
	text := make([]byte, refWindow, refWindow+len(tokens))
	history = history[max(0, len(history)-refWindow):]
	copy(text[refWindow-len(history):], history)
	text = append(text, tokens...)
	defer clear(text)
	page := first / refPageTokens
	var out [8]byte
	err := g.drv.Run(func(s Stream) error {
		err := cmp.Or(s.CopyIn(c.text, text), s.Fill(c.outs, 0, 2))
		if err == nil {
			err = s.Launch("ref_fill", blocks(len(tokens)), 1, uint64(g.pool), uint64(g.meta), uint64(g.pages), g.vectors,
				uint64(c.jobs)+uint64(page*jobBytes), uint64(c.text), uint64(c.code), uint64(first), uint64(len(tokens)), uint64(c.outs))
		}
		if err == nil {
			err = s.CopyOut(out[:], c.outs)
		}
		return err
	})
	if err != nil {
		return err
	}
	if status := binary.LittleEndian.Uint64(out[:]); status != 0 {
		return refusal(uint32(at(a.runs, a.ends, page)), status)
	}
	return nil
}

func blocks(threads int) int { return (threads + kernels.Threads - 1) / kernels.Threads }

// ScanRef scores a query against all keys: best gets each page's best score, and
// odd is called for each page that holds a key whose scale is not one. A page that
// begins in the prompt is covered to the prompt's end, another to the last token.
func (a *Allocation) ScanRef(codes *[256]uint32, q *[7]uint64, prompt, tokens int, best []int32, odd func(page int)) error {
	c, g := &a.compute, a.pool.gpu
	c.mu.Lock()
	defer c.mu.Unlock()
	n := (tokens + refPageTokens - 1) / refPageTokens
	if n > a.Pages() || n > len(best) || prompt > tokens || tokens < 1 {
		return fmt.Errorf("kvpool: a scan of %d tokens in %d pages", tokens, a.Pages())
	}
	err := a.openCompute(codes)
	out := make([]byte, n*outBytes)
	if err == nil {
		err = g.drv.Run(func(s Stream) error {
			args := []uint64{uint64(g.pool), uint64(g.meta), uint64(g.pages), g.vectors, uint64(c.jobs), uint64(prompt), uint64(tokens), uint64(c.outs)}
			err := s.Fill(c.outs, 0, int64(len(out)/4))
			if err == nil {
				err = s.Launch("ref_scan", blocks(tokens), 1, append(args, q[:]...)...)
			}
			if err == nil {
				err = s.CopyOut(out, c.outs)
			}
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("scan: %w", a.pool.noted(err))
	}
	for i := range n {
		flags := binary.LittleEndian.Uint64(out[i*outBytes+8:])
		if status := flags &^ kernels.ScanOdd; status != 0 {
			return fmt.Errorf("scan: %w", refusal(uint32(at(a.runs, a.ends, i)), status))
		}
		best[i] = int32(binary.LittleEndian.Uint64(out[i*outBytes:]))
		if flags != 0 {
			odd(i)
		}
	}
	return nil
}

// ReadPage copies one page out.
func (a *Allocation) ReadPage(i int, dst []byte) error {
	if i < 0 || i >= a.Pages() {
		return fmt.Errorf("kvpool: page %d of %d", i, a.Pages())
	}
	_, err := a.pool.dev.Gather(dst, part(a.runs, a.ends, i, i+1), a.tag.Owner, 0, 0)
	return a.pool.noted(err)
}
