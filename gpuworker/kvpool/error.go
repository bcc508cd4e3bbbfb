package kvpool

import (
	"errors"
	"fmt"

	"github.com/pdgate/pdgate/events"
)

// Errors that callers branch on. [ErrFull] also matches an allocation that was
// refused for fragmentation: to the caller both mean "not now".
var (
	ErrFull       = errors.New("kvpool: too few free pages")
	ErrFragmented = errors.New("kvpool: free pages are too scattered")
	ErrTooLarge   = errors.New("kvpool: more pages than the pool has")
	ErrReleased   = errors.New("kvpool: used after its release")
	ErrAccount    = errors.New("kvpool: the pages are an account and hold no bytes")
)

// FullError is [ErrFull] with the figures.
type FullError struct {
	Need, Free int
	Waiting    int // allocations in line before this one, which it may not overtake
}

// Error implements error.
func (e *FullError) Error() string {
	return fmt.Sprintf("kvpool: %d pages needed, %d free, %d allocations waiting", e.Need, e.Free, e.Waiting)
}

// Is makes errors.Is(err, ErrFull) hold.
func (e *FullError) Is(target error) bool { return target == ErrFull }

// PageError says which page failed which check. It unwraps to an
// [events.Error], so that errors.As finds the code that goes on record. It does
// not name the true owner: the error may reach the peer.
type PageError struct {
	Page uint32 // index in the pool
	Err  *events.Error
}

// Error implements error.
func (e *PageError) Error() string { return fmt.Sprintf("kvpool: page %d: %v", e.Page, e.Err) }

// Unwrap gives the recorded form.
func (e *PageError) Unwrap() error { return e.Err }

// Code is the recorded code.
func (e *PageError) Code() events.Code { return e.Err.Code }

func pageError(page uint32, code events.Code, message string) *PageError {
	return &PageError{Page: page, Err: events.NewError(code, message)}
}
