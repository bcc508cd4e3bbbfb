package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

func (a *app) workerCommand() *cobra.Command {
	var (
		r    remote
		eng  engineFlags
		p    workerPart
		role string
	)
	c := &cobra.Command{
		Use:   "worker --role prefill|decode",
		Short: "Run a worker",
		Long: `worker runs one prefill or decode worker against a NATS server elsewhere. Keys:
<role>-<name>.nk, <role>-<name>.pem and grant.pub.pem. KV travels between workers
directly: a prefill worker on another machine listens on tcp:// and advertises
an address that decode workers reach.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch p.role = events.Role(role); p.role {
			case events.RolePrefill, events.RoleDecode:
			default:
				return &usageError{fmt.Errorf("role %q: want --role prefill or --role decode", role), cmd}
			}
			if p.name == "" {
				p.name = role[:1] + "1"
			}
			pool := 0
			if p.role == events.RolePrefill {
				pool = p.poolTokens
			}
			err := firstOf(checkName("name", p.name), eng.check(), atLeast("pool-tokens", p.poolTokens, 1), atLeast("concurrency", p.concurrency, 0),
				checkDataPlane("listen-kv", p.listen), checkDataPlane("advertise-kv", p.advertise))
			if err == nil {
				p.engine, err = eng.config(pool)
			}
			if err == nil {
				err = firstOf(kvpool.CheckDevice(p.device), checkHostMemory(p.device, "pool-tokens", p.poolTokens, p.engine))
			}
			if err != nil {
				return &usageError{err, cmd}
			}
			ring, err := a.load(&r)
			if err != nil {
				return err
			}
			if p.listen == "" {
				dir, err := runDir(a.data)
				if err != nil {
					return err
				}
				p.listen = dataPlane(dir, p.name)
			}
			return supervise(cmd.Context(), []part{{role + " worker " + p.name, func(ctx context.Context) error {
				return p.run(ctx, a.dialer(&r, ring), ring, a.log)
			}}})
		},
	}
	f := c.Flags()
	r.add(f)
	eng.add(f)
	f.StringVar(&role, "role", "", "prefill or decode")
	f.StringVar(&p.name, "name", "", "name of the worker (default: p1 or d1)")
	f.IntVar(&p.poolTokens, "pool-tokens", 131_072, "KV pool, in tokens")
	deviceFlag(f, &p.device)
	f.IntVar(&p.concurrency, "concurrency", 0, "requests that are worked on at once (0: the worker's own default)")
	f.StringVar(&p.listen, "listen-kv", "", "where pulls are served: tcp://HOST:PORT or unix:///PATH (default: a socket in the data directory)")
	f.StringVar(&p.advertise, "advertise-kv", "", "address that decode workers use (default: the one that is listened on)")
	_ = c.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"prefill", "decode"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}
