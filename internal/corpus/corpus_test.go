package corpus_test

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/corpus"
)

// TestSeed: a seed is a log, byte for byte.
func TestSeed(t *testing.T) {
	sum := func(seed uint64) string {
		h := sha256.New()
		_, err := corpus.Incident(corpus.IncidentConfig{Seed: seed, Requests: 200, Affected: 5}, func(env *events.Envelope) error {
			fmt.Fprintf(h, "%d %d %d %s\n", env.Seq, env.Partition, env.Expected, env.Lines)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%x", h.Sum(nil))
	}
	if a, b := sum(1), sum(1); a != b {
		t.Error("the same seed writes another log")
	}
	if sum(1) == sum(2) {
		t.Error("two seeds write the same log")
	}
}
