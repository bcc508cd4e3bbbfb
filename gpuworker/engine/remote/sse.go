package remote

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// maxEvent bounds one event of a stream.
const maxEvent = 1 << 20

// ErrCut means that a stream ended where it may not.
var ErrCut = errors.New("the engine's stream was cut")

// Stream reads server-sent events.
type Stream struct{ r *bufio.Reader }

// NewStream reads from r.
func NewStream(r io.Reader) *Stream { return &Stream{bufio.NewReaderSize(r, 16<<10)} }

// Next is the data of the next event, valid until the call after it. The marker
// that ends a stream is io.EOF; an end without it is [ErrCut].
func (s *Stream) Next() ([]byte, error) {
	for {
		line, err := s.line()
		if err != nil {
			return nil, err
		}
		data, ok := bytes.CutPrefix(line, []byte("data:"))
		if !ok { // blank lines, comments, names of events
			continue
		}
		data = bytes.TrimSpace(data)
		switch {
		case len(data) == 0:
			continue
		case string(data) == "[DONE]":
			return nil, io.EOF
		}
		return data, nil
	}
}

func (s *Stream) line() ([]byte, error) {
	var long []byte
	for {
		part, err := s.r.ReadSlice('\n')
		switch {
		case err == nil && long == nil:
			return part, nil
		case len(long)+len(part) > maxEvent:
			return nil, ErrTooLong
		case err == nil:
			return append(long, part...), nil
		case errors.Is(err, bufio.ErrBufferFull):
			long = append(long, part...)
		case errors.Is(err, io.EOF):
			return nil, ErrCut
		default:
			return nil, err
		}
	}
}
