package journal

import (
	"context"
	"errors"
	"fmt"

	"github.com/pdgate/pdgate/events"
)

// Extent is what the log holds.
type Extent struct {
	First, Last     uint64 // sequences; in an empty log First is the one after Last
	Messages, Bytes uint64
	Ops             uint64 // where the log begins above 1: the last message of operations
}

// CutError means that the log begins above 1, and that no event of it says that
// what is before may have left: it was deleted, or aged out by a limit.
type CutError struct {
	First uint64 // sequence of the first message that is there
	Below uint64 // what may have left; 0: nothing
}

// Error implements error.
func (e *CutError) Error() string {
	may := "no event of it lets anything leave"
	if e.Below > 0 {
		may = fmt.Sprintf("its newest log.trimmed event lets leave what is below %d", e.Below)
	}
	return fmt.Sprintf("journal: the log begins at message %d, and %s: it was deleted from, or has a limit; restore the stream from its backup, or the history from the auditor's tiles", e.First, may)
}

// Check is a *CutError, unless the log itself says why it begins where it does. It
// reads operations backwards, up to the newest event that lets something leave.
func (e *Extent) Check(ctx context.Context, r Reader) error {
	if e.First <= 1 {
		return nil
	}
	t, err := e.lastTrim(ctx, r)
	switch {
	case err != nil:
		return fmt.Errorf("journal: beginning of the log: %w", err)
	case t == nil:
		return &CutError{First: e.First}
	case t.BelowSeq < e.First:
		return &CutError{First: e.First, Below: t.BelowSeq}
	}
	return nil
}

func (e *Extent) lastTrim(ctx context.Context, r Reader) (*events.LogTrimmed, error) {
	for seq := e.Ops; seq >= e.First && seq > 0; {
		env, err := r.Read(ctx, seq)
		var foreign *ForeignError
		switch {
		case errors.As(err, &foreign), errors.Is(err, ErrNotFound), err == nil && env.Partition != events.OpsPartition:
			seq-- // it does not say what came before it in operations
			continue
		case err != nil:
			return nil, err
		}
		var found *events.LogTrimmed
		err = events.Split(env.Lines, func(_ int, line []byte) error {
			if e, err := events.Decode(line); err == nil {
				if d, ok := e.Data.(*events.LogTrimmed); ok && e.N > 0 {
					found = d
				}
			}
			return nil
		})
		if err != nil || found != nil {
			return found, err
		}
		seq = env.Expected
	}
	return nil, nil
}
