package events

import (
	"math"
	"math/bits"
	"strings"
	"time"
	"unsafe"
)

// scan reads canonical events and nothing else: one pass, in the order in which
// the encoder writes. At anything it does not expect it gives up, and [parser]
// reads the event from its beginning: what is accepted, and what an error says,
// is the parser's alone. What scan accepts, the parser accepts with the same
// values.
type scan struct {
	s    string // the line
	i    int
	lend bool // strings are parts of s; otherwise they are copies
	bad  bool // gave up: everything after it reads nothing
}

// view is b as a string that changes with b.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// lit steps over what must come next.
func (p *scan) lit(want string) {
	if !p.has(want) {
		p.bad = true
	}
}

// has steps over want if it comes next.
func (p *scan) has(want string) bool {
	if len(p.s)-p.i >= len(want) && p.s[p.i:p.i+len(want)] == want {
		p.i += len(want)
		return true
	}
	return false
}

// part reads to a string's closing quote, its opening one being read already,
// and steps over it. Escapes and what is not ASCII are the parser's.
func (p *scan) part() string {
	s, from := p.s, p.i
	i := from
	for len(s)-i >= 8 {
		marks := odd(load64(s, i))
		if marks == 0 {
			i += 8
			continue
		}
		i += first(marks)
		break
	}
	for ; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			p.i = i + 1
			return s[from:i]
		case c < ' ' || c == '\\' || c >= 0x80:
			p.bad = true
			return ""
		}
	}
	p.bad = true
	return ""
}

func (p *scan) text() string {
	s := p.part()
	if p.lend {
		return s
	}
	return strings.Clone(s)
}

// filled is text for a member that is left out when it is empty.
func (p *scan) filled() string {
	s := p.text()
	p.bad = p.bad || s == ""
	return s
}

// uint reads a number of at most 18 digits; longer ones are the parser's.
func (p *scan) uint() uint64 {
	s, i := p.s, p.i
	var n uint64
	for ; i < len(s); i++ {
		d := uint64(s[i] - '0')
		if d > 9 {
			break
		}
		n = n*10 + d
	}
	if digits := i - p.i; digits == 0 || digits > 18 || digits > 1 && s[p.i] == '0' {
		p.bad = true
	}
	p.i = i
	return n
}

// positive is uint for a member that is left out when it is 0.
func (p *scan) positive() uint64 {
	n := p.uint()
	p.bad = p.bad || n == 0
	return n
}

func (p *scan) bool() bool {
	if p.has("true") {
		return true
	}
	p.lit("false")
	return false
}

// time reads a time and its closing quote.
func (p *scan) time() time.Time {
	const size = len(timeForm)
	if len(p.s)-p.i <= size || p.s[p.i+size] != '"' {
		p.bad = true
		return time.Time{}
	}
	t, ok := parseTime(p.s[p.i : p.i+size])
	p.bad = p.bad || !ok
	p.i += size + 1
	return t
}

// scanWord reads a word of a fixed set and its closing quote.
func scanWord[T ~string](p *scan, known map[string]T) T {
	w, ok := known[p.part()]
	p.bad = p.bad || !ok
	return w
}

// moment reads a time that is left out when it is zero.
func (p *scan) moment() time.Time {
	t := p.time()
	p.bad = p.bad || t.IsZero()
	return t
}

// runs reads page runs into dst.
func (p *scan) runs(dst []PageRun) []PageRun {
	if p.has("[]") {
		return nil
	}
	for sep := "[["; !p.bad; sep = ",[" {
		p.lit(sep)
		start := p.uint()
		p.lit(",")
		count := p.uint()
		p.lit(",")
		generation := p.uint()
		p.lit("]")
		if start > math.MaxUint32 || count == 0 || count > math.MaxUint32 || len(dst) == MaxRuns {
			p.bad = true
		}
		dst = append(dst, PageRun{uint32(start), uint32(count), generation})
		if p.has("]") {
			return dst
		}
	}
	return nil
}

func (p *scan) position() (pos Position) {
	pos.Seq = p.positive()
	p.lit(".")
	line := p.uint()
	p.lit(`"`)
	if line > math.MaxInt32 {
		p.bad = true
	}
	pos.Line = int(line)
	return pos
}

// scannable is a payload in its newest version.
type scannable interface {
	payload
	scanJSON(p *scan)
}

// event reads a whole line into e; false if it gave up. Without
// a decoder to take the payload from it makes a new one.
func (p *scan) event(e *Event, from *Decoder) bool {
	p.lit(`{"specversion":"1.0","id":"`)
	e.ID = p.text()
	p.lit(`,"source":"`)
	e.Source = p.text()
	p.lit(`,"type":"`)
	t := p.part()
	var d scannable
	if from != nil {
		d = from.payload(t)
	} else {
		d = newest(t)
	}
	if d == nil || p.bad {
		return false
	}
	e.Type = d.EventType()
	p.lit(`,"subject":"`)
	e.Subject = p.subject(e.ID)
	p.lit(`,"time":"`)
	e.Time = p.time()
	p.lit(`,"datacontenttype":"application/json"`)
	if p.has(`,"command":"`) {
		e.Command = p.filled()
	}
	if p.has(`,"principal":"`) {
		e.Principal = p.filled()
	}
	if p.has(`,"prev":"`) {
		e.Prev = p.position()
	}
	if p.has(`,"tenant":"`) {
		e.Tenant = p.filled()
	}
	if p.has(`,"tenantseq":`) {
		e.TenantSeq = p.positive()
	}
	if p.has(`,"tenantprev":"`) {
		e.TenantPrev = p.filled()
	}
	if p.has(`,"traceparent":"`) {
		e.Traceparent = p.filled()
	}
	p.lit(`,"data":`)
	if p.bad {
		return false
	}
	d.scanJSON(p)
	p.lit("}")
	if p.bad || p.i != len(p.s) {
		return false
	}
	e.N = number(e.ID, e.Subject)
	e.Data = d
	return e.checkAttributes() == nil
}

// subject reads the subject, which shares the memory of most ids.
func (p *scan) subject(id string) string {
	if n := strings.LastIndexByte(id, '.'); n > 0 && len(p.s)-p.i > n && p.s[p.i+n] == '"' && p.s[p.i:p.i+n] == id[:n] {
		p.i += n + 1
		return id[:n]
	}
	return p.text()
}

// newest makes a payload of a type; nil if this is not its newest version.
func newest(t string) scannable {
	f := forms[Type(t)]
	if f.fresh == nil || f.up != nil {
		return nil
	}
	d, _ := f.fresh().(scannable)
	return d
}

// Decoder decodes events one after the other into memory of its own: for
// readers of whole logs. The zero Decoder is ready. It is not for use by several
// goroutines at once.
type Decoder struct {
	scan  scan
	event Event
	slots [32]slot // one payload of each type that was met
}

type slot struct {
	name string
	data scannable
}

// Decode is [Decode], but the event, its data and all its strings and lists are
// the decoder's and the line's: they are good until the next Decode, and while
// nobody writes to line. Whoever keeps a part of them makes a copy. Only words
// of fixed sets, such as types, states, roles and codes, are safe to keep.
func (d *Decoder) Decode(line []byte) (*Event, error) {
	if len(line) <= MaxEvent {
		d.scan = scan{s: view(line), lend: true}
		d.event = Event{}
		if d.scan.event(&d.event, d) {
			return &d.event, nil
		}
	}
	return decode(line, forms)
}

// payload is the payload of a type, to be read into; nil as [newest].
func (d *Decoder) payload(t string) scannable {
	if len(t) < 12 {
		return nil
	}
	// Any spread will do: two types in one slot would take turns in it.
	s := &d.slots[(uint(len(t))*5+uint(t[8])*3+uint(t[9]))%uint(len(d.slots))]
	if s.name != t {
		data := newest(t)
		if data == nil {
			return nil
		}
		*s = slot{string(data.EventType()), data}
	}
	return s.data
}

// load64 is the eight bytes of s from i on, the first one lowest.
func load64(s string, i int) uint64 {
	s = s[i : i+8]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}

// first is the index of the first byte that [odd] marks.
func first(marks uint64) int { return bits.TrailingZeros64(marks) / 8 }
