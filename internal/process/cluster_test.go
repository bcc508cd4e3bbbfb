package process

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// apiKey opens every test gateway. It must show up in no log.
const apiKey = "sk-process-0123456789abcdef0123456789abcdef"

// contextTokens is small: what is tested is who dies when, not attention.
const contextTokens = 4096

// cluster is a set of processes with one key directory.
type cluster struct {
	t    *testing.T
	dir  string
	nats string // HOST:PORT, the same for every life of the server
	ring *keyring.Ring

	args  map[string][]string // by part: its command line
	http  map[string]string   // gateway -> base URL
	parts map[string]*proc    // the present life
	lives []*proc             // all of them
}

// newCluster starts NATS, two lifecycle replicas, two gateways and two workers
// of each role, and waits until both gateways are ready.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, dir: t.TempDir(), nats: freeAddress(t), args: map[string][]string{}, http: map[string]string{}, parts: map[string]*proc{}}
	data := func(part string) string { return filepath.Join(c.dir, part) }
	remote := func(part string, args ...string) {
		c.args[part] = append(args, "--data", data(part), "--keys", data("keys"), "--nats-url", "nats://"+c.nats)
	}
	engine := []string{"--context", fmt.Sprint(contextTokens), "--threads", "1"}
	c.args["nats"] = []string{"nats", "--data", data("nats"), "--keys", data("keys"), "--nats-listen", c.nats, "--gateways", "gw1,gw2", "--prefill", "p1,p2", "--decode", "d1,d2"}
	for _, name := range []string{"lc1", "lc2"} {
		remote(name, "lifecycle", "--name", name)
	}
	tenants := data("tenants.yaml")
	writeTenants(t, tenants)
	for _, name := range []string{"gw1", "gw2"} {
		address := freeAddress(t)
		remote(name, append([]string{"gateway", "--name", name, "--listen", address, "--tenants", tenants}, engine...)...)
		c.http[name] = "http://" + address
	}
	for _, name := range []string{"p1", "p2", "d1", "d2"} {
		role := map[byte]string{'p': "prefill", 'd': "decode"}[name[0]]
		remote(name, append([]string{"worker", "--role", role, "--name", name, "--pool-tokens", "32768"}, engine...)...)
	}
	c.start("nats")
	await(t, "nats", patience, func() bool { return read(data("nats"), "run", "nats-url") != "" })
	var err error
	if c.ring, err = keyring.Load(data("keys")); err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"lc1", "lc2", "p1", "p2", "d1", "d2", "gw1", "gw2"} {
		c.start(part)
	}
	for _, gw := range []string{"gw1", "gw2"} {
		await(t, gw+" ready", patience, func() bool { return c.ready(gw) })
	}
	nc := connect(t, "nats://"+c.nats, c.ring, keyring.Operator)
	defer nc.Close()
	c.idle(operator(t, nc), 4)
	return c
}

// writeTenants makes a file with one tenant, whose key is apiKey.
func writeTenants(t *testing.T, path string) {
	t.Helper()
	digest := sha256.Sum256([]byte(apiKey))
	if err := os.WriteFile(path, []byte("tenants:\n  - name: t1\n    api_keys: ["+hex.EncodeToString(digest[:])+"]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start begins a life of a part.
func (c *cluster) start(part string) *proc {
	c.t.Helper()
	p := start(c.t, nil, part, append([]string{pdgate(c.t), "--log-level", "warn"}, c.args[part]...)...)
	c.parts[part] = p
	c.lives = append(c.lives, p)
	return p
}

func (c *cluster) ready(gateway string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	return get(ctx, c.http[gateway]+"/ready") == http.StatusOK
}

// get is the status of a page; 0 if nobody answers.
func get(ctx context.Context, url string) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// connect is a connection as one of the installation's users. It ends with the
// test.
func connect(t *testing.T, url string, ring *keyring.Ring, u keyring.User) *nats.Conn {
	t.Helper()
	nc, err := natsclient.Connect(t.Context(), natsclient.Config{URL: url, Ring: ring, User: u, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// operator is a client that asks questions and cancels.
func operator(t *testing.T, nc *nats.Conn) *client.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := client.New(ctx, client.Config{Conn: nc, Role: events.RoleOperator, Principal: keyring.Operator.Principal()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// preferred is the replica that most partitions' commands go to first, as the
// service announces it.
func (c *cluster) preferred(nc *nats.Conn) string {
	c.t.Helper()
	count := map[string]int{}
	await(c.t, "somebody serves partition 0", patience, func() bool {
		sub, err := nc.SubscribeSync(nc.NewRespInbox())
		if err != nil {
			c.t.Fatal(err)
		}
		defer sub.Unsubscribe()
		if err := nc.PublishRequest("$SRV.INFO.pdgate-lifecycle", sub.Subject, nil); err != nil {
			return false
		}
		for {
			m, err := sub.NextMsg(200 * time.Millisecond)
			if err != nil {
				return len(count) > 0
			}
			var info micro.Info
			if json.Unmarshal(m.Data, &info) == nil && info.Metadata["partition"] != "any" {
				count[info.Metadata["replica"]]++
			}
		}
	})
	best := ""
	for name, n := range count {
		if best == "" || n > count[best] || n == count[best] && name < best {
			best = name
		}
	}
	return best
}

// idle waits until all workers live, and hold nothing.
func (c *cluster) idle(op *client.Client, workers int) {
	c.t.Helper()
	var v *events.WorkersView
	defer func() {
		if c.t.Failed() && v != nil {
			for _, w := range v.Workers {
				c.t.Logf("worker %s: live %v, %d running, pages: %d held, %d free of %d", w.Worker, w.Live, w.Running, w.HeldPages, w.FreePages, w.PoolPages)
			}
		}
	}()
	await(c.t, "all workers are idle", patience, func() bool {
		ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
		defer cancel()
		var err error
		if v, err = op.Workers(ctx); err != nil {
			return false
		}
		n := 0
		for _, w := range v.Workers {
			if w.Live && w.HeldPages == 0 && w.Running == 0 && w.FreePages == w.PoolPages {
				n++
			}
		}
		return n == workers && len(v.Workers) == workers
	})
}

// checkLogs looks for what no process may write, whatever happens to it.
func (c *cluster) checkLogs() {
	c.t.Helper()
	for _, p := range c.lives {
		checkLog(c.t, p)
	}
}

func checkLog(t *testing.T, p *proc) {
	t.Helper()
	for line := range strings.Lines(p.stdout.String() + p.stderr.String()) {
		for _, word := range []string{secretWord, apiKey, "panic", "goroutine ", "alarm=true", "fatal error"} {
			if strings.Contains(line, word) {
				t.Errorf("%s wrote %q: %s", p.name, word, line)
			}
		}
	}
}

// interrupt asks parts to stop, in this order, and waits for each.
func (c *cluster) interrupt(parts ...string) {
	c.t.Helper()
	for _, part := range parts {
		p := c.parts[part]
		if err := p.signal(sigint); err != nil {
			c.t.Errorf("interrupt: %v", err)
			continue
		}
		took, err := p.ended(stopLimit)
		if err != nil || p.code() != 0 {
			c.t.Errorf("%s: exit code %d after %v: %v %v", part, p.code(), took, err, p.err)
		}
	}
}

func without(parts []string, part string) []string {
	return slices.DeleteFunc(slices.Clone(parts), func(s string) bool { return s == part })
}
