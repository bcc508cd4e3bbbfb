package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/events"
	auditlog "github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/auditor"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// auditorURLFile names the read API's address, as natsURLFile does NATS's.
const auditorURLFile = "auditor-url"

// auditorPart describes an auditor.
type auditorPart struct {
	name     string
	dir      string
	origin   string
	policy   []byte
	hold     auditor.Hold
	replicas int
}

// open makes the auditor on connections of its own, which close ends. Without a
// listener nothing is read, and nothing recorded.
func (p auditorPart) open(ctx context.Context, l net.Listener, dial dial, ring *keyring.Ring, log *slog.Logger) (a *auditor.Auditor, close func(), err error) {
	logKey, err := ring.LogKey()
	if err != nil {
		return nil, nil, err
	}
	key, err := ring.AuditKey()
	if err != nil {
		return nil, nil, err
	}
	readers, err := ring.AuditReaders()
	if err != nil {
		return nil, nil, err
	}
	nc, err := dial(ctx, keyring.Auditor)
	if err != nil {
		return nil, nil, err
	}
	close = nc.Close
	var recorder auditor.Recorder
	if l != nil {
		bus, err := dial(ctx, keyring.AuditorBus)
		if err != nil {
			nc.Close()
			return nil, nil, err
		}
		close = func() { nc.Close(); bus.Close() }
		// Reads are of operations, whatever the number of partitions is.
		recorder, err = client.New(ctx, client.Config{Conn: bus, Role: events.RoleAuditor, Principal: keyring.AuditorBus.Principal(), Partitions: 1, Logger: log})
		if err != nil {
			close()
			return nil, nil, err
		}
	}
	a, err = auditor.New(auditor.Config{
		Name: p.name, Dir: p.dir, Conn: nc, Domain: broker.AuditDomain, LogKey: logKey, Key: key, Origin: p.origin, Replicas: p.replicas,
		Policy: p.policy, Hold: p.hold, Listener: l, Readers: readers, Recorder: recorder, Logger: log.With("part", "auditor"),
	})
	if err != nil {
		close()
		return nil, nil, err
	}
	return a, close, nil
}

func (p auditorPart) run(ctx context.Context, l net.Listener, dial dial, ring *keyring.Ring, log *slog.Logger) error {
	defer l.Close()
	a, end, err := p.open(ctx, l, dial, ring, log)
	if err != nil {
		return err
	}
	defer end()
	return a.Run(ctx)
}

// beside runs the auditor of a whole stack. Requests do not wait for the audit
// log, and are served on when it stops for good.
func (p auditorPart) beside(ctx context.Context, l net.Listener, dial dial, ring *keyring.Ring, log *slog.Logger) error {
	if err := p.run(ctx, l, dial, ring, log); err != nil && ctx.Err() == nil {
		log.Error("the auditor stopped: nothing more is signed, requests are served on", "part", "auditor", "err", err)
	}
	<-ctx.Done()
	return ctx.Err()
}

func (a *app) auditorCommand() *cobra.Command {
	var r remote
	var p auditorPart
	var address, policy, hold string
	var adm adminFlags
	var https tlsFlags
	c := &cobra.Command{
		Use:   "auditor",
		Short: "Run an auditor: it keeps the log as a signed Merkle tree",
		Long: `auditor follows the log against a NATS server elsewhere, keeps it as a Merkle tree
in files, signs it, and serves tiles, checkpoints and receipts over HTTP and NATS
(docs/audit.md). Any number of replicas may run; each needs a name and a data
directory of its own, and one of them signs. Keys: auditor.nk, auditor-bus.nk, log-mac.key,
audit.pem, audit-readers.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, _, err := splitListen("audit-listen", address)
			err = firstOf(checkName("name", p.name), err, atLeast("replicas", p.replicas, 1), p.settings(hold, policy), adm.check())
			if err != nil {
				return &usageError{err, cmd}
			}
			ring, err := a.load(&r)
			if err != nil {
				return err
			}
			secure, err := https.config()
			if err != nil {
				return &usageError{err, cmd}
			}
			admin, _, err := a.admin(&adm)
			if err != nil {
				return err
			}
			l, err := listenAudit(address)
			if err != nil {
				return err
			}
			defer l.Close()
			p.dir = filepath.Join(a.data, "auditor", p.name)
			l, url := wrapTLS(l, secure)
			url += l.Addr().String()
			remove, err := publishURL(a.data, auditorURLFile, url)
			if err != nil {
				return err
			}
			defer remove()
			a.log.Info("auditor listens", "url", url)
			return supervise(cmd.Context(), admin, []part{{"auditor", func(ctx context.Context) error {
				return p.run(ctx, l, a.dialer(&r, ring), ring, a.log)
			}}})
		},
	}
	f := c.Flags()
	r.add(f)
	adm.add(f)
	https.add(f)
	f.StringVar(&p.name, "name", "au1", "name of the replica")
	f.StringVar(&address, "audit-listen", "127.0.0.1:8090", "address that the read API listens on")
	f.StringVar(&p.origin, "origin", "", "name of a log that does not exist yet, a URL without scheme (default: pdgate.local/ and random digits); an existing log keeps its own")
	f.StringVar(&policy, "witness-policy", "", "file that names the witnesses to ask (docs/audit.md)")
	f.StringVar(&hold, "legal-hold", "", "on: nothing may be trimmed from the log; off: lift that (default: as it is)")
	f.IntVar(&p.replicas, "replicas", 1, "NATS servers that must hold the last signed tree")
	c.AddCommand(a.rebuildCommand())
	return c
}

// settings reads what flags name.
func (p *auditorPart) settings(hold, policy string) error {
	switch p.hold = auditor.Hold(hold); p.hold {
	case auditor.HoldKeep, auditor.HoldOn, auditor.HoldOff:
	default:
		return fmt.Errorf("legal-hold %q: want on or off", hold)
	}
	if policy == "" {
		return nil
	}
	var err error
	if p.policy, err = os.ReadFile(policy); err != nil {
		return fmt.Errorf("witness-policy: %w", err)
	}
	if _, err := auditlog.ParsePolicy(p.policy); err != nil {
		return fmt.Errorf("witness-policy %s: %w", policy, err)
	}
	return nil
}

func listenAudit(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("audit: listen on %s: %w: choose another address with --audit-listen", address, err)
	}
	return l, nil
}

func (a *app) rebuildCommand() *cobra.Command {
	var r remote
	var into string
	c := &cobra.Command{
		Use:   "rebuild",
		Short: "Build the tree anew from the log, and compare it with what is signed",
		Long: `rebuild follows the log from its first message into an empty directory, up to the
last signed tree, and compares the roots. It signs nothing, and needs the same keys
as the auditor. A root that differs is an error: the log is not what was signed.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if into == "" {
				return &usageError{errors.New("into: want a directory for the tree"), cmd}
			}
			ring, err := a.load(&r)
			if err != nil {
				return err
			}
			p := auditorPart{name: "rebuild", dir: into}
			t, end, err := p.open(cmd.Context(), nil, a.dialer(&r, ring), ring, a.log)
			if err != nil {
				return err
			}
			defer end()
			c, err := t.Rebuild(cmd.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(a.stdout, c.Text())
			return err
		},
	}
	r.add(c.Flags())
	c.Flags().StringVar(&into, "into", "", "empty directory for the tree")
	return c
}
