package events

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// DefaultPartitions is the number of partitions of a stream that names none.
const DefaultPartitions = 8

// MaxPartitions bounds what a stream's metadata may ask for.
const MaxPartitions = 1024

// PartitionOf spreads requests over partitions: FNV-1a of the request id. The
// hash and the stream's number of partitions never change for a stream, or a
// request's history would be split.
func PartitionOf(requestID string, partitions int) int {
	h := uint32(2166136261)
	for i := range len(requestID) {
		h = (h ^ uint32(requestID[i])) * 16777619
	}
	return int(h % uint32(partitions))
}

// Position names one event in the log: the stream sequence of its envelope and
// the line in it, from 0. The zero Position is no event.
type Position struct {
	Seq  uint64
	Line int
}

// IsZero says whether p names no event.
func (p Position) IsZero() bool { return p.Seq == 0 }

// String is "seq.line", or "" for no event.
func (p Position) String() string {
	if p.IsZero() {
		return ""
	}
	return strconv.FormatUint(p.Seq, 10) + "." + strconv.Itoa(p.Line)
}

// ParsePosition reads the form of [Position.String].
func ParsePosition(s string) (Position, error) {
	if s == "" {
		return Position{}, nil
	}
	a, b, ok := strings.Cut(s, ".")
	seq, err1 := strconv.ParseUint(a, 10, 64)
	line, err2 := strconv.ParseUint(b, 10, 31)
	p := Position{seq, int(line)}
	if !ok || err1 != nil || err2 != nil || p.String() != s {
		return Position{}, fmt.Errorf("position %q: want SEQ.LINE", s)
	}
	return p, nil
}

// ErrRequestID is what every malformed request id is.
var ErrRequestID = errors.New("request id: want a UUIDv7 in lower case")

// RequestTime is the time inside a request id, in milliseconds. Ids are UUIDv7,
// minted by the gateway and never taken from a client.
func RequestTime(id string) (time.Time, error) {
	if len(id) != 36 || id[8] != '-' || id[13] != '-' || id[18] != '-' || id[23] != '-' || id[14] != '7' {
		return time.Time{}, ErrRequestID
	}
	if v := id[19]; v != '8' && v != '9' && v != 'a' && v != 'b' {
		return time.Time{}, ErrRequestID
	}
	for i := 0; i < len(id); i++ {
		c := id[i]
		if i == 8 || i == 13 || i == 18 || i == 23 {
			continue
		}
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return time.Time{}, ErrRequestID
		}
	}
	ms := int64(0)
	for i := range 13 { // 12 digits and a dash
		if c := id[i]; c >= 'a' {
			ms = ms<<4 | int64(c-'a'+10)
		} else if c != '-' {
			ms = ms<<4 | int64(c-'0')
		}
	}
	return time.UnixMilli(ms).UTC(), nil
}

// ValidName says whether s can name a principal, a model or a tenant: 1 to 64
// bytes of letters, digits, '-', '_', ':' and '/'. Names become NATS subject
// tokens, so '.', '*', '>' and white space are out.
func ValidName(s string) bool {
	if len(s) == 0 || len(s) > 64 {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == ':', c == '/':
		default:
			return false
		}
	}
	return true
}

// Micros cuts t to what the wire carries: UTC, microseconds.
func Micros(t time.Time) time.Time { return t.UTC().Truncate(time.Microsecond) }
