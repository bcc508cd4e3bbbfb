package kvpool

import (
	"encoding/binary"
	"math/big"
	"math/rand/v2"
	"testing"
)

// plainSum is the definition, in integers without a size.
func plainSum(key uint64, b []byte) uint64 {
	mod := new(big.Int).Lsh(big.NewInt(1), 64)
	sum := new(big.Int)
	for i := 0; 8*i < len(b); i++ {
		pos := new(big.Int).SetUint64(kg)
		pos.Mul(pos, big.NewInt(int64(i))).Add(pos, new(big.Int).SetUint64(key)).Mod(pos, mod)
		x := new(big.Int).SetUint64(binary.LittleEndian.Uint64(b[8*i:]) ^ pos.Uint64())
		x.Mul(x, new(big.Int).SetUint64(km)).Mod(x, mod)
		x.Xor(x, new(big.Int).Rsh(x, 32))
		sum.Add(sum, x).Mod(sum, mod)
	}
	return sum.Uint64()
}

func randomBytes(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 2))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

func TestSum(t *testing.T) {
	const key = 0xfedcba9876543210
	for n := 0; n <= 1200; n += 8 {
		b := randomBytes(uint64(n), n)
		want := plainSum(key, b)
		if got := Sum(key, 0, b); got != want {
			t.Errorf("%d bytes: %x, want %x", n, got, want)
		}
		if got := sumWords(key, b); got != want {
			t.Errorf("%d bytes word by word: %x, want %x", n, got, want)
		}
		for cut := 0; cut <= n; cut += 8 { // any split, summed in any order
			if got := Sum(key, uint64(cut/8), b[cut:]) + Sum(key, 0, b[:cut]); got != want {
				t.Errorf("%d bytes cut at %d: %x, want %x", n, cut, got, want)
			}
		}
	}
	// A short tail counts as a padded word.
	if Sum(key, 0, []byte{1, 2, 3}) != Sum(key, 0, []byte{1, 2, 3, 0, 0, 0, 0, 0}) {
		t.Error("tail")
	}
	// The value is part of the wire: it never changes.
	if got := Digest(Sum(1, 0, []byte("0123456789abcdef"))).String(); got != goldenSum {
		t.Errorf("%s, want %s", got, goldenSum)
	}
}

// Every change of one word, every swap of two and another key changes the sum.
func TestSumNotices(t *testing.T) {
	b := randomBytes(5, 512)
	want := Sum(7, 0, b)
	if Sum(8, 0, b) == want || Sum(7, 1, b) == want {
		t.Error("key or position does not matter")
	}
	for i := range 8 * len(b) {
		b[i/8] ^= 1 << (i % 8)
		if Sum(7, 0, b) == want {
			t.Errorf("bit %d", i)
		}
		b[i/8] ^= 1 << (i % 8)
	}
	word := func(i int) []byte { return b[8*i : 8*i+8] }
	swap := func(i, j int) {
		was := binary.LittleEndian.Uint64(word(i))
		copy(word(i), word(j))
		binary.LittleEndian.PutUint64(word(j), was)
	}
	for i := range len(b) / 8 {
		for j := range i {
			swap(i, j)
			if Sum(7, 0, b) == want {
				t.Errorf("words %d and %d swapped", i, j)
			}
			swap(i, j)
		}
	}
}

func TestParseDigest(t *testing.T) {
	for _, d := range []Digest{0, 1, 1<<64 - 1} {
		if got, err := ParseDigest(d.String()); err != nil || got != d {
			t.Errorf("%s: %v %v", d, got, err)
		}
	}
	for _, s := range []string{"", "kvsum64:", "kvsum64:1", "kvsum64:000000000000000G", "kvsum64:000000000000000A", "sha256:0000000000000000", "0000000000000000", "kvsum64:00000000000000000"} {
		if _, err := ParseDigest(s); err == nil {
			t.Errorf("%q is accepted", s)
		}
	}
}

const goldenSum = "kvsum64:d9d83bebeb1f1566"
