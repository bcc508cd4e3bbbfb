package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/internal/bench"
)

// benchFlags are those of every measurement.
type benchFlags struct {
	options              bench.Options
	fsync                string
	replicas             []string
	json, html, markdown string
}

var benchAbout = map[string]string{
	"journal":  "Appends through partition loops and journal, against raw publishing",
	"service":  "Whole lifecycles over NATS, against calls that are merely echoed",
	"takeover": "How long partitions are silent when their replica is killed, or hangs",
	"handoff":  "Verified pulls of KV, against a plain copy over the same kind of socket",
	"gateway":  "What pdgate adds to a streamed answer, against a reverse proxy",
	"replay":   "Checking a log on one core, against reading it",
	"audit":    "Signed tiles, bundles and their verification, against hashing and Tessera",
}

func (a *app) benchCommand() *cobra.Command {
	b := &benchFlags{}
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure pdgate beside its raw ceilings",
		Long: `bench measures parts of pdgate, and in the same run what the same machine does
without them: the same server, disk and sockets, with everything left out that
pdgate adds. Rounds are interleaved, ratios are taken within a round, medians are
reported. The absolute figures are this machine's; the ratios carry over.`,
		Args: subcommandOnly,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := c.PersistentFlags()
	o := &b.options
	f.StringVar(&o.Dir, "dir", "", "directory for data, which is removed at the end; its disk is what fsync is measured on (default: the system's)")
	f.IntVar(&o.Rounds, "rounds", 5, "interleaved rounds; medians are reported")
	f.DurationVar(&o.Duration, "duration", 2*time.Second, "time of one measurement")
	f.StringVar(&b.fsync, "fsync", "both", "always: fsync on every acknowledgement; interval: every two minutes; both")
	f.IntVar(&o.Concurrency, "concurrency", 0, "calls in flight of a closed loop, and requests that a worker works on in a trace (0: each case's own)")
	f.Float64Var(&o.Rate, "rate", 0, "lifecycles a second of the open loop (0: half of what the closed loop did)")
	f.StringSliceVar(&b.replicas, "replicas", []string{"1", "2"}, "replicas of the lifecycle service, a case each")
	f.IntVar(&o.Partitions, "partitions", 0, "partitions of the log (0: the default)")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of what is drawn (0: one is drawn, and reported)")
	f.StringVar(&b.json, "json", "", "write the report as JSON to this file; -: to standard output, in place of the table")
	f.StringVar(&b.html, "html", "", "write the report with charts to this file, as one page")
	f.StringVar(&b.markdown, "markdown", "", "write the tables of this run into this Markdown file, in the place of an earlier run's")
	f.StringVar(&o.CPUProfile, "cpuprofile", "", "write CPU profiles: of this process to this file, of others beside it")
	for _, name := range bench.Names() {
		c.AddCommand(a.benchPart(b, name, benchAbout[name], name))
	}
	c.AddCommand(a.benchPart(b, "all", "All of the above, one after the other", bench.Names()...), a.benchGrowth(b), a.benchTrace(b), a.benchChild())
	return c
}

func (a *app) benchPart(b *benchFlags, use, short string, names ...string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := b.complete(a); err != nil {
				return &usageError{err, cmd}
			}
			r, err := bench.Run(cmd.Context(), b.options, names...)
			if err != nil {
				return err
			}
			return b.write(a, r)
		},
	}
}

func (a *app) benchTrace(b *benchFlags) *cobra.Command {
	t := bench.TraceOptions{}
	c := &cobra.Command{
		Use:   "trace FILE",
		Short: "Replay a published trace of real traffic against every part",
		Long: `trace sends requests with the arrival times and lengths of a public trace
(Mooncake's JSON lines, or Azure's CSV) through every part in one process, and
reports time to first token, throughput, ages in the queues, what was rejected and
how full the pools were.

The fake engine has the timing of an engine with set speeds and next to none of
its work. --speed makes time go faster for arrivals and for the fake engine alike,
so that queues are those of the trace; pdgate itself is as fast as it is.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := b.complete(a); err != nil {
				return &usageError{err, cmd}
			}
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("trace: %w", err)
			}
			defer f.Close()
			t.Name, t.Trace, t.Fsync, t.Concurrency = filepath.Base(args[0]), f, b.options.Fsync[0], b.options.Concurrency
			r, err := bench.RunTrace(cmd.Context(), b.options, t)
			if err != nil {
				return err
			}
			return b.write(a, r)
		},
	}
	f := c.Flags()
	f.IntVar(&t.Limit, "limit", 0, "most requests (0: all of the trace)")
	f.Float64Var(&t.Speed, "speed", 1, "how much faster time goes")
	f.StringVar(&t.Engine, "engine", "fake", "engine: fake, or ref")
	f.Float64Var(&t.Speeds.Prefill, "prefill-speed", 20_000, "prompt tokens a second of each prefill worker (fake engine; 0: as fast as it can)")
	f.Float64Var(&t.Speeds.Decode, "decode-speed", 50, "tokens a second of each request (fake engine; 0: as fast as it can)")
	f.IntVar(&t.Context, "context", engine.DefaultContextTokens, "longest prompt and completion, in tokens")
	f.IntVar(&t.Prefill, "prefill-workers", 1, "number of prefill workers")
	f.IntVar(&t.Decode, "decode-workers", 1, "number of decode workers")
	f.IntVar(&t.PrefillTokens, "pool-tokens", 0, "KV pool of each prefill worker, in tokens (0: four contexts)")
	f.IntVar(&t.DecodeTokens, "decode-pool-tokens", 0, "KV pool of each decode worker, in tokens (0: four contexts)")
	f.IntVar(&t.QueueLimit, "queue-limit", 1024, "most requests that wait for prefill; above it clients get 503 (0: no limit)")
	return c
}

// benchChild is a process of a measurement.
func (a *app) benchChild() *cobra.Command {
	return &cobra.Command{
		Use:    "child",
		Hidden: true,
		Short:  "Run a part of a measurement, as told on standard input",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.RunChild(cmd.Context(), a.stdin, a.stdout, onlyWarnings(a.log))
		},
	}
}

// complete turns flags into options.
func (b *benchFlags) complete(a *app) error {
	switch b.fsync {
	case "always":
		b.options.Fsync = []bool{true}
	case "interval":
		b.options.Fsync = []bool{false}
	case "both":
		b.options.Fsync = []bool{true, false}
	default:
		return fmt.Errorf("fsync %q is none of always, interval, both", b.fsync)
	}
	if b.options.Rounds < 1 || b.options.Duration <= 0 {
		return errors.New("rounds and duration are above 0")
	}
	b.options.Replicas = nil
	for _, s := range b.replicas {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("replicas %q: want numbers above 0", s)
		}
		b.options.Replicas = append(b.options.Replicas, n)
	}
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	b.options.Version = buildVersion()
	b.options.Child = []string{exe, "bench", "child"}
	b.options.Stack = benchStack
	b.options.Logger = onlyWarnings(a.log)
	start := time.Now()
	b.options.Progress = func(format string, args ...any) {
		fmt.Fprintf(a.stderr, "%6.1fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	return nil
}

// write gives the report out.
func (b *benchFlags) write(a *app, r *bench.Report) error {
	var errs []error
	if b.json != "-" {
		errs = append(errs, r.WriteTable(a.stdout))
	} else {
		errs = append(errs, r.WriteJSON(a.stdout))
	}
	if b.json != "" && b.json != "-" {
		errs = append(errs, toFile(b.json, r.WriteJSON))
	}
	if b.html != "" {
		errs = append(errs, toFile(b.html, r.WriteHTML))
	}
	if b.markdown != "" {
		errs = append(errs, intoMarkdown(b.markdown, r))
	}
	return errors.Join(errs...)
}

// intoMarkdown puts the report's tables into a document, which need not exist.
func intoMarkdown(path string, r *bench.Report) error {
	doc, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("markdown: %w", err)
	}
	text, err := r.Markdown(string(doc))
	if err != nil {
		return fmt.Errorf("%w in %s", err, path)
	}
	return writeFile(path, text)
}

func toFile(path string, write func(io.Writer) error) error {
	var s strings.Builder
	if err := write(&s); err != nil {
		return err
	}
	return writeFile(path, s.String())
}

// onlyWarnings leaves out what parts say of their ordinary life: it would stand
// between the lines of progress.
func onlyWarnings(log *slog.Logger) *slog.Logger { return slog.New(warnings{log.Handler()}) }
