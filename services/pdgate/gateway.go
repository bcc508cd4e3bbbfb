package main

import (
	"context"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/services/gateway"
)

func (a *app) gatewayCommand() *cobra.Command {
	var (
		r               remote
		eng             engineFlags
		nodes           external
		p               gatewayPart
		address, tenant string
		adm             adminFlags
		https           tlsFlags
	)
	c := &cobra.Command{
		Use:   "gateway",
		Short: "Run a gateway",
		Long: `gateway runs the OpenAI-compatible HTTP edge against a NATS server elsewhere. Keys:
gateway-<name>.nk and digest-secret.key. Its engine flags must be those of the
workers: it counts tokens as they will. For vllm and sglang, --prefill and
--decode name the nodes that are asked to count.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := firstOf(checkName("name", p.name), eng.check(), nodes.open(eng.engine, eng.context, a.log), checkDuration("drain", p.drain), adm.check())
			if err == nil && !nodes.on() {
				p.engine, err = eng.config(0)
			}
			if err != nil {
				return &usageError{err, cmd}
			}
			ring, err := a.load(&r)
			if err != nil {
				return err
			}
			if tenant == "" {
				tenant = filepath.Join(a.data, "tenants.yaml")
			}
			if _, _, err := splitListen("listen", address); err != nil {
				return &usageError{err, cmd}
			}
			if p.tenants, err = gateway.LoadTenants(tenant); err != nil {
				return err
			}
			if nodes.on() {
				p.nodes = &nodes
				if p.engine.Model, err = nodes.model(cmd.Context(), eng.model, a.log); err != nil {
					return err
				}
			}
			secure, err := https.config()
			if err != nil {
				return &usageError{err, cmd}
			}
			admin, ready, err := a.admin(&adm)
			if err != nil {
				return err
			}
			p.admin = ready
			l, err := listen(address)
			if err != nil {
				return err
			}
			defer l.Close()
			l, url := wrapTLS(l, secure)
			url += l.Addr().String()
			remove := func() {}
			defer func() { remove() }()
			p.ready = func() (err error) {
				if remove, err = publishURL(a.data, gatewayURLFile, url); err != nil {
					remove = func() {}
					return err
				}
				a.log.Info("gateway is ready", "url", url)
				return nil
			}
			return supervise(cmd.Context(), admin, []part{{"gateway", func(ctx context.Context) error {
				return p.run(ctx, l, a.dialer(&r, ring), ring, a.log)
			}}})
		},
	}
	f := c.Flags()
	r.add(f)
	eng.add(f)
	adm.add(f)
	https.add(f)
	nodes.add(f)
	f.StringVar(&p.name, "name", "gw1", "name of the gateway")
	f.StringVar(&address, "listen", "127.0.0.1:8080", "address to listen on")
	f.StringVar(&tenant, "tenants", "", "tenants file (default: tenants.yaml in the data directory)")
	f.DurationVar(&p.drain, "drain", 10*time.Second, "how long a stop waits for open requests")
	return c
}
