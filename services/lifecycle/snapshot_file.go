package lifecycle

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// The file of a snapshot is snapshotMagic, the format's number, the head,
// operations, and the partitions, in the binary form; and after it the HMAC of
// all of that under the log key. Neither side holds it in memory.
const (
	snapshotName    = "lifecycle.snapshot"
	snapshotOlder   = "lifecycle.snapshot.older"
	snapshotMagic   = "pdgate lifecycle snapshot\n"
	snapshotFormat  = 4
	snapshotContext = "pdgate lifecycle snapshot\x00" // what the seal is for, before what it is of
)

// snapshotHead says where in which log a snapshot stands.
type snapshotHead struct {
	followed   uint64 // the position that the follower had reached
	mac        string // of the envelope there, which another log does not have there
	secret     string // a digest that tells one digest secret from another
	partitions int
}

func formHead(f *form, h *snapshotHead) {
	number(f, &h.followed)
	text(f, &h.mac)
	text(f, &h.secret)
	number(f, &h.partitions)
}

func newSeal(key []byte) hash.Hash {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(snapshotContext))
	return m
}

// sealed writes what fill does, and its seal.
func sealed(w io.Writer, key []byte, fill func(*form) error) error {
	seal := newSeal(key)
	f := writeForm(io.MultiWriter(w, seal))
	f.put([]byte(snapshotMagic))
	f.uint(snapshotFormat)
	if err := errors.Join(fill(f), f.err, f.w.Flush()); err != nil {
		return err
	}
	_, err := w.Write(seal.Sum(nil))
	return err
}

// writeAtomic replaces a file whole, and keeps the one that was there as older. A
// crash leaves the file that was there under one of the two names, and the new one
// whole or not at all. What else a crash leaves has always the same name, and is
// written over: crashes fill no disk. names is held while names change.
func writeAtomic(path, older string, names sync.Locker, fill func(io.Writer) error) error {
	tmp, err := os.OpenFile(path+".tmp", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // gone after the rename
	if err = fill(tmp); err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	names.Lock()
	defer names.Unlock()
	if err := os.Rename(path, older); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer dir.Close()
	return dir.Sync()
}

var errSnapshot = errors.New("file is damaged, or of another installation")

// snapshotReader is a file whose seal and format are right, and whose head was
// read.
type snapshotReader struct {
	head snapshotHead
	form *form
	file *os.File
}

func (r *snapshotReader) Close() error { return r.file.Close() }

// openSnapshot checks the seal over the whole file before anything of it is
// read.
func openSnapshot(path string, key []byte) (*snapshotReader, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	r := &snapshotReader{file: file}
	if err := r.check(key); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return r, nil
}

func (r *snapshotReader) check(key []byte) error {
	seal := newSeal(key)
	info, err := r.file.Stat()
	if err != nil {
		return err
	}
	size := info.Size() - int64(seal.Size())
	if size < 0 {
		return errSnapshot
	}
	if _, err := io.Copy(seal, io.NewSectionReader(r.file, 0, size)); err != nil {
		return err
	}
	have := make([]byte, seal.Size())
	if _, err := r.file.ReadAt(have, size); err != nil {
		return err
	}
	if !hmac.Equal(have, seal.Sum(nil)) {
		return errSnapshot
	}
	f := readForm(io.NewSectionReader(r.file, 0, size))
	if string(f.get(uint64(len(snapshotMagic)))) != snapshotMagic {
		f.bad()
	}
	if format := f.uint(0); f.err == nil && format != snapshotFormat {
		return fmt.Errorf("format %d, this build has %d", format, snapshotFormat)
	}
	formHead(f, &r.head)
	r.form = f
	return f.err
}

// snapshotState is what a snapshot holds besides its head.
type snapshotState struct {
	opsApplied uint64
	ops        statemachine.Ops
	partitions []snapshotPartition
}

// state reads the rest of the file, to its end.
func (r *snapshotReader) state() (*snapshotState, error) {
	f := r.form
	st := &snapshotState{}
	number(f, &st.opsApplied)
	formOps(f, &st.ops)
	for i := 0; i < r.head.partitions && f.err == nil; i++ {
		var p snapshotPartition
		formPartition(f, &p)
		for _, all := range [][]snapshotEntry{p.open, p.closed} {
			for _, e := range all {
				if events.PartitionOf(e.r.ID, r.head.partitions) != i {
					f.bad()
				}
			}
		}
		st.partitions = append(st.partitions, p)
	}
	if f.err == nil {
		if _, err := f.r.ReadByte(); !errors.Is(err, io.EOF) {
			f.bad()
		}
	}
	return st, f.err
}

// readSnapshot reads and checks the file whole before anything of it is used.
func (s *Service) readSnapshot(ctx context.Context, path string) (uint64, *snapshotState, error) {
	r, err := openSnapshot(path, s.cfg.LogKey)
	if err != nil {
		return 0, nil, err
	}
	defer r.Close()
	at := r.head.followed
	if r.head.partitions != len(s.nodes) {
		return 0, nil, fmt.Errorf("%d partitions, the log has %d", r.head.partitions, len(s.nodes))
	}
	mac, err := s.macAt(ctx, at)
	if err != nil {
		return 0, nil, fmt.Errorf("log at %d: %w", at, err)
	}
	if mac != r.head.mac {
		return 0, nil, errors.New("it is of another log")
	}
	st, err := r.state()
	return at, st, err
}
