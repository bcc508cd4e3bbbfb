package vllmfake

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// soak sends requests through a proxy that checks nothing, with random faults in
// both legs, and counts what the clients got.
func soak(t *testing.T, seed uint64, requests int, kinds ...enginefake.Fault) map[enginefake.Outcome]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	faults := []*enginefake.Injector{enginefake.NewInjector(seed, 0.15, kinds...), enginefake.NewInjector(seed+1, 0.15, kinds...)}
	p := start(t, Config{Role: Prefill, ContextTokens: 512, Blocks: 512, Lease: time.Second, Inject: faults[0]})
	d := start(t, Config{Role: Decode, ContextTokens: 512, Blocks: 512, Lease: time.Second, Inject: faults[1]})
	front, err := enginefake.Serve(&Naive{Prefill: p.URL(), Decode: d.URL()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	got := enginefake.Soak(ctx, front.URL(), requests, 12, func(i int) (enginefake.Call, string) {
		who := fmt.Sprintf("client%d", i)
		call := completion(who)
		call.Body["stream"] = i%2 == 0
		return call, right(who)
	})
	for _, f := range faults {
		f.Stop()
		for _, k := range kinds {
			if f.Counts()[k] == 0 {
				t.Errorf("seed %d: no %s", seed, k)
			}
		}
	}
	// Whatever came, the engine has its blocks back once the leases are over.
	for _, n := range []*Node{p, d} {
		if err := enginefake.Until(ctx, "the blocks", func() bool {
			s := n.Stats()
			return s.Free == s.Blocks && s.Running == 0 && s.PastLease == 0
		}); err != nil {
			t.Errorf("seed %d: %v: %+v", seed, err, n.Stats())
		}
	}
	return got
}

// Faults of the network and of the nodes lose answers. Only a reference that is
// used again gives wrong ones.
func TestSoak(t *testing.T) {
	// A restart costs all requests that are under way: one in ten faults is enough.
	var harmless []enginefake.Fault
	for _, f := range enginefake.Faults() {
		switch f {
		case enginefake.FaultReuse:
		case enginefake.FaultRestart:
			harmless = append(harmless, f)
		default:
			harmless = append(harmless, f, f)
		}
	}
	if got := soak(t, 1, 300, harmless...); got[enginefake.WasWrong] != 0 || got[enginefake.WasRight] < 100 || got[enginefake.WasRefused] == 0 || got[enginefake.WasBroken] == 0 {
		t.Errorf("%v", got)
	}
	if got := soak(t, 2, 100, enginefake.FaultReuse, enginefake.FaultDelay); got[enginefake.WasWrong] == 0 || got[enginefake.WasRight] < 50 {
		t.Errorf("with references used again: %v", got)
	}
}

func TestStorm(t *testing.T) {
	p, d, clock := pair(t, func(p, d *Config) { p.Blocks, d.Blocks = 4096, 4096 })
	front, err := enginefake.Serve(&Naive{Prefill: p.URL(), Decode: d.URL()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	left := 0
	for i, r := range enginefake.Storm(t.Context(), front.URL(), 7, 200, func(i int) enginefake.Call {
		call := completion(fmt.Sprintf("client%d", i))
		call.Body["stream"] = true
		return call
	}) {
		if r.Err != nil {
			left++
		}
		if r.Judge(right(fmt.Sprintf("client%d", i))) == enginefake.WasWrong {
			t.Errorf("a wrong answer: %s", r.Raw)
		}
	}
	if left == 0 {
		t.Error("nobody left")
	}
	if err := enginefake.Until(t.Context(), "the aborts", func() bool { return p.Stats().Running == 0 && d.Stats().Running == 0 }); err != nil {
		t.Fatal(err)
	}
	clock.Advance(time.Minute)
	for _, n := range []*Node{p, d} {
		if s := n.Stats(); s.Free != s.Blocks {
			t.Errorf("%+v", s)
		}
	}
	if err := enginefake.Go(t.Context(), front.URL(), completion("alice")).Wait().Is(right("alice")); err != nil {
		t.Errorf("after the storm: %v", err)
	}
}
