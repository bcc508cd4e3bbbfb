package main

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

func (a *app) lifecycleCommand() *cobra.Command {
	var r remote
	var p lifecyclePart
	var adm adminFlags
	var can canaryFlags
	c := &cobra.Command{
		Use:   "lifecycle",
		Short: "Run a lifecycle replica",
		Long: `lifecycle runs one replica of the service that owns the log, against a NATS server
elsewhere. Any number of replicas may run; each needs a name of its own. Keys:
lifecycle-log.nk, lifecycle-bus.nk, log-mac.key, digest-secret.key, grant.pem; with
--retention lifecycle-trim.nk, and audit.pub.pem to check the auditor's signature; with
--canary-interval canary.nk and the API keys of the canary's tenants.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := firstOf(checkName("name", p.name), atLeast("partitions", p.partitions, 0), atLeast("replicas", p.replicas, 1), atLeast("queue-limit", p.queueLimit, 0),
				p.retention.check(), adm.check())
			if err == nil && p.partitions > events.MaxPartitions {
				err = fmt.Errorf("partitions %d: want at most %d", p.partitions, events.MaxPartitions)
			}
			if err != nil {
				return &usageError{err, cmd}
			}
			ring, err := a.load(&r)
			if err != nil {
				return err
			}
			if p.canary, err = a.canarySchedule(&can, ring.Dir()); err == nil && p.canary.every > 0 {
				if _, err = p.canary.tenants(); err == nil {
					p.canary.gateway, err = a.gatewayURL(can.gateway)
				}
			}
			if err != nil {
				return &usageError{err, cmd}
			}
			p.stateDir = filepath.Join(a.data, "lifecycle", p.name)
			admin, ready, err := a.admin(&adm)
			if err != nil {
				return err
			}
			p.ready = ready
			return supervise(cmd.Context(), admin, []part{{"lifecycle", func(ctx context.Context) error {
				return p.run(ctx, a.dialer(&r, ring), ring, a.log)
			}}})
		},
	}
	f := c.Flags()
	r.add(f)
	adm.add(f)
	can.addSchedule(f)
	f.StringVar(&can.gateway, "gateway-url", "", "gateway that the canary asks (default: the one that runs on the data directory)")
	f.StringVar(&p.name, "name", "lc1", "name of the replica")
	f.IntVar(&p.partitions, "partitions", 0, "partitions of a log that does not exist yet (0: the default); an existing log keeps its own")
	f.IntVar(&p.replicas, "replicas", 1, "NATS servers that must hold the log and the work queues")
	p.retention.add(f)
	f.IntVar(&p.queueLimit, "queue-limit", 1024, "most requests of a model that wait for prefill (0: no limit)")
	return c
}

// dialer connects a part, which waits for its server as long as it takes.
func (a *app) dialer(r *remote, ring *keyring.Ring) dial {
	return func(ctx context.Context, u keyring.User) (*nats.Conn, error) { return a.connect(ctx, r, ring, u, -1) }
}
