package engine

import (
	"math"
	"math/bits"
)

// Sizes of one token of ref in a page, in 64-bit words.
const (
	refKeyWords   = 7                // 448 key dimensions of ±1, one bit each: one word a head
	refScaleWord  = refKeyWords      // the key's float32 scale, in the low half
	refKWords     = 8                // 64 bytes of key: one cache line
	refValueDims  = 32               // value dimensions, float32
	refVWords     = refValueDims / 2 // 128 bytes of value
	refTokenWords = refKWords + refVWords
	refUnitScale  = uint64(0x3f800000) // float32(1)
	refWindow     = 40                 // bytes of history that a key sees
)

// refGrams are the heads: how many preceding bytes each encodes, one key word a
// head. A head counts only when its 64 dimensions agree far beyond chance
// (5 sigma over half), and only when all shorter ones count. So chance never
// ranks two candidates, a longer common suffix always wins, and equal suffixes
// tie exactly, which leaves the choice to recency.
var refGrams = [refKeyWords]int{1, 3, 5, 8, 12, 20, 40}

// refGramSeeds separate the heads' hashes.
var refGramSeeds = func() (s [refKeyWords]uint64) {
	for j, n := range refGrams {
		s[j] = refMix(uint64(n))
	}
	return s
}()

// refHistory is the last 40 bytes; the first word holds the newest eight, the
// newest lowest.
type refHistory [5]uint64

// push appends one byte.
func (h *refHistory) push(b byte) {
	h[4] = h[4]<<8 | h[3]>>56
	h[3] = h[3]<<8 | h[2]>>56
	h[2] = h[2]<<8 | h[1]>>56
	h[1] = h[1]<<8 | h[0]>>56
	h[0] = h[0]<<8 | uint64(b)
}

// refMix is splitmix64.
func refMix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// refKey is the ±1 embedding of a history, one bit a dimension.
type refKey [refKeyWords]uint64

// embed is a fixed random projection: each n-gram hashes to random signs. The
// heads are spelled out: this is the hot path of prefill.
func (h *refHistory) embed() (k refKey) {
	s := &refGramSeeds
	k[0] = refMix(s[0] ^ h[0]&(1<<8-1))
	k[1] = refMix(s[1] ^ h[0]&(1<<24-1))
	k[2] = refMix(s[2] ^ h[0]&(1<<40-1))
	k[3] = refMix(s[3] ^ h[0])
	k[4] = refMix(refMix(s[4]^h[0]) ^ h[1]&(1<<32-1))
	k[5] = refMix(refMix(refMix(s[5]^h[0])^h[1]) ^ h[2]&(1<<32-1))
	k[6] = refMix(refMix(refMix(refMix(refMix(s[6]^h[0])^h[1])^h[2])^h[3]) ^ h[4])
	return k
}

// refCodes are the value vectors: 256 sign words, pairwise 8 to 24 bits apart,
// so that both a mixture and a damaged vector decode predictably.
var refCodes = func() (c [256]uint32) {
	seed := uint64(1)
	for i := 0; i < 256; {
		seed++
		v := uint32(refMix(seed))
		ok := true
		for j := 0; j < i && ok; j++ {
			d := bits.OnesCount32(v ^ c[j])
			ok = d >= 8 && d <= 24
		}
		if ok {
			c[i] = v
			i++
		}
	}
	return c
}()

// refValues is each byte's value vector as a page stores it.
var refValues = func() (t [256][refVWords]uint64) {
	for b := range t {
		for d := range refValueDims {
			f := float32(1)
			if refCodes[b]>>d&1 == 0 {
				f = -1
			}
			t[b][d/2] |= uint64(math.Float32bits(f)) << (32 * (d % 2))
		}
	}
	return t
}()

// refSigns is refCodes as ±1 floats. Products with them are exact, so a compiler
// that fuses multiply and add (arm64, GOAMD64=v3) gets the same sums.
var refSigns = func() (t [256][refValueDims]float64) {
	for b := range t {
		for d := range t[b] {
			t[b][d] = float64(int(refCodes[b]>>d&1)*2 - 1)
		}
	}
	return t
}()

// refVector is a value vector, or a weighted sum of some.
type refVector [refValueDims]float64

// logits are the dot products of v with each byte's code. false means that v
// holds a NaN or an infinity: it was read from a page that nobody wrote.
func (v *refVector) logits() (out [256]float64, ok bool) {
	for b := range refSigns {
		c := &refSigns[b]
		var s0, s1, s2, s3 float64
		for d := 0; d < refValueDims; d += 4 {
			s0 += c[d] * v[d]
			s1 += c[d+1] * v[d+1]
			s2 += c[d+2] * v[d+2]
			s3 += c[d+3] * v[d+3]
		}
		s := s0 + s1 + s2 + s3
		if math.IsNaN(s) || math.IsInf(s, 0) { // NaN loses every comparison: ask for it
			return out, false
		}
		out[b] = s
	}
	return out, true
}

// refArgmax is the byte with the largest logit, the lowest on a tie.
func refArgmax(logits *[256]float64) byte {
	best := 0
	for b, l := range logits {
		if l > logits[best] {
			best = b
		}
	}
	return byte(best)
}

// refSample draws from the softmax of the logits at a temperature. The draw
// depends on the seed and the position alone, so that prefill and decode, on
// whatever machine, continue one sequence.
func refSample(logits *[256]float64, temperature float64, seed int64, position int) byte {
	top := logits[refArgmax(logits)]
	var sum [256]float64
	total := 0.0
	for b, l := range logits {
		total += math.Exp((l - top) / temperature)
		sum[b] = total
	}
	u := float64(refMix(refMix(uint64(seed))^uint64(position))>>11) / (1 << 53) * total
	for b, s := range sum {
		if u < s {
			return byte(b)
		}
	}
	return refArgmax(logits)
}
