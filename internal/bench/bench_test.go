package bench

import (
	"context"
	"strings"
	"testing"
)

func TestJournal(t *testing.T) {
	o := small(t)
	o.Fsync = []bool{true, false}
	r := run(t, o, "journal")
	sane(t, o, r, 2)
}

func TestService(t *testing.T) {
	o := small(t)
	o.Replicas = []int{1, 2}
	o.Rounds = 1
	r := run(t, o, "service")
	sane(t, o, r, 4)
	for _, c := range r.Cases {
		want := "nats"
		if c.Params["replicas"] == "2" {
			want = "lc2"
		}
		if c.Product.CPU[want] <= 0 || c.Product.CPU["load"] <= 0 {
			t.Errorf("%s: processor time by process: %v", c.title(), c.Product.CPU)
		}
	}
}

func TestTakeover(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the client's patience, twice")
	}
	o := small(t)
	o.Rounds = 1
	r := run(t, o, "takeover")
	sane(t, o, r, 2)
}

func TestHandoff(t *testing.T) {
	o, err := small(t).withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	r, err := measure(t.Context(), o, func(ctx context.Context, b *bench) error {
		return b.handoffs(ctx, []handoffSize{{4 << 10, 64 << 10}})
	})
	if err != nil {
		t.Fatal(err)
	}
	sane(t, o, r, 2)
}

func TestReplay(t *testing.T) {
	o := small(t)
	r := run(t, o, "replay")
	sane(t, o, r, 2)
	for _, c := range r.Cases {
		for _, s := range c.Product.Rounds {
			if s.Count != c.Ceiling.Rounds[0].Count {
				t.Errorf("%s: %d events checked, %d read", c.title(), s.Count, c.Ceiling.Rounds[0].Count)
			}
		}
	}
}

func TestUnknownName(t *testing.T) {
	if _, err := Run(t.Context(), small(t), "jornal"); err == nil || !strings.Contains(err.Error(), "journal, service") {
		t.Errorf("%v", err)
	}
}
