package kvpool

import "golang.org/x/sys/cpu"

var wide = cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ

const wideBytes = 256 // in one turn of sum512's loop

// sumWide sums as much of b as whole vectors cover, and says how many bytes
// those were. Word by word, the sums would take longer than the copies.
func sumWide(pos uint64, b []byte) (sum uint64, n int) {
	if n = len(b) &^ (wideBytes - 1); n == 0 || !wide {
		return 0, 0
	}
	return sum512(pos, &b[0], n), n
}

// sum512 is sumWords for n bytes, a positive multiple of wideBytes.
//
//go:noescape
func sum512(pos uint64, p *byte, n int) uint64
