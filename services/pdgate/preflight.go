package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/preflight"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// exitAttention is the code of what is not wrong and not right either: a
// preflight with amber or unknown findings, a canary without a verdict.
const exitAttention = 3

type preflightFlags struct {
	remote
	cfg     preflight.Config
	monitor string
	colour  string
	json    bool
}

func (a *app) preflightCommand() *cobra.Command {
	var f preflightFlags
	c := &cobra.Command{
		Use:   "preflight [--prefill URL,… --decode URL,…]",
		Short: "Look whether prefill and decode fit each other, before they serve",
		Long: `preflight reads every node, says which engine it is, and compares pools, longest
prompts, context windows, page sizes, KV types, parallelism and versions. Without
--prefill and --decode it looks at the workers of the pdgate that runs on the data
directory, or at --nats-url, and at its log; with them, at those engines (SGLang,
vLLM), and at pdgate's own if --nats-url is given too.

A line for each finding, the worst first: RED must not serve, AMBER should be looked
at, UNKNOWN was not told and is not judged, GREEN is as it should be.

The exit code is 0 if all is green, 1 if anything is red, 3 if anything is amber or
unknown, 2 for wrong usage.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return &usageError{err, cmd}
			}
			r, err := a.runPreflight(cmd.Context(), &f)
			if err != nil {
				return err
			}
			if err := a.showPreflight(&f, r); err != nil {
				return err
			}
			switch r.Worst() {
			case preflight.Green:
				return nil
			case preflight.Red:
				return &exitError{exitFailure}
			}
			return &exitError{exitAttention}
		},
	}
	fs := c.Flags()
	f.add(fs)
	fs.StringSliceVar(&f.cfg.Prefill, "prefill", nil, "base URLs of engines that prefill")
	fs.StringSliceVar(&f.cfg.Decode, "decode", nil, "base URLs of engines that decode")
	fs.StringVar(&f.monitor, "nats-monitor", "", "monitoring URL of the NATS server: it tells when JetStream writes to the disk")
	fs.DurationVar(&f.cfg.Timeout, "timeout", preflight.DefaultTimeout, "longest time for one node; all are asked at once")
	fs.StringVar(&f.colour, "color", "auto", "colour the levels: auto, always or never")
	fs.BoolVar(&f.json, "json", false, "print JSON")
	_ = c.RegisterFlagCompletionFunc("color", cobra.FixedCompletions([]string{"auto", "always", "never"}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (f *preflightFlags) check() error {
	for flag, urls := range map[string][]string{"prefill": f.cfg.Prefill, "decode": f.cfg.Decode} {
		for _, u := range urls {
			if err := preflight.CheckURL(u); err != nil {
				return fmt.Errorf("%s %w", flag, err)
			}
		}
	}
	if f.monitor != "" {
		if err := preflight.CheckURL(f.monitor); err != nil {
			return fmt.Errorf("nats-monitor %w", err)
		}
	}
	switch {
	case (len(f.cfg.Prefill) == 0) != (len(f.cfg.Decode) == 0):
		return errors.New("name nodes of both roles, --prefill and --decode, or of none")
	case f.cfg.Timeout <= 0 || f.cfg.Timeout > 10*time.Minute:
		return fmt.Errorf("timeout %v: want above 0s and at most 10m", f.cfg.Timeout)
	case f.colour != "auto" && f.colour != "always" && f.colour != "never":
		return fmt.Errorf("color %q is none of auto, always, never%s", f.colour, didYouMean(f.colour, []string{"auto", "always", "never"}))
	}
	return nil
}

func (a *app) runPreflight(ctx context.Context, f *preflightFlags) (*preflight.Report, error) {
	var r preflight.Report
	if len(f.cfg.Prefill) > 0 {
		fleet, err := preflight.Fleet(ctx, f.cfg)
		if err != nil {
			return nil, err
		}
		r.Add(fleet)
	}
	if len(f.cfg.Prefill) == 0 || f.url != "" {
		own, err := a.preflightOwn(ctx, f)
		if err != nil {
			return nil, err
		}
		r.Add(own)
	}
	r.Sort()
	return &r, nil
}

// preflightOwn looks at pdgate's own workers, and at the log.
func (a *app) preflightOwn(ctx context.Context, f *preflightFlags) (preflight.Report, error) {
	var r preflight.Report
	err := a.speakAs(ctx, &f.remote, keyring.Operator, queryTimeout, func(ctx context.Context, c *client.Client) error {
		v, err := c.Workers(ctx)
		if err != nil {
			return err
		}
		r = preflight.Workers(v.Workers)
		if len(r.Nodes) == 0 {
			r.Findings = append(r.Findings, preflight.Finding{Level: preflight.Red, Check: "fleet", Text: "no worker is alive", Fix: "start workers: pdgate worker --role prefill, pdgate worker --role decode"})
		}
		return nil
	})
	if err != nil {
		return r, err
	}
	r.Findings = append(r.Findings, preflight.JudgeLog(a.lookAtLog(ctx, f))...)
	return r, nil
}

func (a *app) showPreflight(f *preflightFlags, r *preflight.Report) error {
	if f.json {
		return printJSON(a.stdout, struct {
			Verdict preflight.Level `json:"verdict"`
			*preflight.Report
		}{r.Worst(), r})
	}
	colour := f.colour == "always" || f.colour == "auto" && lookup(a.env, "NO_COLOR") == "" && isTerminal(a.stdout)
	return r.Print(a.stdout, colour)
}

func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	fi, err := file.Stat()
	return err == nil && fi.Mode()&os.ModeCharDevice != 0
}

// lookAtLog asks for the log's stream as the auditor, who can see it and do
// nothing to it.
func (a *app) lookAtLog(ctx context.Context, f *preflightFlags) preflight.Log {
	l := preflight.Log{}
	l.Sync = preflight.ReadSync(ctx, f.monitor, f.cfg.Timeout)
	ring, err := a.load(&f.remote)
	if err != nil {
		l.Unseen = err.Error()
		return l
	}
	nc, err := a.connect(ctx, &f.remote, ring, keyring.Auditor, connectTimeout)
	if err != nil {
		l.Unseen, l.Fix = err.Error(), "copy auditor.nk into the key directory, or run preflight where it is"
		return l
	}
	defer nc.Close()
	ctx, cancel := context.WithTimeout(ctx, f.cfg.Timeout)
	defer cancel()
	return describeLog(ctx, nc, l)
}
