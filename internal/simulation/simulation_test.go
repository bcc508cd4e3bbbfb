package simulation

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// raced says that the race detector is on. A run is one goroutine, so it finds
// nothing in a thousand of them that it does not find in a few.
var raced bool

// seeds is how many runs a test makes: PDGATE_SEEDS, or otherwise.
func seeds(t *testing.T, otherwise int) uint64 {
	t.Helper()
	v := os.Getenv("PDGATE_SEEDS")
	if v == "" {
		if raced {
			return uint64(max(1, otherwise/50))
		}
		if testing.Short() {
			return uint64(max(1, otherwise/10))
		}
		return uint64(otherwise)
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		t.Fatalf("PDGATE_SEEDS: %v", err)
	}
	return n
}

// show fails the test with a run's violations, and leaves its transcript: whole
// with -artifacts, its end in any case.
func show(t *testing.T, r *Result) {
	t.Helper()
	path := filepath.Join(t.ArtifactDir(), "seed-"+strconv.FormatUint(r.Seed, 10)+".txt")
	if err := os.WriteFile(path, r.Transcript, 0o600); err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(r.Transcript, []byte("\n"))
	t.Fatalf("%s\ntranscript (kept with -artifacts): %s\n%s", r, path, bytes.Join(lines[max(0, len(lines)-60):], []byte("\n")))
}

// TestSimulation runs seeds with all guards: nothing may be broken, and
// everything that is meant to happen must have happened somewhere. PDGATE_SEED
// runs one seed and prints its transcript.
func TestSimulation(t *testing.T) {
	if v := os.Getenv("PDGATE_SEED"); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatalf("PDGATE_SEED: %v", err)
		}
		r := Run(Config{Seed: seed})
		t.Logf("%s\n%s", r, r.Transcript)
		if len(r.Violations) > 0 {
			t.Fail()
		}
		return
	}
	n := seeds(t, 150)
	var mu sync.Mutex
	seen := map[string]int{}
	var failed *Result // the one of the lowest seed
	var next atomic.Uint64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for seed := next.Add(1) - 1; seed < n; seed = next.Add(1) - 1 {
				r := Run(Config{Seed: seed})
				mu.Lock()
				for k, v := range r.Seen {
					seen[k] += v
				}
				if len(r.Violations) > 0 && (failed == nil || r.Seed < failed.Seed) {
					failed = r
				}
				stop := failed != nil
				mu.Unlock()
				if stop {
					return
				}
			}
		})
	}
	wg.Wait()
	if failed != nil {
		show(t, failed)
	}
	t.Logf("%d seeds: %v", n, seen)
	if n < 100 {
		return
	}
	// A simulation in which something never happens does not test it.
	want := []string{
		"append refused", "refused but landed", "gap", "replica crash", "crash after append", "worker crash", "gateway crash",
		"stall", "lost", "doubled", "broken connection", "redelivery", "pool full", "lease over", "pulled", "client leaves",
		"status 200", "status 400", "status 429", "status 499", "status 502", "status 504",
		"forged grant", "stolen grant", "stray grant", "stale grant", "replayed opening", "lying grant", "overreach granted",
	}
	for _, e := range []events.Type{
		events.TypeAdmitted, events.TypeRejected, events.TypePrefilled, events.TypeTransferGranted, events.TypeTransferred,
		events.TypeDecoded, events.TypeFailed, events.TypeCancelled, events.TypeReleased, events.TypeDenied,
		events.TypeWorkerJoined, events.TypeWorkerLeft,
	} {
		want = append(want, string(e))
	}
	for _, what := range want {
		if seen[what] == 0 {
			t.Errorf("%q never happened", what)
		}
	}
}

// TestSeedRepeats runs seeds twice: the transcripts must be equal, or a seed
// would repeat nothing.
func TestSeedRepeats(t *testing.T) {
	for seed := range min(seeds(t, 10), 100) {
		a, b := Run(Config{Seed: seed}), Run(Config{Seed: seed})
		if a.Hash != b.Hash {
			t.Fatalf("seed %d runs in two ways:\n%s", seed, cmp.Diff(string(a.Transcript), string(b.Transcript)))
		}
		if other := Run(Config{Seed: seed + 1}); other.Hash == a.Hash {
			t.Fatalf("seeds %d and %d run in the same way", seed, seed+1)
		}
	}
}

// TestJudgeSees shows the judge what no run with its guards has: without it,
// silence would prove nothing.
func TestJudgeSees(t *testing.T) {
	for _, c := range []struct {
		rule  string
		spoil func(w *world)
	}{
		{"", func(*world) {}},
		{RuleSettle, func(w *world) { w.clients[0].over = false }},
		{statemachine.RuleLog, func(w *world) { // an answer whose event the log does not have
			w.answers = append(w.answers, events.Answer{Subject: w.clients[0].id, ID: "gone.1", Position: "9999.0"})
		}},
		{statemachine.RuleClient, func(w *world) { // a success that was never decoded
			for _, x := range w.clients {
				if x.life != nil && x.status > 299 {
					x.status, x.complete = 200, true
					return
				}
			}
			panic("every client was served")
		}},
		{RuleText, func(w *world) {
			for _, x := range w.clients {
				if x.status == 200 && len(x.text) > 0 {
					x.text[0] ^= 1
					return
				}
			}
			panic("no client was served")
		}},
		{RuleForeign, func(w *world) { w.clients[0].text = []byte(canary("tenant-Z")); w.clients[1].tenant = "tenant-Z" }},
		{RulePool, func(w *world) {
			if _, err := w.workers[0].pool.Alloc("somebody", 1); err != nil {
				panic(err)
			}
		}},
		{statemachine.RuleLive, func(w *world) { // a request that the log leaves open
			w.partitions = 1
			id := w.clients[0].id
			w.log.auditor = statemachine.NewChecker(statemachine.CheckerConfig{})
			at := w.now.Add(-time.Hour)
			line, err := events.Append(nil, &events.Event{
				ID: id + ".1", Source: "/pdgate/lifecycle/lc1", Type: events.TypeAdmitted, Subject: id, Time: at, N: 1,
				Command: "0", Principal: "gateway.gw1", Tenant: "tenant-A", TenantSeq: 1,
				Data: &events.RequestAdmitted{
					Model: model, Gateway: "gw1", PromptTokens: 1, MaxTokens: 1, PromptDigest: events.Digest(nil, events.KindPrompt, nil),
					PrefillBy: at.Add(time.Second), Deadline: at.Add(time.Second),
					Facts: events.AdmissionFacts{ContextTokens: 9, MaxInputTokens: 9, MaxDecodeTokens: 9, PrefillNodes: 1, DecodeNodes: 1},
				},
			})
			if err != nil {
				panic(err)
			}
			if err := w.log.auditor.Add(&events.Envelope{Seq: 1, ID: "x", Lines: append(line, '\n')}); err != nil {
				panic(err)
			}
			w.answers, w.clients = nil, w.clients[:0]
		}},
	} {
		t.Run("rule "+c.rule, func(t *testing.T) {
			w := newWorld(Config{Seed: 3})
			w.populate()
			w.run()
			c.spoil(w)
			w.judge()
			got := w.result().Rules()
			if c.rule == "" {
				if len(got) > 0 {
					t.Errorf("rules %v are broken", got)
				}
			} else if !slices.Contains(got, c.rule) {
				t.Errorf("rules %v are broken, want %s", got, c.rule)
			}
		})
	}
}
