package replay

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strconv"

	"github.com/pdgate/pdgate/events"
)

// A trace file holds envelopes as the log does, and an end that vouches for them:
//
//	pdgate-trace 1 PARTITIONS
//	envelope SEQ PARTITION EXPECTED BYTES MAC ID
//	(BYTES bytes of event lines)
//	…
//	end ENVELOPES SHA256
//
// MAC is "-" where there is none. The digest is over the first line, and for each
// envelope its line and the SHA-256 of each of its event lines: each of those is
// hashed once, for the digest and for its tenant's chain alike. A file without its
// end is incomplete, one with another digest was changed.

const (
	traceWord    = "pdgate-trace 1 "
	envelopeWord = "envelope "
	endWord      = "end "
	noMAC        = "-"
)

// maxEnvelope bounds what a head may claim.
const maxEnvelope = 64 << 20

const wantHead = `"envelope SEQ PARTITION EXPECTED BYTES MAC ID" or "end ENVELOPES SHA256"`

// TraceWriter writes a trace file.
type TraceWriter struct {
	w   *bufio.Writer
	sum hash.Hash
	n   int64
	err error
}

// NewTraceWriter begins a file. partitions is the log's number of them, 0 if it is
// not known.
func NewTraceWriter(w io.Writer, partitions int) *TraceWriter {
	t := &TraceWriter{w: bufio.NewWriterSize(w, 256<<10), sum: sha256.New()}
	t.head(traceWord + strconv.Itoa(partitions) + "\n")
	return t
}

func (t *TraceWriter) head(s string) {
	t.sum.Write([]byte(s))
	if t.err == nil {
		_, t.err = t.w.WriteString(s)
	}
}

// Add writes an envelope.
func (t *TraceWriter) Add(env *events.Envelope) error {
	mac := env.MAC
	if mac == "" {
		mac = noMAC
	}
	if bytes.ContainsAny([]byte(env.ID+mac), " \n") || env.ID == "" {
		return fmt.Errorf("write trace: envelope %d: want a name and a MAC without spaces", env.Seq)
	}
	t.head(fmt.Sprintf(envelopeWord+"%d %d %d %d %s %s\n", env.Seq, env.Partition, env.Expected, len(env.Lines), mac, env.ID))
	err := events.Split(env.Lines, func(_ int, line []byte) error {
		h := sha256.Sum256(line)
		t.sum.Write(h[:])
		return nil
	})
	if err != nil {
		return fmt.Errorf("write trace: envelope %d: %w", env.Seq, err)
	}
	if t.err == nil {
		_, t.err = t.w.Write(env.Lines)
	}
	t.n++
	return t.err
}

// Close writes the end. It does not close the writer below.
func (t *TraceWriter) Close() error {
	t.head(endWord + strconv.FormatInt(t.n, 10) + " " + hex.EncodeToString(t.sum.Sum(nil)) + "\n")
	if t.err != nil {
		return t.err
	}
	return t.w.Flush()
}

// Trace reads a trace file. Whoever reads it writes the SHA-256 of each event line
// into Sum, between one envelope and the next, as the checker does.
type Trace struct {
	Partitions int
	Sum        hash.Hash // nil: the digest is not checked

	r     *bufio.Reader
	env   events.Envelope
	lines []byte
	at    Where // of the next byte
	where Where
	n     int64
	end   bool
}

// NewTrace begins to read.
func NewTrace(r io.Reader) (*Trace, error) {
	t := &Trace{r: bufio.NewReaderSize(r, 1<<20), at: Where{Line: 1}, Sum: sha256.New()}
	line, err := t.line()
	if err != nil {
		return nil, err
	}
	n, ok := bytes.CutPrefix(line, []byte(traceWord))
	partitions, err := strconv.Atoi(string(n))
	if !ok || err != nil || partitions < 0 || partitions > events.MaxPartitions {
		return nil, &Malformed{Where: t.where, Want: `a first line of "pdgate-trace 1 PARTITIONS"`}
	}
	t.Partitions = partitions
	return t, nil
}

// line reads a head, without its newline, and sums it.
func (t *Trace) line() ([]byte, error) {
	t.where = t.at
	line, err := t.r.ReadSlice('\n')
	t.at.Offset += int64(len(line))
	t.at.Line++
	switch {
	case errors.Is(err, io.EOF) && len(line) == 0:
		return nil, io.EOF
	case errors.Is(err, io.EOF):
		return nil, &Malformed{Where: t.where, Want: wantHead + ", and a newline", Cut: true}
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, &Malformed{Where: t.where, Want: wantHead, Broken: true}
	case err != nil:
		return nil, err
	}
	if t.Sum != nil && !bytes.HasPrefix(line, []byte(endWord)) {
		t.Sum.Write(line)
	}
	return line[:len(line)-1], nil
}

// Where implements [Source].
func (t *Trace) Where() Where { return t.where }

// Next implements [Source]. What is wrong with a trace file ends it: bytes can no
// longer be told from heads.
func (t *Trace) Next() (*events.Envelope, error) {
	if t.end {
		return nil, io.EOF
	}
	head, err := t.line()
	if errors.Is(err, io.EOF) {
		t.end = true
		return nil, &Malformed{Where: t.where, Want: `the trace's last line, "end ENVELOPES SHA256"`, Cut: true}
	}
	if err != nil {
		t.end = true
		return nil, err
	}
	if bytes.HasPrefix(head, []byte(endWord)) {
		t.end = true
		return nil, t.last(head)
	}
	length, ok := t.parse(head)
	if !ok {
		t.end = true
		return nil, &Malformed{Where: t.where, Want: wantHead, Broken: true}
	}
	if cap(t.lines) < length {
		t.lines = make([]byte, length+length/2)
	}
	t.env.Lines = t.lines[:length]
	n, err := io.ReadFull(t.r, t.env.Lines)
	t.at.Offset += int64(n)
	t.at.Line += int64(bytes.Count(t.env.Lines[:n], []byte{'\n'}))
	if err != nil {
		t.end = true
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, &Malformed{Where: t.where, Want: strconv.Itoa(length) + " bytes of event lines behind it", Cut: true}
		}
		return nil, err
	}
	if t.env.Lines[length-1] != '\n' {
		t.end = true
		return nil, &Malformed{Where: t.where, Want: "event lines that end with their last byte", Broken: true}
	}
	t.n++
	return &t.env, nil
}

// parse reads an envelope's head.
func (t *Trace) parse(head []byte) (length int, ok bool) {
	rest, ok := bytes.CutPrefix(head, []byte(envelopeWord))
	word := func() []byte {
		w, r, more := bytes.Cut(rest, []byte(" "))
		rest, ok = r, ok && more
		return w
	}
	number := func(bits int) int64 {
		n, err := strconv.ParseInt(string(word()), 10, bits)
		ok = ok && err == nil
		return n
	}
	seq, partition, expected, size := number(64), number(32), number(64), number(32)
	mac := word()
	if !ok || len(rest) == 0 || seq < 1 || expected < 0 || partition < events.OpsPartition || size < 1 || size > maxEnvelope {
		return 0, false
	}
	t.env = events.Envelope{Partition: int(partition), Seq: uint64(seq), Expected: uint64(expected), ID: string(rest)}
	if string(mac) != noMAC {
		t.env.MAC = string(mac)
	}
	return int(size), true
}

// last checks the trace's end.
func (t *Trace) last(head []byte) error {
	n, sum, _ := bytes.Cut(head[len(endWord):], []byte(" "))
	switch {
	case string(n) != strconv.FormatInt(t.n, 10):
		return &Malformed{Where: t.where, Want: strconv.FormatInt(t.n, 10) + " envelopes, as many as there are", Broken: true}
	case t.Sum != nil && string(sum) != hex.EncodeToString(t.Sum.Sum(nil)):
		return &Malformed{Where: t.where, Want: "the digest of what stands before it: the trace was changed", Broken: true}
	}
	if _, err := t.r.ReadByte(); !errors.Is(err, io.EOF) {
		return &Malformed{Where: t.at, Want: "nothing behind the trace's end", Broken: true}
	}
	return io.EOF
}

// Digest names the trace: the sum of all that it holds.
func (t *Trace) Digest() string {
	if t.Sum == nil || !t.end {
		return ""
	}
	return "trace-sha256:" + hex.EncodeToString(t.Sum.Sum(nil))
}
