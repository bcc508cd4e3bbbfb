package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/pdgate/pdgate/events"
)

// Journal is the log. [JetStream] and [Memory] implement it, and journaltest
// holds both to one behaviour.
type Journal interface {
	// Append sends env to its partition under env.Expected, and sets env.MAC.
	// It does not wait for the server, and keeps neither env nor its lines:
	// what is still on its way when it returns is a copy. reply is called at most once, on a goroutine of the
	// journal's own and never from inside Append; it must not block. An error
	// means that nothing was sent and that reply will not be called.
	Append(env *events.Envelope, reply func(Reply)) error

	// Follow calls handle for every message from stream sequence next on, one
	// at a time and in order, until ctx ends or handle fails; it returns the
	// cause. A message that is not ours arrives as an envelope that [Foreign]
	// recognises. A missing message is a *GapError. A message that known claims
	// is passed over.
	Follow(ctx context.Context, next uint64, handle func(*events.Envelope) error, known ...Known) error

	// Read gets one envelope: ErrNotFound, or a *ForeignError, if it cannot.
	Read(ctx context.Context, seq uint64) (*events.Envelope, error)

	// Last is the sequence of a recent last message. It may be stale: good for
	// "caught up with what was there", not for deciding what comes next.
	Last(ctx context.Context) (uint64, error)

	// Extent is where the log begins and ends, as far as Last knows.
	Extent(ctx context.Context) (*Extent, error)
}

// Known says whether a follower has the message's content already: it wrote it,
// and folded it at its acknowledgement. It is asked in place of the handler, for
// each message on a partition's subject, before the message is opened; mac is
// what the message claims. A message that is known is neither verified nor
// handed over, and counts as followed.
type Known func(partition int, seq uint64, mac string) bool

// Kind is what a reply to an append says.
type Kind int

const (
	// Unknown says nothing: no responder, no leader, no space. Err has more.
	Unknown Kind = iota
	// Stored says that the envelope is in the log, at Seq.
	Stored
	// Refused says that the expectation did not hold where it was looked at. It
	// does not say that the envelope is not in the log.
	Refused
)

// String names the kind.
func (k Kind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Refused:
		return "refused"
	}
	return "unknown"
}

// Reply is the log's answer to one append.
type Reply struct {
	Kind Kind
	Seq  uint64 // Stored: where
	Hint uint64 // Refused: a sequence that the subject had reached; 0: not told
	Code int    // the server's error code; 0: none
	Err  error  // Unknown: what is wrong, and what to do about it
}

// NoPartition is the Partition of a foreign message on a subject that is no
// partition of the log.
const NoPartition = -2

// Foreign says whether a followed envelope stands for a message that no holder
// of the log key wrote. It has a sequence and no lines: it takes its place as
// the subject's tail, and nothing in it counts.
func Foreign(env *events.Envelope) bool { return len(env.Lines) == 0 }

// ErrNotFound means that no message with that sequence was found. A lagging
// replica may have answered.
var ErrNotFound = errors.New("journal: no message with this sequence")

// ErrNoLog means that the stream does not exist, and that this account cannot
// create it: no lifecycle replica has started yet.
var ErrNoLog = errors.New("journal: the log does not exist yet: start a lifecycle replica")

// ErrClosed means that the journal was closed.
var ErrClosed = errors.New("journal: closed")

// GapError means that messages are missing from the log: they were deleted, or
// aged out by a limit that the log must not have.
type GapError struct {
	From, To uint64 // missing sequences: From up to, and without, To
}

// Error implements error.
func (e *GapError) Error() string {
	return fmt.Sprintf("journal: messages %d to %d are missing from the log: it was deleted from, or has a limit; restore the stream from its backup, or the history from the auditor's tiles", e.From, e.To-1)
}

// ForeignError names a message that no holder of the log key wrote, or that was
// moved or changed since. It never carries the payload.
type ForeignError struct {
	Seq     uint64
	Subject string
	Bytes   int      // length of the payload
	Sum     [32]byte // SHA-256 of the subject, a newline and the payload: what the audit tree keeps of it
	Err     error
}

// Error implements error.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("journal: foreign message %d on %q (%d bytes): %v", e.Seq, e.Subject, e.Bytes, e.Err)
}

// Unwrap returns why the message is foreign.
func (e *ForeignError) Unwrap() error { return e.Err }
