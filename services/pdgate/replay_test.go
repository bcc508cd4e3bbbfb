package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/corpus"
	"github.com/pdgate/pdgate/statemachine/replay"
)

// pdgate runs the program.
func pdgate(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = run(t.Context(), args, strings.NewReader(""), &out, &errs, nil)
	return code, out.String(), errs.String()
}

// smallIncident is a trace file of a small rebuilt incident.
func smallIncident(t *testing.T) (string, *corpus.Truth) {
	t.Helper()
	made, err := rebuilt()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "incident.trace")
	if err := os.WriteFile(path, made.trace, 0o600); err != nil {
		t.Fatal(err)
	}
	return path, made.truth
}

type rebuiltIncident struct {
	trace []byte
	truth *corpus.Truth
}

var rebuilt = sync.OnceValues(func() (*rebuiltIncident, error) {
	var b bytes.Buffer
	w := replay.NewTraceWriter(&b, events.DefaultPartitions)
	truth, err := corpus.Incident(corpus.IncidentConfig{Seed: 5, Requests: 3000, Affected: 9}, w.Add)
	if err == nil {
		err = w.Close()
	}
	return &rebuiltIncident{b.Bytes(), truth}, err
})

func readResult(t *testing.T, text string) *replay.Result {
	t.Helper()
	r := &replay.Result{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		t.Fatalf("%v: %.200s", err, text)
	}
	return r
}

// TestReplayCommand: exit codes, and text and JSON that carry the same facts.
func TestReplayCommand(t *testing.T) {
	path, truth := smallIncident(t)
	code, text, _ := pdgate(t, "replay", path)
	jsonCode, out, _ := pdgate(t, "replay", path, "--format", "json")
	r := readResult(t, out)
	if code != 1 || jsonCode != 1 || r.Exposure.Rings.Confirmed != int64(len(truth.Affected)) {
		t.Errorf("exit %d and %d, %+v", code, jsonCode, r.Exposure.Rings)
	}
	// The text in the order of the reference: inputs, range, verdict, violations, edges, limits.
	at := -1
	for _, part := range []string{"inputs\n", r.Inputs[0].Digest, "range\n", r.Verdict.Line, "violations\n", "blast radius\n", "exposure edges", "not claimed\n"} {
		i := strings.Index(text, part)
		if i <= at {
			t.Errorf("%q is not in its place", part)
		}
		at = i
	}
	for _, g := range r.Groups {
		if !strings.Contains(text, string(g.ID)+": "+g.Title) || !strings.Contains(text, g.First.Subject) {
			t.Errorf("the text lacks %s", g.ID)
		}
	}
	for _, tenant := range append(truth.Exposed, truth.Receiving...) {
		if !strings.Contains(text, tenant) {
			t.Errorf("the text lacks %s", tenant)
		}
	}
	dir := "../../testdata/forensics/"
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	whole, err := os.ReadFile(dir + "clean/whole.trace")
	if err == nil {
		_, err = z.Write(whole)
	}
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut.gz")
	if err := os.WriteFile(cut, packed.Bytes()[:packed.Len()-20], 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
	}{
		{[]string{dir + "clean/whole.trace"}, 0},
		{[]string{dir + "violations/kv-differs.trace"}, 1},
		{[]string{dir + "nothing"}, 2},
		{[]string{"replay.go"}, 2},
		{[]string{}, 2},
		{[]string{cut}, 2},
		{[]string{dir + "clean/whole.trace", "--format", "xml"}, 2},
		{[]string{dir + "clean/whole.trace", "--accept", "all"}, 2},
		{[]string{dir + "violations/leg-missing.txt", "--accept", "lifecycle-only"}, 3},
		{[]string{dir + "violations/tenant-chain-hash.trace"}, 4},
		{[]string{dir + "violations/kv-differs.trace", dir + "violations/log-gap.trace"}, 4},
		{[]string{dir + "clean/whole.trace", dir + "clean/whole.trace"}, 3},
		{[]string{dir + "vllm-lease.log", "--accept", "lifecycle-only"}, 1},
		{[]string{dir + "sglang-prefill.log", dir + "sglang-decode.log"}, 3},
	} {
		if code, out, errs := pdgate(t, append([]string{"replay"}, c.args...)...); code != c.code {
			t.Errorf("%v: exit %d, want %d\n%s%s", c.args, code, c.code, out, errs)
		}
	}
}

// TestReplayExports: what was exported replays to the same result.
func TestReplayExports(t *testing.T) {
	path, _ := smallIncident(t)
	_, out, _ := pdgate(t, "replay", path, "--format", "json")
	want := readResult(t, out)
	for _, form := range []string{"otlp", "perfetto", "trace", "events"} {
		to := filepath.Join(t.TempDir(), form)
		if code, _, errs := pdgate(t, "replay", path, "--export", form, "--out", to); code != 0 {
			t.Fatalf("%s: %s", form, errs)
		}
		_, out, errs := pdgate(t, "replay", to, "--format", "json", "--accept", "unanchored")
		got := readResult(t, out)
		if got.Verdict != want.Verdict || len(got.Groups) != len(want.Groups) {
			t.Errorf("%s: %s, want %s %s", form, got.Verdict.Line, want.Verdict.Line, errs)
		}
		for i, g := range got.Groups {
			w := want.Groups[i]
			if g.ID != w.ID || g.Count != w.Count || g.First.Subject != w.First.Subject || !g.Last.Time.Equal(w.Last.Time) {
				t.Errorf("%s: %+v, want %+v", form, g, w)
			}
		}
		if form != "events" { // whose positions are not known
			if a, b := mustJSON(t, got.Exposure), mustJSON(t, want.Exposure); a != b {
				t.Errorf("%s: another blast radius", form)
			}
		}
		if code, out, _ := pdgate(t, "replay", "diff", path, to, "--accept", "unanchored"); code != 0 || !strings.Contains(out, "3000 requests are the same, 0 differ") {
			t.Errorf("%s: diff: exit %d: %s", form, code, out)
		}
		if code, _, errs := pdgate(t, "replay", path, "--export", form, "--out", to); code != 1 || !strings.Contains(errs, "exists") {
			t.Errorf("%s: a file is written over: %s", form, errs)
		}
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestWhatIf judges by other policies.
func TestWhatIf(t *testing.T) {
	path, truth := smallIncident(t)
	policy := func(text string) *replay.WhatIf {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, out, errs := pdgate(t, "replay", "what-if", path, "--format", "json", "--policy", file)
		if errs != "" {
			t.Fatal(errs)
		}
		return readResult(t, out).WhatIf
	}
	_, out, _ := pdgate(t, "replay", "what-if", path, "--format", "json")
	if w := readResult(t, out).WhatIf; w.Flipped != int64(len(truth.Affected)) || w.ToRejected != w.Flipped || w.Unchanged != int64(truth.Requests)-w.Flipped || w.ReasonChanged+w.NotReplayable != 0 {
		t.Errorf("the gate: %+v", *w)
	}
	if w := policy("max_input_tokens: 2000000\ndecode_pool_tokens: 4000000\ncontext_tokens: 4000000\n"); w.ToRejected != 0 || w.ToAdmitted == 0 {
		t.Errorf("larger pools: %+v", *w)
	}
	if w := policy("prefill_pool_tokens: 1000\n"); w.ToRejected < 100 {
		t.Errorf("a smaller pool: %+v", *w)
	}
	if w := policy("context_tokens: 100\n"); w.ReasonChanged == 0 {
		t.Errorf("another reason: %+v", *w)
	}
	if w := policy("lease: 1ms\n"); w.ToExpired == 0 {
		t.Errorf("a shorter lease: %+v", *w)
	}
	if code, _, errs := pdgate(t, "replay", "what-if", path, "--policy", "replay.go"); code != 2 || errs == "" {
		t.Errorf("a policy that is none: exit %d", code)
	}
}

// TestReplayAt: the state at a sequence is what the events until there say.
func TestReplayAt(t *testing.T) {
	trace := "../../testdata/forensics/violations/kv-differs.trace" // admitted 3, prefilled 4, granted 5, transferred 6
	for seq, want := range map[string]events.State{"3": events.Admitted, "4": events.Prefilled, "6": events.Transferred} {
		_, out, errs := pdgate(t, "replay", trace, "--at", seq, "--format", "json")
		s := readResult(t, out).At
		if s == nil || len(s.Requests) != 1 || s.Requests[0].State != want {
			t.Fatalf("at %s: %+v %s", seq, s, errs)
		}
		if pages := len(s.Pages); seq == "3" && pages != 0 || seq == "4" && (pages != 1 || s.Pages[0].Worker != "p1" || s.Pages[0].Count != 7) || seq == "6" && pages != 2 {
			t.Errorf("at %s: pages %+v", seq, s.Pages)
		}
	}
	_, out, _ := pdgate(t, "replay", trace, "--at", "2026-01-02T03:04:05.0015Z", "--format", "json")
	if s := readResult(t, out).At; s == nil || len(s.Requests) != 1 || s.Requests[0].State != events.Admitted {
		t.Errorf("at a time: %+v", s)
	}
	// A point that the input cannot name is no state that may be believed.
	lines := filepath.Join(t.TempDir(), "lines.jsonl")
	if code, _, errs := pdgate(t, "replay", trace, "--export", "events", "--out", lines); errs != "" && code != 1 && code != 4 {
		t.Fatal(code, errs)
	}
	for at, path := range map[string]string{"4": lines, "9999": "../../testdata/forensics/clean/whole.trace", "2030-01-01T00:00:00Z": "../../testdata/forensics/clean/whole.trace"} {
		code, out, _ := pdgate(t, "replay", path, "--at", at, "--accept", "unanchored")
		if code != 3 || !strings.Contains(out, "the state is that at the end of the input") {
			t.Errorf("%s at %s: exit %d\n%s", path, at, code, out)
		}
	}
}

// TestReport writes a report, computes it again, and finds numbers that were
// changed.
func TestReport(t *testing.T) {
	path, truth := smallIncident(t)
	dir := t.TempDir()
	first, html := filepath.Join(dir, "1.json"), filepath.Join(dir, "1.html")
	code, _, errs := pdgate(t, "report", path, "--incident-id", "INC-1", "--detected-at", "2026-06-15T09:00:00Z", "--aware-at", "2026-06-15T11:00:00Z", "--out", first, "--html", html)
	if code != 1 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	b, err := os.ReadFile(first)
	if err != nil {
		t.Fatal(err)
	}
	var r replay.Report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if r.Responses.Confirmed != int64(len(truth.Affected)) || !r.FirstSeen.Equal(truth.First) || !r.LastSeen.Equal(truth.Last) || r.Deadline.Hour() != 11 || r.Deadline.Day() != 18 || len(r.WhatIf) != 1 {
		t.Errorf("%+v, %s to %s, 72 hours end %s", r.Responses, r.FirstSeen, r.LastSeen, r.Deadline)
	}
	if code, out, errs := pdgate(t, "report", "--recompute", first, path); code != 0 {
		t.Errorf("exit %d: %s%s", code, out, errs)
	}
	changed := filepath.Join(dir, "changed.json")
	for _, edit := range [][2]string{{`"confirmed": 9`, `"confirmed": 8`}, {truth.Receiving[0], "tenant-99"}, {`"flipped": 9`, `"flipped": 10`}} {
		if !strings.Contains(string(b), edit[0]) {
			t.Fatalf("the report lacks %s", edit[0])
		}
		if err := os.WriteFile(changed, []byte(strings.Replace(string(b), edit[0], edit[1], 1)), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out, _ := pdgate(t, "report", "--recompute", changed, path); code != 1 || out == "" {
			t.Errorf("%s: exit %d", edit[1], code)
		}
	}
	final := filepath.Join(dir, "2.json")
	code, out, _ := pdgate(t, "report", path, "--previous", first, "--phase", "final", "--out", final)
	if code != 3 || !strings.Contains(out, "contained_at, root_cause, measures, a notification to ") {
		t.Errorf("exit %d: %s", code, out)
	}
	page, err := os.ReadFile(html)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"INC-1", truth.Affected[0], truth.Exposed[0], "decode-after-rejection", "Page map", "<svg"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, never := range []string{"http://", "https://", "<script", "src=", "@import", "url("} {
		if strings.Contains(string(page), never) {
			t.Errorf("the page holds %q: it must need no network", never)
		}
	}
}

// TestIncidentLog replays the logs of a run of pdgate incident.
func TestIncidentLog(t *testing.T) {
	dir := t.TempDir()
	if code, _, errs := pdgate(t, "incident", "--record", dir); code != 0 {
		t.Fatal(errs)
	}
	_, out, _ := pdgate(t, "replay", filepath.Join(dir, "unguarded.trace"), "--format", "json")
	r := readResult(t, out)
	if x := r.Exposure; x.Rings.Confirmed != 1 || len(x.TenantsReceiving) != 1 || x.TenantsReceiving[0] != "customer-5" || len(x.TenantsExposed) != 4 {
		t.Errorf("unguarded: %+v", x)
	}
	if code, out, _ := pdgate(t, "replay", filepath.Join(dir, "guarded.trace")); code != 0 {
		t.Errorf("guarded: exit %d: %s", code, out)
	}
	if code, out, _ := pdgate(t, "replay", "timeline", r.Exposure.Responses[0].Request, filepath.Join(dir, "unguarded.trace")); code != 0 || !strings.Contains(out, "ILLEGAL") || !strings.Contains(out, "decode") {
		t.Errorf("timeline: %s", out)
	}
}
