package process

import (
	"context"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// recoverIn is how long clients may wait for the first answer after a fault: a
// hung or dead replica is passed over after a second, a reconnection takes a
// tenth, and the rest is for a machine that does other things too.
const recoverIn = 20 * time.Second

// settleIn is how long everything that a fault left behind may stay: a worker's
// life ends after 15 seconds of silence, work that a dead worker had taken is
// delivered again after 30.
const settleIn = 60 * time.Second

// TestKill kills every part with SIGKILL in turn, under load, starts it again,
// and then asks the log and the clients whether anything is wrong.
func TestKill(t *testing.T) {
	began := time.Now()
	c := newCluster(t)
	nc := connect(t, "nats://"+c.nats, c.ring, keyring.Operator)
	op := operator(t, nc)
	audit := newAuditor(t, connect(t, "nats://"+c.nats, c.ring, keyring.Admin), c.ring)
	l := newLoad(t, c.http)
	canceller := newCanceller(t, op)
	l.flows(began, "", inFlight)

	first := c.preferred(nc)
	second := without([]string{"lc1", "lc2"}, first)[0]
	faults := [][]string{{first}, {"d1"}, {"nats"}}
	if !testing.Short() {
		faults = [][]string{{first}, {second}, {"p1"}, {"d1"}, {"gw1"}, {"nats"}, {first, second}}
	}
	for _, parts := range faults {
		before := l.count(func(*outcome) bool { return true })
		at := time.Now()
		for _, part := range parts {
			c.kill(part)
		}
		// What has a twin is missed before it is back; what has none cannot be.
		lone := parts[0] == "nats" || len(parts) > 1
		var first time.Duration
		if !lone {
			first = l.flows(at, "", 1)
		}
		restarted := time.Now()
		for _, part := range parts {
			c.start(part)
		}
		if lone {
			first = l.flows(at, "", 1)
		}
		whole := c.whole(op, parts, restarted)
		if first > recoverIn {
			t.Errorf("kill %v: first answer after %v, want %v", parts, first, recoverIn)
		}
		l.flows(time.Now(), "", 2*inFlight)
		t.Logf("kill %-7s first answer after %4d ms, back %4d ms after its start, %d requests meanwhile",
			strings.Join(parts, "+"), first.Milliseconds(), whole.Milliseconds(), l.count(func(*outcome) bool { return true })-before)
	}

	all := l.calm()
	told := canceller.stop()
	took := audit.settled(settleIn)
	c.idle(op, 4)
	for _, problem := range audit.judge(all, told) {
		t.Error(problem)
	}
	report := audit.checker.Report()
	if !t.Failed() {
		audit.bites(all, told)
	}
	ok := 0
	for _, o := range all {
		if o.status == http.StatusOK && o.complete {
			ok++
		}
	}
	t.Logf("%s", summary(all))
	t.Logf("log: %d events of %d requests, all ended %d ms after the last client; %d cancels were answered; seconds in all: %.0f",
		report.Events, report.Requests, took.Milliseconds(), len(told), time.Since(began).Seconds())
	if ok < 10*inFlight || len(told) == 0 {
		t.Errorf("%d whole answers and %d cancels prove little", ok, len(told))
	}
	c.interrupt("gw1", "gw2", "d1", "d2", "p1", "p2", "lc1", "lc2", "nats")
	c.checkLogs()
}

// kill ends a part's present life. It must be one.
func (c *cluster) kill(part string) {
	c.t.Helper()
	p := c.parts[part]
	if p.kill(); p.died() != syscall.SIGKILL {
		c.t.Errorf("%s ended by itself: %v", part, p.err)
	}
}

// whole waits until parts that were started serve, and says how long that took.
func (c *cluster) whole(op *client.Client, parts []string, since time.Time) time.Duration {
	c.t.Helper()
	for _, part := range parts {
		await(c.t, part+" is back", patience, func() bool {
			ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Second)
			defer cancel()
			select {
			case <-c.parts[part].done:
				c.t.Fatalf("%s ended by itself: %v", part, c.parts[part].err)
			default:
			}
			switch part[0] {
			case 'g':
				return c.ready(part)
			case 'p', 'd':
				v, err := op.Workers(ctx)
				if err != nil {
					return false
				}
				for _, w := range v.Workers {
					if w.Worker == part {
						return w.Live && int64(w.Epoch) > since.UnixMicro()
					}
				}
				return false
			default: // lifecycle, by any replica that answers; nats, through it
				v, err := op.Info(ctx)
				return err == nil && (part == "nats" || len(parts) > 1 || v.Replica == part)
			}
		})
	}
	return time.Since(since)
}

// canceller cancels a request now and then, and keeps what it was told.
type canceller struct {
	end  context.CancelFunc
	wg   sync.WaitGroup
	mu   sync.Mutex
	told []events.Answer
}

func newCanceller(t *testing.T, op *client.Client) *canceller {
	ctx, end := context.WithCancel(context.Background())
	k := &canceller{end: end}
	t.Cleanup(func() { k.stop() })
	seed := rand.Uint64()
	t.Logf("canceller: seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	ids := make(chan string, 16)
	k.wg.Go(func() {
		err := op.Watch(ctx, client.WatchFilter{}, func(n client.Notice) {
			if n.Event.Type == events.TypeAdmitted && r.IntN(25) == 0 {
				select {
				case ids <- n.Event.Subject:
				default: // the other one waits for a lifecycle service
				}
			}
		})
		if err != nil {
			t.Error(err)
		}
	})
	k.wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case id := <-ids:
				try, stop := context.WithTimeout(ctx, 10*time.Second)
				a, err := op.Cancel(try, id, &events.Cancel{Reason: events.CodeCancelled})
				stop()
				if err != nil {
					continue // not answered: it may be recorded or not
				}
				k.mu.Lock()
				k.told = append(k.told, *a)
				k.mu.Unlock()
			}
		}
	})
	return k
}

func (k *canceller) stop() []events.Answer {
	k.end()
	k.wg.Wait()
	return k.told
}
