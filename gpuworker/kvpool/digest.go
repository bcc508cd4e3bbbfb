package kvpool

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"
)

// The checksum of KV bytes, one term for each 64-bit word w at index i:
//
//	x = (w ^ (key + i*kg)) * km
//	term = x ^ (x >> 32)
//
// and the sum of the terms mod 2^64. kg and km are odd, so at a fixed index the
// term is a bijection of the word and any change of one word changes the sum.
// The index makes it sensitive to position, the sum makes it independent of the
// order of computation: chunks may be summed in parallel and on any device.
//
// It is not a MAC. It catches corruption, mixed-up pages and pages that were
// never written; against a forger stands the signature over the sum.
const (
	kg = 0x9E3779B97F4A7C15
	km = 0x9FB21C651E98DF25
)

// Sum is the partial sum of the words in b, the first of which has the index
// firstWord. Partial sums add up mod 2^64 to the sum of the whole. Chunks are
// whole words; a tail of fewer than 8 bytes counts as a word padded with zeros.
func Sum(key, firstWord uint64, b []byte) uint64 {
	pos := key + firstWord*kg
	sum, n := sumWide(pos, b)
	return sum + sumWords(pos+uint64(n/8)*kg, b[n:])
}

// sumWords is the sum on any processor. pos is the first word's key + i*kg.
func sumWords(pos uint64, b []byte) uint64 {
	var s0, s1, s2, s3 uint64
	for len(b) >= 32 { // four independent chains
		x0 := (binary.LittleEndian.Uint64(b[0:8]) ^ pos) * km
		x1 := (binary.LittleEndian.Uint64(b[8:16]) ^ (pos + kg)) * km
		x2 := (binary.LittleEndian.Uint64(b[16:24]) ^ (pos + kg2)) * km
		x3 := (binary.LittleEndian.Uint64(b[24:32]) ^ (pos + kg3)) * km
		s0 += x0 ^ x0>>32
		s1 += x1 ^ x1>>32
		s2 += x2 ^ x2>>32
		s3 += x3 ^ x3>>32
		pos += kg4
		b = b[32:]
	}
	for ; len(b) >= 8; b = b[8:] {
		s0 += term(binary.LittleEndian.Uint64(b) ^ pos)
		pos += kg
	}
	if len(b) > 0 {
		var w [8]byte
		copy(w[:], b)
		s0 += term(binary.LittleEndian.Uint64(w[:]) ^ pos)
	}
	return s0 + s1 + s2 + s3
}

// Multiples of kg mod 2^64.
const (
	kg2 = 2 * kg & (1<<64 - 1)
	kg3 = 3 * kg & (1<<64 - 1)
	kg4 = 4 * kg & (1<<64 - 1)
)

func term(x uint64) uint64 { x *= km; return x ^ x>>32 }

// Digest is a finished sum.
type Digest uint64

const digestPrefix = "kvsum64:"

// String is the recorded form, "kvsum64:" and 16 hexadecimal digits.
func (d Digest) String() string { return fmt.Sprintf(digestPrefix+"%016x", uint64(d)) }

// ParseDigest reads the form that [Digest.String] writes, and no other.
func ParseDigest(s string) (Digest, error) {
	h, ok := strings.CutPrefix(s, digestPrefix)
	v, err := strconv.ParseUint(h, 16, 64)
	if !ok || err != nil || Digest(v).String() != s {
		return 0, fmt.Errorf("kvpool: digest is not %s and 16 hexadecimal digits", digestPrefix)
	}
	return Digest(v), nil
}
