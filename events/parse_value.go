package events

import (
	"bytes"
	"math"
	"strconv"
	"time"
	"unicode/utf16"
	"unicode/utf8"
)

// runs reads page runs: [[start,count,generation],…].
func (p *parser) runs() []PageRun {
	if p.err != nil {
		return nil
	}
	if !p.is('[') {
		p.fail("want a list of page runs")
		return nil
	}
	p.space()
	if p.is(']') {
		return nil
	}
	runs := make([]PageRun, 0, 4)
	for {
		if len(runs) == MaxRuns {
			p.fail(wantRuns)
			return nil
		}
		r := p.run()
		if p.err != nil {
			p.err.Field = "[" + strconv.Itoa(len(runs)) + "]"
			return nil
		}
		runs = append(runs, r)
		p.space()
		if p.is(']') {
			return runs
		}
		p.separator(',')
		p.space()
	}
}

func (p *parser) separator(c byte) {
	if p.err == nil && !p.is(c) {
		p.fail("want '" + string(rune(c)) + "'")
	}
}

func (p *parser) run() (r PageRun) {
	p.separator('[')
	p.space()
	r.Start = uint32(p.uint(math.MaxUint32))
	p.space()
	p.separator(',')
	p.space()
	at := p.i
	r.Count = uint32(p.uint(math.MaxUint32))
	p.space()
	p.separator(',')
	p.space()
	r.Generation = p.uint(math.MaxUint64)
	p.space()
	p.separator(']')
	if r.Count == 0 {
		p.failAt(at, wantRunCount)
	}
	return r
}

// maxDepth bounds the nesting of values that are taken over unread.
const maxDepth = 16

// skip steps over one value of any kind and checks that it is JSON.
func (p *parser) skip() { p.skipTo(maxDepth) }

func (p *parser) skipTo(depth int) {
	switch {
	case p.err != nil:
	case depth == 0:
		p.fail("is nested too deeply")
	case p.i == len(p.b):
		p.fail(wantData)
	case p.b[p.i] == '{':
		p.skipObject(depth)
	case p.b[p.i] == '[':
		p.skipList(depth)
	case p.b[p.i] == '"':
		p.string()
	case p.b[p.i] == 't' || p.b[p.i] == 'f':
		p.bool()
	default:
		p.uint(math.MaxUint64)
	}
}

func (p *parser) skipObject(depth int) {
	for o := (object{}); p.member(&o); {
		odd := bytes.ContainsFunc(o.key, func(r rune) bool { return r < ' ' || r == '\\' })
		if odd || !utf8.Valid(o.key) {
			p.fail("want a member's name without escapes")
		}
		p.skipTo(depth - 1)
	}
}

func (p *parser) skipList(depth int) {
	p.i++
	p.space()
	if p.is(']') {
		return
	}
	for p.err == nil {
		p.skipTo(depth - 1)
		p.space()
		if p.is(']') {
			return
		}
		p.separator(',')
		p.space()
	}
}

const timeForm = "0000-00-00T00:00:00.000000Z"

// parseTime reads the canonical form of a time.
func parseTime[T string | []byte](b T) (time.Time, bool) {
	if len(b) != len(timeForm) || b[4] != '-' || b[7] != '-' || b[10] != 'T' || b[13] != ':' || b[16] != ':' || b[19] != '.' || b[26] != 'Z' {
		return time.Time{}, false
	}
	bad := byte(0) // above 9 if any digit was none
	n := func(at int) int {
		tens, ones := b[at]-'0', b[at+1]-'0'
		bad = max(bad, tens, ones)
		return int(tens)*10 + int(ones)
	}
	year, month, day := n(0)*100+n(2), n(5), n(8)
	hour, minute, second := n(11), n(14), n(17)
	us := n(20)*10000 + n(22)*100 + n(24)
	if bad > 9 || month < 1 || month > 12 || day < 1 || hour > 23 || minute > 59 || second > 59 {
		return time.Time{}, false
	}
	if day > 28 && day > daysIn(year, month) {
		return time.Time{}, false
	}
	s := (days(year, month, day)*24+hour)*60 + minute
	return time.Unix(int64(s)*60+int64(second), int64(us)*1000).UTC(), true
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// days counts the days from 1970 to a date of the years 0 to 9999. Its year
// begins in March, so that a leap day is the last one, and 400 years earlier, so
// that none is negative.
func days(year, month, day int) int {
	year += 400
	if month -= 3; month < 0 {
		month += 12
		year--
	}
	return year*365 + year/4 - year/100 + year/400 + (month*153+2)/5 + day - 1 - 719468 - 146097
}

// unescape decodes the inside of a JSON string. Half a surrogate pair is no
// character.
func unescape(raw []byte) ([]byte, bool) {
	out := make([]byte, 0, len(raw))
	for len(raw) > 0 {
		n := bytes.IndexByte(raw, '\\')
		if n < 0 {
			return append(out, raw...), true
		}
		out = append(out, raw[:n]...)
		raw = raw[n+1:]
		if len(raw) == 0 {
			return nil, false
		}
		c := raw[0]
		raw = raw[1:]
		switch c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			r, ok := hex4(raw)
			if !ok {
				return nil, false
			}
			raw = raw[4:]
			if utf16.IsSurrogate(r) {
				low, ok := rune(0), false
				if len(raw) >= 6 && raw[0] == '\\' && raw[1] == 'u' {
					low, ok = hex4(raw[2:])
				}
				if r = utf16.DecodeRune(r, low); !ok || r == utf8.RuneError {
					return nil, false
				}
				raw = raw[6:]
			}
			out = utf8.AppendRune(out, r)
		default:
			return nil, false
		}
	}
	return out, true
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(string(b[:4]), 16, 16)
	return rune(n), err == nil
}
