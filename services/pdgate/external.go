package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	wire "github.com/pdgate/pdgate/gpuworker/engine/remote"
)

// Requests that a worker of an external engine works on at once, where nothing
// else is said: the engine batches them, and a decode worker waits most of the
// time.
const (
	externalPrefill = 64
	externalDecode  = 256
)

// external describes the nodes of engines behind HTTP.
type external struct {
	engine  string   // "vllm" or "sglang"; empty: the engine is ours
	prefill []string // base URLs, one for each node
	decode  []string
	keyFile string
	served  string // name under which the nodes serve the model; empty: what they say
	lease   time.Duration
	margin  time.Duration
	drain   time.Duration
	policy  string
	pair    engine.PairsConfig

	// Set by open.
	key     string
	context int // 0: what the nodes say
	pairs   *engine.Pairs
	pairing *engine.Pairing
	guards  engine.RemoteGuards
	clock   func() time.Time // of leases; nil: time.Now
}

func (x *external) add(f *pflag.FlagSet) {
	f.StringSliceVar(&x.prefill, "prefill", nil, "vllm, sglang: addresses of the prefill nodes, http://HOST:PORT")
	f.StringSliceVar(&x.decode, "decode", nil, "vllm, sglang: addresses of the decode nodes")
	f.StringVar(&x.keyFile, "engine-key-file", "", "vllm, sglang: file with the API key of the nodes")
	f.StringVar(&x.served, "engine-model", "", "vllm, sglang: name under which the nodes serve the model (default: the first that they list)")
}

// addWorker adds what only workers need.
func (x *external) addWorker(f *pflag.FlagSet) {
	x.add(f)
	f.DurationVar(&x.lease, "engine-lease", engine.DefaultEngineLease, "vllm: kv_lease_duration of the prefill nodes, counted from the start of prefill")
	f.DurationVar(&x.margin, "engine-lease-margin", engine.DefaultEngineMargin, "how long before the lease's end decode must have begun")
	f.DurationVar(&x.drain, "engine-drain", engine.DefaultEngineDrain, "sglang: how long the legs of a request whose client left may go on, so that no transfer is cut (0: they end at once)")
	f.StringVar(&x.policy, "engine-counters", string(engine.Strict), "vllm: strict fails every request whose transfer was open at a decode node when its counter of failed transfers rose; observe logs it")
	f.IntVar(&x.pair.Failures, "pair-failures", engine.DefaultPairFailures, "failures that quarantine a pair of prefill and decode workers")
	f.DurationVar(&x.pair.Window, "pair-window", engine.DefaultPairWindow, "time within which they count")
	f.DurationVar(&x.pair.Cooldown, "pair-cooldown", engine.DefaultPairCooldown, "how long the pair takes no work together")
}

// most is the longest lease that the lifecycle takes.
const mostLease = 10 * time.Minute

// open judges the flags and reads the key. name is the engine's; it does nothing
// for one of ours.
func (x *external) open(name string, context int, log *slog.Logger) error {
	x.context = context
	if !engine.External(name) {
		for _, u := range append(x.prefill[:len(x.prefill):len(x.prefill)], x.decode...) {
			if strings.Contains(u, "://") {
				return fmt.Errorf("prefill and decode name nodes of --engine vllm or sglang, and the engine is %s", name)
			}
		}
		return nil
	}
	x.engine = name
	switch {
	case len(x.prefill)+len(x.decode) == 0:
		return fmt.Errorf("engine %s: name its nodes with --prefill and --decode", name)
	case x.drain < 0:
		return fmt.Errorf("engine-drain %v: want 0s or more", x.drain)
	case x.lease < 0 || x.margin < 0 || x.lease > 0 && x.lease <= x.margin:
		return fmt.Errorf("engine-lease %v: want more than --engine-lease-margin %v", x.lease, x.margin)
	case x.lease > mostLease:
		return fmt.Errorf("engine-lease %v: want %v or less", x.lease, mostLease)
	case x.policy != "" && x.policy != string(engine.Strict) && x.policy != string(engine.Observe):
		return fmt.Errorf("engine-counters %q: want strict or observe", x.policy)
	case x.pair.Failures < 0 || x.pair.Window < 0 || x.pair.Cooldown < 0:
		return errors.New("pair-failures, pair-window and pair-cooldown: want 0 or more")
	}
	seen := map[string]bool{}
	for _, u := range append(x.prefill[:len(x.prefill):len(x.prefill)], x.decode...) {
		n, err := wire.NewNode(u, "")
		if err != nil {
			return err
		}
		if seen[n.URL()] {
			return fmt.Errorf("engine node %s is named twice", n.URL())
		}
		seen[n.URL()] = true
	}
	if x.keyFile != "" {
		b, err := os.ReadFile(x.keyFile)
		if err != nil {
			return fmt.Errorf("engine-key-file: %w", err)
		}
		if x.key = strings.TrimSpace(string(b)); x.key == "" {
			return fmt.Errorf("engine-key-file %s is empty", x.keyFile)
		}
	}
	x.pair.Logger = log
	x.pairs = engine.NewPairs(x.pair)
	x.pairing = engine.NewPairing(x.pairs)
	return nil
}

// on says whether the engine is an external one.
func (x *external) on() bool { return x != nil && x.engine != "" }

// node is one worker's node.
func (x *external) node(name string, role events.Role, url string) *node {
	return &node{external: x, name: name, role: role, url: url}
}

// node is the server behind a worker.
type node struct {
	*external
	name string
	role events.Role
	url  string
}

// pause before a node that does not answer is asked again.
const askNode = 2 * time.Second

// facts asks a node for its facts. One that does not answer may be loading its
// model, which takes minutes: it is waited for. What it does not say is an error.
func (x *external) facts(ctx context.Context, url string, o engine.Overrides, log *slog.Logger) (engine.Facts, error) {
	n, err := wire.NewNode(url, x.key)
	if err != nil {
		return engine.Facts{}, err
	}
	defer n.Close()
	o.Model, o.ContextTokens = x.served, x.context
	for said := false; ; said = true {
		f, err := engine.Probe(ctx, x.engine, n, o)
		if err == nil || ctx.Err() != nil || !engine.Waits(err) {
			return f, err
		}
		if !said {
			log.Warn("engine is not ready, waiting for it", "url", url, "error", err)
		}
		t := time.NewTimer(askNode)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return f, ctx.Err()
		}
	}
}

// model is the name that clients use: the given one, or the nodes' own.
func (x *external) model(ctx context.Context, given string, log *slog.Logger) (string, error) {
	if given != "" {
		return given, nil
	}
	n, err := wire.NewNode(append(x.prefill[:len(x.prefill):len(x.prefill)], x.decode...)[0], x.key)
	if err != nil {
		return "", err
	}
	defer n.Close()
	for said := false; ; said = true {
		name, err := engine.ServedModel(ctx, n)
		switch {
		case err == nil && !events.ValidModel(name):
			return "", fmt.Errorf("engine at %s serves a model whose name is none here: give one with --model", n.URL())
		case err == nil || ctx.Err() != nil || !engine.Waits(err):
			return name, err
		}
		if !said {
			log.Warn("engine is not ready, waiting for it", "url", n.URL(), "error", err)
		}
		t := time.NewTimer(askNode)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return "", ctx.Err()
		}
	}
}

// config is the engine's for one life of the worker. poolTokens is the
// operator's word; 0: the node's.
func (n *node) config(ctx context.Context, model string, poolTokens int, log *slog.Logger) (engine.Config, int, error) {
	f, err := n.facts(ctx, n.url, engine.Overrides{PoolTokens: poolTokens}, log)
	if err != nil {
		return engine.Config{}, 0, err
	}
	return engine.Config{Name: n.engine, Model: model, Remote: &engine.Remote{
		Name: n.name, Role: n.role, URL: n.url, Key: n.key, Facts: f, Lease: n.lease, Margin: n.margin, Drain: n.drain,
		Policy: engine.Policy(n.policy), Pairing: n.pairing, Clock: n.clock, Logger: log, Guards: n.guards,
	}}, f.PoolTokens, nil
}

// concurrency of the node's worker.
func (n *node) concurrency(given int) int {
	if n.role == events.RolePrefill {
		return cmp.Or(given, externalPrefill)
	}
	return cmp.Or(given, externalDecode)
}

// of is the nodes of a role.
func (x *external) of(role events.Role) []string {
	if role == events.RolePrefill {
		return x.prefill
	}
	return x.decode
}

// counter counts tokens for the gateway, at any of the nodes.
func (x *external) counter(log *slog.Logger) (*engine.Counter, error) {
	return engine.NewCounter(append(x.prefill[:len(x.prefill):len(x.prefill)], x.decode...), x.key, x.served, log)
}
