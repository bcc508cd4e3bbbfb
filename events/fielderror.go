package events

import (
	"errors"
	"strconv"
	"strings"
)

// ErrUnknownType means that bytes carry an event type, or a version of one,
// that this build does not have. A reader stops there: an event that is skipped
// is a transition that is missed.
var ErrUnknownType = errors.New("type is not known to this build")

// FieldError says which field of an event, a command or a message is wrong, and
// what it must be. It never quotes a value: whoever sent it may have put a
// prompt or a key there.
type FieldError struct {
	Field  string // path, for instance "data.pages[3]"; empty: the whole object
	Reason string // what is wrong, or what is wanted
	Offset int    // of the byte where it shows, counted from 0; -1: not read from bytes
	Err    error  // what callers may branch on, or nil
}

// Error implements error.
func (e *FieldError) Error() string {
	var b strings.Builder
	if e.Field != "" {
		b.WriteString(e.Field)
		b.WriteString(": ")
	}
	b.WriteString(e.Reason)
	if e.Offset >= 0 {
		b.WriteString(" (at byte ")
		b.WriteString(strconv.Itoa(e.Offset))
		b.WriteByte(')')
	}
	return b.String()
}

// Unwrap returns the sentinel behind the error, if it has one.
func (e *FieldError) Unwrap() error { return e.Err }

func wrong(field, reason string) error {
	return &FieldError{Field: field, Reason: reason, Offset: -1}
}

// within puts an error's field below the field that holds it.
func within(field string, err error) error {
	var f *FieldError
	if !errors.As(err, &f) {
		return err
	}
	g := *f
	g.Field = joinPath(field, f.Field)
	return &g
}

func joinPath(outer, inner string) string {
	switch {
	case inner == "" || outer == "":
		return outer + inner
	case inner[0] == '[':
		return outer + inner
	}
	return outer + "." + inner
}

const (
	wantCount = "want 0 or more"
	wantText  = "want valid UTF-8"
	wantTime  = "want a time of the years 0 to 9999"
	wantKnown = "want a word that this build knows"
	wantData  = "want a value"
)
