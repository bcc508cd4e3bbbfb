package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/enginefake"
	"github.com/pdgate/pdgate/internal/sglangfake"
	"github.com/pdgate/pdgate/internal/vllmfake"
)

// fleet is two prefill and two decode nodes of an external engine.
type fleet struct {
	kind            string
	prefill, decode []string
	injectors       []*enginefake.Injector
	stranded        func() string // what some node holds that it should not; "": nothing
	aborted         func() int
	waiting         func(enginefake.Stage) int
	hold            func(enginefake.Stage) (release func())
}

// newFleet starts the nodes. rate is the share of generations that meet a fault.
func newFleet(t *testing.T, kind string, seed uint64, rate float64) *fleet {
	t.Helper()
	f := &fleet{kind: kind}
	kinds := []enginefake.Fault{enginefake.FaultStatus, enginefake.FaultDelay, enginefake.FaultDisconnect, enginefake.FaultTruncate, enginefake.FaultShorten}
	inject := func() *enginefake.Injector {
		seed++
		i := enginefake.NewInjector(seed, rate, kinds...)
		f.injectors = append(f.injectors, i)
		return i
	}
	type gates interface {
		Hold(enginefake.Stage) func()
		Waiting(enginefake.Stage) int
	}
	var all []gates
	f.waiting = func(s enginefake.Stage) (n int) {
		for _, g := range all {
			n += g.Waiting(s)
		}
		return n
	}
	f.hold = func(s enginefake.Stage) func() {
		var rs []func()
		for _, g := range all {
			rs = append(rs, g.Hold(s))
		}
		return func() {
			for _, r := range rs {
				r()
			}
		}
	}
	if kind == "vllm" {
		kinds = append(kinds, enginefake.FaultNull, enginefake.FaultReuse)
		var nodes []*vllmfake.Node
		for i := range 4 {
			role := []vllmfake.Role{vllmfake.Prefill, vllmfake.Decode}[i/2]
			n, err := vllmfake.New(vllmfake.Config{Role: role, ContextTokens: 512, Lease: 2 * time.Second, Inject: inject()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(n.Close)
			nodes, all = append(nodes, n), append(all, n)
		}
		f.prefill, f.decode = []string{nodes[0].URL(), nodes[1].URL()}, []string{nodes[2].URL(), nodes[3].URL()}
		f.stranded = func() string {
			for i, n := range nodes {
				if st := n.Stats(); st.PastLease+st.Stranded+st.Held+st.Running+st.Queued > 0 {
					return fmt.Sprintf("node %d: %+v", i, st)
				}
			}
			return ""
		}
		f.aborted = func() (n int) {
			for _, x := range nodes {
				n += x.Stats().Aborted
			}
			return n
		}
		return f
	}
	var nodes []*sglangfake.Node
	for i := range 4 {
		role := []sglangfake.Role{sglangfake.Prefill, sglangfake.Decode}[i/2]
		n, err := sglangfake.New(sglangfake.Config{Role: role, ContextTokens: 512, WaitTimeout: 3 * time.Second, BootstrapTimeout: 3 * time.Second, Inject: inject()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		nodes, all = append(nodes, n), append(all, n)
	}
	f.prefill, f.decode = []string{nodes[0].URL(), nodes[1].URL()}, []string{nodes[2].URL(), nodes[3].URL()}
	f.stranded = func() string {
		for i, n := range nodes {
			if st := n.Stats(); st.Held+st.Waiting+st.Transferring > 0 {
				return fmt.Sprintf("node %d: %+v", i, st)
			}
		}
		return ""
	}
	f.aborted = func() (n int) {
		for _, x := range nodes {
			n += x.Stats().Aborted
		}
		return n
	}
	return f
}

// system is a stack over the fleet. Nothing is quarantined: what fails here is
// not the pairs' fault.
func (f *fleet) system() *system {
	s := newEngines(f.kind, f.prefill, f.decode)
	s.nodes.pair.Failures, s.nodes.drain = 1<<20, time.Second
	if err := s.nodes.open(f.kind, 0, s.log); err != nil {
		panic(err)
	}
	return s
}

func (f *fleet) nothingStranded(ctx context.Context) error {
	var last string
	if err := poll(ctx, "nothing is stranded", func() bool { last = f.stranded(); return last == "" }); err != nil {
		return fmt.Errorf("%w: %s", err, last)
	}
	return nil
}

// TestEnginesUnderFaults sends a thousand requests to engines whose both legs
// fail at random: statuses, resets, cut and shortened answers, references that
// are null or another request's. No client gets 200 with a text that is not its
// own, every request ends in time, and nothing is left behind.
func TestEnginesUnderFaults(t *testing.T) {
	requests := 1000
	if testing.Short() {
		requests = 200
	}
	if underRace {
		requests = 120
	}
	for _, kind := range []string{"vllm", "sglang"} {
		t.Run(kind, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			r := rand.New(rand.NewPCG(seed, 3))
			f := newFleet(t, kind, seed, 0.25)
			s := f.system()
			s.timeouts.Request, s.timeouts.Prefill = 20*time.Second, 15*time.Second
			var orders []order
			for i := range requests {
				orders = append(orders, order{
					tenant: "t1", prompt: enginefake.Sentinel(fmt.Sprintf("user%d", i), 20+r.IntN(380)), most: 1 + r.IntN(60), stream: r.IntN(2) == 0,
				})
			}
			good, failed := make(chan struct{}, requests), make(chan string, requests)
			log := s.run(t, func(ctx context.Context) error {
				err := s.together(ctx, 32, orders, func(_ context.Context, o *order, got *reply) error {
					want := string(enginefake.Continue(o.prompt, o.most))
					switch {
					case got.status == http.StatusOK && !strings.HasPrefix(want, got.texts[0]):
						return fmt.Errorf("WRONG: %q, want %q", got.texts[0], want)
					case got.status == http.StatusOK && got.complete && got.code == "":
						if got.texts[0] != want {
							return fmt.Errorf("%q as whole, want %q", got.texts[0], want)
						}
						good <- struct{}{}
					case got.status != http.StatusOK && got.texts[0] != "":
						return fmt.Errorf("HTTP %d with output", got.status)
					default:
						failed <- fmt.Sprintf("%d %s", got.status, got.code)
					}
					return nil
				})
				if err != nil {
					return err
				}
				for _, i := range f.injectors {
					i.Stop()
				}
				return f.nothingStranded(ctx)
			})
			s.clean(t, log, requests)
			close(failed)
			why := map[string]int{}
			for x := range failed {
				why[x]++
			}
			hits := 0
			for _, i := range f.injectors {
				for _, n := range i.Counts() {
					hits += n
				}
			}
			t.Logf("%d faults in the legs of %d requests: %d answered, failed %v", hits, requests, len(good), why)
			if hits < requests/4 || len(good) < requests/4 || len(why) == 0 {
				t.Error("too few faults, answers or failures for this to say something")
			}
			late := 0
			for _, es := range log.byRequest {
				for _, e := range es {
					if f, ok := e.Data.(*events.RequestFailed); ok && f.Error.Code == events.CodeDeadline {
						late++
					}
				}
			}
			if late > requests/20 {
				t.Errorf("%d requests ended by their deadline only", late)
			}
		})
	}
}

// TestEnginesAbortStorm has five hundred clients leave at once, at random
// moments. Then the next one is served, and nothing is left of the others.
func TestEnginesAbortStorm(t *testing.T) {
	n := 500
	if underRace {
		n = 100
	}
	for _, kind := range []string{"vllm", "sglang"} {
		t.Run(kind, func(t *testing.T) {
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			f := newFleet(t, kind, seed, 0)
			s := f.system()
			s.run(t, func(ctx context.Context) error {
				door := s.door()
				defer door.Close()
				who := func(i int) string { return fmt.Sprintf("user%d", i) }
				for i, r := range enginefake.Storm(ctx, door.URL, seed, n, func(i int) enginefake.Call { return enginefake.Completion(who(i), 200, 24) }) {
					if r.Judge(enginefake.Right(who(i), 200, 24)) == enginefake.WasWrong {
						return fmt.Errorf("client %d: %q", i, r.Text)
					}
				}
				next := enginefake.Do(ctx, door.URL, enginefake.Completion("next", 200, 24))
				return errors.Join(next.Is(enginefake.Right("next", 200, 24)), f.nothingStranded(ctx))
			})
		})
	}
}

// TestEnginesCancelAtEachStage has a client leave while its request is held at
// each stage of the engines.
func TestEnginesCancelAtEachStage(t *testing.T) {
	for _, kind := range []string{"vllm", "sglang"} {
		for _, stage := range []enginefake.Stage{enginefake.AtPrefill, enginefake.AtTransfer, enginefake.AtDecode} {
			t.Run(kind+" "+string(stage), func(t *testing.T) {
				f := newFleet(t, kind, 1, 0)
				s := f.system()
				log := s.run(t, func(ctx context.Context) error {
					door := s.door()
					defer door.Close()
					release := f.hold(stage)
					defer release()
					gone, leave := context.WithCancel(ctx)
					call := enginefake.Go(gone, door.URL, enginefake.Completion("alice", 200, 24))
					err := poll(ctx, "the request at "+string(stage), func() bool { return f.waiting(stage) == 1 || call.Ended() })
					leave()
					call.Wait()
					if err != nil {
						return err
					}
					// A write of SGLang's that is on its way ends by itself, whoever left.
					written := kind == "sglang" && stage == enginefake.AtTransfer
					if err := poll(ctx, "its end at the engines", func() bool { return written || f.waiting(stage) == 0 }); err != nil {
						return err
					}
					release()
					next := enginefake.Do(ctx, door.URL, enginefake.Completion("bob", 200, 24))
					return errors.Join(next.Is(enginefake.Right("bob", 200, 24)), f.nothingStranded(ctx))
				})
				cancelled := 0
				for id := range log.byRequest {
					cancelled += len(log.has(id, events.TypeCancelled))
				}
				if cancelled != 1 {
					t.Errorf("%d requests are cancelled in the log, want 1", cancelled)
				}
			})
		}
	}
}

// TestEngineRestart restarts a prefill node while its reference waits: the
// request fails, the worker starts a new life, and the next one is served.
func TestEngineRestart(t *testing.T) {
	p, err := vllmfake.New(vllmfake.Config{Role: vllmfake.Prefill, ContextTokens: 512})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	d, err := vllmfake.New(vllmfake.Config{Role: vllmfake.Decode, ContextTokens: 512})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	s := newEngines("vllm", []string{p.URL()}, []string{d.URL()})
	s.nodes.lease, s.nodes.margin = 30*time.Second, time.Second
	granting, goOn := make(chan struct{}, 8), make(chan struct{})
	s.bend(func(ctx context.Context, _ string, c *events.Command, next send) (*events.Answer, error) {
		if c.Type == events.CmdGrant {
			granting <- struct{}{}
			<-goOn
		}
		return next(ctx, c)
	})
	s.run(t, func(ctx context.Context) error {
		door := s.door()
		defer door.Close()
		call := enginefake.Go(ctx, door.URL, enginefake.Completion("alice", 200, 24))
		<-granting // the reference is offered, and nobody has it
		if err := p.Restart(); err != nil {
			return err
		}
		r := call.Wait()
		close(goOn)
		if r.Status != http.StatusBadGateway || r.First() != "" || len(d.Generations()) != 0 {
			return fmt.Errorf("status %d, %q, %d decode legs", r.Status, r.Message, len(d.Generations()))
		}
		defer p.Close() // its second life began in here
		return poll(ctx, "the next one is served", func() bool {
			next := enginefake.Do(ctx, door.URL, enginefake.Completion("bob", 200, 24))
			return next.Is(enginefake.Right("bob", 200, 24)) == nil
		})
	})
}
