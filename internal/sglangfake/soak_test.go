package sglangfake

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// soak sends requests through a proxy that checks nothing, with random faults in
// both legs, and counts what the clients got.
func soak(t *testing.T, seed uint64, kinds []enginefake.Fault) map[enginefake.Outcome]int {
	t.Helper()
	const requests = 300
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	faults := []*enginefake.Injector{enginefake.NewInjector(seed, 0.15, kinds...), enginefake.NewInjector(seed+1, 0.15, kinds...)}
	const wait = 500 * time.Millisecond
	p := start(t, Config{Role: Prefill, ContextTokens: 512, PoolTokens: 8192, BootstrapTimeout: wait, Inject: faults[0]})
	d := start(t, Config{Role: Decode, ContextTokens: 512, PoolTokens: 8192, WaitTimeout: wait, Heartbeat: wait, Inject: faults[1]})
	proxy := &Naive{Prefill: p.URL(), Decode: d.URL(), Bootstrap: p.BootstrapPort()}
	front, err := enginefake.Serve(proxy, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Wait()
	defer front.Close()
	defer p.Close()
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
	// Whatever came, the engine has its pages back once nobody writes to them.
	for _, n := range []*Node{p, d} {
		if err := enginefake.Until(ctx, "the blocks", func() bool {
			s := n.Stats()
			return s.Free == s.Pages && s.Running == 0 && s.Draining == 0
		}); err != nil {
			t.Errorf("seed %d: %v: %+v", seed, err, n.Stats())
		}
	}
	return got
}

// Faults of the network and of the nodes lose answers, and give no wrong ones.
func TestSoak(t *testing.T) {
	// A restart costs all requests that are under way: one in ten faults is enough.
	var kinds []enginefake.Fault
	for _, f := range enginefake.Faults() {
		switch f {
		case enginefake.FaultReuse, enginefake.FaultNull: // this wire has no references
		case enginefake.FaultRestart:
			kinds = append(kinds, f)
		default:
			kinds = append(kinds, f, f)
		}
	}
	if got := soak(t, 1, kinds); got[enginefake.WasWrong] != 0 || got[enginefake.WasRight] < 50 || got[enginefake.WasRefused] == 0 || got[enginefake.WasBroken] == 0 {
		t.Errorf("%v", got)
	}
}

func TestStorm(t *testing.T) {
	p, d, _ := pair(t, func(p, d *Config) { p.PoolTokens, d.PoolTokens = 65536, 65536 })
	proxy := &Naive{Prefill: p.URL(), Decode: d.URL(), Bootstrap: p.BootstrapPort()}
	front, err := enginefake.Serve(proxy, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer proxy.Wait()
	defer front.Close()
	defer p.Close()
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
	for _, n := range []*Node{p, d} {
		if err := enginefake.Until(t.Context(), "the pages", func() bool { s := n.Stats(); return s.Running == 0 && s.Free == s.Pages }); err != nil {
			t.Fatalf("%v: %+v", err, n.Stats())
		}
	}
	if err := enginefake.Go(t.Context(), front.URL(), completion("alice")).Wait().Is(right("alice")); err != nil {
		t.Errorf("after the storm: %v", err)
	}
}
