package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// stays is how many requests the disk must hold at once.
func stays(requests, retain int) int {
	if retain == 0 {
		return requests
	}
	return min(requests, 2*retain)
}

// least is how many requests the log must hold at the end, at least.
func (g *grown) least() int {
	if g.retain == 0 {
		return g.in
	}
	return min(g.in, g.retain/2)
}

// trimPatience is how long the service may take to trim what a part of the filling
// has put on top.
const trimPatience = 2 * time.Minute

// trim lets the service take off the log what is more than it is to keep.
func (g *grown) trim(ctx context.Context, requests int) error {
	if g.retain == 0 {
		return nil
	}
	nc, err := g.connect(ctx, keyring.Admin)
	if err != nil {
		return err
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return fmt.Errorf("trim: %w", err)
	}
	bytes := func() (int64, error) {
		st, err := js.Stream(ctx, events.LogStream)
		if err != nil {
			return 0, fmt.Errorf("trim: %w", err)
		}
		return int64(st.CachedInfo().State.Bytes), nil
	}
	have, err := bytes()
	if err != nil {
		return err
	}
	if g.retainBytes == 0 {
		g.retainBytes = max(1, have/int64(requests)*int64(g.retain))
	}
	if have <= g.retainBytes {
		return nil
	}
	if _, err := g.part(ctx, replicaPrefix+"1", childConfig{Kind: kindLifecycle, Partitions: g.b.Partitions, Retain: g.retainBytes}); err != nil {
		return err
	}
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for end := time.Now().Add(trimPatience); have > g.retainBytes+g.retainBytes/8; {
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), g.stopParts())
		case <-poll.C:
		}
		if have, err = bytes(); err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("the log has %d bytes after %v, and is to keep %d", have, trimPatience, g.retainBytes)
		}
	}
	return g.stopParts()
}
