package partition

import (
	"errors"
	"fmt"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Config is one partition's. The zero value of a field is its default.
type Config struct {
	// Partition is the partition's number, or events.OpsPartition.
	Partition int

	// Writer names this life of this replica in envelope ids. No other replica
	// and no other life of this one may have the same.
	Writer string

	// MaxBytes bounds an envelope's lines in bytes; 0 is 512 KiB. It must hold
	// the longest event, and must not exceed what the log takes in one message.
	MaxBytes int

	// MaxEvents bounds an envelope's lines; 0 is 512.
	MaxEvents int

	// QueueLimit is how many callers may wait; 0 is 16,384. The next one is told
	// events.CodeBackpressure at once.
	QueueLimit int

	// SubjectLimit is how many different commands of one request may wait; 0 is
	// 64. An envelope takes one of them, so more would only keep others out. The
	// service's own commands are not bounded by it.
	SubjectLimit int

	// CommandTimeout is how long a caller waits before it is told
	// events.CodeUnavailable; 0 is 10 s.
	CommandTimeout time.Duration

	// Resend is how long an envelope may go without a reply before the loop
	// decides again; 0 is 1 s.
	Resend time.Duration

	// Backoff is the longest wait for the follower after a refusal; 0 is 20 ms.
	// After replies that say neither yes nor no it doubles, up to MaxBackoff.
	Backoff time.Duration

	// MaxBackoff is 0 for 1 s.
	MaxBackoff time.Duration
}

func (c Config) withDefaults() (Config, error) {
	set := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	wait := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	set(&c.MaxBytes, 512<<10)
	set(&c.MaxEvents, 512)
	set(&c.QueueLimit, 16_384)
	set(&c.SubjectLimit, 64)
	wait(&c.CommandTimeout, 10*time.Second)
	wait(&c.Resend, time.Second)
	wait(&c.Backoff, 20*time.Millisecond)
	wait(&c.MaxBackoff, max(time.Second, c.Backoff))
	switch {
	case c.Partition < events.OpsPartition || c.Partition >= events.MaxPartitions:
		return c, fmt.Errorf("partition: number %d is out of range", c.Partition)
	case c.Writer == "":
		return c, errors.New("partition: the writer has no name")
	case c.MaxBytes <= events.MaxEvent:
		return c, fmt.Errorf("partition: an envelope of %d bytes cannot hold an event of %d", c.MaxBytes, events.MaxEvent)
	case c.MaxEvents < 1, c.QueueLimit < 1, c.SubjectLimit < 1:
		return c, errors.New("partition: negative limit")
	case c.CommandTimeout < 0, c.Resend < 0, c.Backoff < 0, c.MaxBackoff < c.Backoff:
		return c, errors.New("partition: a wait is negative, or the longest backoff is the shorter one")
	}
	return c, nil
}

// Stats counts what happened to one partition since it was made.
type Stats struct {
	Attempts     uint64 // envelopes sent
	Acked        uint64 // own, folded at their acknowledgement
	Own          uint64 // own, folded when followed before the acknowledgement
	Refused      uint64
	Unknown      uint64 // replies that said neither, and silences
	Overtaken    uint64 // attempts that another's message ended
	Stale        uint64 // replies for an attempt that was over
	Gaps         uint64
	Foreign      uint64 // messages that no holder of the log key wrote
	Undecodable  uint64 // lines passed over
	Lines        uint64 // folded
	Recorded     uint64 // commands answered without an append
	Joined       uint64 // commands that joined a waiter
	Backpressure uint64
	TimedOut     uint64 // callers
	Waiting      int    // callers now
	Applied      uint64 // sequence of the last message folded
}
