package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/auditor"
	"github.com/pdgate/pdgate/services/disclosure"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

func (a *app) tenantErase(f *tenantFlags) *cobra.Command {
	var yes bool
	var by, request string
	c := &cobra.Command{
		Use:   "erase NAME",
		Short: "Destroy a tenant's key, and what it opens",
		Long: `erase records that the tenant is erased, purges its disclosures, and overwrites and
removes its key file in the key directory. Nobody can tell then what the digests
in the log stand for; every proof, receipt and bundle stays valid. docs/audit.md says
what this gives, and what it does not.

It needs operator.nk, eraser.nk and the key. What a crash interrupts, the same
command goes on with. With --request it purges the disclosures of that request and
nothing else.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if !events.ValidName(args[0]) {
				err = fmt.Errorf("tenant %q: want 1 to 64 letters, digits, '-', '_', ':' or '/'", args[0])
			}
			if by != "" {
				err = firstOf(err, checkName("by", by))
			}
			if request != "" {
				_, rerr := events.RequestTime(request)
				err = firstOf(err, rerr)
			}
			if err != nil {
				return &usageError{err, cmd}
			}
			ring, err := a.load(&f.remote)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			nc, err := a.connect(ctx, &f.remote, ring, keyring.Eraser, connectTimeout)
			if err != nil {
				return err
			}
			defer nc.Close()
			e := &erasure{app: a, ring: ring, tenant: args[0], by: by, yes: yes, nc: nc}
			if e.store, err = disclosure.Open(nc); err != nil {
				return err
			}
			if request != "" {
				return e.request(ctx, request)
			}
			op, err := a.connect(ctx, &f.remote, ring, keyring.Operator, connectTimeout)
			if err != nil {
				return err
			}
			defer op.Close()
			if e.client, err = client.New(ctx, client.Config{Conn: op, Role: events.RoleOperator, Principal: keyring.Operator.Principal(), Logger: a.log}); err != nil {
				return explainUnanswered(err)
			}
			return explainUnanswered(e.run(ctx))
		},
	}
	p := c.Flags()
	p.BoolVar(&yes, "yes", false, "do not ask for the name again")
	p.StringVar(&by, "by", "", "who asks for it, for the record")
	p.StringVar(&request, "request", "", "purge only the disclosures of this request")
	return c
}

// erasure is one tenant's. Its steps come in an order in which a crash between
// any two leaves nothing half: the note of what is to be done is there before the
// first and goes after the last, and each step may be done twice.
type erasure struct {
	*app
	ring   *keyring.Ring
	tenant string
	by     string
	yes    bool
	nc     *nats.Conn // the eraser's
	store  *disclosure.Store
	client *client.Client

	key   string                  // fingerprint
	at    string                  // where the log has it
	after func(step string) error // tests only: called after each step
}

func (e *erasure) run(ctx context.Context) error {
	key, err := e.ring.Erasing(e.tenant)
	begun := err == nil
	if errors.Is(err, fs.ErrNotExist) {
		var k events.DigestKey
		if k, err = e.ring.TenantKey(e.tenant); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("tenant %s has no key here (%s): its requests are digested under the cluster's secret, or the key was erased; there is nothing to destroy",
				e.tenant, e.ring.TenantKeyPath(e.tenant))
		}
		key = k.Fingerprint
	}
	if err != nil {
		return err
	}
	e.key = key
	held, err := legalHold(ctx, e.nc)
	if err != nil {
		return err
	}
	if held {
		return fmt.Errorf("tenant %s is not erased: the audit log is under legal hold; lift it first (pdgate auditor --legal-hold off)", e.tenant)
	}
	if !e.yes && !begun {
		if err := e.confirm(); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	for _, s := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"note", func(context.Context) error {
			if begun {
				return nil
			}
			return e.ring.BeginErase(e.tenant, e.key)
		}},
		// The log first: from here on nothing more comes under the key.
		{"record", e.record},
		{"purge", func(ctx context.Context) error { return e.store.Purge(ctx, e.tenant) }},
		{"destroy", func(context.Context) error { return e.ring.DestroyTenantKey(e.tenant, e.key) }},
		{"end", func(context.Context) error { return e.ring.EndErase(e.tenant) }},
	} {
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("%w\nThe erasure of %s is not finished: run the same command again", err, e.tenant)
		}
		if e.after != nil {
			if err := e.after(s.name); err != nil {
				return err
			}
		}
	}
	return e.report()
}

func (e *erasure) confirm() error {
	fmt.Fprintf(e.stderr, "The key %s of tenant %s is destroyed for good, and its disclosures are purged.\nType the tenant's name to go on: ", e.key, e.tenant)
	line, _ := bufio.NewReader(e.stdin).ReadString('\n')
	if strings.TrimSpace(line) != e.tenant {
		return errors.New("that is not the name: nothing is erased")
	}
	return nil
}

// record has lifecycle write the event. One that says that it is there already is
// from an earlier try.
func (e *erasure) record(ctx context.Context) error {
	ans, err := e.client.Erase(ctx, e.tenant, &events.Erase{TenantKey: e.key, By: e.by})
	switch {
	case err != nil:
		return err
	case ans.Denied != nil && ans.Denied.Code == events.CodeIllegalState:
		e.at = "an earlier position"
		return nil
	case ans.Denied != nil:
		return fmt.Errorf("record the erasure: %w", ans.Denied)
	}
	e.at = ans.Position
	return nil
}

func (e *erasure) report() error {
	_, err := fmt.Fprintf(e.stdout, `erased    tenant %s, key %s; recorded at %s of the log
purged    its disclosures
destroyed %s

What remains to be done elsewhere:
  - remove the copies of that file from the machines of lifecycle and of gateways
  - destroy it in backups of key directories, and of the disks that held it
  - backups of the stream %s need the key, and are unreadable without it
  - bundles that were exported with --disclose keep the values they show
  - what clients and engines kept of their own is theirs
The tenant's clients get HTTP 403 until pdgate tenant add %s makes another key; to be
rid of its API keys as well, remove its entry from the tenants file.
`, e.tenant, e.key, e.at, e.ring.TenantKeyPath(e.tenant), events.DisclosureStream, e.tenant)
	return err
}

// request purges the disclosures of one request.
func (e *erasure) request(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	if err := e.store.PurgeRequest(ctx, e.tenant, id); err != nil {
		return err
	}
	_, err := fmt.Fprintf(e.stdout, "purged    the disclosures of request %s of tenant %s\n", id, e.tenant)
	return err
}

// legalHold asks the auditors' register whether nothing may be taken away. Without
// an auditor there is no hold.
func legalHold(ctx context.Context, nc *nats.Conn) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, "$JS."+events.AuditDomain+".API.STREAM.MSG.GET."+events.AuditStream, []byte(`{"last_by_subj":"`+events.AuditSigned+`"}`))
	if err != nil {
		return false, fmt.Errorf("ask for a legal hold: %w", err)
	}
	var r struct {
		Message *struct {
			Data []byte `json:"data"`
		} `json:"message"`
		Error *struct {
			Code        int    `json:"code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	switch err := json.Unmarshal(m.Data, &r); {
	case err != nil:
		return false, fmt.Errorf("ask for a legal hold: %w", err)
	case r.Error != nil && r.Error.Code == 404:
		return false, nil
	case r.Error != nil:
		return false, fmt.Errorf("ask for a legal hold: %s", r.Error.Description)
	case r.Message == nil:
		return false, errors.New("ask for a legal hold: the server gave no message")
	}
	rec, err := auditor.DecodeSigned(r.Message.Data)
	if err != nil {
		return false, fmt.Errorf("ask for a legal hold: %w", err)
	}
	return rec.LegalHold, nil
}
