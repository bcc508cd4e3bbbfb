package simulation

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

// seeds is how many runs a test makes: PDGATE_SEEDS, or otherwise.
func seeds(t *testing.T, otherwise int) uint64 {
	t.Helper()
	v := os.Getenv("PDGATE_SEEDS")
	if v == "" {
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

// show fails the test with a run's violations, and leaves its transcript.
func show(t *testing.T, r *Result) {
	t.Helper()
	path := filepath.Join(t.ArtifactDir(), "seed-"+strconv.FormatUint(r.Seed, 10)+".txt")
	if err := os.WriteFile(path, r.Transcript, 0o600); err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(r.Transcript, []byte("\n"))
	t.Fatalf("%s\ntranscript: %s, which ends:\n%s", r, path, bytes.Join(lines[max(0, len(lines)-40):], []byte("\n")))
}

func TestSimulation(t *testing.T) {
	seen := map[string]int{}
	n := seeds(t, 400)
	for seed := range n {
		r := Run(Config{Seed: seed})
		if len(r.Violations) > 0 {
			show(t, r)
		}
		for k, v := range r.Seen {
			seen[k] += v
		}
	}
	t.Logf("%d seeds: %v", n, seen)
}
