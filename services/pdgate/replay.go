package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/pdgate/pdgate/statemachine"
	"github.com/pdgate/pdgate/statemachine/replay"
	"github.com/pdgate/pdgate/statemachine/replay/importer"
)

// replayFlags are the command line of replay, and what its subcommands share.
type replayFlags struct {
	remote
	stream bool
	format string
	limit  int
	at     string
	policy string
	gate   bool
	accept []string
	skew   time.Duration
	vkey   string
	trust  string
	own    bool
	export string
	out    string
	quiet  bool
}

func (a *app) replayCommand() *cobra.Command {
	var f replayFlags
	c := &cobra.Command{
		Use:   "replay [FILE…]",
		Short: "Read traces again, and say what broke, who saw whose pages, and what another policy would have done",
		Long: `replay reads what was recorded with the checker that production runs under: the
live log (--stream), traces, lines of events, audit bundles, OTLP, Tempo, Jaeger and
Perfetto JSON, SGLang's request logs, time statistics and exported metrics, and vLLM's
logs. Formats are told by content; gzip and zstd are unpacked; - is standard input.
Files of our own events are one log, in the order given. Engine logs are joined, both
legs of a request, over all files.

The result is one verdict, the violations (docs/violations.md), the blast radius and
what is not claimed. docs/forensics.md walks from a customer's report to the end.

Exit codes, the highest wins: 0 clean; 1 violations; 2 unreadable, or a wrong command
line; 3 incomplete or inconclusive; 4 the input is not what was written.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, files []string) error {
			if len(files) == 0 && !f.stream {
				return &usageError{errors.New("want a file, or --stream"), cmd}
			}
			o, err := f.options()
			if err != nil {
				return &usageError{err, cmd}
			}
			if f.export != "" {
				return a.replayExport(cmd, &f, files)
			}
			res, err := a.replay(cmd, &f, o, files)
			if err != nil {
				return err
			}
			return a.printResult(&f, res)
		},
	}
	f.register(c, a)
	p := c.Flags()
	p.StringVar(&f.at, "at", "", "stop at a stream sequence or a time, and show the state of every request and page then")
	p.StringVar(&f.export, "export", "", "instead of a verdict, write the events as otlp, perfetto, trace or events to --out")
	p.StringVar(&f.out, "out", "", "file to write an export to; it must not exist")
	c.AddCommand(a.replayWhatIf(), a.replayDiff(), a.replayTimeline(), a.replayHTML(), a.replayRules())
	return c
}

// register adds the flags that every reading of traces has.
func (f *replayFlags) register(c *cobra.Command, a *app) {
	p := c.Flags()
	f.add(p)
	p.BoolVar(&f.stream, "stream", false, "read the live log, as it is now")
	p.StringVar(&f.format, "format", "text", "text or json")
	p.IntVar(&f.limit, "limit", 20, "longest list in text; JSON is complete")
	p.StringSliceVar(&f.accept, "accept", nil, "what you vouch for: unanchored (lines that end without anything that vouches for them), lifecycle-only (engine logs)")
	p.DurationVar(&f.skew, "max-skew", 5*time.Second, "how far a request's clock may step back")
	p.StringVar(&f.vkey, "vkey", "", "the log's key, for bundles")
	p.StringVar(&f.trust, "trust-policy", "", "file with the log's key and witnesses, for bundles")
	p.BoolVar(&f.own, "own-key", false, "take a bundle's own key for the log's")
	p.BoolVar(&f.quiet, "quiet", false, "no progress on standard error")
}

func (f *replayFlags) options() (replay.Options, error) {
	o := replay.Options{SkewBound: f.skew}
	var errs []error
	if f.format != "text" && f.format != "json" {
		errs = append(errs, fmt.Errorf("format %q: want text or json", f.format))
	}
	if f.limit < 0 || f.skew < 0 {
		errs = append(errs, errors.New("limit and max-skew: want 0 or more"))
	}
	for _, x := range f.accept {
		switch x {
		case "unanchored":
			o.AcceptUnanchored = true
		case "lifecycle-only":
			o.AcceptLifecycle = true
		default:
			errs = append(errs, fmt.Errorf("accept %q: want unanchored or lifecycle-only", x))
		}
	}
	if f.at != "" {
		p, err := replay.ParsePoint(f.at)
		if err != nil {
			errs = append(errs, fmt.Errorf("at %w", err))
		}
		o.At = p
	}
	if f.export != "" && !slices.Contains([]string{"otlp", "perfetto", "trace", "events"}, f.export) {
		errs = append(errs, fmt.Errorf("export %q: want otlp, perfetto, trace or events", f.export))
	}
	if f.export != "" && f.out == "" {
		errs = append(errs, errors.New("out: want a file to write the export to"))
	}
	if f.policy != "" {
		p, err := loadPolicy(f.policy)
		if err != nil {
			errs = append(errs, err)
		}
		o.WhatIf = p
	} else if f.gate {
		o.WhatIf = replay.GatePolicy()
	}
	return o, firstOf(errs...)
}

// loadPolicy reads another admission policy.
func loadPolicy(path string) (*replay.Policy, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	defer file.Close()
	d := yaml.NewDecoder(io.LimitReader(file, 1<<20))
	d.KnownFields(true)
	p := &replay.Policy{}
	if err := d.Decode(p); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("policy %s: %w", path, err)
	}
	for _, n := range []int{p.ContextTokens, p.MaxInputTokens, p.PrefillPoolTokens, p.DecodePoolTokens, p.QueueLimit, p.TenantLimit, int(p.Lease)} {
		if n < 0 {
			return nil, fmt.Errorf("policy %s: want numbers of 0 or more", path)
		}
	}
	if p.Name == "" {
		p.Name = path
	}
	return p, nil
}

// replay reads everything that the command line names.
func (a *app) replay(cmd *cobra.Command, f *replayFlags, o replay.Options, files []string) (*replay.Result, error) {
	if f.stream || f.keysGiven(cmd) {
		ring, err := a.load(&f.remote)
		if err == nil {
			o.Key, err = ring.LogKey()
		}
		if err != nil {
			return nil, &usageError{err, cmd}
		}
	}
	r := replay.New(o)
	if f.stream {
		if err := a.replayStream(cmd.Context(), f, r); err != nil {
			return nil, err
		}
	}
	j := importer.NewJoiner(time.Now().UTC().Year())
	var open []io.Closer
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	for _, name := range files {
		if err := a.replayFile(cmd, f, r, j, name, &open); err != nil {
			return nil, err
		}
	}
	if err := j.Add(r); err != nil {
		return nil, &unreadableError{err}
	}
	return r.Finish(), nil
}

func (a *app) replayFile(cmd *cobra.Command, f *replayFlags, r *replay.Replay, j *importer.Joiner, name string, open *[]io.Closer) error {
	var in io.Reader = a.stdin
	size := int64(0)
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return &unreadableError{err}
		}
		*open = append(*open, file) // engine logs are read when all files are known
		if st, err := file.Stat(); err == nil {
			size = st.Size()
		}
		in = file
	}
	p := &progress{r: in, w: a.stderr, name: name, size: size, ctx: cmd.Context(), quiet: f.quiet}
	x, err := importer.Open(name, p)
	if err != nil {
		return &unreadableError{err}
	}
	if x.Input.Format == replay.FormatBundle {
		return a.replayBundle(cmd, f, r, name)
	}
	if err := x.Add(r, j); err != nil {
		if cmd.Context().Err() != nil {
			return err
		}
		if !strings.HasPrefix(err.Error(), name+": ") {
			err = fmt.Errorf("%s: %w", name, err)
		}
		return &unreadableError{err}
	}
	if x.Input.Format.Own() || x.Input.Events > 0 {
		x.Close()
	} else {
		j.AtEnd(x.Close)
	}
	return nil
}

func (a *app) printResult(f *replayFlags, res *replay.Result) error {
	var err error
	if f.format == "json" {
		err = printJSON(a.stdout, res)
	} else {
		err = res.WriteText(a.stdout, f.limit)
	}
	if err == nil && res.Verdict.Exit != replay.Clean {
		err = &exitError{int(res.Verdict.Exit)}
	}
	return err
}

// progress says how far a long read is, once a second.
type progress struct {
	r     io.Reader
	w     io.Writer
	ctx   context.Context
	name  string
	size  int64
	n     int64
	quiet bool
	said  time.Time
}

func (p *progress) Read(b []byte) (int, error) {
	if err := p.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := p.r.Read(b)
	p.n += int64(n)
	if now := time.Now(); p.said.IsZero() {
		p.said = now
	} else if !p.quiet && now.Sub(p.said) >= time.Second {
		p.said = now
		of := ""
		if p.size > 0 {
			of = fmt.Sprintf(" of %d (%d %%)", p.size>>20, p.n*100/p.size)
		}
		fmt.Fprintf(p.w, "replay: %s: %d%s MB\n", p.name, p.n>>20, of)
	}
	return n, err
}

func (a *app) replayRules() *cobra.Command {
	return &cobra.Command{
		Use:   "rules [ID]",
		Short: "List the violations that a replay can find, or explain one",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				f, ok := replay.Explain(statemachine.Kind(args[0]))
				if !ok {
					return &usageError{fmt.Errorf("no violation is called %q%s", args[0], didYouMean(args[0], findingNames())), cmd}
				}
				_, err := fmt.Fprintf(a.stdout, "%s (%s): %s\n\n%s\n", f.ID, f.Rule, f.Title, f.Explanation)
				return err
			}
			t := newTable(a.stdout)
			for _, f := range replay.Catalogue() {
				fmt.Fprintf(t, "%s\t%s\t%s\n", f.ID, f.Rule, f.Title)
			}
			return t.Flush()
		},
	}
}

func findingNames() (all []string) {
	for _, f := range replay.Catalogue() {
		all = append(all, string(f.ID))
	}
	return all
}

func (a *app) replayWhatIf() *cobra.Command {
	f := replayFlags{gate: true}
	c := &cobra.Command{
		Use:   "what-if [FILE…]",
		Short: "Judge recorded requests by another admission policy, other pool sizes or another lease",
		Long: `what-if judges every recorded admission again, on the facts that the event itself
records, by another policy: --policy is a YAML file with any of context_tokens,
max_input_tokens, prefill_pool_tokens, decode_pool_tokens, queue_limit, tenant_limit
and lease (a duration). Without one it is pdgate's gate over the recorded facts. A
request whose facts are not recorded is not replayable: nothing is made up.

The exit code is 1 where a request would have gone another way.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, files []string) error {
			if len(files) == 0 && !f.stream {
				return &usageError{errors.New("want a file, or --stream"), cmd}
			}
			o, err := f.options()
			if err != nil {
				return &usageError{err, cmd}
			}
			res, err := a.replay(cmd, &f, o, files)
			if err != nil {
				return err
			}
			return a.printResult(&f, res)
		},
	}
	f.register(c, a)
	c.Flags().StringVar(&f.policy, "policy", "", "YAML file with another policy (default: the gate over the recorded facts)")
	return c
}

// keysGiven says whether the command line names keys to check MACs with.
func (f *replayFlags) keysGiven(cmd *cobra.Command) bool { return cmd.Flags().Changed("keys") }
