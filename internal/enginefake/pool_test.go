package enginefake

import (
	"context"
	"errors"
	"slices"
	"testing"
)

func TestPoolKeepsWhatWasWritten(t *testing.T) {
	p := NewPool(4, 8, 1)
	a, _ := p.Alloc("a", 2)
	p.Write(a, 0, []byte("alice's memory"))
	p.Release("a", a)
	if got := string(p.Read(a, 14)); got != "alice's memory" || p.Free() != 4 {
		t.Errorf("after the release: %q, %d free", got, p.Free())
	}
	before := p.Uses(a)
	b, _ := p.Alloc("b", 4)
	p.Write([]int{a[0]}, 0, []byte("bob"))
	if got := string(p.Read(a, 14)); got != "bobce's memory" {
		t.Errorf("after the reuse: %q", got)
	}
	if slices.Equal(before, p.Uses(a)) {
		t.Error("the reuse does not show")
	}
	p.Release("a", b) // not a's
	if p.Free() != 0 {
		t.Errorf("%d free", p.Free())
	}
	if _, ok := p.Alloc("c", 1); ok {
		t.Error("a block of a full pool")
	}
	if p.Has([]int{1, 4}) != true || p.Has([]int{0}) || p.Has([]int{5}) {
		t.Error("Has knows other ids")
	}
	p.Write([]int{99}, 0, []byte("nowhere"))
	if got := string(p.Read([]int{99, 1}, 11)); got[8:] != "bob" || got[:7] == "nowhere" {
		t.Errorf("out of range: %q", got)
	}
}

func TestPoolAcquireWaits(t *testing.T) {
	p := NewPool(2, 8, 1)
	ids, _ := p.Alloc("a", 2)
	got := make(chan []int)
	go func() {
		ids, _ := p.Acquire(t.Context(), "b", 1)
		got <- ids
	}()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Acquire(ctx, "c", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("a wait that was given up: %v", err)
	}
	p.Release("a", ids)
	if ids := <-got; len(ids) != 1 {
		t.Errorf("%v", ids)
	}
}
