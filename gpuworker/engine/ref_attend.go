package engine

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"sync"
)

// Softmax parameters. A logit is beta·score·scale − decay·ln(distance), less
// refSelf for generated tokens.
const (
	refTheta  = 52            // of 64 bits that must agree: a chance of 1e-7 a head and token
	refGain   = 64 - refTheta // what a matching head adds at most
	refBeta   = 6.0           // nats a bit: one more matching head is worth e^72
	refDecay  = 4.0           // recency: twice as near weighs 16 times as much, on equal match
	refSelf   = 1e3           // the engine's own output loses to any match in the prompt: no loops
	refCutoff = 24.0          // tokens under e^-24 of the best are left out of the sum
)

// refScore is q·k in seven thresholded heads of 64 dimensions of ±1. It ends at
// the first head that does not match, which for most tokens is the first one.
func refScore(k *[refKWords]uint64, q *refKey) int {
	s := 0
	for j := range q {
		d := refGain - bits.OnesCount64(k[j]^q[j])
		if d <= 0 {
			break
		}
		s += d
	}
	return s
}

// refOdd marks a page with a key whose scale is not one.
const refOdd = 1 << 20

// scan returns the best score of the first n tokens, with refOdd set where some
// key's scale is not exactly one.
func (p *refPage) scan(n int, q *refKey) (best int32) {
	var odd uint64
	q0 := q[0]
	for i := range n {
		k := p.key(i)
		odd |= k[refScaleWord] ^ refUnitScale
		if bits.OnesCount64(k[0]^q0) < refGain {
			best = max(best, int32(refScore(k, q)))
		}
	}
	if odd != 0 {
		best |= refOdd
	}
	return best
}

// oddBest is the best score of a page that has odd scales. A scale of zero
// (memory scrubbed with zeros) is legal arithmetic: its score counts nothing.
// NaN (poison) and any other value is an error.
func (p *refPage) oddBest(n int, q *refKey) (best int32, bad int) {
	for i := range n {
		switch k := p.key(i); k[refScaleWord] {
		case refUnitScale:
			best = max(best, int32(refScore(k, q)))
		case 0:
		default:
			return 0, i
		}
	}
	return best, -1
}

// covered is how many tokens of page i a scan covers: the prompt's, or, on pages
// that hold generated tokens only, those.
func (s *refSequence) covered(i int) int {
	end := s.prompt
	if i*refPageTokens >= end {
		end = s.len
	}
	return min(refPageTokens, end-i*refPageTokens)
}

// attend is one attention step over all s.len tokens. Threads split the scan,
// which is in integers and keeps one maximum a page; softmax and weighted sum
// then run in page order on one goroutine. The result therefore does not depend
// on the number of threads.
func (s *refSequence) attend(q *refKey, threads int) (refVector, error) {
	np := (s.len + refPageTokens - 1) / refPageTokens
	s.best = slices.Grow(s.best[:0], np)[:np]
	if err := s.scan(q, threads); err != nil {
		return refVector{}, err
	}
	top := int32(0)
	for i, b := range s.best {
		if b&refOdd != 0 {
			p, err := s.page(i)
			if err != nil {
				return refVector{}, err
			}
			m, bad := p.oddBest(s.covered(i), q)
			if bad >= 0 {
				return refVector{}, fmt.Errorf("%w: key at %d", ErrPoison, i*refPageTokens+bad)
			}
			s.best[i] = m
		}
		if i*refPageTokens < s.prompt {
			top = max(top, s.best[i])
		}
	}
	return s.mix(q, float64(top))
}

// scan finds each page's best score.
func (s *refSequence) scan(q *refKey, threads int) error {
	if s.remote != nil {
		return s.remote.scan(s, q)
	}
	np := len(s.best)
	scan := func(lo, hi int) {
		for i := lo; i < hi; i++ {
			s.best[i] = s.pages[i].scan(s.covered(i), q)
		}
	}
	if threads < 2 || np < 256 { // below, a goroutine costs more than its share saves
		scan(0, np)
	} else {
		var wg sync.WaitGroup
		for t := range threads {
			wg.Go(func() { scan(np*t/threads, np*(t+1)/threads) })
		}
		wg.Wait()
	}
	return nil
}

// mix is softmax with a running maximum, as in blocked attention, newest page
// first, over the pages whose best token can still matter.
func (s *refSequence) mix(q *refKey, top float64) (acc refVector, err error) {
	// Conversions keep a compiler from fusing multiply and add: every machine gets
	// the same sums.
	floor := float64(refBeta*top) - float64(refDecay*math.Log(float64(s.len))) - refCutoff
	m, z := math.Inf(-1), 0.0
	for i := len(s.best) - 1; i >= 0; i-- {
		bound := float64(refBeta * float64(s.best[i])) // on the page's logits
		if i*refPageTokens >= s.prompt {
			bound -= refSelf
		}
		nearest := float64(refDecay * math.Log(float64(max(1, s.len-(i+1)*refPageTokens+1))))
		// The page with the end of the prompt is always read: the scan saw only
		// its prompt part.
		if i != (s.prompt-1)/refPageTokens && (bound < floor || bound-nearest < m-refCutoff-1) {
			continue
		}
		p, err := s.page(i)
		if err != nil {
			return acc, err
		}
		for j := min(refPageTokens, s.len-i*refPageTokens) - 1; j >= 0; j-- {
			k, pos := p.key(j), i*refPageTokens+j
			l := refBeta * float64(refScore(k, q)) * float64(math.Float32frombits(uint32(k[refScaleWord])))
			if pos >= s.prompt {
				l -= refSelf
			}
			if l < m-refCutoff { // the distance only lowers it: spare the logarithm
				continue
			}
			l -= float64(refDecay * math.Log(float64(s.len-pos)))
			if l < m-refCutoff {
				continue
			}
			w := 1.0
			if l > m {
				r := math.Exp(m - l)
				z *= r
				for d := range acc {
					acc[d] *= r
				}
				m = l
			} else {
				w = math.Exp(l - m)
			}
			z += w
			acc.add(w, p.value(j))
		}
	}
	for d := range acc {
		acc[d] /= z
	}
	return acc, nil
}

// add adds w times a stored value.
func (v *refVector) add(w float64, stored *[refVWords]uint64) {
	for i, x := range stored {
		v[2*i] += float64(w * float64(math.Float32frombits(uint32(x))))
		v[2*i+1] += float64(w * float64(math.Float32frombits(uint32(x>>32))))
	}
}
