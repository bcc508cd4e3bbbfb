package auditor

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"sort"
	"syscall"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events/audit"
)

// Files of a replica's directory, beside the tiles.
const (
	stateFile      = "state.json"
	indexFile      = "index/messages"
	checkpointFile = "checkpoint"          // the last one signed that this replica knows of
	cosignedFile   = "checkpoint.cosigned" // the last one with a quorum of witnesses
	keyFile        = "log.vkey"            // what checks its signature
	lockFile       = "lock"
)

// ErrDirectory is what every error is that a person must mend in a replica's
// directory, or by giving it another one.
var ErrDirectory = errors.New("auditor's directory")

func (s *store) bad(name, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %w", ErrDirectory, filepath.Join(s.dir, name), fmt.Errorf(format, args...))
}

// restore is the remedy for damage: everything here can be had again.
const restore = "remove the directory, and the tree is built again from the stream; or restore it from a backup or another replica"

// state is what is committed: the tree of the first Size leaves is in the tiles,
// and holds all of the stream before Next.
type state struct {
	Origin string    `json:"origin"`
	Size   int64     `json:"size"`
	Root   tlog.Hash `json:"root"`
	Next   uint64    `json:"next"`  // stream sequence to follow from
	Index  int64     `json:"index"` // records of the index
}

func (s *state) head() tlog.Tree { return tlog.Tree{N: s.Size, Hash: s.Root} }

// store is a replica's directory. One goroutine writes; what is committed may be
// read by any.
type store struct {
	dir   string
	lock  *os.File
	index *os.File
	tiles audit.Tiles
	step  func(point string) error

	count   int64           // index records, committed or not
	pending []byte          // index records that are not written
	dirs    map[string]bool // directories with names that are not on disk for sure
	whole   []string        // tiles that became whole since the last commit
}

// openStore takes the directory for this process.
func openStore(dir string, step func(string) error) (*store, error) {
	if err := os.MkdirAll(filepath.Join(dir, "index"), 0o700); err != nil {
		return nil, fmt.Errorf("auditor's directory: %w", err)
	}
	s := &store{dir: dir, tiles: audit.Tiles{FS: os.DirFS(dir)}, step: step, dirs: map[string]bool{}}
	var err error
	if s.lock, err = os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, fmt.Errorf("auditor's directory is not writable: %w", err)
	}
	// The kernel's lock ends with the process, however that ends.
	if err := syscall.Flock(int(s.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		s.lock.Close()
		return nil, s.bad(lockFile, "another auditor runs on this directory; stop it, or give this one a directory of its own")
	}
	if s.index, err = os.OpenFile(filepath.Join(dir, indexFile), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		s.lock.Close()
		return nil, fmt.Errorf("open index: %w", err)
	}
	return s, nil
}

func (s *store) close() error { return errors.Join(s.index.Close(), s.lock.Close()) }

// load reads what is committed, and cuts off what is not. A directory in which
// nothing was ever committed gives nil.
func (s *store) load() (*state, error) {
	b, err := os.ReadFile(filepath.Join(s.dir, stateFile))
	if errors.Is(err, fs.ErrNotExist) {
		// checkpoint comes after state.json, always.
		if _, err := os.Stat(filepath.Join(s.dir, checkpointFile)); err == nil {
			return nil, s.bad(stateFile, "it is missing beside a signed checkpoint: %s", restore)
		}
		return nil, s.cut(0)
	}
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	var st state
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	if err := d.Decode(&st); err != nil {
		return nil, s.bad(stateFile, "it is damaged: %w; %s", err, restore)
	}
	if st.Size < 0 || st.Next == 0 || st.Index < 0 || st.Origin == "" {
		return nil, s.bad(stateFile, "it is damaged; %s", restore)
	}
	fi, err := s.index.Stat()
	if err != nil {
		return nil, fmt.Errorf("index: %w", err)
	}
	if fi.Size() < st.Index*recordBytes {
		return nil, s.bad(indexFile, "it has %d bytes, state.json counts %d records of %d; %s", fi.Size(), st.Index, recordBytes, restore)
	}
	return &st, s.cut(st.Index)
}

// cut drops index records that no state counts.
func (s *store) cut(records int64) error {
	if err := s.index.Truncate(records * recordBytes); err != nil {
		return fmt.Errorf("cut index: %w", err)
	}
	s.count = records
	return nil
}

// resume makes the tree of a state from its right edge, and checks it.
func (s *store) resume(st *state) (*audit.Tree, error) {
	if st.Size == 0 {
		return audit.NewTree(s), nil
	}
	t, err := audit.ResumeTree(st.Size, s.tiles, s)
	if err != nil {
		return nil, s.bad("tile", "%w; %s", err, restore)
	}
	if t.Root() != st.Root {
		return nil, s.bad("tile", "the tiles at size %d have root %s, state.json has %s; %s", st.Size, t.Root(), st.Root, restore)
	}
	return t, s.checkEntries(st)
}

// checkEntries holds the last tile of entries against their hashes: those of it are
// written again with each leaf that follows.
func (s *store) checkEntries(st *state) error {
	from := (st.Size - 1) &^ (audit.TileWidth - 1)
	hashes, stop := iter.Pull2(s.tiles.LeafHashes(from, st.Size, st.Size))
	defer stop()
	for leaf, err := range s.tiles.Leaves(from, st.Size, st.Size) {
		h, herr, _ := hashes()
		if err = errors.Join(err, herr); err == nil && tlog.RecordHash(leaf) != h {
			err = errors.New("an entry is not the one that was hashed")
		}
		if err != nil {
			return s.bad(audit.TilePath(audit.EntryTile(from, st.Size)), "%w; %s", err, restore)
		}
	}
	return nil
}

// WriteTile implements audit.TileWriter.
func (s *store) WriteTile(t tlog.Tile, data []byte) error {
	if err := s.step("tile"); err != nil {
		return err
	}
	path := audit.TilePath(t)
	if t.W == audit.TileWidth {
		s.whole = append(s.whole, path)
	}
	return s.write(path, data)
}

// write replaces a file all at once; its name is durable after [store.syncDirs].
func (s *store) write(name string, data []byte) error {
	path := filepath.Join(s.dir, name)
	dir := filepath.Dir(path)
	if !s.dirs[dir] {
		if err := s.mkdir(dir); err != nil {
			return err
		}
	}
	// One writer, so a fixed name is enough, and a crash leaves one such file at
	// most.
	tmp := filepath.Join(s.dir, "new")
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w: free disk space, or mend the disk, and start again; what is signed is safe", path, err)
	}
	s.dirs[dir] = true
	return nil
}

// mkdir makes dir, and remembers the parents whose new names must be synced.
func (s *store) mkdir(dir string) error {
	for d := dir; ; d = filepath.Dir(d) {
		s.dirs[d] = true
		if _, err := os.Stat(d); err == nil || d == s.dir {
			break
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	return nil
}

// syncDirs makes the names of written files durable.
func (s *store) syncDirs() error {
	for dir := range s.dirs {
		if err := syncDir(dir); err != nil {
			return err
		}
		delete(s.dirs, dir)
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// commit makes everything up to st durable, st last.
func (s *store) commit(st *state) error {
	if err := s.step("index"); err != nil {
		return err
	}
	at := s.count*recordBytes - int64(len(s.pending))
	if _, err := s.index.WriteAt(s.pending, at); err != nil {
		return fmt.Errorf("write index: %w", err)
	}
	if err := s.index.Sync(); err != nil {
		return fmt.Errorf("sync index: %w", err)
	}
	s.pending = s.pending[:0]
	if err := s.step("directories"); err != nil {
		return err
	}
	if err := s.syncDirs(); err != nil {
		return err
	}
	if err := s.step("state"); err != nil {
		return err
	}
	st.Index = s.count
	b, err := json.Marshal(st)
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	if err := s.put(stateFile, append(b, '\n')); err != nil {
		return err
	}
	if err := s.step("prune"); err != nil {
		return err
	}
	// What a whole tile holds needs no partial ones. Some that stay cost room.
	for _, path := range s.whole {
		_ = os.RemoveAll(filepath.Join(s.dir, path+".p"))
	}
	s.whole = s.whole[:0]
	return nil
}

// put replaces a file durably.
func (s *store) put(name string, data []byte) error {
	if err := s.write(name, data); err != nil {
		return err
	}
	return s.syncDirs()
}

// recordBytes is the length of an index record: the stream sequence of a message,
// or the first one of a gap, and the index of its first leaf, both big-endian.
const recordBytes = 16

// add notes that the next leaf is the first one of a message.
func (s *store) add(seq uint64, leaf int64) {
	s.pending = binary.BigEndian.AppendUint64(s.pending, seq)
	s.pending = binary.BigEndian.AppendUint64(s.pending, uint64(leaf))
	s.count++
}

// record reads a committed index record.
func (s *store) record(i int64) (seq uint64, leaf int64, err error) {
	var b [recordBytes]byte
	if _, err := s.index.ReadAt(b[:], i*recordBytes); err != nil && !errors.Is(err, io.EOF) {
		return 0, 0, fmt.Errorf("read index: %w", err)
	}
	return binary.BigEndian.Uint64(b[:]), int64(binary.BigEndian.Uint64(b[8:])), nil
}

// seqOf is the stream sequence of the message that a leaf is of; of a gap, its
// first. leaf must be within the state.
func (s *store) seqOf(st *state, leaf int64) (uint64, error) {
	var failed error
	i := int64(sort.Search(int(st.Index), func(i int) bool {
		_, at, err := s.record(int64(i))
		failed = errors.Join(failed, err)
		return at > leaf
	})) - 1
	if failed != nil {
		return 0, failed
	}
	if i < 0 {
		return 0, s.bad(indexFile, "it has no record of leaf %d; %s", leaf, restore)
	}
	seq, _, err := s.record(i)
	return seq, err
}

// leaves are the leaves of the message with a sequence, or of the gap that it is
// in: from up to and without to. seq must be within the state.
func (s *store) leaves(st *state, seq uint64) (from, to int64, err error) {
	var failed error
	// The last record whose sequence is not above seq.
	i := int64(sort.Search(int(st.Index), func(i int) bool {
		at, _, err := s.record(int64(i))
		failed = errors.Join(failed, err)
		return at > seq
	})) - 1
	if failed != nil {
		return 0, 0, failed
	}
	if i < 0 {
		return 0, 0, s.bad(indexFile, "it has no record of sequence %d; %s", seq, restore)
	}
	if _, from, err = s.record(i); err != nil {
		return 0, 0, err
	}
	to = st.Size
	if i+1 < st.Index {
		if _, to, err = s.record(i + 1); err != nil {
			return 0, 0, err
		}
	}
	if from < 0 || from >= to || to > st.Size {
		return 0, 0, s.bad(indexFile, "record %d is damaged; %s", i, restore)
	}
	return from, to, nil
}
