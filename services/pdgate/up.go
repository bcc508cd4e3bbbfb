package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/gateway"
)

func (a *app) upCommand() *cobra.Command {
	var (
		eng                     engineFlags
		natsListen, durability  string
		prefillPool, decodePool int
		nodes                   external
		s                       stack
		adm                     adminFlags
		can                     canaryFlags
	)
	c := &cobra.Command{
		Use:   "up",
		Short: "Run everything in one process",
		Long: `up runs NATS, lifecycle, gateway, auditor, prefill and decode workers in one
process, with keys and log in the data directory. It prints a curl line that works as it is.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if s.natsHost, s.natsPort, err = splitListen("nats-listen", natsListen); err == nil {
				_, _, err = splitListen("listen", s.listen)
			}
			if err == nil {
				_, _, err = splitListen("audit-listen", s.audit)
			}
			err = firstOf(err, s.retention.check(), checkDurability("durability", durability), eng.check(), nodes.open(eng.engine, eng.context, a.log),
				atLeast("pool-tokens", prefillPool, 0), atLeast("decode-pool-tokens", decodePool, 0),
				atLeast("concurrency", s.concurrency, 0), atLeast("queue-limit", s.queueLimit, 0), adm.check())
			if err == nil && nodes.on() {
				err = s.across(&nodes)
			} else if err == nil {
				s.prefillPool, s.decodePool = cmp.Or(prefillPool, defaultPool), cmp.Or(decodePool, 2*defaultPool)
				err = s.within(&eng)
			}
			if err != nil {
				return &usageError{err, cmd}
			}
			if nodes.on() {
				s.engine.Name, s.prefillPool, s.decodePool = eng.engine, prefillPool, decodePool
				if s.engine.Model, err = nodes.model(cmd.Context(), eng.model, a.log); err != nil {
					return err
				}
			}
			started := time.Now()
			if s.admin, s.ready, err = a.admin(&adm); err != nil {
				return err
			}
			s.dir, s.log = a.data, a.log
			s.durability = broker.Durability(durability)
			s.tenants, s.drain = demoTenants, 5*time.Second
			if s.canary, err = a.canarySchedule(&can, a.keyDir("")); err != nil {
				return &usageError{err, cmd}
			}
			return s.run(cmd.Context(), func(ctx context.Context, e endpoints) error {
				// The gateway's last: who finds it, finds the others too.
				for _, at := range [][2]string{{natsURLFile, e.nats}, {auditorURLFile, e.audit}, {gatewayURLFile, e.http}} {
					remove, err := publishURL(a.data, at[0], at[1])
					if err != nil {
						return err
					}
					defer remove()
				}
				if err := a.greet(e, &s, time.Since(started)); err != nil {
					return err
				}
				<-ctx.Done()
				return nil
			})
		},
	}
	f := c.Flags()
	eng.add(f)
	adm.add(f)
	can.addSchedule(f)
	nodes.addWorker(f)
	f.StringVar(&s.listen, "listen", "127.0.0.1:8080", "address that the gateway listens on")
	f.StringVar(&s.audit, "audit-listen", "127.0.0.1:0", "address that the auditor's read API listens on")
	f.StringVar(&natsListen, "nats-listen", "127.0.0.1:4222", "address that NATS listens on")
	f.StringVar(&durability, "durability", string(broker.FsyncAlways), "fsync: on disk before an append is acknowledged; interval: within two minutes")
	s.retention.add(f)
	f.IntVar(&s.prefill, "prefill-workers", 1, "number of prefill workers (of vllm and sglang, one for each node)")
	f.IntVar(&s.decode, "decode-workers", 1, "number of decode workers (of vllm and sglang, one for each node)")
	f.IntVar(&prefillPool, "pool-tokens", 0, "KV pool of each prefill worker, in tokens (0: 131072; of vllm and sglang, what their nodes say)")
	f.IntVar(&decodePool, "decode-pool-tokens", 0, "KV pool of each decode worker, in tokens (0: 262144; of vllm and sglang, what their nodes say)")
	deviceFlag(f, &s.device)
	f.IntVar(&s.concurrency, "concurrency", 0, "requests that a worker works on at once (0: its own default)")
	f.BoolVar(&s.allowRed, "allow-red", false, "let workers take work although the preflight finds that prefill and decode do not fit each other")
	f.IntVar(&s.queueLimit, "queue-limit", 1024, "most requests that wait for prefill; above it clients get 503 (0: no limit)")
	return c
}

// defaultPool is the prefill pool of an engine of ours where none is given, in
// tokens; decode's is twice as large.
const defaultPool = 131_072

// within completes a stack whose engines are ours.
func (s *stack) within(eng *engineFlags) (err error) {
	switch {
	case s.prefill < 1 || s.prefill > mostWorkers:
		return fmt.Errorf("prefill-workers %d: want 1 to %d", s.prefill, mostWorkers)
	case s.decode < 1 || s.decode > mostWorkers:
		return fmt.Errorf("decode-workers %d: want 1 to %d", s.decode, mostWorkers)
	}
	if s.engine, err = eng.config(s.prefillPool); err != nil {
		return err
	}
	return firstOf(kvpool.CheckDevice(s.device), checkHostMemory(s.device, "pool-tokens", s.prefillPool, s.engine), checkHostMemory(s.device, "decode-pool-tokens", s.decodePool, s.engine))
}

// mostWorkers is how many of a role one process runs.
const mostWorkers = 64

// across completes a stack over the nodes of an external engine.
func (s *stack) across(nodes *external) error {
	s.nodes, s.prefill, s.decode = nodes, len(nodes.prefill), len(nodes.decode)
	switch {
	case s.prefill < 1 || s.prefill > mostWorkers:
		return fmt.Errorf("prefill: %d nodes, want 1 to %d", s.prefill, mostWorkers)
	case s.decode < 1 || s.decode > mostWorkers:
		return fmt.Errorf("decode: %d nodes, want 1 to %d", s.decode, mostWorkers)
	}
	return nil
}

// defaultData is the data directory where none is named.
const defaultData = "./pdgate-data"

// apiKeySuffix ends the name of a file that holds a tenant's API key, beside the
// other keys; the tenant's name begins it.
const apiKeySuffix = "-api-key"

// demoTenant is who tries it out.
const demoTenant = "demo"

// demoKeyFile holds the demo tenant's API key.
const demoKeyFile = demoTenant + apiKeySuffix

// demoTenants loads the tenants file, and creates one where there is none.
func demoTenants(dir string) (*gateway.Tenants, error) {
	path := filepath.Join(dir, "tenants.yaml")
	if _, err := os.Stat(path); os.IsNotExist(err) {
		text, err := firstTenants(filepath.Join(dir, "keys"))
		if err != nil {
			return nil, err
		}
		if err := writeFile(path, text); err != nil {
			return nil, err
		}
	}
	return gateway.LoadTenants(path)
}

// firstTenants is a tenants file with a demo tenant and the canary's two. The API
// keys themselves are in the key directory, the file holds their digests. A crash
// before the file is written leaves keys that open nothing yet; the next start takes
// the same ones.
func firstTenants(keys string) (string, error) {
	text := "# API keys stand here as their SHA-256, in hex.\ntenants:\n"
	for _, name := range append([]string{demoTenant}, canaryTenants...) {
		key, err := firstKey(keys, name)
		if err != nil {
			return "", err
		}
		text += "  - name: " + name + "\n    api_keys:\n      - " + gateway.KeyDigest(key) + "\n    max_in_flight: 64\n"
	}
	return text, nil
}

// firstKey reads a first tenant's API key. Where there is none it mints one, after
// the key of the tenant's digests: one that was erased is not made again.
func firstKey(keys, tenant string) (string, error) {
	path := filepath.Join(keys, tenant+apiKeySuffix)
	if b, err := os.ReadFile(path); !errors.Is(err, fs.ErrNotExist) {
		return strings.TrimSpace(string(b)), err
	}
	if err := os.MkdirAll(keys, 0o700); err != nil {
		return "", fmt.Errorf("keys: %w", err)
	}
	ring, err := keyring.Load(keys)
	if err != nil {
		return "", err
	}
	if _, err := ring.NewTenantKey(tenant); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	key, _ := gateway.GenerateKey()
	return key, writeFile(path, key+"\n")
}

// dataFlag is the flag by which another command finds the same directory.
func (a *app) dataFlag() string {
	if a.data == defaultData {
		return ""
	}
	return " --data " + strconv.Quote(a.data)
}

// writeFile replaces a file all at once.
func writeFile(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer os.Remove(f.Name()) // gone already where all went well
	if _, err = f.WriteString(text); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// greet says where everything is, and how to try it.
func (a *app) greet(e endpoints, s *stack, took time.Duration) error {
	key := "$YOUR_API_KEY"
	keyPath := filepath.Join(s.dir, "keys", demoKeyFile)
	if b, err := os.ReadFile(keyPath); err == nil {
		key = strings.TrimSpace(string(b))
	}
	workers := fmt.Sprintf("%d prefill of %d tokens, %d decode of %d tokens, engine %s", s.prefill, s.prefillPool, s.decode, s.decodePool, s.engine.Name)
	about, try := "Try it; the answer is in the prompt, and comes out of the KV cache:", `{"model":"`+s.engine.Model+`","max_tokens":24,"stop":"\n","prompt":"Q: What is the capital of France?\nA: Paris\nQ: What is the capital of Japan?\nA: Tokyo\nQ: Who wrote Faust?\nA: Goethe\nQ: What is the capital of Japan?\nA:"}`
	if s.nodes.on() {
		workers = fmt.Sprintf("%d prefill, %d decode, engine %s", s.prefill, s.decode, s.engine.Name)
		about, try = "Try it:", `{"model":"`+s.engine.Model+`","max_tokens":24,"prompt":"The capital of France is"}`
	}
	_, err := fmt.Fprintf(a.stdout, `pdgate is ready after %d ms.

  gateway  %s  (OpenAI API; model %q)
  nats     %s  (keys in %s)
  audit    %s  (signed log; token in %s)
  workers  %s
  data     %s

%s

  curl -s %s/v1/completions \
    -H 'Authorization: Bearer %s' \
    -H 'Content-Type: application/json' \
    -d '%s'

Then: pdgate request list%s

`, took.Milliseconds(), e.http, s.engine.Model, e.nats, e.ring.Dir(), e.audit, filepath.Join(e.ring.Dir(), "audit-token"), workers,
		s.dir, about, e.http, key, try, a.dataFlag())
	return err
}
