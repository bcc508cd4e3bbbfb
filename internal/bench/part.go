package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
	"github.com/pdgate/pdgate/services/lifecycle"
)

// children are the bodies of the child processes, by kind.
var children = map[string]func(ctx context.Context, cfg childConfig, log *slog.Logger, ready func(any)) error{
	kindNATS: runNATS, kindLifecycle: runLifecycle, kindEcho: runEcho, kindReplay: runReplay, kindFollow: runFollow,
	kindAudit: runAudit, kindHash: runHash, kindExport: runExport, kindVerify: runVerify,
}

func durability(fsync bool) broker.Durability {
	if fsync {
		return broker.FsyncAlways
	}
	return broker.FsyncInterval
}

func runNATS(ctx context.Context, cfg childConfig, log *slog.Logger, ready func(any)) error {
	ring, err := keyring.Open(cfg.Keys, cfg.Names)
	if err != nil {
		return err
	}
	s, err := broker.Start(broker.Config{StoreDir: filepath.Join(cfg.Dir, "jetstream"), Port: -1, Durability: durability(cfg.Fsync), Ring: ring, Logger: log})
	if err != nil {
		return err
	}
	defer s.Shutdown()
	ready(s.ClientURL())
	return s.Wait(ctx)
}

// trimEvery is the time between snapshots and between trims of a log that is kept
// from growing.
const trimEvery = 2 * time.Second

// runLifecycle is one replica of the service, with its snapshots and its read
// side, as in production.
func runLifecycle(ctx context.Context, cfg childConfig, log *slog.Logger, ready func(any)) error {
	ring, err := keyring.Load(cfg.Keys)
	if err != nil {
		return err
	}
	dial := func(u keyring.User) (*nats.Conn, error) {
		return natsclient.Connect(ctx, natsclient.Config{URL: cfg.URL, Ring: ring, User: u, Logger: log})
	}
	logConn, err := dial(keyring.LifecycleLog)
	if err != nil {
		return err
	}
	defer logConn.Close()
	bus, err := dial(keyring.LifecycleBus)
	if err != nil {
		return err
	}
	defer bus.Close()
	key, err1 := ring.LogKey()
	secret, err2 := ring.DigestSecret()
	grant, err3 := ring.GrantKey()
	if err := errors.Join(err1, err2, err3, os.MkdirAll(cfg.Dir, 0o700)); err != nil {
		return err
	}
	j, err := journal.OpenJetStream(ctx, logConn, journal.Config{Key: key, Partitions: cfg.Partitions, Logger: log})
	if err != nil {
		return err
	}
	defer j.Close()
	var keep lifecycle.Retention
	var snapshots time.Duration
	if cfg.Retain > 0 {
		nc, err := dial(keyring.LifecycleTrim)
		if err != nil {
			return err
		}
		defer nc.Close()
		trim, err := journal.OpenTrimmer(ctx, nc, broker.AuditDomain)
		if err != nil {
			return err
		}
		keep, snapshots = lifecycle.Retention{Bytes: cfg.Retain, Trimmer: trim, Unaudited: true, Every: trimEvery}, trimEvery
	}
	s, err := lifecycle.New(lifecycle.Config{
		Name: cfg.Name, Retention: keep, SnapshotEvery: snapshots, Journal: j, Bus: bus, Partitions: j.Partitions(), GrantKey: grant, DigestSecret: secret, LogKey: key, StateDir: cfg.Dir, Logger: log,
	})
	if err != nil {
		return err
	}
	go func() { // ends with ctx
		select {
		case <-s.Ready():
			ready(true)
		case <-ctx.Done():
		}
	}()
	return s.Run(ctx)
}

// runEcho answers on the service's subjects with as many bytes as the service
// does, and nothing behind it: what calls over NATS cost by themselves.
func runEcho(ctx context.Context, cfg childConfig, log *slog.Logger, ready func(any)) error {
	ring, err := keyring.Load(cfg.Keys)
	if err != nil {
		return err
	}
	nc, err := natsclient.Connect(ctx, natsclient.Config{URL: cfg.URL, Ring: ring, User: keyring.LifecycleBus, Logger: log})
	if err != nil {
		return err
	}
	defer nc.Close()
	svc, err := micro.AddService(nc, micro.Config{Name: "echo", Version: "1.0.0", QueueGroupDisabled: true})
	if err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	for i, step := range steps {
		answer := []byte(strings.Repeat("x", cfg.Answers[i]))
		h := func(req micro.Request) { _ = req.Respond(answer) } // a lost one shows as a load that stalls
		if i > 0 && steps[i-1].command == step.command {
			continue // two steps, one endpoint
		}
		err := svc.AddEndpoint(fmt.Sprint(string(step.command)), micro.HandlerFunc(h),
			micro.WithEndpointSubject(strings.TrimSuffix(events.CommandSubject("*", "*", step.command, 0), "0")+"*"),
			micro.WithEndpointQueueGroupDisabled(), micro.WithEndpointPendingLimits(-1, -1))
		if err != nil {
			return fmt.Errorf("echo: %w", err)
		}
	}
	if err := nc.FlushTimeout(stalled); err != nil {
		return fmt.Errorf("echo: %w", err)
	}
	ready(true)
	<-ctx.Done()
	return nil
}
