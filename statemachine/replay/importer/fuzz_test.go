package importer_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/pdgate/pdgate/internal/corpus"
	"github.com/pdgate/pdgate/statemachine/replay"
)

// FuzzReplay: whatever a file holds, a replay ends with an error or a result, and a
// result that is clean has read an event and no problem.
func FuzzReplay(f *testing.F) {
	files, err := filepath.Glob(filepath.Join(corpusDir, "*", "*"))
	if err != nil || len(files) == 0 {
		f.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, s := range []string{requestLogs, metrics, otlpLegs, tempoLegs, jaegerLegs, `{"traceEvents":[]}`} {
		f.Add([]byte(s))
	}
	lease, _ := corpus.LeaseLog()
	f.Add(lease)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := read(t, replay.Options{AcceptLifecycle: true, AcceptUnanchored: true, WhatIf: replay.GatePolicy()}, b)
		if err != nil {
			return
		}
		var text bytes.Buffer
		if err := r.WriteText(&text, 5); err != nil {
			t.Fatal(err)
		}
		if r.Verdict.Exit != replay.Clean {
			return
		}
		if r.Range.Events == 0 || len(r.Inputs[0].Problems) > 0 || len(r.Groups) > 0 {
			t.Errorf("clean: %s", r.Verdict.Line)
		}
	})
}
