package main

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestSuperviseStopsInOrder(t *testing.T) {
	var mu sync.Mutex
	var order []string
	started := make(chan struct{}, 3)
	wait := func(name string) part {
		return part{name, func(ctx context.Context) error {
			started <- struct{}{}
			<-ctx.Done()
			mu.Lock()
			order = append(order, name)
			mu.Unlock()
			return ctx.Err()
		}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- supervise(ctx, []part{wait("lifecycle")}, []part{wait("worker")}, []part{wait("gateway")})
	}()
	for range 3 {
		<-started
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := strings.Join(order, " "); got != "gateway worker lifecycle" {
		t.Errorf("stopped in the order %s", got)
	}
}

func TestSuperviseFailure(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name string
		run  func(context.Context) error
		want string
	}{
		{"error", func(context.Context) error { return broken }, "worker p1: broken"},
		{"plain end", func(context.Context) error { return nil }, "worker p1 stopped"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stopped := false
			err := supervise(t.Context(),
				[]part{{"lifecycle", func(ctx context.Context) error { <-ctx.Done(); stopped = true; return nil }}},
				[]part{{"worker p1", tt.run}})
			if err == nil || err.Error() != tt.want {
				t.Errorf("error %v, want %s", err, tt.want)
			}
			if !stopped {
				t.Error("the other part was left running")
			}
		})
	}
}

func TestSuperviseLateError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := supervise(ctx, []part{{"gateway", func(ctx context.Context) error { <-ctx.Done(); return errors.New("could not drain") }}})
	if err == nil || err.Error() != "stop: gateway: could not drain" {
		t.Errorf("error %v", err)
	}
}

// TestSuperviseStuck: a part that cannot stop without the one that failed holds
// up the end of the process for a while only.
func TestSuperviseStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		begin := time.Now()
		err := supervise(t.Context(),
			[]part{{"nats", func(context.Context) error { return errors.New("disk full") }}},
			[]part{{"worker p1", func(ctx context.Context) error { <-ctx.Done(); <-release; return nil }}})
		if err == nil || err.Error() != "nats: disk full" {
			t.Errorf("error %v", err)
		}
		if took := time.Since(begin); took != failureGrace {
			t.Errorf("after %v, want %v", took, failureGrace)
		}
	})
}
