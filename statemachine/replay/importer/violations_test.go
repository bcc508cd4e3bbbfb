package importer_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/corpus"
	"github.com/pdgate/pdgate/statemachine"
	"github.com/pdgate/pdgate/statemachine/replay"
)

//go:generate go test -run ^TestCorpus|^TestViolationsDocument$ -update .

var update = flag.Bool("update", false, "write the corpus and docs/violations.md")

const (
	corpusDir = "../../../testdata/forensics"
	document  = "../../../docs/violations.md"
)

// file is a case as a file.
func file(t testing.TB, envs []*events.Envelope) []byte {
	t.Helper()
	var b bytes.Buffer
	w := replay.NewTraceWriter(&b, events.DefaultPartitions)
	for _, env := range envs {
		if err := w.Add(env); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// notFromTraces are violations that take what clients or callers were told.
var notFromTraces = map[string]string{
	"answer-unlogged":         "an answer that a principal was given, beside the log",
	"answer-differs":          "an answer that a principal was given, beside the log",
	"client-success-unearned": "what a client was given, beside the log",
	"client-output-undecoded": "what a client was given, beside the log",
	"client-output-differs":   "what a client was given, beside the log",
}

// TestViolations: every violation of the catalogue is found in its own trace, with
// its place.
func TestViolations(t *testing.T) {
	found := map[string]bool{}
	for _, c := range corpus.Violations() {
		t.Run(c.Kind, func(t *testing.T) {
			b := c.Text
			if b == nil {
				b = file(t, c.Envelopes())
			}
			r := must(t, replay.Options{Key: c.Key, AcceptLifecycle: true, AcceptUnanchored: true}, b)
			f, ok := replay.Explain(kind(c.Kind))
			if !ok || f.Title == "" || f.Explanation == "" || f.Rule == "" {
				t.Fatalf("not in the catalogue")
			}
			if group(r, c.Kind) == 0 || r.Verdict.Exit < f.Severity {
				t.Errorf("found %v, exit %d", kindsOf(r), r.Verdict.Exit)
			}
			found[c.Kind] = true
			for _, g := range r.Groups {
				if g.First.Subject == "" || g.First.What == "" {
					t.Errorf("%s: no evidence: %+v", g.ID, g.First)
				}
			}
		})
	}
	for _, f := range replay.Catalogue() {
		if id := string(f.ID); found[id] == (notFromTraces[id] != "") {
			t.Errorf("%s: want a trace that shows it, or a reason why none can", id)
		}
	}
	if r := must(t, replay.Options{}, file(t, corpus.Whole())); r.Verdict.Exit != replay.Clean {
		t.Errorf("a clean trace: %s %v", r.Verdict.Line, kindsOf(r))
	}
}

func kind(s string) statemachine.Kind { return statemachine.Kind(s) }

func kindsOf(r *replay.Result) (all []string) {
	for _, g := range r.Groups {
		all = append(all, fmt.Sprintf("%s (%s)", g.ID, g.First.What))
	}
	return all
}

// TestCorpus: the files under testdata are what the generators write.
func TestCorpus(t *testing.T) {
	want := map[string][]byte{"clean/whole.trace": file(t, corpus.Whole())}
	for _, c := range corpus.Violations() {
		if c.Text != nil {
			want["violations/"+c.Kind+".txt"] = c.Text
		} else {
			want["violations/"+c.Kind+".trace"] = file(t, c.Envelopes())
		}
	}
	for name, c := range brokenFiles(t) {
		want["broken/"+name] = c.text
	}
	lease, _ := corpus.LeaseLog()
	want["vllm-lease.log"] = lease
	want["sglang-prefill.log"], want["sglang-decode.log"], _ = corpus.TimeStats(1, 200, 12)
	for name, b := range want {
		path := filepath.Join(corpusDir, filepath.FromSlash(name))
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, b, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, b) {
			t.Errorf("%s is not what its generator writes: go generate ./statemachine/replay/importer (%v)", name, err)
		}
	}
	files, err := filepath.Glob(filepath.Join(corpusDir, "violations", "*"))
	if err != nil || len(files) != len(corpus.Violations()) {
		t.Errorf("%d files of violations, want %d", len(files), len(corpus.Violations()))
	}
}

// brokenFiles are what a clean log's lines look like after an accident, and the exit
// code of each; the last line's end is vouched for by the caller.
func brokenFiles(t testing.TB) map[string]struct {
	text []byte
	exit replay.Severity
} {
	t.Helper()
	var lines []byte
	for _, env := range corpus.Whole() {
		lines = append(lines, env.Lines...)
	}
	all := bytes.SplitAfter(bytes.TrimSuffix(lines, []byte("\n")), []byte("\n"))
	all[len(all)-1] = append(bytes.Clone(all[len(all)-1]), '\n')
	reordered := slices.Clone(all)
	slices.Reverse(reordered)
	typed := bytes.Replace(lines, []byte(`"type":"request.admitted.v1"`), []byte(`"type":7`), 1)
	return map[string]struct {
		text []byte
		exit replay.Severity
	}{
		"truncated.jsonl":      {lines[:len(lines)-20], replay.Incomplete},
		"reordered.jsonl":      {bytes.Join(reordered, nil), replay.Broken},
		"duplicated.jsonl":     {append(bytes.Clone(lines), lines...), replay.Broken},
		"wrong-type.jsonl":     {typed, replay.Broken},
		"mixed-versions.jsonl": {bytes.Replace(lines, []byte("request.admitted.v1"), []byte("request.admitted.v9"), 1), replay.Broken},
		"crlf.jsonl":           {bytes.ReplaceAll(lines, []byte("\n"), []byte("\r\n")), replay.Clean},
		"bom.jsonl":            {append([]byte("\xef\xbb\xbf"), lines...), replay.Clean},
		"empty.jsonl":          {nil, replay.Unreadable},
		"binary.jsonl":         {[]byte("\x7fELF\x02\x01\x01\x00\x00\x01\xff"), replay.Unreadable},
	}
}

// TestBrokenCorpus: each broken file under testdata ends with the exit code of its
// accident.
func TestBrokenCorpus(t *testing.T) {
	for name, c := range brokenFiles(t) {
		text, err := os.ReadFile(filepath.Join(corpusDir, "broken", name))
		if err != nil {
			t.Fatal(err)
		}
		exit := replay.Unreadable
		r, err := read(t, replay.Options{AcceptUnanchored: true}, text)
		if err == nil {
			exit = r.Verdict.Exit
		}
		if exit != c.exit {
			t.Errorf("%s: exit %d (%v), want %d", name, exit, err, c.exit)
		}
	}
}

// TestViolationsDocument keeps docs/violations.md as the catalogue has it.
func TestViolationsDocument(t *testing.T) {
	cases := map[string]corpus.Case{}
	for _, c := range corpus.Violations() {
		cases[c.Kind] = c
	}
	var b strings.Builder
	b.WriteString(`# Violations

What ` + "`pdgate replay`" + ` can find, by id. Generated from the catalogue
([kind.go](../statemachine/kind.go), [catalogue.go](../statemachine/replay/catalogue.go)) by
` + "`go generate ./statemachine/replay/importer`" + `; each example is what the trace of that name under
[testdata/forensics](../testdata/forensics) comes to.

Rules: S1 no output after an end without one; S2 no page of one request reaches another; S3 final
states are final; S4 the log is whole; S5 clients get 200 only for their own KV; L1 every request
ends and every page comes back; D a decision against the table or its own facts; E the evidence
itself. Exit is the exit code that a finding asks for; the highest wins.

| id | rule | exit | exposes | what |
|---|---|--:|---|---|
`)
	for _, f := range replay.Catalogue() {
		exposes := ""
		if f.Exposes {
			exposes = "yes"
		}
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s | %d | %s | %s |\n", f.ID, f.ID, f.Rule, f.Severity, exposes, f.Title)
	}
	b.WriteString("\nAn output after a violation that *exposes* counts as possible, until pages show more.\n")
	for _, f := range replay.Catalogue() {
		fmt.Fprintf(&b, "\n## %s\n\n%s, %s. %s\n\n", f.ID, f.Rule, f.Title, f.Explanation)
		if why := notFromTraces[string(f.ID)]; why != "" {
			fmt.Fprintf(&b, "No trace alone shows it: it takes %s. The simulation and the system tests look for it.\n", why)
			continue
		}
		c := cases[string(f.ID)]
		text := c.Text
		if text == nil {
			text = file(t, c.Envelopes())
		}
		r := must(t, replay.Options{Key: c.Key, AcceptLifecycle: true, AcceptUnanchored: true}, text)
		i := slices.IndexFunc(r.Groups, func(g *replay.Group) bool { return g.ID == f.ID })
		if i < 0 {
			t.Fatalf("%s: not found", f.ID)
		}
		e := r.Groups[i].First
		fmt.Fprintf(&b, "```\n%s: %s", e.Subject, e.What)
		if e.Expected+e.Actual != "" {
			fmt.Fprintf(&b, "\nexpected %s; got %s", or(e.Expected), or(e.Actual))
		}
		b.WriteString("\n```\n")
	}
	if *update {
		if err := os.WriteFile(document, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(document); err != nil || string(got) != b.String() {
		t.Errorf("docs/violations.md is not what the catalogue says: go generate ./statemachine/replay/importer (%v)", err)
	}
}

func or(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
