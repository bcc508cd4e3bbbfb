package lifecycle

import (
	"context"
	"errors"
	"time"
)

// Retention says what may leave the live stream, and how.
type Retention struct {
	Age   time.Duration // what is older may leave; 0: age lets nothing leave
	Bytes int64         // of the stream; what is above may leave, the oldest first; 0: size lets nothing leave

	Trimmer Trimmer // takes it off the stream; nil: nothing leaves
	// Signed is the last signed tree, or nil where there is none: nothing leaves
	// that is not in it.
	Signed func(context.Context) (*SignedTree, error)
	// Unaudited lets the log leave although no auditor keeps it.
	Unaudited bool

	Every time.Duration // between trims; 0: 5 seconds
	Step  uint64        // most messages that leave at once; 0: 10,000
	Least uint64        // messages that a trim is recorded for; 0: 1,000
}

// Trimmer takes the beginning off the log. *journal.Trimmer is one.
type Trimmer interface {
	Trim(ctx context.Context, below uint64) error
}

// SignedTree is what the auditor says of the log.
type SignedTree struct {
	Origin        string
	Size          int64  // 0: nothing is signed yet
	Root          string // base64
	CompleteUntil uint64 // the tree holds the stream up to it
	LegalHold     bool   // nothing may leave
}

func (r *Retention) on() bool { return r.Age > 0 || r.Bytes > 0 }

func (r *Retention) check() error {
	switch {
	case r.Age < 0 || r.Bytes < 0 || r.Every < 0:
		return errors.New("lifecycle: Retention wants Age, Bytes and Every of 0 or more")
	case r.on() && r.Trimmer == nil:
		return errors.New("lifecycle: Retention wants a Trimmer")
	case r.on() && r.Signed == nil && !r.Unaudited:
		return errors.New("lifecycle: Retention wants Signed, or Unaudited where no auditor keeps the log")
	}
	return nil
}

func (r Retention) withDefaults() Retention {
	if r.Every == 0 {
		r.Every = 5 * time.Second
	}
	if r.Step == 0 {
		r.Step = 10_000
	}
	if r.Least == 0 {
		r.Least = 1000
	}
	return r
}
