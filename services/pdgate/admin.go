package main

import (
	"context"
	"fmt"
	"net"

	"github.com/spf13/pflag"

	"github.com/pdgate/pdgate/internal/telemetry"
)

// adminFlags are how a process is watched.
type adminFlags struct {
	listen   string
	profiles bool
}

func (f *adminFlags) add(s *pflag.FlagSet) {
	s.StringVar(&f.listen, "admin-listen", "", "address for /metrics (Prometheus), /health and /ready (default: none)")
	s.BoolVar(&f.profiles, "pprof", false, "serve profiles under /debug/pprof of the admin address")
}

func (f *adminFlags) check() error {
	if f.listen == "" {
		if f.profiles {
			return fmt.Errorf("pprof: want an address to serve it on: --admin-listen HOST:PORT")
		}
		return nil
	}
	_, _, err := splitListen("admin-listen", f.listen)
	return err
}

// admin opens the listener, where there is one, and returns its part and what
// /ready waits for. It comes before the parts make their instruments.
func (a *app) admin(f *adminFlags) ([]part, *telemetry.Readiness, error) {
	if f.listen == "" {
		return nil, nil, nil
	}
	metrics, shutdown, err := telemetry.Metrics()
	if err != nil {
		return nil, nil, fmt.Errorf("admin: %w", err)
	}
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return nil, nil, fmt.Errorf("admin: listen on %s: %w: choose another address with --admin-listen", f.listen, err)
	}
	ready := &telemetry.Readiness{}
	a.log.Info("admin listens", "url", "http://"+l.Addr().String())
	return []part{{"admin", func(ctx context.Context) error {
		defer shutdown(context.WithoutCancel(ctx))
		return telemetry.Serve(ctx, l, telemetry.Admin(metrics, ready, f.profiles), a.log)
	}}}, ready, nil
}
