package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	auditlog "github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/services/auditor"
)

// logSource is where an export reads the tree: files by the names that they have in
// an auditor's directory, and the index of messages.
type logSource struct {
	files fs.FS
	index indexReader
}

// indexReader reads the index of messages. size is its length in bytes.
type indexReader interface {
	io.ReaderAt
	size() (int64, error)
}

// indexRecord is the length of a record: a stream sequence and the index of the
// message's first leaf, both big-endian.
const indexRecord = 16

func (s *logSource) record(i int64) (seq uint64, leaf int64, err error) {
	var b [indexRecord]byte
	if _, err := s.index.ReadAt(b[:], i*indexRecord); err != nil {
		return 0, 0, fmt.Errorf("index of messages: %w", err)
	}
	return binary.BigEndian.Uint64(b[:]), int64(binary.BigEndian.Uint64(b[8:])), nil
}

// search is the number of records for which before holds, which none does behind
// one that it does not hold for.
func (s *logSource) search(before func(seq uint64, leaf int64) (bool, error)) (int64, error) {
	size, err := s.index.size()
	if err != nil {
		return 0, fmt.Errorf("index of messages: %w", err)
	}
	n := sort.Search(int(size/indexRecord), func(i int) bool {
		if err != nil {
			return true
		}
		var seq uint64
		var leaf int64
		if seq, leaf, err = s.record(int64(i)); err != nil {
			return true
		}
		var yes bool
		yes, err = before(seq, leaf)
		return !yes
	})
	return int64(n), err
}

// leafOf is the index of the first leaf of what the stream has at seq or behind it,
// and size where there is nothing.
func (s *logSource) leafOf(seq uint64, size int64) (int64, error) {
	i, err := s.search(func(at uint64, _ int64) (bool, error) { return at < seq, nil })
	if err != nil {
		return 0, err
	}
	if end, err := s.index.size(); err != nil || i == end/indexRecord {
		return size, err
	}
	_, leaf, err := s.record(i)
	return min(leaf, size), err
}

// dirSource is an auditor's directory, or a copy of one.
func dirSource(dir string) (*logSource, io.Closer, error) {
	f, err := os.Open(filepath.Join(dir, "index", "messages"))
	if err != nil {
		return nil, nil, fmt.Errorf("dir: want an auditor's directory: %w", err)
	}
	return &logSource{files: os.DirFS(dir), index: indexFile{f}}, f, nil
}

type indexFile struct{ *os.File }

func (f indexFile) size() (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

// webSource is an auditor's read API. It is made for one export, and its context is
// the export's: fs.FS has no other way.
type webSource struct {
	ctx      context.Context
	url      string
	token    string
	client   *http.Client
	export   string        // position of the event that records the export
	patience time.Duration // how long a read is tried again
	length   int64         // of the index; 0: not known
	page     []byte        // of the index, from at on
	at       int64
}

const (
	maxReply  = 32 << 20 // a tile of the longest entries
	indexPage = 64 << 10
)

// statusError is an answer that is no success.
type statusError struct {
	status int
	path   string
	say    string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("auditor: %s: HTTP %d: %s", e.path, e.status, e.say)
}

func (e *statusError) Is(target error) bool {
	return target == fs.ErrNotExist && e.status == http.StatusNotFound
}

// passing says whether asking again may help.
func passing(err error) bool {
	var status *statusError
	return !errors.As(err, &status) || status.status >= 500 || status.status == http.StatusTooManyRequests
}

// do sends one request, again and again while it may help.
func (w *webSource) do(method, path string, body []byte, header map[string]string) ([]byte, http.Header, error) {
	end := time.Now().Add(w.patience)
	for pause := 100 * time.Millisecond; ; pause = min(2*pause, 2*time.Second) {
		b, h, err := w.once(method, path, body, header)
		if err == nil || !passing(err) || w.ctx.Err() != nil || time.Now().Add(pause).After(end) {
			return b, h, err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-w.ctx.Done():
			t.Stop()
			return nil, nil, w.ctx.Err()
		}
	}
}

func (w *webSource) once(method, path string, body []byte, header map[string]string) ([]byte, http.Header, error) {
	req, err := http.NewRequestWithContext(w.ctx, method, w.url+"/"+path, bytes.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	if w.token != "" {
		req.Header.Set("Authorization", "Bearer "+w.token)
	}
	for k, v := range header {
		req.Header.Set(k, v)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		return nil, nil, fmt.Errorf("auditor: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return nil, nil, fmt.Errorf("auditor: %s: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent {
		var say struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(b, &say) // another server's answer has none
		return nil, nil, &statusError{resp.StatusCode, path, say.Message}
	}
	return b, resp.Header, nil
}

// Open implements fs.FS; only ReadFile is used.
func (w *webSource) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.ErrUnsupported}
}

// ReadFile implements fs.ReadFileFS.
func (w *webSource) ReadFile(name string) ([]byte, error) {
	header := map[string]string{}
	if w.export != "" && strings.HasPrefix(name, "tile/entries/") {
		header[auditor.ExportHeader] = w.export
	}
	b, _, err := w.do(http.MethodGet, name, nil, header)
	return b, err
}

// load reads a page of the index around a position.
func (w *webSource) load(at int64) error {
	at -= at % indexRecord
	b, h, err := w.do(http.MethodGet, "index/messages", nil, map[string]string{"Range": fmt.Sprintf("bytes=%d-%d", at, at+indexPage-1)})
	if err != nil {
		return err
	}
	_, total, _ := strings.Cut(h.Get("Content-Range"), "/")
	if w.length, err = strconv.ParseInt(total, 10, 64); err != nil {
		return fmt.Errorf("auditor: index/messages: no range in the answer")
	}
	w.page, w.at = b, at
	return nil
}

func (w *webSource) size() (int64, error) {
	if w.length == 0 {
		if err := w.load(0); err != nil {
			return 0, err
		}
	}
	return w.length, nil
}

// ReadAt implements io.ReaderAt for whole records.
func (w *webSource) ReadAt(b []byte, off int64) (int, error) {
	if off < w.at || off+int64(len(b)) > w.at+int64(len(w.page)) {
		if err := w.load(off); err != nil {
			return 0, err
		}
	}
	if off+int64(len(b)) > w.at+int64(len(w.page)) {
		return 0, io.ErrUnexpectedEOF
	}
	return copy(b, w.page[off-w.at:]), nil
}

// record asks the auditor to record the export, and returns where it is recorded.
func (w *webSource) record(q auditor.ExportQuery) (string, error) {
	body, err := json.Marshal(q)
	if err != nil {
		return "", err
	}
	b, _, err := w.do(http.MethodPost, "export", body, nil)
	if err != nil {
		return "", fmt.Errorf("record the export: %w", err)
	}
	var a auditor.ExportAnswer
	if err := json.Unmarshal(b, &a); err != nil || a.Position == "" {
		return "", errors.New("record the export: the auditor's answer is not understood")
	}
	return a.Position, nil
}

// readCheckpoint opens the source's last signed tree.
func readCheckpoint(src fs.FS, key string) (*auditlog.SignedCheckpoint, []byte, error) {
	b, err := fs.ReadFile(src, "checkpoint")
	if err != nil {
		return nil, nil, err
	}
	c, err := openNote(string(b), key)
	return c, b, err
}
