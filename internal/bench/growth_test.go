package bench

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestGrowth lets a log grow twice, and wants every request of it in the replay.
func TestGrowth(t *testing.T) {
	if testing.Short() {
		t.Skip("starts the service eight times")
	}
	o := small(t)
	o.Rounds, o.Fsync = 1, []bool{true}
	var r *Report
	for {
		var err error
		r, err = RunGrowth(t.Context(), o, GrowthOptions{Requests: []int{300}, Baseline: 100})
		if err == nil {
			break
		}
		if !errors.Is(err, errTooShort) {
			t.Fatal(err)
		}
		o.Duration *= 4
	}
	g := r.Growth
	if len(g.Points) != 2 || g.Points[0].Requests != 100 || g.Points[1].Requests != 300 || !g.Fsync || g.Ratio <= 0 {
		t.Fatalf("%+v", g)
	}
	for _, p := range g.Points {
		if p.Events < p.Requests*len(steps) || p.BytesPerEvent < 100 || p.BytesPerEvent > 2000 || p.Retained < 1 {
			t.Errorf("%+v", p)
		}
		for name, v := range map[string]float64{
			"server": float64(p.ServerRSS), "service": float64(p.ServiceRSS), "throughput": p.Throughput.Value.Median, "state": float64(p.StateBytes),
			"clean server": p.CleanServer, "clean service": p.CleanService, "killed server": p.KilledServer, "killed service": p.KilledService, "replay": p.ReplayRate,
		} {
			if v <= 0 {
				t.Errorf("%d requests: %s: %v", p.Requests, name, v)
			}
		}
	}
	left, err := os.ReadDir(o.Dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the data directory: %v %v", left, err)
	}
}

// TestGrowthRetains: a log that keeps a part of what it was given has that part in
// the replay, whole, and no more on the disk.
func TestGrowthRetains(t *testing.T) {
	if testing.Short() {
		t.Skip("starts the service a dozen times")
	}
	o := small(t)
	o.Rounds, o.Fsync = 1, []bool{true}
	var r *Report
	for {
		var err error
		r, err = RunGrowth(t.Context(), o, GrowthOptions{Requests: []int{60_000}, Baseline: 20_000, Retain: 20_000})
		if err == nil {
			break
		}
		if !errors.Is(err, errTooShort) {
			t.Fatal(err)
		}
		o.Duration *= 4
	}
	g := r.Growth
	if len(g.Points) != 2 || g.Retain != 20_000 {
		t.Fatalf("%+v", g)
	}
	first, last := g.Points[0], g.Points[1]
	if last.Events > 2*first.Events || last.Events < 10_000*len(steps) || last.LogBytes > 2*first.LogBytes {
		t.Errorf("after three times as many requests: %+v\nbefore: %+v", last, first)
	}
}

// TestGrowthEnds: an interrupted run leaves nothing behind.
func TestGrowthEnds(t *testing.T) {
	o := small(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	o.Progress = func(f string, args ...any) { cancel(interrupted) }
	if _, err := RunGrowth(ctx, o, GrowthOptions{Requests: []int{10}, Baseline: 10}); err == nil {
		t.Error("no error")
	}
	left, err := os.ReadDir(o.Dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left in the data directory: %v %v", left, err)
	}
}

func TestGrowthSizes(t *testing.T) {
	for _, tt := range []struct {
		o    GrowthOptions
		want []int
	}{
		{GrowthOptions{}, []int{100_000, 1_000_000}},
		{GrowthOptions{Requests: []int{3_000_000, 1_000_000, 3_000_000}}, []int{100_000, 1_000_000, 3_000_000}},
		{GrowthOptions{Requests: []int{50, 20}}, []int{20, 50}},
		{GrowthOptions{Requests: []int{50}, Baseline: 10}, []int{10, 50}},
	} {
		if got, err := tt.o.sizes(); err != nil || !slices.Equal(got, tt.want) {
			t.Errorf("%+v: %v, %v", tt.o, got, err)
		}
	}
	if _, err := (GrowthOptions{Requests: []int{0}}).sizes(); err == nil {
		t.Error("a log of no requests")
	}
}

// TestRoom: what the disk cannot hold is not begun.
func TestRoom(t *testing.T) {
	o := small(t)
	_, err := RunGrowth(t.Context(), o, GrowthOptions{Requests: []int{1 << 50}})
	if err == nil || !strings.Contains(err.Error(), "GB are free: choose another disk with --dir") {
		t.Errorf("%v", err)
	}
	if err := room(o.Dir, 1, 1); err != nil {
		t.Error(err)
	}
}
