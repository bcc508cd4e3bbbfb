package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

func (a *app) workerCommand() *cobra.Command {
	var (
		r          remote
		eng        engineFlags
		p          workerPart
		nodes      external
		role       string
		decodePool int
		adm        adminFlags
	)
	c := &cobra.Command{
		Use:   "worker --role prefill|decode",
		Short: "Run a worker",
		Long: `worker runs one prefill or decode worker against a NATS server elsewhere. Keys:
<role>-<name>.nk, <role>-<name>.pem and grant.pub.pem. KV travels between workers
directly: a prefill worker on another machine listens on tcp:// and advertises
an address that decode workers reach.

With --engine vllm or sglang it runs a worker for each node that --prefill and
--decode name, as URL or as NAME=URL; without names they are p1, p2, d1, d2 and so
on. SGLang's two roles need one process.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if engine.External(eng.engine) {
				return a.externalWorkers(cmd, &r, &eng, &nodes, p, decodePool, &adm)
			}
			if err := nodes.open(eng.engine, eng.context, a.log); err != nil {
				return &usageError{err, cmd}
			}
			p.poolTokens = cmp.Or(p.poolTokens, defaultPool)
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
				checkDataPlane("listen-kv", p.listen), checkDataPlane("advertise-kv", p.advertise), adm.check())
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
			admin, ready, err := a.admin(&adm)
			if err != nil {
				return err
			}
			p.ready = ready
			return supervise(cmd.Context(), admin, []part{{role + " worker " + p.name, func(ctx context.Context) error {
				return p.run(ctx, a.dialer(&r, ring), ring, a.log)
			}}})
		},
	}
	f := c.Flags()
	r.add(f)
	eng.add(f)
	adm.add(f)
	nodes.addWorker(f)
	f.StringVar(&role, "role", "", "prefill or decode")
	f.StringVar(&p.name, "name", "", "name of the worker (default: p1 or d1)")
	f.IntVar(&p.poolTokens, "pool-tokens", 0, "KV pool, in tokens (0: 131072; of vllm and sglang, what the node says)")
	f.IntVar(&decodePool, "decode-pool-tokens", 0, "vllm, sglang: the same of decode nodes, where prefill nodes are named as well")
	f.BoolVar(&p.allowRed, "allow-red", false, "take work although the preflight finds that this worker and those of the other role do not fit each other")
	deviceFlag(f, &p.device)
	f.IntVar(&p.concurrency, "concurrency", 0, "requests that are worked on at once (0: the worker's own default)")
	f.StringVar(&p.listen, "listen-kv", "", "where pulls are served: tcp://HOST:PORT or unix:///PATH (default: a socket in the data directory)")
	f.StringVar(&p.advertise, "advertise-kv", "", "address that decode workers use (default: the one that is listened on)")
	_ = c.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"prefill", "decode"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// externalWorkers runs a worker for each named node of an external engine.
func (a *app) externalWorkers(cmd *cobra.Command, r *remote, eng *engineFlags, nodes *external, p workerPart, decodePool int, adm *adminFlags) error {
	var names [2][]string
	var err error
	names[0], nodes.prefill = split(nodes.prefill, "p")
	names[1], nodes.decode = split(nodes.decode, "d")
	if len(nodes.decode) > 0 && len(nodes.prefill) == 0 {
		decodePool = cmp.Or(decodePool, p.poolTokens)
	}
	err = firstOf(eng.check(), nodes.open(eng.engine, eng.context, a.log), checkNames("prefill", names[0]), checkNames("decode", names[1]),
		atLeast("pool-tokens", p.poolTokens, 0), atLeast("decode-pool-tokens", decodePool, 0), atLeast("concurrency", p.concurrency, 0),
		checkDataPlane("listen-kv", p.listen), checkDataPlane("advertise-kv", p.advertise), adm.check())
	switch {
	case err != nil:
	case p.listen+p.advertise != "" && len(nodes.prefill) > 1:
		err = errors.New("listen-kv and advertise-kv are one worker's: with them, name one prefill node")
	case eng.engine == "sglang" && (len(nodes.prefill) == 0 || len(nodes.decode) == 0):
		err = errors.New("engine sglang: both roles share a process: name nodes with --prefill and with --decode")
	}
	if err != nil {
		return &usageError{err, cmd}
	}
	ring, err := a.load(r)
	if err != nil {
		return err
	}
	dir, err := runDir(a.data)
	if err != nil {
		return err
	}
	if p.engine.Model, err = nodes.model(cmd.Context(), eng.model, a.log); err != nil {
		return err
	}
	admin, ready, err := a.admin(adm)
	if err != nil {
		return err
	}
	p.ready = ready
	var parts []part
	for i, role := range []events.Role{events.RolePrefill, events.RoleDecode} {
		for k, url := range nodes.of(role) {
			w := p
			w.role, w.name, w.node = role, names[i][k], nodes.node(names[i][k], role, url)
			if role == events.RoleDecode {
				w.poolTokens = decodePool
			}
			if w.listen == "" {
				w.listen = dataPlane(dir, w.name)
			}
			parts = append(parts, part{string(role) + " worker " + w.name, func(ctx context.Context) error {
				return w.run(ctx, a.dialer(r, ring), ring, a.log)
			}})
		}
	}
	return supervise(cmd.Context(), admin, parts)
}

// split takes names off addresses; those without get one.
func split(nodes []string, prefix string) (names, urls []string) {
	for i, n := range nodes {
		name, url, named := strings.Cut(n, "=")
		if !named || strings.Contains(name, ":") {
			name, url = fmt.Sprintf("%s%d", prefix, i+1), n
		}
		names, urls = append(names, name), append(urls, url)
	}
	return names, urls
}
