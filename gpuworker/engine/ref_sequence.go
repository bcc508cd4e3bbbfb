package engine

import (
	"context"
	"fmt"
	"sync"
)

// A page of ref holds 64 tokens: all keys first, in one stretch of 4 KiB that a
// scan reads from end to end, then all values.
const (
	refPageTokens = 64
	refPageWords  = refPageTokens * refTokenWords
)

type refPage [refPageWords]uint64

// key is the key of a slot, its scale included.
func (p *refPage) key(slot int) *[refKWords]uint64 {
	return (*[refKWords]uint64)(p[slot*refKWords:])
}

func (p *refPage) value(slot int) *[refVWords]uint64 {
	return (*[refVWords]uint64)(p[refPageTokens*refKWords+slot*refVWords:])
}

// write stores a token: the key of what came before, the value of b itself.
func (p *refPage) write(slot int, h *refHistory, b byte) {
	k, key := p.key(slot), h.embed()
	copy(k[:], key[:])
	k[refScaleWord] = refUnitScale
	*p.value(slot) = refValues[b]
}

// refSequence is one request as attention sees it: the pages, how many tokens
// they hold, and scratch memory that is reused between requests.
type refSequence struct {
	pages  []*refPage
	remote *refRemote // pages are a device's, and the field above is empty; nil: they are not
	prompt int        // tokens of the prompt; what follows was generated
	len    int        // tokens that attention covers

	best []int32 // scratch: each page's best score
}

var refSequences = sync.Pool{New: func() any { return new(refSequence) }}

// openRef resolves the pages of kv, which must have room for the tokens. The
// caller closes the sequence.
func openRef(kv KV, room int) (*refSequence, error) {
	np := (room + refPageTokens - 1) / refPageTokens
	if kv == nil || kv.Pages() < np {
		have := 0
		if kv != nil {
			have = kv.Pages()
		}
		return nil, fmt.Errorf("%w: %d pages for %d tokens", ErrKVSize, have, room)
	}
	s := refSequences.Get().(*refSequence)
	if dev, ok := kv.(refDevice); ok && dev.OnDevice() {
		s.remote = &refRemote{dev: dev, near: map[int]*refPage{}}
		return s, nil
	}
	for i := range np {
		p := kv.Page(i)
		if len(p) != refPageWords {
			s.close()
			return nil, fmt.Errorf("%w: page %d has %d words, want %d", ErrKVSize, i, len(p), refPageWords)
		}
		s.pages = append(s.pages, (*refPage)(p))
	}
	return s, nil
}

// close gives the scratch memory back, without a trace of the request's pages.
func (s *refSequence) close() {
	if s.remote != nil {
		s.remote.forget()
	}
	clear(s.pages)
	*s = refSequence{pages: s.pages[:0], best: s.best[:0]}
	refSequences.Put(s)
}

// page is a page's memory, or a copy of it where a device holds it.
func (s *refSequence) page(i int) (*refPage, error) {
	if s.remote != nil {
		return s.remote.page(i)
	}
	return s.pages[i], nil
}

// push appends a token.
func (s *refSequence) push(h *refHistory, b byte) error {
	if s.remote != nil {
		if err := s.remote.push(s.len, h, b); err != nil {
			return err
		}
	} else {
		s.pages[s.len/refPageTokens].write(s.len%refPageTokens, h, b)
	}
	h.push(b)
	s.len++
	return nil
}

// fill writes the whole prompt. Threads take pages in turn: a key depends on the
// 40 bytes before it and on nothing else, so the pages come out the same.
func (s *refSequence) fill(ctx context.Context, prompt []byte, threads int) error {
	if s.remote != nil {
		s.prompt, s.len = len(prompt), len(prompt)
		return s.remote.fill(ctx, prompt)
	}
	const step = 64 // pages, about 0.3 ms
	var wg sync.WaitGroup
	threads = max(1, min(threads, len(prompt)/(step*refPageTokens)))
	for t := range threads {
		fill := func() {
			for from := t * step * refPageTokens; from < len(prompt) && ctx.Err() == nil; from += threads * step * refPageTokens {
				var h refHistory
				for _, b := range prompt[max(0, from-refWindow):from] {
					h.push(b)
				}
				for i := from; i < min(len(prompt), from+step*refPageTokens); i++ {
					s.pages[i/refPageTokens].write(i%refPageTokens, &h, prompt[i])
					h.push(prompt[i])
				}
			}
		}
		wg.Go(fill)
	}
	wg.Wait()
	s.prompt, s.len = len(prompt), len(prompt)
	return ctx.Err()
}

// history reads the last bytes back from the value vectors. There is no other
// copy of the prompt, so a stale tail steers even the query.
func (s *refSequence) history() (h refHistory, err error) {
	for i := max(0, s.len-refWindow); i < s.len; i++ {
		p, err := s.page(i / refPageTokens)
		if err != nil {
			return h, err
		}
		var v refVector
		v.add(1, p.value(i%refPageTokens))
		logits, ok := v.logits()
		if !ok {
			return h, fmt.Errorf("%w: value at %d", ErrPoison, i)
		}
		h.push(refArgmax(&logits))
	}
	return h, nil
}
