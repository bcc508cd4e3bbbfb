package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/gateway"
)

// tenantFlags are those of every subcommand of tenant.
type tenantFlags struct {
	remote
	tenants string
}

func (a *app) tenantCommand() *cobra.Command {
	var f tenantFlags
	c := &cobra.Command{
		Use:   "tenant",
		Short: "Add, list, disclose or erase tenants",
		Long: `tenant works on tenants.yaml and on the tenants' key files in the key directory
(docs/operations.md). Running gateways and lifecycle replicas that read the same
files follow them within two seconds; copies on other machines are yours to make.`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	p := c.PersistentFlags()
	f.add(p)
	p.StringVar(&f.tenants, "tenants", "", "tenants file (default: tenants.yaml in the data directory)")
	c.AddCommand(a.tenantAdd(&f), a.tenantList(&f), a.tenantErase(&f), a.tenantDisclose(&f))
	return c
}

func (f *tenantFlags) file(a *app) string {
	if f.tenants != "" {
		return f.tenants
	}
	return filepath.Join(a.data, "tenants.yaml")
}

func (a *app) tenantAdd(f *tenantFlags) *cobra.Command {
	var t gateway.Tenant
	c := &cobra.Command{
		Use:   "add NAME",
		Short: "Make a tenant: an API key, a key for its digests, an entry in tenants.yaml",
		Long: `add makes what is missing and overwrites nothing. The API key is printed once, and
kept nowhere. A tenant that stands in tenants.yaml already keeps its API keys and limits,
and gets a key for its digests: one that was erased may be served again then.

The name is in every event of the tenant, and cannot be erased from them: choose a
tag that says nothing to others.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			t.Name = args[0]
			err := firstOf(atLeast("max-in-flight", t.MaxInFlight, 0), atLeast("requests-per-minute", t.RequestsPerMinute, 0),
				atLeast("tokens-per-minute", t.TokensPerMinute, 0), atLeast("max-prompt-tokens", t.MaxPromptTokens, 0))
			if err != nil {
				return &usageError{err, cmd}
			}
			ring, err := a.load(&f.remote)
			if err != nil {
				return err
			}
			return a.addTenant(ring, f.file(a), t)
		},
	}
	p := c.Flags()
	p.IntVar(&t.MaxInFlight, "max-in-flight", 0, "most open requests (0: no limit of its own)")
	p.IntVar(&t.RequestsPerMinute, "requests-per-minute", 0, "most requests a minute and gateway (0: no limit)")
	p.IntVar(&t.TokensPerMinute, "tokens-per-minute", 0, "most tokens a minute and gateway (0: no limit)")
	p.IntVar(&t.MaxPromptTokens, "max-prompt-tokens", 0, "longest prompt (0: the model's own limit)")
	return c
}

// addTenant makes the key for digests first: an API key that works before it is
// there would have requests under the cluster's secret.
func (a *app) addTenant(ring *keyring.Ring, file string, t gateway.Tenant) error {
	old, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read tenants: %w", err)
	}
	apiKey, digest := gateway.GenerateKey()
	text, err := gateway.AddTenant(old, t, digest)
	listed := errors.Is(err, gateway.ErrTenantExists)
	if err != nil && !listed {
		return fmt.Errorf("tenants file %s: %w", file, err)
	}
	key, err := ring.NewTenantKey(t.Name)
	switch {
	case errors.Is(err, keyring.ErrErasing):
		return fmt.Errorf("tenant %s: %w: run pdgate tenant erase %s again", t.Name, err, t.Name)
	case errors.Is(err, fs.ErrExist) && listed:
		return fmt.Errorf("tenant %s stands in %s, and has a key: nothing is changed", t.Name, file)
	case errors.Is(err, fs.ErrExist):
		if key, err = ring.TenantKey(t.Name); err != nil {
			return err
		}
	case err != nil:
		return err
	}
	if listed {
		_, err = fmt.Fprintf(a.stdout, "tenant   %s\nkey      %s in %s\nAPI keys and limits stay as they are in %s\n", t.Name, key.Fingerprint, ring.TenantKeyPath(t.Name), file)
		return err
	}
	mode := fs.FileMode(0o600)
	if fi, err := os.Stat(file); err == nil {
		mode = fi.Mode().Perm() // the gateway may be another user
	}
	if err := errors.Join(writeFile(file, string(text)), os.Chmod(file, mode)); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.stdout, "tenant   %s\nkey      %s in %s; copy it to each machine of lifecycle and gateways\nAPI key  %s\n         which is kept nowhere: hand it out now\n",
		t.Name, key.Fingerprint, ring.TenantKeyPath(t.Name), apiKey)
	return err
}

func (a *app) tenantList(f *tenantFlags) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the tenants of tenants.yaml, and the keys of their digests", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			ring, err := a.load(&f.remote)
			if err != nil {
				return err
			}
			tenants, err := gateway.LoadTenants(f.file(a))
			if err != nil {
				return err
			}
			w := newTable(a.stdout)
			fmt.Fprintln(w, "TENANT\tKEY\tIN FLIGHT\tREQUESTS/MIN\tTOKENS/MIN\tPROMPT")
			for _, t := range tenants.All() {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", t.Name, keyState(ring, t.Name), limit(t.MaxInFlight), limit(t.RequestsPerMinute), limit(t.TokensPerMinute), limit(t.MaxPromptTokens))
			}
			return w.Flush()
		},
	}
}

func limit(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// keyState is the fingerprint of the tenant's key, or what there is in its place.
func keyState(ring *keyring.Ring, tenant string) string {
	if _, err := ring.Erasing(tenant); err == nil {
		return "erasure not finished"
	}
	key, err := ring.TenantKey(tenant)
	switch {
	case err == nil:
		return key.Fingerprint
	case errors.Is(err, fs.ErrNotExist):
		return "none: the cluster's"
	}
	return "cannot be read"
}

// tenantsEvery is how often a gateway looks at its tenants file.
const tenantsEvery = 2 * time.Second

// followTenants keeps a gateway's tenants and their keys as the files are, until
// ctx ends. A file that cannot be read leaves what was known.
func followTenants(ctx context.Context, keys *keyring.TenantKeys, tenants *gateway.Tenants, log *slog.Logger) {
	tick := time.NewTicker(tenantsEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		keys.Refresh()
		switch changed, err := tenants.Follow(); {
		case err != nil:
			log.Error("the tenants are those of before", "err", err)
		case changed:
			log.Info("tenants are read again")
		}
	}
}
