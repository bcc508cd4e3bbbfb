package gateway

import "unicode/utf8"

// runes turns output into text that JSON can hold. A token may end inside a
// character: what could still become one is held back until it has, or until the
// output ends. Bytes that can be no character become U+FFFD, one for one, so
// that an answer in pieces and an answer in one piece are the same text.
type runes struct{ held []byte }

// push returns the text that is complete. It aliases b, or what was held.
func (r *runes) push(b []byte) string {
	r.held = append(r.held, b...)
	n := len(r.held)
	for i := max(0, n-utf8.UTFMax+1); i < n; i++ {
		if utf8.RuneStart(r.held[i]) && !utf8.FullRune(r.held[i:]) {
			n = i
			break
		}
	}
	s := replaceInvalid(r.held[:n])
	r.held = append(r.held[:0], r.held[n:]...)
	return s
}

// flush returns the rest.
func (r *runes) flush() string {
	s := replaceInvalid(r.held)
	r.held = r.held[:0]
	return s
}

func replaceInvalid(b []byte) string {
	if utf8.Valid(b) {
		return string(b)
	}
	return string([]rune(string(b)))
}
