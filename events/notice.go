package events

import (
	"bytes"
	"errors"
	"strconv"
	"strings"
)

// Notice is what one message under pdgate.notify tells: events of one envelope,
// in its order and in its bytes. The message's body is Lines, its header
// [HeaderPosition] is [Notice.Positions]: the stream sequence and the lines'
// numbers in the envelope, as ranges: "1207.0-4,7".
type Notice struct {
	Seq   uint64
	Lines []byte // events, each ended by '\n'

	runs        []byte // the header's ranges but for the end of the last one
	first, last int    // of the last range
}

// Add appends the event in a line of the envelope; it comes after those before.
func (n *Notice) Add(line int, event []byte) {
	switch {
	case len(n.Lines) == 0:
		n.first = line
	case line != n.last+1:
		n.runs = append(n.appendRun(n.runs), ',')
		n.first = line
	}
	n.last = line
	n.Lines = append(append(n.Lines, event...), '\n')
}

func (n *Notice) appendRun(b []byte) []byte {
	b = strconv.AppendInt(b, int64(n.first), 10)
	if n.last > n.first {
		b = strconv.AppendInt(append(b, '-'), int64(n.last), 10)
	}
	return b
}

// Size bounds the bytes of the message, headers included.
func (n *Notice) Size() int { return len(n.Lines) + len(n.runs) + 256 }

// Positions is the value of the header.
func (n *Notice) Positions() string {
	b := append(strconv.AppendUint(nil, n.Seq, 10), '.')
	return string(n.appendRun(append(b, n.runs...)))
}

// ErrNotice means that a notification's header and body do not fit each other.
var ErrNotice = errors.New("notice: want positions SEQ.LINE[-LINE],… and as many lines, each ended by a newline")

// ReadNotice calls f for each event of a notification. The events are as they
// came: whoever acts on one decodes it. f may have been called before an error.
func ReadNotice(positions string, lines []byte, f func(pos Position, event []byte)) error {
	a, ranges, ok := strings.Cut(positions, ".")
	seq, ok2 := canonicalNumber(a, 64)
	if !ok || !ok2 || seq == 0 || len(lines) == 0 {
		return ErrNotice
	}
	for next := uint64(0); ranges != ""; {
		var r string
		r, ranges, ok = strings.Cut(ranges, ",")
		if ok && ranges == "" {
			return ErrNotice
		}
		a, b, isRange := strings.Cut(r, "-")
		first, ok := canonicalNumber(a, 31)
		last := first
		if ok && isRange {
			last, ok = canonicalNumber(b, 31)
			ok = ok && last > first
		}
		if !ok || first < next {
			return ErrNotice
		}
		for line := first; line <= last; line++ {
			i := bytes.IndexByte(lines, '\n')
			if i < 0 {
				return ErrNotice
			}
			f(Position{seq, int(line)}, lines[:i:i])
			lines = lines[i+1:]
		}
		next = last + 2 // the line after a range would be part of it
	}
	if len(lines) > 0 {
		return ErrNotice
	}
	return nil
}

func canonicalNumber(s string, bits int) (uint64, bool) {
	n, err := strconv.ParseUint(s, 10, bits)
	return n, err == nil && (s[0] != '0' || len(s) == 1)
}

var subjectMember = []byte(`"subject":"`)

// PeekSubject is the subject of an event in canonical form, found without
// decoding: for picking one's own out of many. It proves nothing; nil says that
// there is none. It aliases the event.
func PeekSubject(event []byte) []byte {
	// Quotes within a value are escaped, so this is never a part of one.
	i := bytes.Index(event, subjectMember)
	if i < 0 {
		return nil
	}
	s := event[i+len(subjectMember):]
	end := bytes.IndexByte(s, '"')
	if end < 0 {
		return nil
	}
	return s[:end]
}
