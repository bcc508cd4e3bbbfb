package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/fstest"

	ranges "github.com/transparency-dev/merkle/compact"
	"github.com/transparency-dev/merkle/rfc6962"
	"golang.org/x/mod/sumdb/tlog"
)

// reference is tlog's own tree over the same leaves.
type reference []tlog.Hash

func (r *reference) ReadHashes(index []int64) ([]tlog.Hash, error) {
	out := make([]tlog.Hash, len(index))
	for i, x := range index {
		out[i] = (*r)[x]
	}
	return out, nil
}

func (r *reference) append(t *testing.T, n int64, leaf []byte) {
	t.Helper()
	h, err := tlog.StoredHashes(n, leaf, r)
	if err != nil {
		t.Fatal(err)
	}
	*r = append(*r, h...)
}

func leafOf(i int64) []byte { return fmt.Appendf(nil, "leaf %d", i) }

// The tree's roots and tiles are tlog's, at every size, and so they are after it
// was resumed anywhere.
func TestTreeIsTlogs(t *testing.T) {
	mem, ref := memory{fstest.MapFS{}}, &reference{}
	tree := NewTree(mem)
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range int64(66_200) {
		if err := tree.Append(leafOf(i)); err != nil {
			t.Fatal(err)
		}
		ref.append(t, i, leafOf(i))
		near := (i+2)%TileWidth < 4 || i > 65_500
		if !near && rnd.IntN(500) != 0 {
			continue
		}
		want, err := tlog.TreeHash(i+1, ref)
		if err != nil {
			t.Fatal(err)
		}
		if tree.Head() != (tlog.Tree{N: i + 1, Hash: want}) {
			t.Fatalf("size %d: another root than tlog's", i+1)
		}
		if rnd.IntN(8) != 0 {
			continue
		}
		if err := tree.Flush(); err != nil {
			t.Fatal(err)
		}
		if tree, err = ResumeTree(i+1, Tiles{mem.fs}, mem); err != nil {
			t.Fatal(err)
		}
		if tree.Root() != want {
			t.Fatalf("size %d: another root after resuming", i+1)
		}
	}
	if err := tree.Flush(); err != nil {
		t.Fatal(err)
	}
	for _, tile := range tlog.NewTiles(TileHeight, 0, tree.Size()) {
		want, err := tlog.ReadTileData(tile, ref)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := (Tiles{mem.fs}).Tile(tile); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: not tlog's (%v)", TilePath(tile), err)
		}
	}
	n := int64(65_700)
	for leaf, err := range (Tiles{mem.fs}).Leaves(n, tree.Size(), tree.Size()) {
		if err != nil || string(leaf) != string(leafOf(n)) {
			t.Fatalf("leaf %d: %q, %v", n, leaf, err)
		}
		n++
	}
	if n != tree.Size() {
		t.Errorf("read leaves up to %d of %d", n, tree.Size())
	}
}

// A whole tile stands for its partial ones, and only for a reader of the same
// log: hashes are checked against the root.
func TestTilesAreChecked(t *testing.T) {
	l := newTestLog(t, "log")
	l.fill(300)
	l.sign()
	head := l.tree.Head()
	for path := range l.mem.fs {
		if len(path) > 3 && path[len(path)-2:] == "44" { // the partial tiles of size 300
			continue
		}
		if _, err := ParseTilePath(path); err != nil {
			t.Error(err)
		}
	}
	if _, err := l.tiles().Tile(tlog.Tile{H: TileHeight, L: 0, N: 0, W: 7}); err != nil {
		t.Errorf("partial tile from the whole one: %v", err)
	}
	if _, err := l.tiles().Tile(tlog.Tile{H: TileHeight, L: 0, N: 1, W: 50}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a tile beyond the tree: %v", err)
	}
	p, err := ProveLeaf(head, 5, l.tiles().Hashes(head), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := tlog.CheckRecord(p.Path, head.N, head.Hash, 5, tlog.RecordHash(l.leaves[5])); err != nil {
		t.Error(err)
	}
	l.mem.fs["tile/0/000"].Data[9*tlog.HashSize] ^= 1
	if _, err := ProveLeaf(head, 5, l.tiles().Hashes(head), nil); err == nil {
		t.Error("a bit of a tile was flipped, and a proof made of it")
	}
}

// failing fails once, after left writes.
type failing struct{ left int }

func (f *failing) WriteTile(tlog.Tile, []byte) error {
	if f.left--; f.left == -1 {
		return errors.New("disk full")
	}
	return nil
}

// After a write failed the tree stays where the tiles are: nothing more goes in.
func TestTreeStopsAtAFailedWrite(t *testing.T) {
	for written := range 2 { // the leaves' tile fails, or the hashes'
		tree := NewTree(&failing{written})
		var err error
		for i := int64(0); err == nil && i < 1000; i++ {
			err = tree.Append(leafOf(i))
		}
		if err == nil || tree.Append(nil) == nil || tree.Flush() == nil {
			t.Errorf("append: %v; and then it went on", err)
		}
	}
	tree := NewTree(&failing{0})
	if tree.Append(nil) != nil || tree.Flush() == nil || tree.Append(nil) == nil {
		t.Error("a partial tile was not stored, and then it went on")
	}
	if err := NewTree(&failing{9}).Append(make([]byte, MaxLeaf+1)); err == nil {
		t.Error("a leaf went in that no tile can hold")
	}
}

func TestRangeProof(t *testing.T) {
	const size = 1234
	mem, ref := memory{fstest.MapFS{}}, &reference{}
	tree := NewTree(mem)
	var hashes []tlog.Hash
	for i := range int64(size) {
		if err := tree.Append(leafOf(i)); err != nil {
			t.Fatal(err)
		}
		ref.append(t, i, leafOf(i))
		hashes = append(hashes, tlog.RecordHash(leafOf(i)))
	}
	head := tree.Head()
	f := ranges.RangeFactory{Hash: rfc6962.DefaultHasher.HashChildren}
	rnd := rand.New(rand.NewPCG(3, 4))
	check := func(p *RangeProof, h []tlog.Hash) error {
		r := NewRangeCheck(p)
		for _, x := range h {
			r.Add(x)
		}
		return r.Check(head)
	}
	bounds := [][2]int64{{0, size}, {0, 0}, {size, size}, {0, 1}, {size - 1, size}, {1, size - 1}, {512, 1024}}
	for range 100 {
		a := rnd.Int64N(size)
		bounds = append(bounds, [2]int64{a, a + rnd.Int64N(size-a+1)})
	}
	for _, b := range bounds {
		from, to := b[0], b[1]
		p, err := ProveRange(from, to, head, ref)
		if err != nil {
			t.Fatal(err)
		}
		if q, err := ParseRangeProof(p.Text()); err != nil || string(q.Text()) != string(p.Text()) {
			t.Fatalf("[%d,%d): %v", from, to, err)
		}
		if err := check(p, hashes[from:to]); err != nil {
			t.Errorf("[%d,%d): %v", from, to, err)
		}
		// transparency-dev's compact ranges come to the same nodes and the same root.
		left, right := ranges.RangeNodes(0, uint64(from), nil), ranges.RangeNodes(uint64(to), size, nil)
		if len(left) != len(p.Left) || len(right) != len(p.Right) {
			t.Fatalf("[%d,%d): %d and %d hashes, compact has %d and %d", from, to, len(p.Left), len(p.Right), len(left), len(right))
		}
		joined := f.NewEmptyRange(0)
		for i, part := range [][]tlog.Hash{p.Left, hashes[from:to], p.Right} {
			raw := make([][]byte, len(part))
			for j := range part {
				raw[j] = part[j][:]
			}
			at := []uint64{0, uint64(from), uint64(to)}[i]
			end := []uint64{uint64(from), uint64(to), size}[i]
			r, err := f.NewRange(at, end, raw)
			if i == 1 {
				r = f.NewEmptyRange(at)
				for _, h := range raw {
					if err := r.Append(h, nil); err != nil {
						t.Fatal(err)
					}
				}
			} else if err != nil {
				t.Fatal(err)
			}
			if err := joined.AppendRange(r, nil); err != nil {
				t.Fatal(err)
			}
		}
		if root, err := joined.GetRootHash(nil); err != nil || tlog.Hash(root) != head.Hash {
			t.Errorf("[%d,%d): compact comes to another root (%v)", from, to, err)
		}
		if to-from < 2 {
			continue
		}
		swapped := slices.Clone(hashes[from:to])
		swapped[0], swapped[1] = swapped[1], swapped[0]
		for name, h := range map[string][]tlog.Hash{"dropped": hashes[from : to-1], "first dropped": hashes[from+1 : to], "swapped": swapped,
			"added": append(slices.Clone(hashes[from:to]), hashes[0])} {
			if check(p, h) == nil {
				t.Errorf("[%d,%d): accepted with a leaf %s", from, to, name)
			}
		}
	}
	if p, _ := ProveRange(10, 20, tlog.Tree{N: 100}, ref); p != nil && check(p, hashes[10:20]) == nil {
		t.Error("the proof for another size was accepted")
	}
	// Inner nodes are no leaves, though they lead to the same root.
	var halves [2]tlog.Hash
	for i, b := range [][2]int64{{0, 1024}, {1024, size}} {
		var c compact
		for _, h := range hashes[b[0]:b[1]] {
			c.push(0, h)
		}
		halves[i] = c.root()
	}
	if tlog.NodeHash(halves[0], halves[1]) != head.Hash {
		t.Fatal("the halves are not those of the root")
	}
	if check(&RangeProof{To: 2, Size: 2}, halves[:]) == nil {
		t.Error("two inner nodes were accepted as all leaves")
	}
	if n := len(spans(0, 450_000)) + len(spans(550_000, 1_000_000)); n != 25 {
		t.Errorf("100,000 leaves of a million take %d hashes", n)
	}
}

func TestConsistency(t *testing.T) {
	l := newTestLog(t, "log")
	heads := []tlog.Tree{l.tree.Head()}
	for range 40 {
		l.fill(17)
		heads = append(heads, l.tree.Head())
	}
	l.sign()
	now := l.tree.Head()
	other := newTestLog(t, "log")
	other.fill(700)
	for i, h := range heads {
		c, err := ProveConsistency(h.N, now, l.tiles().Hashes(now))
		if err != nil {
			t.Fatal(err)
		}
		if c, err = ParseConsistency(c.Text()); err != nil {
			t.Fatal(err)
		}
		if err := c.Verify(h, now); err != nil {
			t.Errorf("from %d: %v", h.N, err)
		}
		forked := h
		forked.Hash[3] ^= 4
		if err := c.Verify(forked, now); !errors.Is(err, ErrInconsistent) {
			t.Errorf("from %d: a fork: %v", h.N, err)
		}
		if err := c.Verify(heads[(i+1)%len(heads)], now); !errors.Is(err, ErrInconsistent) {
			t.Errorf("from %d: the proof of another size: %v", h.N, err)
		}
		c.Hashes = append(c.Hashes, tlog.Hash{})
		if err := c.Verify(h, now); !errors.Is(err, ErrInconsistent) {
			t.Errorf("from %d: a hash too many: %v", h.N, err)
		}
	}
	if _, err := ProveConsistency(now.N+1, now, nil); err == nil {
		t.Error("a proof from beyond the tree")
	}
	if err := (&Consistency{From: 9, To: 3}).Verify(tlog.Tree{N: 9}, tlog.Tree{N: 3}); !errors.Is(err, ErrInconsistent) {
		t.Errorf("a tree that shrank: %v", err)
	}
	for _, bad := range []string{"{}\n", "null\n", `{"from":0,"to":0,"hashes":null}` + "\n", `{"from":0,"to":0,"hashes":[]}`,
		`{"from":0,"from":0,"to":0,"hashes":[]}` + "\n", `{"From":0,"to":0,"hashes":[]}` + "\n", `{"from":0, "to":0,"hashes":[]}` + "\n"} {
		if _, err := ParseConsistency([]byte(bad)); !errors.Is(err, ErrJSON) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
