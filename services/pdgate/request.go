package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// requestFlags are those of every subcommand of request.
type requestFlags struct {
	remote
	output string
	json   bool
}

func (a *app) requestCommand() *cobra.Command {
	var f requestFlags
	c := &cobra.Command{
		Use:   "request",
		Short: "Look at requests, or cancel one",
		Long: `request asks the lifecycle service as the operator: it needs operator.nk from the
key directory. What it shows holds no prompt and no completion; there is none in
the log.`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	p := c.PersistentFlags()
	f.add(p)
	p.StringVarP(&f.output, "output", "o", "table", "output format: table or json")
	p.BoolVar(&f.json, "json", false, "the same as --output json")
	c.AddCommand(a.requestGet(&f), a.requestHistory(&f), a.requestTimeline(&f), a.requestList(&f), a.requestWatch(&f), a.requestCancel(&f))
	return c
}

// queryTimeout bounds a command that people wait for.
const queryTimeout = 15 * time.Second

// connectTimeout is shorter: a server that is not there is known at once.
const connectTimeout = 2 * time.Second

// operator runs f with a client that speaks as the operator. timeout 0 sets no
// bound.
func (a *app) operator(cmd *cobra.Command, rf *requestFlags, timeout time.Duration, f func(context.Context, *client.Client) error) error {
	switch {
	case rf.json:
		rf.output = "json"
	case rf.output != "table" && rf.output != "json":
		return &usageError{fmt.Errorf("output %q is neither table nor json", rf.output), cmd}
	}
	return a.speakAs(cmd.Context(), &rf.remote, keyring.Operator, timeout, f)
}

// speakAs runs f with a client that speaks as a user of the bus. timeout 0 sets no
// bound.
func (a *app) speakAs(ctx context.Context, r *remote, u keyring.User, timeout time.Duration, f func(context.Context, *client.Client) error) error {
	ring, err := a.load(r)
	if err != nil {
		return err
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	nc, err := a.connect(ctx, r, ring, u, connectTimeout)
	if err != nil {
		return err
	}
	defer nc.Close()
	c, err := client.New(ctx, client.Config{Conn: nc, Role: u.Role(), Principal: u.Principal(), Logger: a.log})
	if err != nil {
		return explainUnanswered(err)
	}
	return explainUnanswered(f(ctx, c))
}

// explainUnanswered says what to look at when nobody answers.
func explainUnanswered(err error) error {
	var e *events.Error
	if errors.Is(err, context.DeadlineExceeded) || errors.As(err, &e) && e.Code == events.CodeUnavailable {
		return fmt.Errorf("no lifecycle service answers: is one running on this NATS server? %w", err)
	}
	return err
}

func requestIDArg(cmd *cobra.Command, args []string) error {
	if err := cobra.ExactArgs(1)(cmd, args); err != nil {
		return err
	}
	if _, err := events.RequestTime(args[0]); err != nil {
		return fmt.Errorf("%q: %w; the gateway returns it as X-Request-Id", args[0], err)
	}
	return nil
}

func (a *app) requestGet(rf *requestFlags) *cobra.Command {
	return &cobra.Command{
		Use: "get ID", Short: "Show one request", Args: requestIDArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.operator(cmd, rf, queryTimeout, func(ctx context.Context, c *client.Client) error {
				v, err := c.Get(ctx, args[0])
				if err != nil {
					return err
				}
				if rf.output == "json" {
					return printJSON(a.stdout, v)
				}
				return printView(a.stdout, v)
			})
		},
	}
}

func (a *app) requestHistory(rf *requestFlags) *cobra.Command {
	return &cobra.Command{
		Use: "history ID", Short: "Show a request's walk through its states", Args: requestIDArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.operator(cmd, rf, queryTimeout, func(ctx context.Context, c *client.Client) error {
				v, err := c.History(ctx, args[0])
				if err != nil {
					return err
				}
				if rf.output == "json" {
					return printJSON(a.stdout, v)
				}
				if v.Earlier != "" {
					fmt.Fprintf(a.stderr, "what is up to position %s has left the live log; the audit log has it: pdgate export%s --request %s --out %s.zip\n", v.Earlier, a.dataFlag(), args[0], args[0])
				}
				return printHistory(a.stdout, v)
			})
		},
	}
}

func (a *app) requestList(rf *requestFlags) *cobra.Command {
	var (
		q            events.ListQuery
		state        string
		since, until string
		all          bool
	)
	c := &cobra.Command{
		Use: "list", Short: "List requests, newest first",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if q.Since, err = parseTime(since); err == nil {
				q.Until, err = parseTime(until)
			}
			if err == nil && (q.Limit < 0 || q.Limit > events.MaxListLimit) {
				err = fmt.Errorf("limit %d: want 1 to %d", q.Limit, events.MaxListLimit)
			}
			if q.State = events.State(state); err == nil && state != "" && !knownState(q.State) {
				err = fmt.Errorf("state %q is none of %s%s", state, strings.Join(stateNames(), ", "), didYouMean(state, stateNames()))
			}
			if err != nil {
				return &usageError{err, cmd}
			}
			return a.operator(cmd, rf, queryTimeout, func(ctx context.Context, c *client.Client) error {
				return a.list(ctx, c, q, all, rf.output == "json")
			})
		},
	}
	f := c.Flags()
	f.StringVar(&q.Tenant, "tenant", "", "only this tenant's")
	f.StringVar(&state, "state", "", "only those in this state")
	f.StringVar(&q.Model, "model", "", "only this model's")
	f.StringVar(&since, "since", "", "admitted at or after: a time (RFC 3339) or an age (15m)")
	f.StringVar(&until, "until", "", "admitted before: a time or an age")
	f.IntVar(&q.Limit, "limit", events.DefaultListLimit, "most requests in one page")
	f.BoolVar(&all, "all", false, "follow the pages to the end")
	_ = c.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(stateNames(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

func (a *app) list(ctx context.Context, c *client.Client, q events.ListQuery, all, asJSON bool) error {
	w := newTable(a.stdout)
	if !asJSON {
		fmt.Fprintln(w, "REQUEST\tSTATE\tTENANT\tMODEL\tPROMPT\tOUTPUT\tADMITTED\tTOOK\tERROR")
	}
	for {
		v, err := c.List(ctx, q)
		if err != nil {
			return err
		}
		if asJSON {
			if err := printJSON(a.stdout, v); err != nil {
				return err
			}
		} else {
			for i := range v.Requests {
				printRow(w, &v.Requests[i])
			}
		}
		if q.Cursor = v.NextCursor; q.Cursor != "" && all {
			continue
		}
		if asJSON {
			return nil
		}
		if err := w.Flush(); err != nil {
			return err
		}
		if v.NextCursor != "" {
			fmt.Fprintln(a.stderr, "there are more: add --all, or narrow the search")
		}
		switch {
		case !v.Since.IsZero():
			fmt.Fprintf(a.stderr, "the live log is trimmed: requests that ended, and were admitted before %s, are in the audit log alone (pdgate export)\n", stamp(v.Since))
		case v.FromSeq > 1:
			fmt.Fprintf(a.stderr, "the live log is trimmed: the list begins at message %d, what is older is in the audit log alone (pdgate export)\n", v.FromSeq)
		}
		if v.AppliedSeq < v.LogSeq {
			fmt.Fprintf(a.stderr, "the list lags the log by %d messages\n", v.LogSeq-v.AppliedSeq)
		}
		return nil
	}
}

func (a *app) requestWatch(rf *requestFlags) *cobra.Command {
	var model string
	c := &cobra.Command{
		Use: "watch [ID]", Short: "Show events as they become durable",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return requestIDArg(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			filter := client.WatchFilter{Model: model}
			if len(args) == 1 {
				filter.RequestID = args[0]
			}
			return a.operator(cmd, rf, 0, func(ctx context.Context, c *client.Client) error {
				var failed error
				ctx, stop := context.WithCancel(ctx)
				defer stop()
				err := c.Watch(ctx, filter, func(n client.Notice) {
					if failed != nil {
						return
					}
					if rf.output == "json" {
						_, failed = fmt.Fprintf(a.stdout, "%s\n", n.Raw)
					} else {
						_, failed = fmt.Fprintf(a.stdout, "%s  %s  %-16s %-14s %s\n", clock(n.Event.Time), n.Event.Subject,
							shortType(n.Event.Type), n.Event.Principal, summary(n.Event.Data))
					}
					if failed != nil {
						stop() // the reader of the output is gone
					}
				})
				return errors.Join(err, failed)
			})
		},
	}
	c.Flags().StringVar(&model, "model", "", "only this model's")
	return c
}

func (a *app) requestCancel(rf *requestFlags) *cobra.Command {
	return &cobra.Command{
		Use: "cancel ID", Short: "Cancel a request", Args: requestIDArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.operator(cmd, rf, queryTimeout, func(ctx context.Context, c *client.Client) error {
				ans, err := c.Cancel(ctx, args[0], &events.Cancel{Reason: events.CodeCancelled})
				if err != nil {
					return err
				}
				if rf.output == "json" {
					if err := printJSON(a.stdout, ans); err != nil {
						return err
					}
				}
				if ans.Denied != nil {
					return fmt.Errorf("not cancelled: %s: %s", ans.Denied.Code, ans.Denied.Message)
				}
				if rf.output != "json" {
					_, err = fmt.Fprintf(a.stdout, "%s is cancelled (log position %s)\n", args[0], ans.Position)
				}
				return err
			})
		},
	}
}

// parseTime reads a time, or an age counted back from the present.
func parseTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		return events.Micros(time.Now().Add(-d)), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fmt.Errorf("%q is neither a time like 2026-01-31T12:00:00Z nor an age like 15m", s)
	}
	return events.Micros(t), nil
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func newTable(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 8, 2, ' ', 0) }
