package remote

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
)

// Object is a JSON object that is not decoded further than its members: what is
// sent on is sent as it came, byte for byte.
type Object []Member

// Member is one member of an object.
type Member struct {
	Name  string
	Value json.RawMessage
}

// ErrObject means that something is not one JSON object.
var ErrObject = errors.New("want one JSON object")

// ParseObject splits b, which the members alias.
func ParseObject(b []byte) (Object, error) {
	if !json.Valid(b) {
		return nil, ErrObject
	}
	c := &scanner{b: b}
	if !c.is('{') {
		return nil, ErrObject
	}
	var o Object
	for first := true; ; first = false {
		if first && c.is('}') {
			break
		}
		quoted := c.value()
		var name string
		if err := json.Unmarshal(quoted, &name); err != nil || !c.is(':') {
			return nil, ErrObject
		}
		o = append(o, Member{name, c.value()})
		if c.is('}') {
			break
		}
		if !c.is(',') {
			return nil, ErrObject
		}
	}
	return o, nil
}

// scanner walks valid JSON.
type scanner struct {
	b []byte
	i int
}

func (c *scanner) space() {
	for c.i < len(c.b) && (c.b[c.i] == ' ' || c.b[c.i] == '\t' || c.b[c.i] == '\n' || c.b[c.i] == '\r') {
		c.i++
	}
}

func (c *scanner) is(x byte) bool {
	c.space()
	if c.i < len(c.b) && c.b[c.i] == x {
		c.i++
		return true
	}
	return false
}

// value steps over one value and returns its bytes.
func (c *scanner) value() []byte {
	c.space()
	start, depth := c.i, 0
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case '"':
			c.text()
			if depth == 0 {
				return c.b[start:c.i:c.i]
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 { // a number or a word that ends the object
				return c.b[start:c.i:c.i]
			}
			if depth--; depth == 0 {
				c.i++
				return c.b[start:c.i:c.i]
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return c.b[start:c.i:c.i]
			}
		case ':':
			if depth == 0 {
				return c.b[start:c.i:c.i]
			}
		}
		c.i++
	}
	return c.b[start:c.i:c.i]
}

// text steps over a string.
func (c *scanner) text() {
	for c.i++; c.i < len(c.b); c.i++ {
		switch c.b[c.i] {
		case '\\':
			c.i++
		case '"':
			c.i++
			return
		}
	}
}

// Get is the value of the named member; nil: there is none.
func (o Object) Get(name string) json.RawMessage {
	for _, m := range o {
		if m.Name == name {
			return m.Value
		}
	}
	return nil
}

// Only keeps the named members, in their order.
func (o Object) Only(names ...string) Object {
	var out Object
	for _, m := range o {
		for _, n := range names {
			if m.Name == n {
				out = append(out, m)
			}
		}
	}
	return out
}

// Without drops the named members.
func (o Object) Without(names ...string) Object {
	var out Object
next:
	for _, m := range o {
		for _, n := range names {
			if m.Name == n {
				continue next
			}
		}
		out = append(out, m)
	}
	return out
}

// Set appends a member whose name needs no escaping. What was there under the
// name must have been dropped.
func (o Object) Set(name string, value json.RawMessage) Object { return append(o, Member{name, value}) }

// Int is a number as a value.
func Int(n int64) json.RawMessage { return strconv.AppendInt(nil, n, 10) }

// Text is a string as a value.
func Text(s string) json.RawMessage {
	b, _ := json.Marshal(s) // a string always has a form
	return b
}

// Bytes writes the object.
func (o Object) Bytes() []byte {
	size := 2
	for _, m := range o {
		size += len(m.Name) + len(m.Value) + 4
	}
	b := bytes.NewBuffer(make([]byte, 0, size))
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		b.Write(Text(m.Name))
		b.WriteByte(':')
		b.Write(m.Value)
	}
	b.WriteByte('}')
	return b.Bytes()
}
