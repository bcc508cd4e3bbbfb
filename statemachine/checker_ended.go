package statemachine

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
)

// ended is what is remembered of a closed request, in one piece of memory that
// holds no pointers: a log has far more of them than open ones. After the end
// nothing but a denial is legal, and whatever else comes is judged by the place
// in the history, the state and the commands that were answered. It begins with
// the time of the last event, 8 bytes, the length of the id, 4 bytes, and the id.
type ended string

const endedHead = 12

// endings are closed requests in the order of their ends, in pieces: one that
// grows would be copied again and again.
type endings [][]ended

const endingsPiece = 1024

func (q *endings) push(e ended) {
	n := len(*q)
	if n == 0 || len((*q)[n-1]) == endingsPiece {
		*q = append(*q, make([]ended, 0, endingsPiece))
		n++
	}
	(*q)[n-1] = append((*q)[n-1], e)
}

// first is the oldest one; "" if there is none.
func (q endings) first() ended {
	if len(q) == 0 || len(q[0]) == 0 {
		return ""
	}
	return q[0][0]
}

func (q *endings) pop() {
	(*q)[0] = (*q)[0][1:]
	if len((*q)[0]) == 0 {
		*q = (*q)[1:]
	}
}

const (
	flagBroken = 1 << iota
	flagTransferred
	flagDenied // of an answer
	flagHex    // of an answer: the key is packed by half
)

// find is the request, and nil if it is not remembered.
func (c *Checker) find(id string) *checked {
	if q := c.requests[id]; q != nil {
		return q
	}
	was, ok := c.ended[id]
	if !ok {
		return nil
	}
	delete(c.ended, id)
	q := c.begin(id)
	q.unpack(was)
	return q
}

// begin makes a request of which nothing is known.
func (c *Checker) begin(id string) *checked {
	var q *checked
	if n := len(c.free); n > 0 {
		q, c.free = c.free[n-1], c.free[:n-1]
	} else {
		q = &checked{}
	}
	q.ID, q.State = strings.Clone(id), events.New
	c.requests[q.ID] = q
	return q
}

// maxFree bounds the requests that wait to be used again.
const maxFree = 1024

// end remembers a closed request by what may still be asked of it.
func (c *Checker) end(q *checked) {
	b := q.pack(c.scratch[:0])
	c.scratch = b
	was := ended(b)
	delete(c.requests, q.ID)
	c.ended[was.id()] = was
	c.closed.push(was)
	if len(c.free) == maxFree {
		return
	}
	q.Request = Request{Recorded: q.Recorded[:0]}
	q.last, q.broken, q.floor, q.extents = time.Time{}, false, events.Position{}, q.extents[:0]
	c.free = append(c.free, q)
}

// forget drops requests that were closed long ago.
func (c *Checker) forget() {
	for e := c.closed.first(); e != "" && c.clock.Sub(e.last()) > c.cfg.Keep; e = c.closed.first() {
		// One that went on is remembered otherwise, and a later entry follows.
		if id := e.id(); c.ended[id] == e {
			delete(c.ended, id)
		}
		c.closed.pop()
	}
}

func (e ended) last() time.Time {
	return time.UnixMicro(int64(binary.LittleEndian.Uint64([]byte(e[:8])))).UTC()
}

func (e ended) id() string {
	n := binary.LittleEndian.Uint32([]byte(e[8:endedHead]))
	return string(e[endedHead : endedHead+int(n)])
}

func (q *checked) pack(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, uint64(q.last.UnixMicro()))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(q.ID)))
	b = append(b, q.ID...)
	flags := uint64(0)
	if q.broken {
		flags |= flagBroken
	}
	if q.Transfer != nil {
		flags |= flagTransferred
	}
	b = binary.AppendUvarint(b, flags)
	b = binary.AppendVarint(b, int64(q.partition))
	b = binary.AppendVarint(b, int64(q.N))
	b = binary.AppendUvarint(b, q.Pos.Seq)
	b = binary.AppendVarint(b, int64(q.Pos.Line))
	b = packText(b, string(q.State))
	b = packText(b, q.Tainted)
	b = binary.AppendUvarint(b, uint64(len(q.Recorded)))
	for i := range q.Recorded {
		a := &q.Recorded[i]
		flags := uint64(0)
		if a.Denied != nil {
			flags = flagDenied
		}
		at := len(b)
		b = binary.AppendVarint(append(b, 0), int64(a.N))
		if packed, ok := packHex(b, a.Key); ok {
			b, flags = packed, flags|flagHex
		} else {
			b = packText(b, a.Key)
		}
		b[at] = byte(flags)
	}
	return b
}

// packHex packs a text of digits as [hex.EncodeToString] writes them.
func packHex(b []byte, s string) ([]byte, bool) {
	if len(s)%2 != 0 {
		return nil, false
	}
	b = binary.AppendUvarint(b, uint64(len(s)/2))
	for i := 0; i < len(s); i += 2 {
		high, low := hexValue[s[i]], hexValue[s[i+1]]
		if high|low > 15 {
			return nil, false
		}
		b = append(b, high<<4|low)
	}
	return b, true
}

// hexValue is the value of a lower-case hex digit, and 16 for other bytes.
var hexValue = func() (v [256]byte) {
	for c := range v {
		v[c] = 16
		if i := strings.IndexByte("0123456789abcdef", byte(c)); i >= 0 {
			v[c] = byte(i)
		}
	}
	return v
}()

func packText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func (q *checked) unpack(e ended) {
	q.last = e.last()
	b := []byte(e[endedHead+len(q.ID):])
	number := func() uint64 {
		v, n := binary.Uvarint(b)
		b = b[n:]
		return v
	}
	signed := func() int {
		v, n := binary.Varint(b)
		b = b[n:]
		return int(v)
	}
	text := func() string {
		n := number()
		s := string(b[:n])
		b = b[n:]
		return s
	}
	flags := number()
	q.broken = flags&flagBroken != 0
	if flags&flagTransferred != 0 {
		q.Transfer = &q.transfer
	}
	q.partition, q.N = signed(), signed()
	q.Pos = events.Position{Seq: number(), Line: signed()}
	q.State, q.Tainted = events.State(text()), text()
	for range number() {
		var a Recorded
		flags := number()
		if flags&flagDenied != 0 {
			a.Denied = &events.Denial{}
		}
		a.N, a.Key = signed(), text()
		if flags&flagHex != 0 {
			a.Key = hex.EncodeToString([]byte(a.Key))
		}
		q.Recorded = append(q.Recorded, a)
	}
}
