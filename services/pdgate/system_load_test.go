package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/internal/traffic"
)

// together sends orders, so many at a time, and compares every reply with check.
// It ends at the first problem.
func (s *system) together(ctx context.Context, atOnce int, orders []order, check func(context.Context, *order, *reply) error) error {
	if underRace {
		atOnce = min(atOnce, 16)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int)
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for i := range next {
				o := &orders[i]
				r, err := s.send(ctx, s.all[i%len(s.all)], *o)
				if err == nil {
					err = check(ctx, o, &r)
				}
				if err != nil {
					cancel(fmt.Errorf("request %d: %w", i, err))
				}
			}
		})
	}
	for i := range orders {
		select {
		case next <- i:
		case <-ctx.Done():
		}
	}
	close(next)
	wg.Wait()
	return context.Cause(ctx)
}

// right is the check of orders that must be answered as one engine would.
func (s *system) right(eng engine.Engine) func(context.Context, *order, *reply) error {
	return func(ctx context.Context, o *order, r *reply) error { return o.right(ctx, eng, r) }
}

// draw makes an order of any kind.
func draw(r *rand.Rand, i int, tenant string) order {
	o := order{tenant: tenant, most: 1 + r.IntN(32), stream: r.IntN(2) == 0}
	length := 20 + r.IntN(1200)
	switch {
	case i < 4:
		length = i + 1
	case r.IntN(20) == 0:
		length = 5_000 + r.IntN(40_000)
	case r.IntN(20) == 0:
		length = 1 + r.IntN(20)
	}
	o.prompt = records(i, length)
	switch r.IntN(8) {
	case 0, 1:
		half := length / 2
		o.messages = []engine.Message{{Role: "system", Content: string(o.prompt[:half])}, {Role: "user", Content: string(o.prompt[half:])}}
		o.prompt = nil
	case 2:
		o.n = 2
	case 3:
		o.stop = []string{"card=", "=41"}[:1+r.IntN(2)]
	case 4:
		o.stop = []string{"11-"}
		o.n = 2
	case 5:
		o.temperature, o.seed, o.n = 1.5, r.Int64N(1<<53), 1+r.IntN(2)
	}
	return o
}

// lifecycles is how many requests the log has of them.
func lifecycles(orders []order) (n int) {
	for i := range orders {
		n += max(1, orders[i].n)
	}
	return n
}

// answers200 runs the system under orders, so many at once. Every answer is a 200
// and the monolithic engine's, and the log is clean. It returns how long the
// orders took.
func (s *system) answers200(t *testing.T, atOnce int, orders []order) (took time.Duration) {
	t.Helper()
	eng, err := engine.New(s.engine)
	if err != nil {
		t.Fatal(err)
	}
	log := s.run(t, func(ctx context.Context) error {
		start := time.Now()
		err := s.together(ctx, atOnce, orders, s.right(eng))
		took = time.Since(start)
		return err
	})
	s.clean(t, log, lifecycles(orders))
	for _, r := range s.replies {
		if r.status != http.StatusOK {
			t.Errorf("%s", r.problem())
		}
	}
	return took
}

// TestTwoThousandRequests sends requests of every kind and size from eight
// tenants through two replicas, two gateways and two workers of each role. Every
// answer must be the one of a run in one plain memory, and nothing may be left.
func TestTwoThousandRequests(t *testing.T) {
	requests, largest := 2000, []int{1_200_000, 3_000_000}
	if testing.Short() {
		requests, largest = 300, []int{1_200_000}
	}
	if underRace {
		requests, largest = 120, []int{200_000}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	s := newSystem(8)
	window := largest[len(largest)-1] + 4096
	s.engine.ContextTokens, s.engine.Threads = window, 2
	s.lifecycles, s.gateways, s.prefill, s.decode, s.concurrency = 2, 2, 2, 2, 16
	s.prefillPool, s.decodePool = window+100_000, window+100_000
	var orders []order
	for i := range requests {
		orders = append(orders, draw(r, i, s.names[i%len(s.names)]))
	}
	for i, n := range largest {
		// Larger than a NATS message may be.
		orders[10+i*20] = order{tenant: "t1", prompt: records(i, n), most: 4, stream: i%2 == 0}
	}
	took := s.answers200(t, 64, orders)
	served := map[string]int{}
	for name, w := range s.workers {
		st := w.worker.Stats()
		served[name] = int(st.Prefilled + st.Decoded)
		if served[name] == 0 {
			t.Errorf("worker %s did nothing", name)
		}
	}
	t.Logf("%d requests of %d lifecycles in %v; by worker: %v", len(orders), lifecycles(orders), took.Round(time.Millisecond), served)
}

// trace reads the first arrivals of a published trace of conversations, if one
// lies beside the repository, and otherwise of the sample that is in it.
func trace(t *testing.T, most int) []traffic.Arrival {
	t.Helper()
	root := filepath.Join("..", "..")
	f, err := os.Open(filepath.Join(root, "..", "shared", "data", "mooncake-conversation.jsonl"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Log("skipped: the published trace mooncake-conversation.jsonl is not there; the sample takes its place")
		f, err = os.Open(filepath.Join(root, "testdata", "traffic", "sample.jsonl"))
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []traffic.Arrival
	for a, err := range traffic.Read(f) {
		if err != nil {
			t.Fatal(err)
		}
		if all = append(all, a); len(all) == most {
			break
		}
	}
	return all
}

// TestMooncake sends conversations of the lengths and in the order that a
// published trace has, one byte a token, as fast as they are answered: what
// takes minutes there is compressed to the time that two cores need.
func TestMooncake(t *testing.T) {
	most := 1000
	if testing.Short() {
		most = 100
	}
	longest := engine.DefaultContextTokens
	if underRace {
		longest = 8192
	}
	s := newSystem(8)
	s.engine.ContextTokens = engine.DefaultContextTokens
	s.lifecycles, s.gateways, s.prefill, s.decode = 2, 2, 2, 2
	s.prefillPool, s.decodePool = 2*engine.DefaultContextTokens, 2*engine.DefaultContextTokens
	var orders []order
	input, output := 0, 0
	for i, a := range trace(t, most) {
		o := order{tenant: s.names[i%len(s.names)], prompt: a.Prompt(), most: max(1, a.OutputTokens), stream: i%2 == 0}
		if len(o.prompt) > longest {
			o.prompt, o.most = o.prompt[:longest-64], min(o.most, 64)
		}
		orders = append(orders, o)
		input, output = input+len(o.prompt), output+o.most
	}
	// No more than decode has in hand and little beside: finished KV waits for its
	// pull only as long as its lease.
	took := s.answers200(t, 12, orders)
	t.Logf("%d requests, %d prompt tokens, %d generated, each twice: %v", len(orders), input, output, took.Round(time.Millisecond))
}
