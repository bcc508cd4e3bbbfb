package enginefake

import (
	"bytes"
	"fmt"
	"math"
)

// grams are the suffix lengths that rank a match, as in the ref engine: a longer
// one always wins, and equal ones are decided by how near they are.
var grams = [...]int{1, 3, 5, 8, 12, 20, 40}

// Next is the token that follows the KV and what was generated after it. Only
// places in the KV answer: the model does not quote itself.
func Next(kv, generated []byte) byte {
	n := len(kv) + len(generated)
	if len(kv) == 0 {
		return ' '
	}
	history := append(bytes.Clone(kv[max(0, len(kv)-40):]), generated...)
	best, weights := 0, [256]float64{}
	for p := len(kv) - 1; p >= 0; p-- {
		rank := 0
		for _, g := range grams {
			if g > p || g > len(history) || !bytes.Equal(kv[p-g:p], history[len(history)-g:]) {
				break
			}
			rank++
		}
		if rank < best {
			continue
		}
		if rank > best {
			best, weights = rank, [256]float64{}
		}
		weights[kv[p]] += math.Pow(float64(n-p), -4)
	}
	next := 0
	for b, w := range weights {
		if w > weights[next] {
			next = b
		}
	}
	return byte(next)
}

// Continue is the text of the next n tokens.
func Continue(kv []byte, n int) []byte {
	var out []byte
	for range n {
		out = append(out, Next(kv, out))
	}
	return out
}

// Sentinel is a prompt of n tokens that names who: each answer to it goes on
// naming who, so an answer with another name in it came from foreign KV.
func Sentinel(who string, n int) []byte {
	unit := fmt.Appendf(nil, "%s keeps to %s. ", who, who)
	return bytes.Repeat(unit, n/len(unit)+1)[:n]
}

// noise is what memory holds that nobody wrote: printable, so that it survives
// JSON, and not a text of anybody.
func noise(seed, n int) []byte {
	b := make([]byte, n)
	x := uint64(seed)*0x9e3779b97f4a7c15 + 1
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = "#%&*+<=>@^_|~"[x%13]
	}
	return b
}

// Noise is n tokens that no request wrote.
func Noise(n int) []byte { return noise(n, n) }
