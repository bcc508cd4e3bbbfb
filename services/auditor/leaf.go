package auditor

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/events/journal"
)

// message is what the tree takes of one stream message, or of one gap.
type message struct {
	seq    uint64 // of the message; of the gap's first one
	next   uint64 // sequence that follows
	leaves [][]byte
	marks  []mark // by ascending line
}

// ErrVersion means that the log holds an event of a type that this build does not
// know. It is not foreign: another build would make another leaf of it, and the
// tree must not depend on who builds it.
var ErrVersion = errors.New("the log holds events of a newer pdgate: upgrade the auditor")

// read makes the leaves of a followed envelope, without the epochs that it asks
// for. sum is the digest of the stored message where the envelope is foreign.
func read(env *events.Envelope, sum [32]byte, partitions int) (message, error) {
	m := message{seq: env.Seq, next: env.Seq + 1}
	if journal.Foreign(env) {
		f := audit.Foreign{Seq: env.Seq, SHA256: hex.EncodeToString(sum[:])}
		m.leaves = [][]byte{f.Append(nil)}
		return m, nil
	}
	err := events.Split(env.Lines, func(at int, line []byte) error {
		e, err := events.Decode(line)
		if err != nil {
			return err
		}
		if mark, ok := markOf(e, line, at, partitions); ok {
			m.marks = append(m.marks, mark)
		}
		m.leaves = append(m.leaves, line)
		return nil
	})
	if errors.Is(err, events.ErrUnknownType) {
		return m, fmt.Errorf("message %d: %w: %w", env.Seq, ErrVersion, err)
	}
	if err != nil {
		m.leaves, m.marks = [][]byte{audit.NewForeign(env.Seq, events.LogSubject(env.Partition), env.Lines).Append(nil)}, nil
	}
	return m, nil
}

// missing makes the leaf of sequences that the stream does not have.
func missing(gap *journal.GapError) message {
	g := audit.Gap{From: gap.From, To: gap.To - 1}
	return message{seq: gap.From, next: gap.To, leaves: [][]byte{g.Append(nil)}}
}
