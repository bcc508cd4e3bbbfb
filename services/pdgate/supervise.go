package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// part is something that runs until its context ends.
type part struct {
	name string
	run  func(context.Context) error
}

// named says whose error it is, unless the error says so itself.
func (p part) named(err error) error {
	if strings.HasPrefix(err.Error(), p.name+": ") {
		return err
	}
	return fmt.Errorf("%s: %w", p.name, err)
}

// supervise runs parts until ctx ends or one of them does. Parts of a later
// stage lean on those of an earlier one: all start at once and wait for what
// they need, and they stop stage by stage, the last one first, so that a worker
// can still say that it leaves. A part that ends by itself, with an error or
// without, ends all; its error is the result.
func supervise(ctx context.Context, stages ...[]part) error {
	failed, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	type stage struct {
		stop context.CancelFunc
		done sync.WaitGroup
	}
	running := make([]*stage, len(stages))
	var mu sync.Mutex
	var late []error // of parts that were asked to stop
	for i, parts := range stages {
		// What asks the parts to stop is their stage's turn, not the end of ctx.
		sctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		s := &stage{stop: stop}
		running[i] = s
		for _, p := range parts {
			s.done.Go(func() {
				err := p.run(sctx)
				switch {
				case sctx.Err() == nil && err == nil:
					fail(fmt.Errorf("%s stopped", p.name))
				case sctx.Err() == nil:
					fail(p.named(err))
				case err != nil && !errors.Is(err, context.Canceled):
					mu.Lock()
					late = append(late, fmt.Errorf("stop: %w", p.named(err)))
					mu.Unlock()
				}
			})
		}
	}
	<-failed.Done()
	stop := func() {
		for i := len(running) - 1; i >= 0; i-- {
			running[i].stop()
			running[i].done.Wait()
		}
	}
	if ctx.Err() != nil {
		stop()
		return errors.Join(late...)
	}
	// The part that failed may be what the others need to stop well. They get a
	// while, and go with the process then, as in a crash.
	stopped := make(chan struct{})
	go func() { // ends with the parts, or with the process
		stop()
		close(stopped)
	}()
	t := time.NewTimer(failureGrace)
	defer t.Stop()
	select {
	case <-stopped:
	case <-t.C:
	}
	return context.Cause(failed)
}

// failureGrace is how long parts may take to stop after another one failed.
const failureGrace = 5 * time.Second
