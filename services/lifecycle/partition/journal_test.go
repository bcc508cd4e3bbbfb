package partition

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
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
// time, with faults on every fifth append: clients get answers that the log has,
// and both replicas end in the log's state.
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
	for i := range 2 {
		j, err := log.Open(journal.Config{Key: key})
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
		}
		return journal.Fault{}
	})
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
