package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// usageError is a mistake in the command line or the configuration.
type usageError struct {
	err error
	cmd *cobra.Command
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// unreadableError is an input that cannot be read at all.
type unreadableError struct{ err error }

func (e *unreadableError) Error() string { return e.err.Error() }
func (e *unreadableError) Unwrap() error { return e.err }

// app is what all subcommands share: the process's surroundings, and the
// settings of the flags that every command has.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	env            []string

	config    string
	data      string
	logFormat string
	logLevel  string
	log       *slog.Logger // made after flags are read
}

// run is the whole program. It returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, env []string) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, env: env}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	var usage *usageError
	var exit *exitError
	var unreadable *unreadableError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &unreadable):
		fmt.Fprintf(stderr, "pdgate: %v\n", err)
		return exitUsage
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "pdgate: %v\nRun '%s --help' for usage.\n", err, usage.cmd.CommandPath())
		return exitUsage
	default:
		fmt.Fprintf(stderr, "pdgate: %v\n", err)
		return exitFailure
	}
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "pdgate",
		Short: "The lifecycle gate between prefill and decode",
		Long: `pdgate keeps one durable state machine per request of a disaggregated serving
cluster. A request that was rejected cannot reach decode: no grant, no KV, no
bytes.

  pdgate up          everything in one process, ready in a moment
  pdgate incident    the public failure, unguarded and guarded, side by side`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		Args:              subcommandOnly,
		RunE:              func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return a.prepare(cmd) },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{suggestFlag(cmd, err), cmd}
	})
	f := root.PersistentFlags()
	f.StringVar(&a.config, "config", "", "configuration file (YAML; its keys are the flags' names)")
	f.StringVar(&a.data, "data", defaultData, "data directory")
	f.StringVar(&a.logFormat, "log-format", "text", "log format: text or json")
	f.StringVar(&a.logLevel, "log-level", "info", "least level that is logged: debug, info, warn or error")
	root.AddCommand(
		a.upCommand(), a.natsCommand(), a.lifecycleCommand(), a.gatewayCommand(), a.workerCommand(),
		a.requestCommand(), a.modelCommand(), a.preflightCommand(), a.canaryCommand(), a.incidentCommand(), a.benchCommand(), a.versionCommand(), a.schemasCommand(),
		a.auditorCommand(), a.exportCommand(), a.verifyCommand(), a.replayCommand(), a.reportCommand(), a.tenantCommand(), a.initCommand(), a.healthCommand(), a.gpuCommand(),
	)
	for _, c := range root.Commands() {
		wrapArgs(c)
	}
	return root
}

// prepare fills the flags from file and environment, and makes the logger.
func (a *app) prepare(cmd *cobra.Command) error {
	switch cmd.Name() {
	case "help", "completion", "bash", "zsh", "fish", "powershell", cobra.ShellCompRequestCmd, cobra.ShellCompNoDescRequestCmd:
		return nil
	}
	if err := a.configure(cmd); err != nil {
		return &usageError{err, cmd}
	}
	var level slog.Level
	if err := level.UnmarshalText([]byte(a.logLevel)); err != nil {
		return &usageError{fmt.Errorf("log-level %q is none of debug, info, warn, error", a.logLevel), cmd}
	}
	opts := &slog.HandlerOptions{Level: level}
	switch a.logFormat {
	case "text":
		a.log = slog.New(slog.NewTextHandler(a.stderr, opts))
	case "json":
		a.log = slog.New(slog.NewJSONHandler(a.stderr, opts))
	default:
		return &usageError{fmt.Errorf("log-format %q is neither text nor json", a.logFormat), cmd}
	}
	return nil
}

// subcommandOnly refuses an argument that names no subcommand.
func subcommandOnly(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return &usageError{fmt.Errorf("unknown command %q%s", cmd.CommandPath()+" "+args[0], didYouMean(args[0], names)), cmd}
}

// wrapArgs makes a wrong number of arguments a usage error, in c and below.
func wrapArgs(c *cobra.Command) {
	check := c.Args
	if check == nil {
		check = cobra.NoArgs
	}
	c.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if u := (*usageError)(nil); err == nil || errors.As(err, &u) {
			return err
		}
		return &usageError{err, cmd}
	}
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
}

// suggestFlag adds the nearest flag to the error of one that does not exist.
func suggestFlag(cmd *cobra.Command, err error) error {
	name, ok := strings.CutPrefix(err.Error(), "unknown flag: --")
	if !ok {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if s := didYouMean(name, names); s != "" {
		return fmt.Errorf("unknown flag --%s%s", name, strings.Replace(s, `"`, `"--`, 1))
	}
	return fmt.Errorf("unknown flag --%s", name)
}

// didYouMean is ` (did you mean "x"?)` for the nearest name, or nothing when
// none is near.
func didYouMean(got string, names []string) string {
	best, at := "", len(got)/2+1
	for _, n := range names {
		if d := distance(got, n); d < at {
			best, at = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf(" (did you mean %q?)", best)
}

// distance is the number of bytes to insert, delete or replace between a and b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
