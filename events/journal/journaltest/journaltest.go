// Package journaltest is the conformance suite of the log: what every
// [journal.Journal] must do, run on memory in both modes and on JetStream with
// one replica and with three.
//
// A check is a function that returns an error, so that tests can also run the
// suite over journals that are broken on purpose and see it fail.
package journaltest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
)

// Key is the log key that a log under test must use.
var Key = []byte("a log key for conformance tests!")

// Partitions is the number of partitions that a log under test must have.
const Partitions = 4

// patience is how long a check waits for what must happen. Nothing waits for
// it to pass.
const patience = 20 * time.Second

// Log is an empty log under test.
type Log struct {
	// Open is another writer on the log. What it holds is freed by the test's
	// cleanup.
	Open func(onForeign func(*journal.ForeignError)) (journal.Journal, error)

	// Inject stores a message without a compare-and-swap, as an outsider does
	// who may publish to the log's subjects. It returns the sequence.
	Inject func(subject string, header map[string]string, data []byte) (uint64, error)

	// Delete removes the messages up to and with sequence seq, as only an
	// administrator can.
	Delete func(seq uint64) error

	// Trim removes the messages below sequence seq, as the log lets its beginning
	// go.
	Trim func(seq uint64) error

	// Restart stops the server and starts it again on its files, or cuts and
	// mends the connection.
	Restart func() error

	// Racers is how many appends race for one place; 0 is 200.
	Racers int
}

// Check is one claim about a log.
type Check struct {
	Name string
	Run  func(ctx context.Context, l *Log) error
}

// Checks is the suite.
func Checks() []Check {
	return []Check{
		{"append", checkAppend},
		{"wrong expectation is refused", checkExpectation},
		{"one of many racers wins", checkRace},
		{"lost reply is settled by the log", checkLostReply},
		{"second writer is fenced", checkFence},
		{"follow from a sequence", checkFollowFrom},
		{"follow sees what comes later", checkFollowLater},
		{"follow ends with the handler's error", checkHandlerError},
		{"follow survives a restart", checkRestart},
		{"read", checkRead},
		{"history", checkHistory},
		{"history refuses a hole", checkHistoryHole},
		{"foreign messages count for nothing", checkForeign},
		{"known messages are passed over", checkKnown},
		{"deleted messages are a gap", checkGap},
		{"extent says where the log begins, and why", checkExtent},
	}
}

// Run holds a log to the suite. factory makes an empty log for each check.
func Run(t *testing.T, factory func(t *testing.T) *Log) {
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) {
			l := factory(t)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			if err := c.Run(ctx, l); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// envelope is an envelope of one line.
func envelope(p int, expected uint64, id string) *events.Envelope {
	return &events.Envelope{Partition: p, Expected: expected, ID: id, Lines: []byte(`{"line":"of ` + id + `"}` + "\n")}
}

// appendWait appends and waits for the reply.
func appendWait(ctx context.Context, j journal.Journal, env *events.Envelope) (journal.Reply, error) {
	got := make(chan journal.Reply, 8)
	if err := j.Append(env, func(r journal.Reply) { got <- r }); err != nil {
		return journal.Reply{}, err
	}
	select {
	case r := <-got:
		return r, nil
	case <-ctx.Done():
		return journal.Reply{}, fmt.Errorf("append %s: no reply: %w", env.ID, ctx.Err())
	}
}

// stored appends and wants the envelope stored. "Nobody listens" is certain not
// to have stored it, and is what a cluster says before its stream has a leader.
func stored(ctx context.Context, j journal.Journal, env *events.Envelope) (uint64, error) {
	for {
		try := *env
		r, err := appendWait(ctx, j, &try)
		switch {
		case err != nil:
			return 0, err
		case r.Kind == journal.Unknown && r.Code == noResponders:
			continue
		case r.Kind != journal.Stored || r.Seq <= env.Expected:
			return 0, fmt.Errorf("append %s under %d: got %+v, want it stored", env.ID, env.Expected, r)
		}
		return r.Seq, nil
	}
}

// noResponders is the code of a reply that says that nobody listens.
const noResponders = 503

// fill stores n envelopes e1 … en, spread over partitions 0 and 1, and returns
// their sequences.
func fill(ctx context.Context, j journal.Journal, n int) ([]uint64, error) {
	var tail [2]uint64
	var seqs []uint64
	for i := range n {
		p := i % 2
		seq, err := stored(ctx, j, envelope(p, tail[p], fmt.Sprintf("e%d", i+1)))
		if err != nil {
			return nil, err
		}
		tail[p] = seq
		seqs = append(seqs, seq)
	}
	return seqs, nil
}

// collect follows from next until n envelopes came, or something else ends it.
func collect(ctx context.Context, j journal.Journal, next uint64, n int) ([]*events.Envelope, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var out []*events.Envelope
	err := j.Follow(ctx, next, func(e *events.Envelope) error {
		out = append(out, e)
		if len(out) == n {
			cancel()
		}
		return nil
	})
	if len(out) >= n {
		err = nil
	}
	if len(out) > n {
		err = fmt.Errorf("follow called its handler %d times after its context ended", len(out)-n)
	}
	return out, err
}

// ids names envelopes for comparison: "seq:id" or "seq:foreign".
func ids(envs []*events.Envelope) []string {
	out := []string{}
	for _, e := range envs {
		id := e.ID
		if journal.Foreign(e) {
			id = "foreign"
		}
		out = append(out, fmt.Sprintf("%d:%s", e.Seq, id))
	}
	return out
}
