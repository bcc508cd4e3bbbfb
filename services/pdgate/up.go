package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/services/gateway"
)

func (a *app) upCommand() *cobra.Command {
	var (
		eng                     engineFlags
		natsListen, durability  string
		prefillPool, decodePool int
		s                       stack
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
			if err == nil {
				err = checkCounts(s.prefill, s.decode, prefillPool, decodePool)
			}
			err = firstOf(err, checkDurability("durability", durability), eng.check(),
				atLeast("concurrency", s.concurrency, 0), atLeast("queue-limit", s.queueLimit, 0))
			if err == nil {
				s.engine, err = eng.config(prefillPool)
			}
			if err == nil {
				err = firstOf(kvpool.CheckDevice(s.device), checkHostMemory(s.device, "pool-tokens", prefillPool, s.engine), checkHostMemory(s.device, "decode-pool-tokens", decodePool, s.engine))
			}
			if err != nil {
				return &usageError{err, cmd}
			}
			started := time.Now()
			s.dir, s.log = a.data, a.log
			s.durability = broker.Durability(durability)
			s.prefillPool, s.decodePool = prefillPool, decodePool
			s.tenants, s.drain = demoTenants, 5*time.Second
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
	f.StringVar(&s.listen, "listen", "127.0.0.1:8080", "address that the gateway listens on")
	f.StringVar(&s.audit, "audit-listen", "127.0.0.1:0", "address that the auditor's read API listens on")
	f.StringVar(&natsListen, "nats-listen", "127.0.0.1:4222", "address that NATS listens on")
	f.StringVar(&durability, "durability", string(broker.FsyncAlways), "fsync: on disk before an append is acknowledged; interval: within two minutes")
	f.IntVar(&s.prefill, "prefill-workers", 1, "number of prefill workers")
	f.IntVar(&s.decode, "decode-workers", 1, "number of decode workers")
	f.IntVar(&prefillPool, "pool-tokens", 131_072, "KV pool of each prefill worker, in tokens")
	f.IntVar(&decodePool, "decode-pool-tokens", 262_144, "KV pool of each decode worker, in tokens")
	deviceFlag(f, &s.device)
	f.IntVar(&s.concurrency, "concurrency", 0, "requests that a worker works on at once (0: its own default)")
	f.IntVar(&s.queueLimit, "queue-limit", 1024, "most requests that wait for prefill; above it clients get 503 (0: no limit)")
	return c
}

func checkCounts(prefill, decode, prefillPool, decodePool int) error {
	switch {
	case prefill < 1 || prefill > 64:
		return fmt.Errorf("prefill-workers %d: want 1 to 64", prefill)
	case decode < 1 || decode > 64:
		return fmt.Errorf("decode-workers %d: want 1 to 64", decode)
	case prefillPool < 1:
		return fmt.Errorf("pool-tokens %d: want at least one page", prefillPool)
	case decodePool < 1:
		return fmt.Errorf("decode-pool-tokens %d: want at least one page", decodePool)
	}
	return nil
}

// defaultData is the data directory where none is named.
const defaultData = "./pdgate-data"

// demoKeyFile holds the demo tenant's API key, beside the other keys.
const demoKeyFile = "demo-api-key"

// demoTenants loads the tenants file, and creates one with a demo tenant where
// there is none. The key itself is written to the key directory; the file holds
// its digest.
func demoTenants(dir string) (*gateway.Tenants, error) {
	path := filepath.Join(dir, "tenants.yaml")
	if _, err := os.Stat(path); os.IsNotExist(err) {
		key, digest := gateway.GenerateKey()
		// The key first: a crash between the two leaves a key that opens nothing,
		// and the next start writes both again.
		if err := writeFile(filepath.Join(dir, "keys", demoKeyFile), key+"\n"); err != nil {
			return nil, err
		}
		text := "# API keys stand here as their SHA-256, in hex.\ntenants:\n  - name: demo\n    api_keys:\n      - " + digest + "\n    max_in_flight: 64\n"
		if err := writeFile(path, text); err != nil {
			return nil, err
		}
	}
	return gateway.LoadTenants(path)
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
	_, err := fmt.Fprintf(a.stdout, `pdgate is ready after %d ms.

  gateway  %s  (OpenAI API; model %q)
  nats     %s  (keys in %s)
  audit    %s  (signed log; token in keys/audit-token)
  workers  %d prefill of %d tokens, %d decode of %d tokens, engine %s
  data     %s

Try it; the answer is in the prompt, and comes out of the KV cache:

  curl -s %s/v1/completions \
    -H 'Authorization: Bearer %s' \
    -H 'Content-Type: application/json' \
    -d '{"model":"%s","max_tokens":24,"stop":"\n","prompt":"Q: What is the capital of France?\nA: Paris\nQ: What is the capital of Japan?\nA: Tokyo\nQ: Who wrote Faust?\nA: Goethe\nQ: What is the capital of Japan?\nA:"}'

Then: pdgate request list%s

`, took.Milliseconds(), e.http, s.engine.Model, e.nats, e.ring.Dir(), e.audit, s.prefill, s.prefillPool, s.decode, s.decodePool, s.engine.Name,
		s.dir, e.http, key, s.engine.Model, a.dataFlag())
	return err
}
