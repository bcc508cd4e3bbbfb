package lifecycle

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// Partitions spread evenly, order of the members does not matter, and a replica
// that goes moves no partition but its own.
func TestPreferred(t *testing.T) {
	for n := 1; n <= 5; n++ {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("lc%d", i+1))
		}
		count := map[string]int{}
		for p := -1; p < 1024; p++ {
			who := preferred(all, p)
			count[who]++
			back := slices.Clone(all)
			slices.Reverse(back)
			if preferred(back, p) != who {
				t.Fatalf("partition %d: the order of members matters", p)
			}
			for _, gone := range all {
				if rest := slices.DeleteFunc(slices.Clone(all), func(s string) bool { return s == gone }); len(rest) > 0 && gone != who && preferred(rest, p) != who {
					t.Fatalf("partition %d moves from %s when %s goes", p, who, gone)
				}
			}
		}
		for _, who := range all {
			if want := 1024 / n; count[who] < want*7/10 || count[who] > want*13/10 {
				t.Errorf("%d members: %s has %d of 1,024 partitions", n, who, count[who])
			}
		}
	}
}

func TestMembers(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	m := newMembers("a")
	if m.beat("a", now) || !m.beat("b", now) || m.beat("b", now) {
		t.Error("first sign of life is not told from later ones")
	}
	m.beat("c", now.Add(900*time.Millisecond))
	check := func(at time.Duration, want ...string) {
		t.Helper()
		got := m.live(now.Add(at))
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("after %s: %v live, want %v", at, got, want)
		}
	}
	check(900*time.Millisecond, "a", "b", "c")
	check(deadAfter, "a", "c")
	m.bye("c")
	check(deadAfter, "a")
	if !m.beat("b", now.Add(2*time.Second)) {
		t.Error("a replica that comes back is not new")
	}
}
