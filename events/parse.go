package events

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"math/bits"
	"strconv"
	"time"
	"unicode/utf8"
)

// parser reads one JSON value. With strict set it takes the canonical form and
// nothing else, so that bytes and values stand in a one-to-one relation and two
// readers of signed bytes cannot disagree. Without, it takes what people write:
// members in any order, white space, any escape, any form of a time; doubled,
// unknown, missing and mistyped members are errors in both.
//
// After an error every method does nothing; the readers of structs return
// through [parser.member], which completes the error's path on the way out.
type parser struct {
	b      []byte
	i      int
	strict bool
	err    *FieldError
}

// object is the reader's place in one JSON object.
type object struct {
	key  []byte
	seen uint64 // members that were read, by index
	open bool
}

func (p *parser) fail(reason string) { p.failAt(p.i, reason) }

func (p *parser) failAt(offset int, reason string) {
	if p.err == nil {
		p.err = &FieldError{Reason: reason, Offset: offset}
	}
}

func (p *parser) space() {
	if p.strict {
		return
	}
	for p.i < len(p.b) {
		switch p.b[p.i] {
		case ' ', '\t', '\n', '\r':
			p.i++
		default:
			return
		}
	}
}

// is steps over c if it comes next.
func (p *parser) is(c byte) bool {
	if p.i < len(p.b) && p.b[p.i] == c {
		p.i++
		return true
	}
	return false
}

// member steps to the object's next member and reads its name. It is false at
// the object's end and after an error.
func (p *parser) member(o *object) bool {
	if p.err != nil {
		p.err.Field = joinPath(string(o.key), p.err.Field)
		o.key = nil
		return false
	}
	o.key = nil
	p.space()
	if !o.open {
		if !p.is('{') {
			p.fail("want an object")
			return false
		}
		o.open = true
		p.space()
		if p.is('}') {
			return false
		}
	} else {
		if p.is('}') {
			return false
		}
		if !p.is(',') {
			p.fail("want ',' or '}'")
			return false
		}
		p.space()
	}
	key := p.name()
	p.space()
	if p.err == nil && !p.is(':') {
		p.fail("want ':'")
	}
	if p.err != nil {
		return false
	}
	p.space()
	o.key = key
	return true
}

// name reads a member's name. What it holds is not looked at: a name that is not
// known is an error whatever it holds, and no known name has an escape.
func (p *parser) name() []byte {
	if !p.is('"') {
		p.fail("want a member's name")
		return nil
	}
	n := bytes.IndexByte(p.b[p.i:], '"')
	if n < 0 {
		p.fail("want the name's closing quote")
		return nil
	}
	name := p.b[p.i : p.i+n]
	p.i += n + 1
	return name
}

// field notes that the member with the given index is about to be read.
func (p *parser) field(o *object, i int) bool {
	switch bit := uint64(1) << i; {
	case o.seen&bit != 0:
		p.fail("stands twice")
	case p.strict && o.seen > bit:
		p.fail("stands out of order")
	default:
		o.seen |= bit
		return true
	}
	return false
}

func (p *parser) unknown(o *object) {
	if len(o.key) > 64 {
		o.key = append(bytes.Clone(o.key[:64]), "…"...)
	}
	o.key = bytes.ToValidUTF8(o.key, []byte("?"))
	p.fail("is not known here")
}

// close checks that all required members were there.
func (p *parser) close(o *object, required uint64, names []string) {
	if missing := required &^ o.seen; p.err == nil && missing != 0 {
		p.fail("is missing")
		p.err.Field = names[bits.TrailingZeros64(missing)]
	}
}

// end checks that nothing follows the value.
func (p *parser) end() {
	p.space()
	if p.err == nil && p.i != len(p.b) {
		p.fail("want the end")
	}
}

func (p *parser) failure() error {
	if p.err == nil {
		return nil
	}
	return p.err
}

// present refuses, in the canonical form, an empty value of a member that the
// encoder leaves out when empty.
func (p *parser) present(ok bool) {
	if p.strict && !ok {
		p.fail("want it left out when it is empty")
	}
}

// quoted reads a JSON string and returns what stands between its quotes, and
// whether that holds no escapes.
func (p *parser) quoted() (raw []byte, plain bool) {
	if p.err != nil {
		return nil, false
	}
	if !p.is('"') {
		p.fail("want a string")
		return nil, false
	}
	from, ascii := p.i, true
	plain = true
	for {
		for len(p.b)-p.i >= 8 {
			marks := odd(binary.LittleEndian.Uint64(p.b[p.i:]))
			if marks != 0 {
				p.i += bits.TrailingZeros64(marks) / 8
				break
			}
			p.i += 8
		}
		if p.i >= len(p.b) {
			p.failAt(from, "want the string's closing quote")
			return nil, false
		}
		switch c := p.b[p.i]; {
		case c == '"':
			raw = p.b[from:p.i]
			p.i++
			if !ascii && !utf8.Valid(raw) {
				p.failAt(from, wantText)
			}
			return raw, plain
		case c == '\\':
			plain = false
			p.i++ // whatever follows, it does not end the string
		case c < ' ':
			p.fail("want control characters escaped")
			return nil, false
		case c >= utf8.RuneSelf:
			ascii = false
		}
		p.i++
	}
}

func (p *parser) string() string {
	at := p.i
	raw, plain := p.quoted()
	if p.err != nil {
		return ""
	}
	if plain {
		return string(raw)
	}
	s, ok := unescape(raw)
	if !ok {
		p.failAt(at, "want JSON escapes of whole characters")
		return ""
	}
	if p.strict {
		b, _ := appendString(nil, string(s))
		if !bytes.Equal(b[1:len(b)-1], raw) {
			p.failAt(at, "want only the escapes that are needed")
			return ""
		}
	}
	return string(s)
}

// word reads a string that must be one of a fixed set.
func word[T ~string](p *parser, known map[string]T) T {
	at := p.i
	raw, plain := p.quoted()
	if p.err != nil {
		return ""
	}
	w, ok := known[string(raw)]
	if !ok || !plain {
		p.failAt(at, wantKnown)
	}
	return w
}

// optionalWord is word for a member that may be the empty string.
func optionalWord[T ~string](p *parser, known map[string]T) T {
	if p.err == nil && bytes.HasPrefix(p.b[p.i:], []byte(`""`)) {
		p.i += 2
		return ""
	}
	return word(p, known)
}

// literal reads a string that must be s.
func (p *parser) literal(s string) {
	at := p.i
	if raw, _ := p.quoted(); p.err == nil && string(raw) != s {
		p.failAt(at, "want "+strconv.Quote(s))
	}
}

// uint reads a whole number from 0 to limit.
func (p *parser) uint(limit uint64) uint64 {
	if p.err != nil {
		return 0
	}
	from := p.i
	var n uint64
	for ; p.i < len(p.b); p.i++ {
		d := uint64(p.b[p.i] - '0')
		if d > 9 {
			break
		}
		if n > (limit-d)/10 {
			p.failAt(from, "want a number up to "+strconv.FormatUint(limit, 10))
			return 0
		}
		n = n*10 + d
	}
	switch length := p.i - from; {
	case length == 0 && p.i < len(p.b) && p.b[p.i] == '-':
		p.fail(wantCount)
	case length == 0:
		p.fail("want a whole number")
	case length > 1 && p.b[from] == '0':
		p.failAt(from, "want a number without leading zeros")
	case p.i < len(p.b) && (p.b[p.i] == '.' || p.b[p.i] == 'e' || p.b[p.i] == 'E'):
		p.failAt(from, "want a whole number in plain digits")
	}
	return n
}

func (p *parser) bool() bool {
	if p.err != nil {
		return false
	}
	switch rest := p.b[p.i:]; {
	case bytes.HasPrefix(rest, []byte("true")):
		p.i += 4
		return true
	case bytes.HasPrefix(rest, []byte("false")):
		p.i += 5
		return false
	}
	p.fail("want true or false")
	return false
}

func (p *parser) time() time.Time {
	at := p.i
	raw, _ := p.quoted()
	if p.err != nil {
		return time.Time{}
	}
	t, ok := parseTime(raw)
	if !ok && !p.strict {
		var err error
		t, err = time.Parse(time.RFC3339Nano, string(raw))
		t, ok = Micros(t), err == nil
		ok = ok && t.Year() >= 0 && t.Year() <= 9999
	}
	if !ok {
		p.failAt(at, "want a time like 2026-01-02T03:04:05.678901Z")
		return time.Time{}
	}
	return t
}

func (p *parser) base64() []byte {
	at := p.i
	raw, _ := p.quoted()
	if p.err != nil || len(raw) == 0 {
		return nil
	}
	b, err := base64.StdEncoding.Strict().AppendDecode(nil, raw)
	if err != nil || bytes.ContainsAny(raw, "\r\n") {
		p.failAt(at, "want base64 with padding")
		return nil
	}
	return b
}

// raw reads any value and returns a copy of its bytes.
func (p *parser) raw() []byte {
	from := p.i
	p.skip()
	if p.err != nil {
		return nil
	}
	return bytes.Clone(p.b[from:p.i])
}
