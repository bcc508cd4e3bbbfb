package events

import (
	"encoding/base64"
	"encoding/binary"
	"strconv"
	"time"
	"unicode/utf8"
)

const hexDigits = "0123456789abcdef"

// short holds the second byte of two-byte escapes.
var short = [256]byte{'"': '"', '\\': '\\', '\b': 'b', '\t': 't', '\n': 'n', '\f': 'f', '\r': 'r'}

// appendString appends s quoted; false if s is not UTF-8. Nearly every string
// stands for itself, so it is copied first and looked at in place.
func appendString(b []byte, s string) ([]byte, bool) {
	b = append(b, '"')
	from := len(b)
	b = append(b, s...)
	i := from
	for len(b)-i >= 8 && odd(binary.LittleEndian.Uint64(b[i:])) == 0 {
		i += 8
	}
	for ; i < len(b); i++ {
		if c := b[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			return appendEscaped(b[:i], s[i-from:])
		}
	}
	return append(b, '"'), true
}

// appendEscaped appends the rest of a string and its closing quote.
func appendEscaped(b []byte, s string) ([]byte, bool) {
	from := 0
	for i := range len(s) {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[from:i]...)
		from = i + 1
		if e := short[c]; e != 0 {
			b = append(b, '\\', e)
		} else {
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
	}
	b = append(b, s[from:]...)
	return append(b, '"'), utf8.ValidString(s)
}

// odd marks, among eight bytes in memory order, those that do not stand for
// themselves in a string: it sets the high bit of each byte below ' ', of '"', of
// '\\' and of what is not ASCII. The lowest bit that is set is always right; a
// borrow can set bits above it falsely.
func odd(x uint64) uint64 {
	const each = 0x0101010101010101
	return ((x - each*' ') | ((x ^ each*'"') - each) | ((x ^ each*'\\') - each) | x) & (each * 0x80)
}

// appendWord appends a word that needs no escapes.
func appendWord(b []byte, s string) []byte {
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

func appendUint(b []byte, n uint64) []byte { return strconv.AppendUint(b, n, 10) }

func appendInt(b []byte, n int64) []byte { return strconv.AppendInt(b, n, 10) }

func digits2(b []byte, n int) []byte { return append(b, byte('0'+n/10), byte('0'+n%10)) }

// appendTime appends t in UTC, cut to microseconds; false if its year does not
// have four digits.
func appendTime(b []byte, t time.Time) ([]byte, bool) {
	t = t.UTC()
	year, month, day := t.Date()
	if year < 0 || year > 9999 {
		return b, false
	}
	hour, minute, second := t.Clock()
	b = append(b, '"')
	b = digits2(b, year/100)
	b = digits2(b, year%100)
	b = append(b, '-')
	b = digits2(b, int(month))
	b = append(b, '-')
	b = digits2(b, day)
	b = append(b, 'T')
	b = digits2(b, hour)
	b = append(b, ':')
	b = digits2(b, minute)
	b = append(b, ':')
	b = digits2(b, second)
	b = append(b, '.')
	us := t.Nanosecond() / 1000
	b = digits2(b, us/10000)
	b = digits2(b, us/100%100)
	b = digits2(b, us%100)
	return append(b, 'Z', '"'), true
}

// appendRuns appends page runs; a run of no pages and too many runs are errors.
func appendRuns(b []byte, runs []PageRun) ([]byte, error) {
	if len(runs) > MaxRuns {
		return b, wrong("", wantRuns)
	}
	b = append(b, '[')
	for i, r := range runs {
		if r.Count == 0 {
			return b, wrong("["+strconv.Itoa(i)+"]", wantRunCount)
		}
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '[')
		b = appendUint(b, uint64(r.Start))
		b = append(b, ',')
		b = appendUint(b, uint64(r.Count))
		b = append(b, ',')
		b = appendUint(b, r.Generation)
		b = append(b, ']')
	}
	return append(b, ']'), nil
}

func appendBase64(b, v []byte) []byte {
	b = append(b, '"')
	b = base64.StdEncoding.AppendEncode(b, v)
	return append(b, '"')
}

// appendRaw appends JSON that was encoded before; false if it is no value.
func appendRaw(b, v []byte) ([]byte, bool) {
	p := parser{b: v, strict: true}
	p.skip()
	p.end()
	return append(b, v...), p.err == nil
}

// comma starts a member that may be the first.
func comma(b []byte) []byte {
	if b[len(b)-1] == '{' {
		return b
	}
	return append(b, ',')
}
