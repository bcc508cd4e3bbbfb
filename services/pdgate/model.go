package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

func (a *app) modelCommand() *cobra.Command {
	var f requestFlags
	c := &cobra.Command{
		Use:   "model",
		Short: "Quarantine a model, restore it, or show its state",
		Long: `model orders the lifecycle service as the operator: it needs operator.nk from the
key directory. A quarantined model is not served: its requests get 503 with the
reason, from every gateway, until an operator restores it.`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	p := c.PersistentFlags()
	f.add(p)
	p.StringVarP(&f.output, "output", "o", "table", "output format: table or json")
	p.BoolVar(&f.json, "json", false, "the same as --output json")
	c.AddCommand(a.modelQuarantine(&f), a.modelRestore(&f), a.modelStatus(&f))
	return c
}

func modelArg(cmd *cobra.Command, args []string) error {
	if err := cobra.ExactArgs(1)(cmd, args); err != nil {
		return err
	}
	return checkModels("model", args[0])
}

// checkReason judges words that are recorded for good, and that clients read.
func checkReason(reason string) error {
	d := events.Restore{Reason: reason}
	if reason == "" {
		return fmt.Errorf("reason is missing: say why with --reason; it is recorded, and clients read it")
	}
	if err := (&events.Command{Type: events.CmdRestore, Subject: "m", Data: &d}).Check(); err != nil {
		return fmt.Errorf("reason: want 1 to 256 bytes without control characters")
	}
	return nil
}

func (a *app) modelQuarantine(f *requestFlags) *cobra.Command {
	var d events.Quarantine
	var force bool
	c := &cobra.Command{
		Use: "quarantine NAME --reason TEXT", Short: "Stop a model", Args: modelArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			err := checkReason(d.Reason)
			if d.Running != events.RunningDrain && d.Running != events.RunningCancel {
				err = firstOf(err, fmt.Errorf("running %q is neither %s nor %s%s", d.Running, events.RunningDrain, events.RunningCancel,
					didYouMean(d.Running, []string{events.RunningDrain, events.RunningCancel})))
			}
			if err != nil {
				return &usageError{err, cmd}
			}
			return a.operator(cmd, f, queryTimeout, func(ctx context.Context, c *client.Client) error {
				v, err := c.Info(ctx)
				if err != nil {
					return err
				}
				if findModel(v.Models, args[0]) == nil && !force {
					// A quarantine under a misspelt name would stop nothing, and look as if it had.
					return fmt.Errorf("no worker is registered for model %q%s; with --force it is quarantined all the same", args[0], didYouMean(args[0], modelNames(v.Models)))
				}
				ans, err := c.Quarantine(ctx, args[0], &d)
				if err != nil {
					return err
				}
				what := "open requests go on to their ends"
				if d.Running == events.RunningCancel {
					what = "open requests are cancelled"
				}
				return a.ordered(f, ans, fmt.Sprintf("%s is quarantined (log position %s): new requests get 503, %s", args[0], ans.Position, what))
			})
		},
	}
	c.Flags().StringVar(&d.Reason, "reason", "", "why; it is recorded, and clients read it")
	c.Flags().StringVar(&d.Running, "running", events.RunningDrain, "what becomes of open requests: drain (they go on to their ends) or cancel")
	c.Flags().BoolVar(&force, "force", false, "also a model that no worker is registered for")
	_ = c.RegisterFlagCompletionFunc("running", cobra.FixedCompletions([]string{events.RunningDrain, events.RunningCancel}, cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (a *app) modelRestore(f *requestFlags) *cobra.Command {
	var d events.Restore
	c := &cobra.Command{
		Use: "restore NAME --reason TEXT", Short: "Serve a quarantined model again", Args: modelArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkReason(d.Reason); err != nil {
				return &usageError{err, cmd}
			}
			return a.operator(cmd, f, queryTimeout, func(ctx context.Context, c *client.Client) error {
				ans, err := c.Restore(ctx, args[0], &d)
				if err != nil {
					return err
				}
				return a.ordered(f, ans, fmt.Sprintf("%s is served again (log position %s)", args[0], ans.Position))
			})
		},
	}
	c.Flags().StringVar(&d.Reason, "reason", "", "why; it is recorded")
	return c
}

// ordered shows what became of an order.
func (a *app) ordered(f *requestFlags, ans *events.Answer, done string) error {
	if f.output == "json" {
		if err := printJSON(a.stdout, ans); err != nil {
			return err
		}
	}
	if ans.Denied != nil {
		return fmt.Errorf("not done: %s: %s", ans.Denied.Code, ans.Denied.Message)
	}
	if f.output == "json" {
		return nil
	}
	_, err := fmt.Fprintln(a.stdout, done)
	return err
}

func (a *app) modelStatus(f *requestFlags) *cobra.Command {
	return &cobra.Command{
		Use: "status [NAME]", Short: "Show models: state, open requests, and who quarantined them, when and why",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return modelArg(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.operator(cmd, f, queryTimeout, func(ctx context.Context, c *client.Client) error {
				v, err := c.Info(ctx)
				if err != nil {
					return err
				}
				models := v.Models
				if len(args) == 1 {
					m := findModel(models, args[0])
					if m == nil {
						return fmt.Errorf("model %q is neither served nor quarantined%s", args[0], didYouMean(args[0], modelNames(models)))
					}
					models = []events.ModelView{*m}
				}
				if f.output == "json" {
					return printJSON(a.stdout, models)
				}
				return printModels(a.stdout, models, time.Now())
			})
		},
	}
}

func findModel(models []events.ModelView, name string) *events.ModelView {
	i := slices.IndexFunc(models, func(m events.ModelView) bool { return m.Model == name })
	if i < 0 {
		return nil
	}
	return &models[i]
}

func modelNames(models []events.ModelView) []string {
	var names []string
	for _, m := range models {
		names = append(names, m.Model)
	}
	return names
}

// printModels shows a model a line, and below it what a quarantine says.
func printModels(w io.Writer, models []events.ModelView, now time.Time) error {
	t := newTable(w)
	fmt.Fprintln(t, "MODEL\tSTATE\tOPEN\tPREFILL\tDECODE\tLONGEST PROMPT\tCONTEXT")
	for _, m := range models {
		state := "ready"
		switch {
		case m.Quarantined:
			state = "quarantined"
		case m.PrefillNodes == 0 || m.DecodeNodes == 0:
			state = "unavailable"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%d\n", m.Model, state, m.Open, m.PrefillNodes, m.DecodeNodes, m.MaxInputTokens, m.ContextTokens)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, m := range models {
		q := m.Quarantine
		if q == nil {
			continue
		}
		running := "open requests go on to their ends"
		if q.Running == events.RunningCancel {
			running = "open requests are cancelled"
		}
		t := newTable(w)
		fmt.Fprintf(t, "\n%s is quarantined:\n", m.Model)
		fmt.Fprintf(t, "  why\t%s\n  by\t%s\n  since\t%s (%s ago)\n  running\t%s; %d still open\n  position\t%s\n",
			q.Reason, q.By, stamp(q.Since), now.Sub(q.Since).Round(time.Second), running, m.Open, q.Position)
		if q.Evidence != "" {
			fmt.Fprintf(t, "  evidence\t%s\n", q.Evidence)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}
