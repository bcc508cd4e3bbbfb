package partition

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
)

// node joins a loop to a journal, as a service does: one mutex serialises the
// loop's inputs.
type node struct {
	mu      sync.Mutex
	loop    *Loop
	journal journal.Journal
	bad     func(string, ...any)
}

func (n *node) locked(f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	f()
}

func (n *node) Publish(token uint64, env *events.Envelope) error {
	return n.journal.Append(env, func(r journal.Reply) {
		n.locked(func() {
			switch r.Kind {
			case journal.Stored:
				n.loop.Stored(token, r.Seq, time.Now())
			case journal.Refused:
				n.loop.Refused(token, r.Hint, time.Now())
			default:
				n.loop.Unknown(token, r.Err, time.Now())
			}
		})
	})
}

type outcome struct {
	answer *events.Answer
	err    *events.Error
}

func (n *node) Answer(to any, a *events.Answer, err *events.Error) {
	to.(chan outcome) <- outcome{a, err}
}
func (n *node) Committed(*events.Event, events.Position, []byte, bool) {}
func (n *node) Alarm(err error) {
	var foreign *ForeignError
	if !errors.As(err, &foreign) {
		n.bad("alarm: %v", err)
	}
}

func (n *node) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			var next uint64
			n.locked(func() { next = n.loop.Applied() + 1 })
			err := n.journal.Follow(ctx, next, func(env *events.Envelope) (err error) {
				if env.Partition == 0 {
					n.locked(func() { err = n.loop.Followed(env, time.Now()) })
				}
				return err
			}, func(_ int, seq uint64, _ string) (known bool) {
				n.locked(func() { known = seq <= n.loop.Applied() })
				return known
			})
			var gap *GapError
			if ctx.Err() == nil && !errors.As(err, &gap) {
				n.bad("follow: %v", err)
			}
		}
	})
	wg.Go(func() {
		t := time.NewTicker(5 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-t.C:
				n.locked(func() { n.loop.Tick(now) })
			}
		}
	})
	wg.Wait()
}

// TestOverJournal runs two loops over one log in memory, in a bubble of fake
// time, with faults on every fourth append: appends and replies that are lost,
// delayed, refused, and refused although stored, and another's envelope that was
// changed. Followers open only what their loop has not folded at its
// acknowledgement. Clients get answers that the log has, the changed envelope
// counts for nothing, and both replicas end in the log's state.
func TestOverJournal(t *testing.T) {
	for _, mode := range []journal.Mode{journal.Single, journal.Replicated} {
		t.Run(fmt.Sprint("mode ", mode), func(t *testing.T) {
			seed := time.Now().UnixNano()
			t.Logf("seed %d", seed)
			synctest.Test(t, func(t *testing.T) { overJournal(t, mode, rand.New(rand.NewSource(seed))) })
		})
	}
}

func overJournal(t *testing.T, mode journal.Mode, rnd *rand.Rand) {
	key := []byte("a log key for the partition loop")
	log := journal.NewMemoryLog(mode, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var nodes []*node
	var foreign [2]int // messages that a follower met; its own goroutine's until it ends
	for i := range 2 {
		j, err := log.Open(journal.Config{Key: key, OnForeign: func(*journal.ForeignError) { foreign[i]++ }})
		if err != nil {
			t.Fatal(err)
		}
		defer j.Close()
		n := &node{journal: j, bad: t.Errorf}
		if n.loop, err = New(Config{Writer: fmt.Sprintf("lc%d", i)}, newMachine(fmt.Sprintf("/lc%d", i), t.Errorf), n); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
		running.Go(func() { n.run(ctx) })
	}
	log.SetFault(func(*events.Envelope) journal.Fault { // under the log's lock
		switch rnd.Intn(25) {
		case 0:
			return journal.Fault{Drop: true}
		case 1:
			return journal.Fault{LoseReply: true}
		case 2:
			return journal.Fault{StoreThenRefuse: true}
		case 3:
			return journal.Fault{Refuse: true, Hint: 1}
		case 4:
			return journal.Fault{Unavailable: errors.New("no leader")}
		case 5:
			return journal.Fault{HoldReply: true}
		}
		return journal.Fault{}
	})
	running.Go(func() {
		for t := time.NewTicker(700 * time.Millisecond); ; { // before and after the silence is given up
			select {
			case <-ctx.Done():
				t.Stop()
				return
			case <-t.C:
				log.Release()
			}
		}
	})
	running.Go(func() { tamper(ctx, t, log, nodes[0].journal) })
	var clients sync.WaitGroup
	var mu sync.Mutex
	told := map[string]string{} // command key -> position
	for c := range 20 {
		clients.Go(func() {
			for _, step := range steps {
				cmd := command(step, subject(c), "gw1", 0)
				for try := 0; ; try++ {
					to := make(chan outcome, 1)
					n := nodes[(c+try)%2]
					n.locked(func() { n.loop.Command(cmd, to, time.Now()) })
					if o := <-to; o.answer != nil {
						mu.Lock()
						told[cmd.Key()] = o.answer.Position
						mu.Unlock()
						break
					}
				}
			}
		})
	}
	clients.Wait()
	// Everybody stops once both have folded what the log has.
	last, err := nodes[0].journal.Last(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		for applied := uint64(0); applied < last; {
			n.locked(func() { applied = n.loop.Applied() })
			time.Sleep(time.Millisecond) // fake time
		}
	}
	cancel()
	running.Wait()
	// Everything in the log but the changed envelope is whole: no buffer was used
	// again while its envelope was on its way.
	whole := newMachine("", t.Errorf)
	if bad := foldAll(t, log, key, last, whole); bad != 1 {
		t.Errorf("%d messages of the log do not verify, want the changed one", bad)
	}
	for i, n := range foreign {
		if n != 1 {
			t.Errorf("follower %d met %d messages that do not verify, want the changed one", i, n)
		}
	}
	for key, pos := range told {
		if a := whole.recorded[key]; a == nil || a.Position != pos {
			t.Errorf("a client was told %s, the log has %+v", pos, a)
		}
	}
	if len(told) != 20*len(steps) {
		t.Errorf("%d commands answered, want %d", len(told), 20*len(steps))
	}
	for _, n := range nodes {
		m := n.loop.machine.(*machine)
		for key, pos := range told {
			if a := m.recorded[key]; a == nil || a.Position != pos {
				t.Errorf("a client was told %s, a replica folded %+v", pos, a)
			}
		}
		for c := range 20 {
			if s := m.request(subject(c)).state; s != events.Decoded {
				t.Errorf("%s ends %s", subject(c), s)
			}
		}
	}
}

// tamper stores the log's first envelope once more, with one byte changed.
func tamper(ctx context.Context, t *testing.T, log *journal.MemoryLog, j journal.Journal) {
	done := errors.New("done")
	err := j.Follow(ctx, 1, func(env *events.Envelope) error {
		lines := bytes.Clone(env.Lines)
		lines[len(lines)/2] ^= 1
		log.Inject(events.LogSubject(env.Partition), map[string]string{
			events.HeaderExpected: strconv.FormatUint(env.Expected, 10), events.HeaderEnvelope: env.ID, events.HeaderMAC: env.MAC,
		}, lines)
		return done
	})
	if !errors.Is(err, done) {
		t.Errorf("tamper: %v", err)
	}
}

// foldAll folds the log up to last, opening every message, and counts those that
// do not verify.
func foldAll(t *testing.T, log *journal.MemoryLog, key []byte, last uint64, m *machine) (bad int) {
	j, err := log.Open(journal.Config{Key: key})
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	for seq := uint64(1); seq <= last; seq++ {
		env, err := j.Read(context.Background(), seq)
		if err != nil {
			bad++
			continue
		}
		if err := events.Split(env.Lines, func(i int, line []byte) error {
			e, err := events.Decode(line)
			if err == nil {
				m.Fold(e, events.Position{Seq: seq, Line: i}, events.Hash(line))
			}
			return err
		}); err != nil {
			t.Errorf("message %d: %v", seq, err)
		}
	}
	return bad
}
