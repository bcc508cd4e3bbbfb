package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/internal/sglangfake"
	"github.com/pdgate/pdgate/internal/telemetry"
	"github.com/pdgate/pdgate/internal/vllmfake"
)

var errUp = errors.New("it became ready")

// comesUp is errUp once every worker takes work, and otherwise why one does not. That
// the gateway is ready is not enough: workers are registered before they look at
// each other.
func (s *system) comesUp(t *testing.T) error {
	s.ready = &telemetry.Readiness{}
	return s.stack.run(t.Context(), func(ctx context.Context, _ endpoints) error {
		if err := poll(ctx, "all workers take work", func() bool { return len(s.ready.Waits()) == 0 }); err != nil {
			return err
		}
		return errUp
	})
}

// TestRedWorkerTakesNoWork: the incident's configuration, a prefill pool below
// what decode takes, does not come up, and says why and what to do. With the guard
// taken away it serves.
func TestRedWorkerTakesNoWork(t *testing.T) {
	run := func(allow bool, replicas int) error {
		s := newSystem(1)
		s.engine = engine.Config{Name: "ref", Model: "m", ContextTokens: 4096, MaxInputTokens: 4096, Threads: 1}
		s.prefillPool, s.allowRed, s.lifecycles = 2048, allow, replicas
		if allow {
			s.run(t, func(ctx context.Context) error {
				_, err := s.expect(ctx, small("t1"), 200, "")
				return err
			})
			return nil
		}
		s.dir = t.TempDir()
		return s.comesUp(t)
	}
	for _, replicas := range []int{1, 2} {
		err := run(false, replicas)
		if err == nil || !strings.Contains(err.Error(), "preflight: RED p1 > d1: prompts of 2,049 to 4,096 tokens fit decode and not prefill") || !strings.Contains(err.Error(), "--allow-red") {
			t.Errorf("with %d replicas: %v", replicas, err)
		}
	}
	if err := run(true, 1); err != nil {
		t.Error(err)
	}
}

// TestRedEngineTakesNoWork: a node whose version has the placeholder failure takes no
// work, unless it is told to.
func TestRedEngineTakesNoWork(t *testing.T) {
	nodes := map[sglangfake.Role]string{}
	for _, role := range []sglangfake.Role{sglangfake.Prefill, sglangfake.Decode} {
		n, err := sglangfake.New(sglangfake.Config{Role: role, Version: "0.5.18"})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		nodes[role] = n.URL()
	}
	for _, allow := range []bool{false, true} {
		s := newEngines("sglang", []string{nodes[sglangfake.Prefill]}, []string{nodes[sglangfake.Decode]})
		s.dir, s.allowRed = t.TempDir(), allow
		err := s.comesUp(t)
		switch {
		case allow && !errors.Is(err, errUp):
			t.Errorf("allowed: %v", err)
		case !allow && (err == nil || !strings.Contains(err.Error(), "preflight: RED") || !strings.Contains(err.Error(), "sglang 0.5.18")):
			t.Errorf("not allowed: %v", err)
		}
	}
}

// TestPreflightOfExternalWorkers: nodes of one make come up as they are, several
// of each role too, and a prefill node with a smaller pool than decode's does not.
func TestPreflightOfExternalWorkers(t *testing.T) {
	start := func(kind string, prefill, decode []string) error {
		s := newEngines(kind, prefill, decode)
		s.allowRed, s.dir = false, t.TempDir()
		err := s.comesUp(t)
		if errors.Is(err, errUp) {
			return nil
		}
		return err
	}
	v := func(role vllmfake.Role, blocks int) string {
		n, err := vllmfake.New(vllmfake.Config{Role: role, Blocks: blocks})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		return n.URL()
	}
	g := func(role sglangfake.Role, pool int, page ...int) string {
		n, err := sglangfake.New(sglangfake.Config{Role: role, PoolTokens: pool, PageSize: append(page, 0)[0]})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Close)
		return n.URL()
	}
	for kind, err := range map[string]error{
		"vllm":   start("vllm", []string{v(vllmfake.Prefill, 0), v(vllmfake.Prefill, 0)}, []string{v(vllmfake.Decode, 0), v(vllmfake.Decode, 0)}),
		"sglang": start("sglang", []string{g(sglangfake.Prefill, 0), g(sglangfake.Prefill, 0)}, []string{g(sglangfake.Decode, 0), g(sglangfake.Decode, 0)}),
	} {
		if err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	for kind, err := range map[string]error{
		"vllm":   start("vllm", []string{v(vllmfake.Prefill, 128)}, []string{v(vllmfake.Decode, 0)}),
		"sglang": start("sglang", []string{g(sglangfake.Prefill, 2048)}, []string{g(sglangfake.Decode, 0)}),
	} {
		if err == nil || !strings.Contains(err.Error(), "preflight: RED p1 > d1: prompts of 2,04") {
			t.Errorf("%s with a small prefill pool: %v", kind, err)
		}
	}
	if err := start("sglang", []string{g(sglangfake.Prefill, 0, 1)}, []string{g(sglangfake.Decode, 0, 16)}); err == nil || !strings.Contains(err.Error(), "RED p1 > d1: KV type: prefill external:sglang:1:auto, decode external:sglang:16:auto") {
		t.Errorf("pages of 1 and of 16: %v", err)
	}
}

// lateRoster shows a worker only after a while, as a replica does that is behind.
type lateRoster struct {
	views []events.WorkersView
	asked int
}

func (r *lateRoster) Workers(context.Context) (*events.WorkersView, error) {
	v := r.views[min(r.asked, len(r.views)-1)]
	r.asked++
	return &v, nil
}

// TestPreflightWaitsForItself: a replica that does not show this life yet may miss
// the others too.
func TestPreflightWaitsForItself(t *testing.T) {
	view := func(name string, role events.Role, epoch uint64, pool int) events.WorkerView {
		return events.WorkerView{Live: true, WorkerJoined: events.WorkerJoined{
			Worker: name, Role: role, Model: "m", Epoch: epoch, Engine: "ref", Layout: "l", ContextTokens: 4096, PoolPages: pool / 64, PageTokens: 64}}
	}
	before, d1 := view("p1", events.RolePrefill, 6, 4096), view("d1", events.RoleDecode, 1, 4096)
	now := view("p1", events.RolePrefill, 7, 2048)
	r := &lateRoster{views: []events.WorkersView{{}, {Workers: []events.WorkerView{before}}, {Workers: []events.WorkerView{d1, now}}}}
	err := workerPart{name: "p1"}.preflight(t.Context(), r, 7, slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "RED") || r.asked != 3 {
		t.Errorf("after %d questions: %v", r.asked, err)
	}
	r.asked = 0
	if err := (workerPart{name: "p1", allowRed: true}).preflight(t.Context(), r, 7, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := (workerPart{name: "p9"}).preflight(ctx, r, 7, slog.New(slog.DiscardHandler)); !errors.Is(err, context.Canceled) {
		t.Errorf("without an end: %v", err)
	}
}

// TestPreflightOfARunningStack reads workers and log of a stack.
func TestPreflightOfARunningStack(t *testing.T) {
	s := newSystem(1)
	s.natsPort, s.allowRed = -1, false
	s.run(t, func(ctx context.Context) error {
		a := &app{stdout: io.Discard, stderr: io.Discard, log: s.log, data: s.dir}
		f := &preflightFlags{remote: remote{url: s.nats, keys: s.ring.Dir()}}
		f.cfg.Timeout = patience
		r, err := a.runPreflight(ctx, f)
		if err != nil {
			return err
		}
		have := map[string]bool{}
		for _, x := range r.Findings {
			have[string(x.Level)+" "+x.Check] = true
			if x.Level == "RED" {
				t.Errorf("%+v", x)
			}
		}
		for _, want := range []string{"GREEN longest-input", "GREEN kv-type", "AMBER jetstream", "UNKNOWN jetstream"} {
			if !have[want] {
				t.Errorf("no %s among %v", want, have)
			}
		}
		if len(r.Nodes) != 2 {
			t.Errorf("%+v", r.Nodes)
		}
		return nil
	})
}
