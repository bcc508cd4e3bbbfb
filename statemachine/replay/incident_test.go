package replay_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/corpus"
	"github.com/pdgate/pdgate/statemachine/replay"
)

// incident is the public incident as a trace file.
func incident(t testing.TB, cfg corpus.IncidentConfig) ([]byte, *corpus.Truth) {
	t.Helper()
	var b bytes.Buffer
	partitions := events.DefaultPartitions
	if cfg.Batch > 1 {
		partitions = 1
	}
	w := replay.NewTraceWriter(&b, partitions)
	truth, err := corpus.Incident(cfg, w.Add)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), truth
}

func runTrace(t testing.TB, b []byte, o replay.Options) *replay.Result {
	t.Helper()
	r := replay.New(o)
	src, err := replay.NewTrace(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Add(&replay.Input{Name: "trace", Format: replay.FormatTrace}, src, replay.Properties{Partitions: src.Partitions, Anchored: true, Sum: src.Sum}); err != nil {
		t.Fatal(err)
	}
	return r.Finish()
}

// TestIncident finds the public incident in two weeks of traffic: who read whose
// pages, when, under which configuration, and what pdgate would have done.
func TestIncident(t *testing.T) {
	cfg := corpus.IncidentConfig{Seed: 1}
	if testing.Short() {
		cfg.Requests = 3000
	}
	b, truth := incident(t, cfg)
	r := runTrace(t, b, replay.Options{WhatIf: replay.GatePolicy()})
	x := r.Exposure
	if x.Rings.Confirmed != 155 || x.Rings.Possible != 0 || len(truth.Affected) != 155 {
		t.Errorf("rings %+v, want 155 confirmed", x.Rings)
	}
	if x.Rings.Population < 155 || x.Rings.Population > int64(truth.Requests) {
		t.Errorf("population %d", x.Rings.Population)
	}
	var got []string
	for _, a := range x.Responses {
		got = append(got, a.Request)
	}
	if d := cmp.Diff(truth.Affected, got); d != "" {
		t.Errorf("affected responses (-truth +found):\n%s", d)
	}
	if d := cmp.Diff(truth.Receiving, x.TenantsReceiving); d != "" {
		t.Errorf("receiving tenants (-truth +found):\n%s", d)
	}
	if d := cmp.Diff(truth.Exposed, x.TenantsExposed); d != "" {
		t.Errorf("exposed tenants (-truth +found):\n%s", d)
	}
	if !x.First.Equal(truth.First) || !x.Last.Equal(truth.Last) || x.MinPrompt != truth.MinPrompt || x.MinPrompt <= corpus.PrefillPool {
		t.Errorf("from %s to %s, at least %d tokens; want %s, %s, %d", x.First, x.Last, x.MinPrompt, truth.First, truth.Last, truth.MinPrompt)
	}
	if len(r.Configs) != 1 || r.Configs[0].MaxInputTokens != corpus.MaxInput || r.Configs[0].ContextTokens != corpus.Context || r.Configs[0].Affected != 155 || len(r.Configs[0].Workers) != 4 {
		t.Errorf("configurations %+v", r.Configs)
	}
	w := r.WhatIf
	if w.Flipped != 155 || w.ToRejected != 155 || w.ReasonChanged != 0 || w.NotReplayable != 0 || w.Unchanged != int64(truth.Requests)-155 {
		t.Errorf("what if: %+v", *w)
	}
	if r.Verdict.Exit != replay.Violated || r.Coverage != replay.CoveragePages {
		t.Errorf("verdict %+v, coverage %s", r.Verdict, r.Coverage)
	}
	want := map[string]int64{"transfer-after-rejection": 155, "decode-after-rejection": 155, "grant-after-rejection": 155, "event-after-end": 155, "stale-pages-read": 155, "admitted-against-facts": 155}
	for _, g := range r.Groups {
		t.Logf("%s %s: %d, %s: %s (want %q, got %q)", g.Rule, g.ID, g.Count, g.First.Subject, g.First.What, g.First.Expected, g.First.Actual)
		if n, ok := want[string(g.ID)]; ok && n != g.Count {
			t.Errorf("%s: %d, want %d", g.ID, g.Count, n)
		}
		delete(want, string(g.ID))
	}
	if len(want) > 0 {
		t.Errorf("not found: %v", want)
	}
	t.Log(r.Verdict.Line)
}
