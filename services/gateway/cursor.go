package gateway

import (
	"bytes"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth bounds nesting, and with it the stack of a reader that recurses.
const maxDepth = 32

// bodyError is what is wrong with a request body: where, and what is wanted. It
// never quotes a value.
type bodyError struct {
	field     string // path such as "messages[3].content"; empty: the whole body
	reason    string
	forbidden bool // an engine-internal field
}

func (e *bodyError) Error() string {
	if e.field == "" {
		return e.reason
	}
	return e.field + ": " + e.reason
}

func bad(reason string) error { return &bodyError{reason: reason} }

// within puts an error's field below the field that holds it.
func within(outer string, err error) error {
	e, ok := err.(*bodyError)
	if !ok {
		return err
	}
	f := *e
	switch {
	case f.field == "" || outer == "":
		f.field = outer + f.field
	case f.field[0] == '[':
		f.field = outer + f.field
	default:
		f.field = outer + "." + f.field
	}
	return &f
}

// cursor reads one JSON text, strictly: UTF-8, no doubled member, no trailing
// bytes. Two readers of a body then cannot disagree about what it asks for.
//
// It consumes its input: strings are unescaped in place, so that a prompt of
// many megabytes is held once. What it returns aliases the body. Where the body
// itself is sent on (keep), it only reads.
type cursor struct {
	b     []byte
	i     int
	depth int
	keep  bool // leave the input as it is: strings with escapes are copied
}

func newCursor(b []byte) (*cursor, error) {
	if !utf8.Valid(b) {
		return nil, bad("the body is not valid UTF-8")
	}
	return &cursor{b: b}, nil
}

func (c *cursor) space() {
	for c.i < len(c.b) {
		switch c.b[c.i] {
		case ' ', '\t', '\n', '\r':
			c.i++
		default:
			return
		}
	}
}

// kind is the first byte of the next value; 0 at the end.
func (c *cursor) kind() byte {
	c.space()
	if c.i == len(c.b) {
		return 0
	}
	return c.b[c.i]
}

func (c *cursor) is(b byte) bool {
	if c.kind() != b || c.i == len(c.b) {
		return false
	}
	c.i++
	return true
}

// end says that nothing but white space may follow.
func (c *cursor) end() error {
	if c.kind() != 0 || c.i != len(c.b) {
		return bad("more follows after the JSON object")
	}
	return nil
}

func (c *cursor) word(w string) bool {
	c.space()
	if bytes.HasPrefix(c.b[c.i:], []byte(w)) {
		c.i += len(w)
		return true
	}
	return false
}

// null steps over a null, if it comes next: most optional fields may be null.
func (c *cursor) null() bool { return c.word("null") }

func (c *cursor) bool() (bool, error) {
	switch {
	case c.word("true"):
		return true, nil
	case c.word("false"):
		return false, nil
	}
	return false, bad("want true or false")
}

// number steps over a number and returns its text.
func (c *cursor) number() (string, error) {
	c.space()
	start := c.i
	digits := func() bool {
		from := c.i
		for c.i < len(c.b) && '0' <= c.b[c.i] && c.b[c.i] <= '9' {
			c.i++
		}
		return c.i > from
	}
	at := func(set string) bool {
		if c.i < len(c.b) && bytes.IndexByte([]byte(set), c.b[c.i]) >= 0 {
			c.i++
			return true
		}
		return false
	}
	at("-")
	zero := c.i
	if !digits() || c.b[zero] == '0' && c.i-zero > 1 {
		return "", bad("want a number")
	}
	if at(".") && !digits() {
		return "", bad("want a number")
	}
	if at("eE") {
		at("+-")
		if !digits() {
			return "", bad("want a number")
		}
	}
	return string(c.b[start:c.i]), nil
}

func (c *cursor) integer(from, to int64) (int64, error) {
	s, err := c.number()
	if err != nil {
		return 0, bad("want an integer")
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < from || n > to {
		return 0, bad("want an integer from " + strconv.FormatInt(from, 10) + " to " + strconv.FormatInt(to, 10))
	}
	return n, nil
}

func (c *cursor) float(from, to float64) (float64, error) {
	s, err := c.number()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || n < from || n > to {
		return 0, bad("want a number from " + strconv.FormatFloat(from, 'g', -1, 64) + " to " + strconv.FormatFloat(to, 'g', -1, 64))
	}
	return n, nil
}

// text reads a string and unescapes it in place.
func (c *cursor) text() ([]byte, error) {
	if !c.is('"') {
		return nil, bad("want a string")
	}
	if c.keep {
		return c.kept(true)
	}
	start, w, from := c.i, c.i, c.i // from: of the plain bytes that are not moved yet
	for c.i < len(c.b) {
		switch b := c.b[c.i]; {
		case b != '"' && b != '\\' && b >= ' ':
			c.i++
			continue
		case b == '"':
			if w < from {
				w += copy(c.b[w:], c.b[from:c.i])
			} else {
				w = c.i
			}
			c.i++
			return c.b[start:w:w], nil
		case b < ' ':
			return nil, bad("a control character stands unescaped in a string")
		}
		if w < from {
			w += copy(c.b[w:], c.b[from:c.i])
		} else {
			w = c.i
		}
		r, ok := c.escape()
		if !ok {
			return nil, bad("a string holds an invalid escape")
		}
		w += utf8.EncodeRune(c.b[w:c.i], r) // an escape is never shorter than what it stands for
		from = c.i
	}
	return nil, bad("a string does not end")
}

// kept reads the rest of a string and leaves its bytes alone. Where it is not
// wanted, it is only checked.
func (c *cursor) kept(wanted bool) ([]byte, error) {
	start, from := c.i, c.i
	var out []byte // nil: no escape so far
	for c.i < len(c.b) {
		switch b := c.b[c.i]; {
		case b != '"' && b != '\\' && b >= ' ':
			c.i++
			continue
		case b == '"':
			end := c.i
			c.i++
			if out == nil {
				return c.b[start:end:end], nil
			}
			return append(out, c.b[from:end]...), nil
		case b < ' ':
			return nil, bad("a control character stands unescaped in a string")
		}
		end := c.i
		r, ok := c.escape()
		if !ok {
			return nil, bad("a string holds an invalid escape")
		}
		if wanted {
			out = utf8.AppendRune(append(out, c.b[from:end]...), r)
		}
		from = c.i
	}
	return nil, bad("a string does not end")
}

// escape steps over one escape, or a surrogate pair of them.
func (c *cursor) escape() (rune, bool) {
	if c.i+1 >= len(c.b) {
		return 0, false
	}
	e := c.b[c.i+1]
	if i := bytes.IndexByte([]byte(`"\/bfnrt`), e); i >= 0 {
		c.i += 2
		return rune("\"\\/\b\f\n\r\t"[i]), true
	}
	r, ok := c.hex4()
	if !ok || !utf16.IsSurrogate(r) {
		return r, ok
	}
	// A lone surrogate is no character: it has no UTF-8.
	low, ok := c.hex4()
	r = utf16.DecodeRune(r, low)
	return r, ok && r != utf8.RuneError
}

// hex4 steps over \uXXXX.
func (c *cursor) hex4() (rune, bool) {
	if c.i+6 > len(c.b) || c.b[c.i] != '\\' || c.b[c.i+1] != 'u' {
		return 0, false
	}
	var r rune
	for _, b := range c.b[c.i+2 : c.i+6] {
		switch {
		case '0' <= b && b <= '9':
			b -= '0'
		case 'a' <= b && b <= 'f':
			b -= 'a' - 10
		case 'A' <= b && b <= 'F':
			b -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(b)
	}
	c.i += 6
	return r, true
}

// object calls f for each member, with the cursor at its value. f reads exactly
// that value.
func (c *cursor) object(f func(name string) error) error {
	if !c.is('{') {
		return bad("want an object")
	}
	if c.depth++; c.depth > maxDepth {
		return bad("nested too deeply")
	}
	defer func() { c.depth-- }()
	var seen names
	for first := true; ; first = false {
		if first && c.is('}') {
			return nil
		}
		k, err := c.text()
		if err != nil {
			return bad("want the name of a member")
		}
		name := string(k)
		switch {
		case seen.has(k):
			return within(shown(name), bad("stands twice"))
		case len(seen.list) == maxMembers: // names cost many times their bytes
			return bad("holds more than " + strconv.Itoa(maxMembers) + " members")
		}
		seen.add(k)
		if internalField(name) {
			return &bodyError{field: shown(name), reason: "is internal to the engines and is never taken from a client", forbidden: true}
		}
		if !c.is(':') {
			return within(shown(name), bad("want a colon and a value"))
		}
		if err := f(name); err != nil {
			return within(shown(name), err)
		}
		switch {
		case c.is('}'):
			return nil
		case !c.is(','):
			return bad("want a comma or the end of the object")
		}
	}
}

// names are those of one object so far. A few are compared one by one: most
// objects have a few, and there may be many objects.
type names struct {
	list  [][]byte // they alias the body
	index map[string]struct{}
}

func (n *names) has(name []byte) bool {
	if n.index != nil {
		_, ok := n.index[string(name)]
		return ok
	}
	for _, k := range n.list {
		if bytes.Equal(k, name) {
			return true
		}
	}
	return false
}

func (n *names) add(name []byte) {
	n.list = append(n.list, name)
	if n.index == nil && len(n.list) == 16 {
		n.index = make(map[string]struct{}, 64)
		for _, k := range n.list {
			n.index[string(k)] = struct{}{}
		}
	} else if n.index != nil {
		n.index[string(name)] = struct{}{}
	}
}

// array calls f for each element, with the cursor at it.
func (c *cursor) array(f func(i int) error) error {
	if !c.is('[') {
		return bad("want an array")
	}
	if c.depth++; c.depth > maxDepth {
		return bad("nested too deeply")
	}
	defer func() { c.depth-- }()
	for i := 0; ; i++ {
		if i == 0 && c.is(']') {
			return nil
		}
		if err := f(i); err != nil {
			return within("["+strconv.Itoa(i)+"]", err)
		}
		switch {
		case c.is(']'):
			return nil
		case !c.is(','):
			return bad("want a comma or the end of the array")
		}
	}
}

// skip steps over any value, checking it all the same.
func (c *cursor) skip() error {
	switch c.kind() {
	case '{':
		return c.object(func(string) error { return c.skip() })
	case '[':
		return c.array(func(int) error { return c.skip() })
	case '"':
		if c.keep {
			c.i++
			_, err := c.kept(false)
			return err
		}
		_, err := c.text()
		return err
	case 't', 'f':
		_, err := c.bool()
		return err
	case 'n':
		if c.null() {
			return nil
		}
		return bad("want a JSON value")
	}
	if _, err := c.number(); err != nil {
		return bad("want a JSON value")
	}
	return nil
}

// shown is a member's name as an answer may show it: a name is a client's text,
// and whatever does not look like a name is not repeated.
func shown(name string) string {
	if len(name) == 0 || len(name) > 64 {
		return "(a field)"
	}
	for i := range len(name) {
		switch b := name[i]; {
		case b >= 'a' && b <= 'z', b >= 'A' && b <= 'Z', b >= '0' && b <= '9', b == '_', b == '-':
		default:
			return "(a field)"
		}
	}
	return name
}
