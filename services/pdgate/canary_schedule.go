package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/pdgate/pdgate/internal/canary"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/lifecycle"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// canaryPart is the canary of a lifecycle replica: the one that operations prefer
// runs it.
type canaryPart struct {
	every   time.Duration // 0: none
	gateway string
	oracle  string
	tenants func() ([]canary.Tenant, error) // read for each round: keys may change
}

// canarySchedule checks the flags of a process that may run the canary. dir is the
// key directory.
func (a *app) canarySchedule(f *canaryFlags, dir string) (canaryPart, error) {
	if f.every == 0 {
		return canaryPart{}, nil
	}
	err := firstOf(checkDuration("canary-interval", f.every), f.check("canary-oracle"))
	if err == nil && f.every < time.Second {
		err = fmt.Errorf("canary-interval %v: want 1s or more, or 0", f.every)
	}
	if err != nil {
		return canaryPart{}, err
	}
	return canaryPart{every: f.every, oracle: f.oracle, tenants: func() ([]canary.Tenant, error) { return f.keys(dir) }}, nil
}

// run probes until ctx ends. Only a key that is missing, or one that the server
// does not know, is an error: whoever asked for a canary must not run without one.
func (p canaryPart) run(ctx context.Context, svc *lifecycle.Service, dial dial, log *slog.Logger) error {
	log = log.With("part", "canary")
	select {
	case <-svc.Ready():
	case <-ctx.Done():
		return ctx.Err()
	}
	nc, err := dial(ctx, keyring.Canary)
	if err != nil {
		return err
	}
	defer nc.Close()
	cl, err := client.New(ctx, client.Config{Conn: nc, Role: keyring.Canary.Role(), Principal: keyring.Canary.Principal(), Logger: log})
	if err != nil {
		return err
	}
	s := canary.Schedule{Every: p.every, Turn: svc.Leads, Canary: func(context.Context) (*canary.Canary, error) {
		tenants, err := p.tenants()
		if err != nil {
			return nil, err
		}
		return canary.New(canary.Config{Gateway: p.gateway, Tenants: tenants, Cluster: cl, Oracle: p.oracle, Logger: log})
	}}
	s.Run(ctx, log)
	return ctx.Err()
}
