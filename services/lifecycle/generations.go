package lifecycle

import (
	"errors"
	"io"
	"os"
	"sync"
)

// generations are the snapshots on this replica's disk: the newest, and the one
// before it, each synced. What a start may have to stand on is the older one, so
// the log keeps what is behind that.
type generations struct {
	path, olderPath string // "": none are kept

	mu            sync.Mutex // of the positions, and while files get other names
	newest, older uint64     // positions; 0: there is none
}

// write makes a newest one, at a position of the log.
func (g *generations) write(at uint64, fill func(io.Writer) error) error {
	if g.path == "" {
		return nil
	}
	err := writeAtomic(g.path, g.olderPath, &g.mu, fill)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		// The newest may have got the older one's name before the error.
		if _, err := os.Stat(g.path); errors.Is(err, os.ErrNotExist) {
			g.newest, g.older = 0, 0
		}
		return err
	}
	g.newest, g.older = at, g.newest
	return nil
}

// found says what a start has found.
func (g *generations) found(newest, older uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.newest, g.older = newest, older
}

// floor is the position of the older one, 0 unless there are two.
func (g *generations) floor() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return min(g.newest, g.older)
}

// uneven says whether the two stand at different positions, or there is one: the log
// is kept for the older one.
func (g *generations) uneven() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.newest != g.older
}

// open opens the one that stands at a position; 0: the newest. It stays whole when
// others are written.
func (g *generations) open(at uint64) (*os.File, uint64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	path := g.path
	switch {
	case g.newest == 0 || path == "":
		return nil, 0, os.ErrNotExist
	case at == 0 || at == g.newest:
		at = g.newest
	case at == g.older:
		path = g.olderPath
	default:
		return nil, 0, os.ErrNotExist
	}
	f, err := os.Open(path)
	return f, at, err
}
