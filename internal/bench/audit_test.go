package bench

import (
	"strings"
	"testing"
)

func TestAudit(t *testing.T) {
	o := small(t)
	r := run(t, o, "audit")
	// The test does not run where Tessera's program could be built, and says so.
	sane(t, o, r, 3)
	if notes := strings.Join(r.Cases[0].Notes, "\n"); !strings.Contains(notes, "Tessera was not measured: run this in the root") {
		t.Errorf("notes: %s", notes)
	}
	for _, c := range r.Cases {
		if c.Product.Rounds[0].Count != c.Ceiling.Rounds[0].Count {
			t.Errorf("%s: %d and %d events", c.title(), c.Product.Rounds[0].Count, c.Ceiling.Rounds[0].Count)
		}
		if len(c.Product.PeakMB) != 1 {
			t.Errorf("%s: peak memory %v", c.title(), c.Product.PeakMB)
		}
	}
}
