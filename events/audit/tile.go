package audit

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"strings"

	"golang.org/x/mod/sumdb/tlog"
)

// TileHeight is the height of tiles, TileWidth the number of hashes, or of
// leaves, that a whole one holds.
const (
	TileHeight = 8
	TileWidth  = 1 << TileHeight
)

// EntriesLevel is the level of tiles that hold leaves in place of hashes.
const EntriesLevel = -1

// TilePath names a tile's file, relative to the log's directory.
func TilePath(t tlog.Tile) string {
	p := t.Path()
	if t.L == EntriesLevel {
		return "tile/entries/" + strings.TrimPrefix(p, "tile/8/data/")
	}
	return "tile/" + strings.TrimPrefix(p, "tile/8/")
}

// ParseTilePath reverses [TilePath].
func ParseTilePath(path string) (tlog.Tile, error) {
	rest, ok := strings.CutPrefix(path, "tile/entries/")
	if ok {
		rest = "tile/8/data/" + rest
	} else {
		rest = "tile/8/" + strings.TrimPrefix(path, "tile/")
	}
	t, err := tlog.ParseTilePath(rest)
	if err != nil || TilePath(t) != path {
		return tlog.Tile{}, fmt.Errorf("tile path %q: want tile/<level or \"entries\">/<index>[.p/<width>]", path)
	}
	return t, nil
}

// EntryTile is the tile of leaves that holds leaf index, as wide as a tree of the
// given size has it.
func EntryTile(index, size int64) tlog.Tile { return tileAt(EntriesLevel, index>>TileHeight, size) }

// tileAt is the n-th tile of a level in a tree of the given size.
func tileAt(level int, n, size int64) tlog.Tile {
	hashes := size >> (TileHeight * max(level, 0))
	return tlog.Tile{H: TileHeight, L: level, N: n, W: int(min(hashes-n<<TileHeight, TileWidth))}
}

// appendEntry appends a leaf as tiles hold it.
func appendEntry(b, leaf []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(leaf)))
	return append(b, leaf...)
}

// cutEntry takes the first leaf off a tile.
func cutEntry(tile []byte) (leaf, rest []byte, err error) {
	if len(tile) < 2 || len(tile)-2 < int(binary.BigEndian.Uint16(tile)) {
		return nil, nil, errors.New("tile of leaves ends within one")
	}
	n := 2 + int(binary.BigEndian.Uint16(tile))
	return tile[2:n], tile[n:], nil
}

// Tiles reads a log's directory. What it reads is not checked against anything:
// see [Tiles.Hashes].
type Tiles struct{ FS fs.FS }

// Tile is a tile's content. A partial tile that is gone is cut from the whole
// tile, for which a log may drop it.
func (t Tiles) Tile(tile tlog.Tile) ([]byte, error) {
	b, err := fs.ReadFile(t.FS, TilePath(tile))
	if errors.Is(err, fs.ErrNotExist) && tile.W < TileWidth {
		whole := tile
		whole.W = TileWidth
		if w, werr := fs.ReadFile(t.FS, TilePath(whole)); werr == nil {
			b, err = w, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("tile: %w", err)
	}
	if tile.L == EntriesLevel {
		return b, nil
	}
	if want := tile.W * tlog.HashSize; len(b) == want || len(b) == TileWidth*tlog.HashSize {
		return b[:want], nil
	}
	return nil, fmt.Errorf("tile %s: %d bytes, want %d", TilePath(tile), len(b), tile.W*tlog.HashSize)
}

// Hashes reads hashes of the tree, each checked against its root: an error is one
// in the tiles.
func (t Tiles) Hashes(tree tlog.Tree) tlog.HashReader {
	return tlog.TileHashReader(tree, checkedTiles{t})
}

// checkedTiles is what tlog checks tiles through.
type checkedTiles struct{ Tiles }

func (checkedTiles) Height() int                     { return TileHeight }
func (checkedTiles) SaveTiles([]tlog.Tile, [][]byte) {}

func (t checkedTiles) ReadTiles(tiles []tlog.Tile) ([][]byte, error) {
	data := make([][]byte, len(tiles))
	for i, tile := range tiles {
		b, err := t.Tile(tile)
		if err != nil {
			return nil, err
		}
		data[i] = b
	}
	return data, nil
}

// Leaves reads the leaves from to to-1 of a tree of the given size. They are
// valid until the next. They are not checked against the tree.
func (t Tiles) Leaves(from, to, size int64) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for at := from; at < to; {
			b, err := t.Tile(EntryTile(at, size))
			for i := at &^ (TileWidth - 1); err == nil && i < min(to, at&^(TileWidth-1)+TileWidth); i++ {
				var leaf []byte
				if leaf, b, err = cutEntry(b); err == nil && i >= at && !yield(leaf, nil) {
					return
				}
			}
			if err != nil {
				yield(nil, fmt.Errorf("leaves from %d: %w", at, err))
				return
			}
			at = at&^(TileWidth-1) + TileWidth
		}
	}
}

// Leaf reads one leaf of a tree of the given size.
func (t Tiles) Leaf(index, size int64) ([]byte, error) {
	if index < 0 || index >= size {
		return nil, fmt.Errorf("leaf %d: the tree has %d", index, size)
	}
	for leaf, err := range t.Leaves(index, index+1, size) {
		return leaf, err
	}
	return nil, errors.New("leaf: the range is empty") // not reached: the range holds one
}

// LeafHashes reads the hashes of leaves from to to-1, unchecked.
func (t Tiles) LeafHashes(from, to, size int64) iter.Seq2[tlog.Hash, error] {
	return func(yield func(tlog.Hash, error) bool) {
		for at := from; at < to; {
			first := at &^ (TileWidth - 1)
			b, err := t.Tile(tileAt(0, at>>TileHeight, size))
			if err != nil {
				yield(tlog.Hash{}, fmt.Errorf("hashes from %d: %w", at, err))
				return
			}
			for ; at < min(to, first+TileWidth); at++ {
				if !yield(tlog.Hash(b[(at-first)*tlog.HashSize:][:tlog.HashSize]), nil) {
					return
				}
			}
		}
	}
}
