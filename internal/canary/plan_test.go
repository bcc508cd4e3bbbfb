package canary

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/events"
)

// TestSentinels: whole ones are recognised whoever made them, pieces if they are
// remembered, and nothing else is.
func TestSentinels(t *testing.T) {
	tenants := []Tenant{{"a", "key-a"}, {"b", "key-b"}}
	m, again, other := newMint(tenants), newMint(tenants), newMint([]Tenant{{"a", "x"}, {"b", "key-b"}})
	own, second := m.sentinel(), m.sentinel()
	if own == second || !sentinelForm.MatchString(own) || len(own) != 22 {
		t.Fatal(own, second)
	}
	for text, want := range map[string]bool{
		"":                                     false,
		"the code word is " + own:              false,
		own[3:] + own:                          false,
		"x" + second + "y":                     true,
		second[:12]:                            true,
		second[9:]:                             true,
		second[:9]:                             false,
		again.sentinel():                       true,  // another process with these tenants
		other.sentinel():                       false, // somebody else's, and nothing of ours
		own + "\n" + second:                    true,
		strings.ToUpper(second):                false,
		sentinelMark + strings.Repeat("a", 20): false,
	} {
		if got := m.foreign(text, own); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	for range 3 * maxRemembered {
		m.sentinel()
	}
	if len(m.known) > 2*maxRemembered || !m.foreign(second, own) {
		t.Errorf("%d are remembered", len(m.known))
	}
}

func TestByteWriter(t *testing.T) {
	s := newMint([]Tenant{{"a", "1"}}).sentinel()
	w := byteWriter{}
	for n := w.least(); n < 600; n++ {
		p, exact := w.write(n, s)
		if len(p) != n || !exact || strings.Count(p, s) < 2 || !strings.HasSuffix(p, ";\n"+cue) {
			t.Fatalf("%d: %q", n, p)
		}
	}
}

func TestPlan(t *testing.T) {
	none := func(int) int { return 0 }
	plans := func(workers ...events.WorkerView) string {
		all, err := plan(workers, 96, none)
		if err != nil {
			return err.Error()
		}
		var s []string
		for _, p := range all {
			mark := ""
			if p.refuse {
				mark = "!"
			}
			s = append(s, fmt.Sprint(p.tokens)+mark)
		}
		return strings.Join(s, " ")
	}
	p1, d1 := node("p1", events.RolePrefill, "ref", 512, 1024), node("d1", events.RoleDecode, "ref", 2048, 1024)
	if got, want := plans(p1, d1), "2001! 2000! 977! 976! 513! 512 511 129 128 127"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	// A second, larger node takes what the first does not.
	p2 := node("p2", events.RolePrefill, "ref", 768, 1024)
	if got, want := plans(p1, p2, d1), "2001! 2000! 977! 976! 769! 768 767 513 512 129 128 127"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	// The engine's limit is below its pool.
	p1.MaxInputTokens = 300
	if got, want := plans(p1, d1), "2001! 2000! 977! 976! 301! 300 257 256 255 129 128 127"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	// A decode pool below everything: it is the limit for prompt and answer.
	if got, want := plans(node("p1", events.RolePrefill, "ref", 1024, 1024), node("d1", events.RoleDecode, "ref", 512, 1024)), "1025! 1024! 977! 976! 465! 464 449 448 447 129 128 127"; got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got := plans(node("p1", events.RolePrefill, "ref", 64, 1024), d1); !strings.Contains(got, "leave no room") {
		t.Errorf("%s", got)
	}
	var many []events.WorkerView
	for i := range 40 {
		many = append(many, node(fmt.Sprintf("p%d", i), events.RolePrefill, "ref", 64*(8+i), 8192))
	}
	all, err := plan(append(many, node("d1", events.RoleDecode, "ref", 16384, 8192)), 96, none)
	if err != nil || len(all) > maxProbes {
		t.Fatal(len(all), err)
	}
	above, within := false, false
	for _, p := range all {
		above = above || p.tokens == 64*47+1 && p.refuse
		within = within || p.tokens == 64*47 && !p.refuse
	}
	if !above || !within {
		t.Errorf("what lies beside the limit is left out: %v", all)
	}
}

// The dead and other models' workers set no limit.
func TestServing(t *testing.T) {
	p, d := node("p1", events.RolePrefill, "ref", 512, 1024), node("d1", events.RoleDecode, "ref", 2048, 1024)
	dead, other := p, p
	dead.Live, other.Model = false, "other"
	if got := serving([]events.WorkerView{p, d, dead, other}, "m"); len(got) != 2 {
		t.Errorf("%v", got)
	}
	if got := serving([]events.WorkerView{dead, d}, "m"); got != nil {
		t.Errorf("without prefill: %v", got)
	}
}
