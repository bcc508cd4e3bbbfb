package audit

import (
	"fmt"

	"golang.org/x/mod/sumdb/tlog"
)

// TileWriter stores tiles. data is valid during the call only.
type TileWriter interface {
	WriteTile(t tlog.Tile, data []byte) error
}

// Tree grows a log: leaves go in, tiles come out. It holds the right edge only,
// one tile a level. One goroutine uses it.
//
// A crash costs nothing: the tree is resumed at the size of the last checkpoint,
// whose tiles were stored before it was signed, and tiles that were stored after
// it are written again with the same bytes.
type Tree struct {
	w       TileWriter
	size    int64
	entries []byte
	levels  [][]byte // the hashes of each level's last tile; never a whole one
	flushed int64    // size at the last Flush
	err     error    // after a failed write the tree takes nothing more
}

// NewTree is a tree without leaves.
func NewTree(w TileWriter) *Tree { return &Tree{w: w} }

// ResumeTree is the tree of the first size leaves, from the tiles of its right
// edge. It trusts them: the caller compares [Tree.Root] with the last checkpoint.
func ResumeTree(size int64, tiles Tiles, w TileWriter) (*Tree, error) {
	t := &Tree{w: w, size: size, flushed: size}
	if n := size >> TileHeight; size > n<<TileHeight {
		b, err := tiles.Tile(tileAt(EntriesLevel, n, size))
		if err != nil {
			return nil, fmt.Errorf("resume at size %d: %w", size, err)
		}
		rest := b
		for range size - n<<TileHeight {
			if _, rest, err = cutEntry(rest); err != nil {
				return nil, fmt.Errorf("resume at size %d: %w", size, err)
			}
		}
		t.entries = append(t.entries, b[:len(b)-len(rest)]...)
	}
	for level := 0; size>>(TileHeight*level) > 0; level++ {
		hashes := size >> (TileHeight * level)
		var b []byte
		if n := hashes >> TileHeight; hashes > n<<TileHeight {
			var err error
			if b, err = tiles.Tile(tileAt(level, n, size)); err != nil {
				return nil, fmt.Errorf("resume at size %d: %w", size, err)
			}
		}
		t.levels = append(t.levels, append(make([]byte, 0, TileWidth*tlog.HashSize), b...))
	}
	return t, nil
}

// Size is the number of leaves.
func (t *Tree) Size() int64 { return t.size }

// Append adds a leaf, and stores the tiles that it completes.
func (t *Tree) Append(leaf []byte) error {
	if t.err != nil {
		return t.err
	}
	if len(leaf) > MaxLeaf {
		return fmt.Errorf("leaf of %d bytes: want %d at most", len(leaf), MaxLeaf)
	}
	t.entries = appendEntry(t.entries, leaf)
	t.size++
	if t.size%TileWidth == 0 {
		if err := t.write(EntriesLevel, t.size>>TileHeight-1, t.entries); err != nil {
			return err
		}
		t.entries = t.entries[:0]
	}
	return t.push(0, tlog.RecordHash(leaf))
}

// push adds a hash to a level; a whole tile is one hash of the level above.
func (t *Tree) push(level int, h tlog.Hash) error {
	if level == len(t.levels) {
		t.levels = append(t.levels, make([]byte, 0, TileWidth*tlog.HashSize))
	}
	b := append(t.levels[level], h[:]...)
	if len(b) < TileWidth*tlog.HashSize {
		t.levels[level] = b
		return nil
	}
	if err := t.write(level, t.size>>(TileHeight*(level+1))-1, b); err != nil {
		return err
	}
	t.levels[level] = b[:0]
	var c compact
	c.pushTile(b)
	return t.push(level+1, c.root())
}

// Flush stores the partial tiles of the tree as it is. After it the tiles hold
// everything that a checkpoint of this size promises.
func (t *Tree) Flush() error {
	if t.err != nil {
		return t.err
	}
	if n := t.size >> TileHeight; len(t.entries) > 0 && t.size != t.flushed {
		if err := t.write(EntriesLevel, n, t.entries); err != nil {
			return err
		}
	}
	for level, b := range t.levels {
		shift := TileHeight * level
		if len(b) == 0 || t.size>>shift == t.flushed>>shift {
			continue
		}
		if err := t.write(level, t.size>>(shift+TileHeight), b); err != nil {
			return err
		}
	}
	t.flushed = t.size
	return nil
}

func (t *Tree) write(level int, n int64, data []byte) error {
	tile := tlog.Tile{H: TileHeight, L: level, N: n, W: len(data) / tlog.HashSize}
	if level == EntriesLevel {
		tile.W = int(t.size - n<<TileHeight)
	}
	if err := t.w.WriteTile(tile, data); err != nil {
		t.err = fmt.Errorf("write %s: %w", TilePath(tile), err)
	}
	return t.err
}

// Root is the root at the present size.
func (t *Tree) Root() tlog.Hash {
	var c compact
	for level := len(t.levels) - 1; level >= 0; level-- {
		c.base = TileHeight * level
		c.pushTile(t.levels[level])
	}
	return c.root()
}

// Head is the tree's size and root.
func (t *Tree) Head() tlog.Tree { return tlog.Tree{N: t.size, Hash: t.Root()} }
