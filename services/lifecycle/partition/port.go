package partition

import (
	"fmt"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Machine is the state that the partition's lines are folded into. The loop
// calls it from one goroutine at a time and hands it every line of the log once,
// in order.
type Machine interface {
	// Recorded is the answer to a command that the folded log already holds. key
	// is the command's.
	Recorded(c *events.Command, key string) (*events.Answer, bool)

	// Begin starts a draft on the state folded so far. The draft before it is
	// over: what it was told is forgotten.
	Begin() Draft

	// Fold applies one stored event and returns the answer to the command that
	// caused it. hash is that of the event's canonical bytes. The event stays
	// unchanged and may be kept.
	Fold(e *events.Event, pos events.Position, hash string) *events.Answer
}

// Draft decides the events of one envelope. What chains through them (a tenant's
// sequence and hash) is the draft's to remember: the envelope may never land,
// and then none of it happened.
type Draft interface {
	// Decide is the event that the command leads to, a denial included, with
	// everything set that is stored; key is the command's. It does not change the draft: the event
	// may still turn out too large for the envelope.
	Decide(c *events.Command, key string, now time.Time) *events.Event

	// Encoded says that e is part of the envelope; hash is that of its bytes.
	Encoded(e *events.Event, hash string)
}

// Port is where the loop's outputs go. Its methods are called from inside the
// loop's inputs and must neither block nor call back.
type Port interface {
	// Publish sends the envelope to the log; the reply comes as Stored, Refused
	// or Unknown with the same token, or never. An error means that nothing was
	// sent. The envelope and its lines are the loop's again when Publish returns.
	Publish(token uint64, env *events.Envelope) error

	// Answer gives one caller its answer: a is what the log recorded, or err
	// says why there is none. Exactly one of them is set.
	Answer(to any, a *events.Answer, err *events.Error)

	// Committed hands over one event after it was folded: for dispatch and
	// notification. own says that this life of this replica wrote it. The event
	// may be kept; line is the loop's again when Committed returns.
	Committed(e *events.Event, pos events.Position, line []byte, own bool)

	// Alarm reports what a person must look at. It repeats no payload.
	Alarm(err error)
}

// GapError says that a followed message does not come after the last one folded.
// The remedy is to follow again from Applied + 1; if that gives the same gap,
// the log has lost messages, or the replica reads another log.
type GapError struct {
	Partition int
	Seq       uint64 // of the followed message
	Expected  uint64 // what it names as the one before
	Applied   uint64 // what was folded last
}

// Error implements error.
func (e *GapError) Error() string {
	return fmt.Sprintf("partition %s: message %d comes after %d, the last one folded is %d", name(e.Partition), e.Seq, e.Expected, e.Applied)
}

// ForeignError is the alarm for a message that no holder of the log key wrote.
type ForeignError struct {
	Partition int
	Seq       uint64
}

// Error implements error.
func (e *ForeignError) Error() string {
	return fmt.Sprintf("partition %s: message %d was not written by a holder of the log key; it is passed over", name(e.Partition), e.Seq)
}

// LineError is the alarm for a line that cannot be decoded. It names the fault,
// never the line.
type LineError struct {
	Partition int
	Pos       events.Position
	Err       error
}

// Error implements error.
func (e *LineError) Error() string {
	return fmt.Sprintf("partition %s: line %s cannot be decoded and is passed over: %v", name(e.Partition), e.Pos, e.Err)
}

// Unwrap returns the decoder's error.
func (e *LineError) Unwrap() error { return e.Err }

// TailError is the alarm for a log whose tail lies before what was folded: it
// was restored from a backup, or lost acknowledged messages.
type TailError struct {
	Partition     int
	Tail, Applied uint64
}

// Error implements error.
func (e *TailError) Error() string {
	return fmt.Sprintf("partition %s: the log's tail is %d, and %d was folded: the log has lost acknowledged messages; stop the writers and restore the stream", name(e.Partition), e.Tail, e.Applied)
}

// EncodeError is the alarm for an event that cannot be stored.
type EncodeError struct {
	Partition int
	Event     string
	Err       error
}

// Error implements error.
func (e *EncodeError) Error() string {
	return fmt.Sprintf("partition %s: event %s cannot be encoded: %v", name(e.Partition), e.Event, e.Err)
}

// Unwrap returns the encoder's error.
func (e *EncodeError) Unwrap() error { return e.Err }

func name(p int) string { return events.LogSubject(p)[len(events.LogPrefix):] }
