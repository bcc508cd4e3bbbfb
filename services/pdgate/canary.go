package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/canary"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/preflight"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// canaryTenants are the canary's two, where nobody names others.
var canaryTenants = []string{"canary-a", "canary-b"}

// canaryFlags say how the canary asks.
type canaryFlags struct {
	gateway string
	tenants []string
	oracle  string
	every   time.Duration
}

func (c *canaryFlags) addTenants(f *pflag.FlagSet) {
	f.StringSliceVar(&c.tenants, "canary-tenants", canaryTenants, "the canary's two tenants, each as NAME or NAME=FILE with its API key (default file: NAME"+apiKeySuffix+" in the key directory)")
}

// addSchedule adds the flags of a process that runs the canary again and again.
func (c *canaryFlags) addSchedule(f *pflag.FlagSet) {
	c.addTenants(f)
	f.DurationVar(&c.every, "canary-interval", 0, "how often the canary runs (0: never)")
	f.StringVar(&c.oracle, "canary-oracle", "", "engine that computes whole requests, to compare the canary's answers with")
}

func (c *canaryFlags) check(oracleFlag string) error {
	if len(c.tenants) != 2 {
		return fmt.Errorf("canary-tenants: %d are named, want two", len(c.tenants))
	}
	for flag, u := range map[string]string{oracleFlag: c.oracle, "gateway-url": c.gateway} {
		if u == "" {
			continue
		}
		if err := preflight.CheckURL(u); err != nil {
			return fmt.Errorf("%s %w", flag, err)
		}
	}
	return nil
}

// keys reads the tenants' API keys. dir is the key directory.
func (c *canaryFlags) keys(dir string) ([]canary.Tenant, error) {
	var out []canary.Tenant
	for _, spec := range c.tenants {
		name, path, named := strings.Cut(spec, "=")
		if !events.ValidName(name) {
			return nil, fmt.Errorf("canary-tenants: %q is not a tenant's name: want NAME or NAME=FILE", name)
		}
		if !named {
			path = filepath.Join(dir, name+apiKeySuffix)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("canary-tenants: API key of %s: %w; add the tenant to tenants.yaml, and write its key into that file", name, err)
		}
		key := strings.TrimSpace(string(b))
		if key == "" || strings.ContainsAny(key, " \r\n\t") {
			return nil, fmt.Errorf("canary-tenants: %s does not hold one API key", path)
		}
		out = append(out, canary.Tenant{Name: name, Key: key})
	}
	return out, nil
}

// gatewayURL is the gateway that was named, or the one that runs on the data
// directory.
func (a *app) gatewayURL(named string) (string, error) {
	if named != "" {
		return named, nil
	}
	url, err := publishedURL(a.data, gatewayURLFile)
	if err == nil && url == "" {
		err = errors.New("gateway-url is missing: no gateway runs on the data directory, so name one with --gateway-url")
	}
	return url, err
}

func (a *app) canaryCommand() *cobra.Command {
	var (
		r       remote
		f       canaryFlags
		model   string
		timeout time.Duration
		asJSON  bool
	)
	c := &cobra.Command{
		Use:   "canary",
		Short: "Probe the gateway with sentinels, and quarantine a model that answers wrongly",
		Long: `canary sends prompts of two tenants of its own through the gateway, just below and
just above every worker's limits and beside page boundaries, and compares the
answers with known ones. Each prompt holds a sentinel that stands nowhere else.

  PASS         the right answer
  REFUSED      above a limit: HTTP 400, and the log shows that no engine saw it
  WRONG        another answer, or an answer where a refusal was due
  FOREIGN      an answer with another prompt's sentinel
  UNREACHABLE  no verdict

A foreign sentinel quarantines the model at once, a wrong answer when it comes twice
in a row; an operator restores it. Each run is recorded in the log, without any text.
It needs canary.nk and the API keys of its tenants.

The exit code is 0 if all is as it should be, 1 if an answer was wrong or foreign, 3
if there is no verdict, 2 for wrong usage.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := f.check("oracle")
			if timeout <= 0 {
				err = firstOf(err, fmt.Errorf("timeout %v: want above 0s", timeout))
			}
			if model != "" {
				err = firstOf(err, checkModels("model", model))
			}
			var tenants []canary.Tenant
			if err == nil {
				tenants, err = f.keys(a.keyDir(r.keys))
			}
			var url string
			if err == nil {
				url, err = a.gatewayURL(f.gateway)
			}
			if err != nil {
				return &usageError{err, cmd}
			}
			var reports []*canary.Report
			err = a.speakAs(cmd.Context(), &r, keyring.Canary, 0, func(ctx context.Context, c *client.Client) error {
				can, err := canary.New(canary.Config{Gateway: url, Tenants: tenants, Cluster: c, Oracle: f.oracle, Timeout: timeout, Logger: a.log})
				if err != nil {
					return err
				}
				reports, err = probeModels(ctx, can, model)
				return err
			})
			return a.showCanary(cmd, reports, err, asJSON)
		},
	}
	fs := c.Flags()
	r.add(fs)
	f.addTenants(fs)
	fs.StringVar(&f.gateway, "gateway-url", "", "gateway to probe (default: the one that runs on the data directory)")
	fs.StringVar(&f.oracle, "oracle", "", "engine that computes whole requests, to compare answers with (default: for the reference engine a run in this process; for others the sentinel that the prompt asks for)")
	fs.StringVar(&model, "model", "", "model to probe (default: all that are served)")
	fs.DurationVar(&timeout, "timeout", 2*time.Minute, "longest time for one answer")
	fs.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// probeModels runs the canary over one model, or over all that are served.
func probeModels(ctx context.Context, c *canary.Canary, model string) ([]*canary.Report, error) {
	models := []string{model}
	if model == "" {
		var err error
		if models, err = c.Models(ctx); err != nil {
			return nil, err
		}
		if len(models) == 0 {
			return nil, fmt.Errorf("%w: no model is served, or all are quarantined", canary.ErrNoVerdict)
		}
	}
	var reports []*canary.Report
	var errs []error
	for _, m := range models {
		r, err := c.Run(ctx, m)
		reports, errs = append(reports, r), append(errs, err)
	}
	return reports, errors.Join(errs...)
}

// showCanary prints what was found, and turns it into the exit code.
func (a *app) showCanary(cmd *cobra.Command, reports []*canary.Report, err error, asJSON bool) error {
	bad, complete := false, err == nil
	var perr error
	for _, r := range reports {
		bad = bad || r.Verdict == events.CanaryWrong || r.Verdict == events.CanaryForeign
		complete = complete && r.Verdict == events.CanaryClean
		if !asJSON && len(r.Results) > 0 {
			perr = errors.Join(perr, r.Print(a.stdout))
		}
	}
	if asJSON {
		perr = printJSON(a.stdout, reports)
	}
	if perr != nil {
		return perr
	}
	var refused *canary.RefusedError
	if errors.As(err, &refused) && !bad {
		return &usageError{err, cmd}
	}
	if err != nil {
		fmt.Fprintf(a.stderr, "pdgate: %v\n", err)
	}
	switch {
	case bad:
		return &exitError{exitFailure}
	case !complete:
		return &exitError{exitAttention}
	}
	return nil
}
