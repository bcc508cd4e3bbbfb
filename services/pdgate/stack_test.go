package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
	"github.com/pdgate/pdgate/services/gateway"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// withStack runs use against every part in this process.
func withStack(t *testing.T, change func(*stack), use func(ctx context.Context, e endpoints, key string) error) {
	t.Helper()
	var key string
	s := stack{
		dir: t.TempDir(), listen: "127.0.0.1:0", durability: broker.FsyncAlways, log: slog.New(slog.DiscardHandler),
		engine:  engine.Config{Name: "ref", Model: "ref", ContextTokens: 4096, Threads: 1},
		prefill: 1, decode: 1, prefillPool: 8192, decodePool: 8192, drain: time.Second,
		tenants: func(dir string) (*gateway.Tenants, error) {
			var digest string
			key, digest = gateway.GenerateKey()
			path := filepath.Join(dir, "tenants.yaml")
			if err := writeFile(path, "tenants:\n  - name: t1\n    api_keys: ["+digest+"]\n"); err != nil {
				return nil, err
			}
			return gateway.LoadTenants(path)
		},
	}
	if change != nil {
		change(&s)
	}
	used := false
	err := s.run(t.Context(), func(ctx context.Context, e endpoints) error {
		used = true
		return use(ctx, e, key)
	})
	if err != nil || !used {
		t.Fatalf("stack: %v", err)
	}
}

// operator opens a client that asks questions.
func operator(ctx context.Context, e endpoints) (*client.Client, func(), error) {
	nc, err := e.dial(ctx, keyring.Operator)
	if err != nil {
		return nil, nil, err
	}
	c, err := client.New(ctx, client.Config{Conn: nc, Role: events.RoleOperator, Principal: keyring.Operator.Principal()})
	if err != nil {
		nc.Close()
		return nil, nil, err
	}
	return c, nc.Close, nil
}

// TestAnswersEqualMonolithic sends many requests at once through two workers of
// each role, with pools too small for all of them, and compares every answer with
// a run in one plain memory. At the end no page may be held.
func TestAnswersEqualMonolithic(t *testing.T) {
	const requests = 24
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	small := func(s *stack) { s.prefill, s.decode, s.prefillPool, s.decodePool = 2, 2, 4096, 4096 }
	withStack(t, small, func(ctx context.Context, e endpoints, key string) error {
		eng, err := engine.New(engine.Config{Name: "ref", Model: "ref", ContextTokens: 4096})
		if err != nil {
			return err
		}
		prompts := make([]customer, requests)
		for i := range prompts {
			prompts[i] = customer{prompt: records(i, 40+r.IntN(2500)), most: 1 + r.IntN(60)}
		}
		var wg sync.WaitGroup
		errs := make([]error, requests)
		for i, p := range prompts {
			wg.Go(func() {
				want, _, err := engine.Complete(ctx, eng, p.prompt, engine.Sampling{MaxTokens: p.most})
				if err != nil {
					errs[i] = err
					return
				}
				got, err := complete(ctx, e.http, key, "ref", p)
				switch {
				case err != nil:
					errs[i] = err
				case got.status != http.StatusOK || got.text != shown(want):
					errs[i] = fmt.Errorf("request %d: HTTP %d %q %s, want %q", i, got.status, got.text, got.problem, want)
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		c, done, err := operator(ctx, e)
		if err != nil {
			return err
		}
		defer done()
		return nothingHeld(ctx, c)
	})
}

// nothingHeld waits until the last heartbeats of all workers say so.
func nothingHeld(ctx context.Context, c *client.Client) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		v, err := c.Workers(ctx)
		if err != nil {
			return err
		}
		held := 0
		for _, w := range v.Workers {
			held += w.HeldPages + w.Running
			if w.FreePages != w.PoolPages {
				held++
			}
		}
		if held == 0 && len(v.Workers) > 0 {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("pages are held after everything ended: %+v", v.Workers)
		}
	}
}

// TestCommandByReply lets a decode worker's user make the server publish to
// command subjects, through the reply subjects of what it may ask for. Nothing
// may be recorded, and the service must go on.
func TestCommandByReply(t *testing.T) {
	withStack(t, nil, func(ctx context.Context, e endpoints, _ string) error {
		c, done, err := operator(ctx, e)
		if err != nil {
			return err
		}
		defer done()
		before, err := c.Info(ctx)
		if err != nil {
			return err
		}
		nc, err := e.dial(ctx, keyring.Worker(events.RoleDecode, "d1"))
		if err != nil {
			return err
		}
		defer nc.Close()
		next := "$JS.API.CONSUMER.MSG.NEXT." + events.WorkStream + "." + events.WorkConsumer("ref", events.RoleDecode)
		for p := range before.Partitions {
			for _, reply := range []string{
				events.CommandSubject(events.RoleGateway, "gw1", events.CmdAdmit, p),
				events.CommandSubjectAny(events.RoleGateway, "gw1", events.CmdAdmit, p),
				events.CommandSubjectAny(events.RolePrefill, "p1", events.CmdPrefilled, p),
				events.QuerySubject(events.RoleOperator, "operator", events.QueryList),
				events.HeartbeatSubject(events.RolePrefill, "p1"),
			} {
				if err := nc.PublishRequest(next, reply, []byte(`{"batch":1,"no_wait":true}`)); err != nil {
					return err
				}
			}
		}
		if err := nc.Flush(); err != nil {
			return err
		}
		// The service handles a later question of the same connection's after them.
		after, err := c.Info(ctx)
		if err != nil {
			return err
		}
		if after.LogSeq != before.LogSeq {
			return fmt.Errorf("the log grew from %d to %d", before.LogSeq, after.LogSeq)
		}
		return nil
	})
}

// A connection that was closed for good, as NATS does with a user that it no
// longer knows, ends whoever watches on it.
func TestWatchEndsWithConnection(t *testing.T) {
	ring, err := keyring.Open(filepath.Join(t.TempDir(), "keys"), keyring.Names{Prefill: []string{"p1"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := broker.Start(broker.Config{StoreDir: t.TempDir(), Ring: ring, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Shutdown()
	nc, err := natsclient.Connect(t.Context(), natsclient.Config{InProcess: b.InProcess(), Ring: ring, User: keyring.Worker(events.RolePrefill, "p1")})
	if err != nil {
		t.Fatal(err)
	}
	cl, err := client.New(t.Context(), client.Config{Conn: nc, Role: events.RolePrefill, Principal: "p1", Partitions: 8})
	if err != nil {
		t.Fatal(err)
	}
	nc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := watch(ctx, cl, "ref", nil, slog.New(slog.DiscardHandler)); !errors.Is(err, nats.ErrConnectionClosed) {
		t.Errorf("watch: %v", err)
	}
}

func TestStopBeforeStart(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errOut strings.Builder
	code := run(ctx, []string{"up", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0"}, strings.NewReader(""), &out, &errOut, nil)
	if code != exitOK {
		t.Errorf("exit code %d: %s", code, &errOut)
	}
}

// TestPartFailureEndsAll: a part that cannot start ends the others, and the exit
// code and the line are its own.
func TestPartFailureEndsAll(t *testing.T) {
	var out, errOut strings.Builder
	code := run(t.Context(), []string{"up", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0", "--pool-tokens", "1", "--context", "64"}, strings.NewReader(""), &out, &errOut, nil)
	if code != exitFailure || !strings.Contains(errOut.String(), "worker p1: pool of 1 tokens") {
		t.Errorf("exit code %d: %s", code, &errOut)
	}
}

// A quarantine outlives a restart, and the stack comes up with it: who else could
// lift it?
func TestQuarantinedStackStarts(t *testing.T) {
	dir := t.TempDir()
	again := false
	for range 2 {
		withStack(t, func(s *stack) { s.dir, s.readyTimeout = dir, 2*patience }, func(ctx context.Context, e endpoints, _ string) error {
			c, done, err := operator(ctx, e)
			if err != nil {
				return err
			}
			defer done()
			if !again {
				again = true
				a, err := c.Quarantine(ctx, "ref", &events.Quarantine{Reason: "wrong answers"})
				if err != nil {
					return err
				}
				return a.Err()
			}
			v, err := c.Info(ctx)
			if err != nil {
				return err
			}
			if m := findModel(v.Models, "ref"); m == nil || m.Quarantine == nil || m.Quarantine.Reason != "wrong answers" {
				t.Errorf("%+v", v.Models)
			}
			a, err := c.Restore(ctx, "ref", &events.Restore{Reason: "mended"})
			if err != nil {
				return err
			}
			return a.Err()
		})
	}
}
