package replay

import (
	"bufio"
	"bytes"
	"errors"
	"io"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/statemachine"
)

// Lines reads event lines without their envelopes: what export writes as
// cloudevents.jsonl, and a bundle's events.jsonl. Each becomes an envelope of its
// own, numbered by its line. Markers of the audit log stand among them.
type Lines struct {
	// Told by the markers.
	Gaps    []audit.Gap
	Foreign int64
	Epochs  int64
	BOM     bool
	CRLF    int64 // lines that ended in \r\n

	tail  *Malformed // what is wrong behind the last event
	r     *LineReader
	env   events.Envelope
	lines []byte
	n     uint64
}

// NewLines begins to read.
func NewLines(r io.Reader) *Lines { return &Lines{r: NewLineReader(r, audit.MaxLeaf+4)} }

// Where implements [Source].
func (l *Lines) Where() Where { return l.r.Where() }

const wantEvent = "one event in its canonical form"

// Next implements [Source].
func (l *Lines) Next() (*events.Envelope, error) {
	for {
		if t := l.tail; t != nil {
			l.tail = nil
			return nil, t
		}
		line, err := l.r.Next()
		var m *Malformed
		if errors.As(err, &m) && m.Cut && len(line) > 0 {
			if _, no := events.Decode(line); no == nil {
				l.tail, err = m, nil // a whole event, and maybe not the last one
			}
		}
		if err != nil {
			return nil, err
		}
		l.BOM, l.CRLF = l.r.BOM, l.r.CRLF
		if len(line) == 0 {
			return nil, &Malformed{Where: l.r.Where(), Want: wantEvent + ", not an empty line"}
		}
		if bytes.HasPrefix(line, []byte(`{"pdgate_`)) {
			if err := l.marker(line); err != nil {
				return nil, err
			}
			continue
		}
		l.n++
		l.lines = append(append(l.lines[:0], line...), '\n')
		l.env = events.Envelope{Partition: PartitionOf(line), Seq: uint64(l.r.Where().Line), Lines: l.lines}
		return &l.env, nil
	}
}

// PartitionOf tells events of operations from those of requests, whose partitions
// do not show. It looks at the canonical form; what is not in it is not decoded
// either.
func PartitionOf(line []byte) int {
	const key, ofData = `,"type":"`, `,"data":{"command":"`
	_, rest, _ := bytes.Cut(line, []byte(key))
	if bytes.HasPrefix(rest, []byte("request.")) {
		return 0
	}
	if bytes.HasPrefix(rest, []byte(events.TypeDenied)) {
		_, rest, _ = bytes.Cut(rest, []byte(ofData))
		name, _, _ := bytes.Cut(rest, []byte(`"`))
		for _, c := range statemachine.Commands() {
			if string(c.Command) == string(name) && !c.ForOps() {
				return 0
			}
		}
	}
	return events.OpsPartition
}

func (l *Lines) marker(line []byte) error {
	leaf, err := audit.ParseLeaf(line)
	switch {
	case err != nil:
		return &Malformed{Where: l.r.Where(), Want: "an event, or a marker of the audit log", Err: err, Broken: true}
	case leaf.Gap != nil:
		if len(l.Gaps) < maxListed {
			l.Gaps = append(l.Gaps, *leaf.Gap)
		}
	case leaf.Foreign != nil:
		l.Foreign++
	case leaf.Epoch != nil:
		l.Epochs++
	}
	return nil
}

// maxListed bounds each list of a result; the rest is counted.
const maxListed = 100

// LineReader reads lines of any input, and knows where they stand. It drops a byte
// order mark and carriage returns, and counts them.
type LineReader struct {
	BOM  bool
	CRLF int64

	r     *bufio.Reader
	limit int
	long  []byte
	at    Where // of the next line
	where Where
}

// NewLineReader reads lines of at most limit bytes.
func NewLineReader(r io.Reader, limit int) *LineReader {
	return &LineReader{r: bufio.NewReaderSize(r, min(max(limit, 1<<16), 1<<20)), limit: limit, at: Where{Line: 1}}
}

// Where is the place of the line that Next returned last.
func (l *LineReader) Where() Where { return l.where }

var bom = []byte("\xef\xbb\xbf")

// Next returns the next line without its end. A last line without a newline is
// returned as [Malformed] with Cut set, together with the line. A line that is too
// long is skipped.
func (l *LineReader) Next() ([]byte, error) {
	l.where = l.at
	line, err := l.read()
	l.at.Line++
	if l.where.Line == 1 && bytes.HasPrefix(line, bom) {
		l.BOM = true
		line = line[len(bom):]
	}
	if n := len(line); n > 0 && line[n-1] == '\r' {
		l.CRLF++
		line = line[:n-1]
	}
	return line, err
}

func (l *LineReader) read() ([]byte, error) {
	l.long = l.long[:0]
	size := 0
	for {
		b, err := l.r.ReadSlice('\n')
		l.at.Offset += int64(len(b))
		size += len(b)
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			if size <= l.limit {
				l.long = append(l.long, b...)
			}
			continue
		case errors.Is(err, io.EOF) && size == 0:
			return nil, io.EOF
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		case size > l.limit+1:
			return nil, &Malformed{Where: l.where, Want: "a shorter line"}
		}
		if len(l.long) > 0 {
			l.long = append(l.long, b...)
			b = l.long
		}
		if err != nil { // the input ends without a newline
			return b, &Malformed{Where: l.where, Want: "a newline: the last line may be cut off", Cut: true}
		}
		return b[:len(b)-1], nil
	}
}
