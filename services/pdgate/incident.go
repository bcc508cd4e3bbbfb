package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/services/gateway"
)

// incident is one run of the public failure, both ways.
type incident struct {
	scene    scene
	threads  int
	without  []string
	device   string // of all pools
	record   string // directory for the logs of both runs; "": none
	progress func(format string, args ...any)
}

// verdict is what the two runs came to.
type verdict struct {
	Unguarded outcome  `json:"unguarded"`
	Guarded   outcome  `json:"guarded"`
	Without   []string `json:"without,omitempty"` // guards that were taken away
	PeakBytes int64    `json:"peak_rss_bytes,omitempty"`
}

// outcome is what the intruder got.
type outcome struct {
	Status    int      `json:"http_status"`
	Text      string   `json:"text,omitempty"`
	Error     string   `json:"error,omitempty"`
	Leaked    string   `json:"leaked,omitempty"` // bytes of the text that stand in a victim's prompt
	Victim    string   `json:"victim,omitempty"`
	Offset    int      `json:"victim_offset,omitempty"` // where in the victim's prompt
	RequestID string   `json:"request_id,omitempty"`
	StoppedBy string   `json:"stopped_by,omitempty"`
	History   []string `json:"history,omitempty"`
	Took      string   `json:"took"`
}

func (a *app) incidentCommand() *cobra.Command {
	var full, asJSON, peel bool
	var rebuild string
	var seed uint64
	in := incident{}
	c := &cobra.Command{
		Use:   "incident",
		Short: "Run the public failure, unguarded and guarded",
		Long: `incident runs the failure that made a serving cluster answer with other people's
data, twice, on the same faulty engine. A prompt that is longer than prefill
accepts is refused inside the engine, which then goes on with one placeholder
token. Without pdgate the queue asks only whether prefill has finished; decode
reads pages that still hold another customer's records. Behind pdgate the same
request goes through the real parts over HTTP.

Quick sizes by default; --full takes those of the public report: a prefill pool
of 681,280 tokens, a context of 1,048,576, a prompt of 1,000,000.

--record keeps the logs of both runs. --rebuild writes the log of two weeks of such a
cluster, with 155 answers from other requests' pages, for docs/forensics.md.

The exit code is 1 unless the unguarded run leaks and the guarded one answers 400
with the original error. With guards taken away it is 1 if foreign text comes out.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			g, err := guardsWithout(in.without)
			err = firstOf(err, kvpool.CheckDevice(in.device))
			if err != nil {
				return &usageError{err, cmd}
			}
			in.scene = quickScene()
			in.progress = func(string, ...any) {}
			if full {
				in.scene = fullScene()
				start := time.Now()
				in.progress = func(format string, args ...any) {
					fmt.Fprintf(a.stderr, "%6.1fs  %s\n", time.Since(start).Seconds(), fmt.Sprintf(format, args...))
				}
			}
			if rebuild != "" {
				return a.rebuildIncident(rebuild, seed)
			}
			if peel {
				return in.peel(cmd.Context(), a)
			}
			v, err := in.run(cmd.Context(), a, g)
			if err != nil {
				return err
			}
			if full {
				v.PeakBytes = peakRSS()
			}
			if asJSON {
				err = printJSON(a.stdout, v)
			} else {
				err = v.print(a.stdout, &in.scene)
			}
			return errors.Join(err, v.judge())
		},
	}
	f := c.Flags()
	f.BoolVar(&full, "full", false, "the public report's sizes (about 1 GB of memory and a minute)")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	deviceFlag(f, &in.device)
	f.IntVar(&in.threads, "threads", 0, "threads of one engine call (0: one for each CPU)")
	f.StringSliceVar(&in.without, "without", nil, "guards to take away: "+strings.Join(guardNames(), ", "))
	f.StringVar(&in.record, "record", "", "directory to write both runs' logs to, for pdgate replay: unguarded.trace and guarded.trace")
	f.StringVar(&rebuild, "rebuild", "", "instead, write the public incident's two weeks as a trace to this file")
	f.Uint64Var(&seed, "seed", 1, "of --rebuild")
	f.BoolVar(&peel, "peel", false, "take the guards away one after the other, and say which one stops it then")
	c.MarkFlagsMutuallyExclusive("peel", "without")
	c.MarkFlagsMutuallyExclusive("peel", "json")
	_ = c.RegisterFlagCompletionFunc("without", cobra.FixedCompletions(guardNames(), cobra.ShellCompDirectiveNoFileComp))
	return c
}

// judge says what is wrong with the outcome, nil if it is as it must be.
func (v *verdict) judge() error {
	var errs []error
	if u := v.Unguarded; u.Status != http.StatusOK || u.Leaked == "" {
		errs = append(errs, fmt.Errorf("the unguarded run shows no leak (HTTP %d): the failure is not reproduced", u.Status))
	}
	g := v.Guarded
	switch {
	case g.Leaked != "":
		errs = append(errs, fmt.Errorf("behind pdgate the answer holds %s's text", g.Victim))
	case len(v.Without) == 0 && (g.Status != http.StatusBadRequest || !strings.Contains(g.Error, "context_length_exceeded")):
		errs = append(errs, fmt.Errorf("behind pdgate the answer is HTTP %d, want 400 context_length_exceeded", g.Status))
	case g.Status == http.StatusOK:
		errs = append(errs, errors.New("behind pdgate the answer is HTTP 200 for a prompt that prefill refused"))
	}
	return errors.Join(errs...)
}

func (in *incident) run(ctx context.Context, a *app, g guards) (*verdict, error) {
	if in.threads == 0 {
		in.threads = runtime.GOMAXPROCS(0)
	}
	v := &verdict{Without: in.without}
	var err error
	if v.Unguarded, err = in.unguarded(ctx); err != nil {
		return nil, fmt.Errorf("unguarded run: %w", err)
	}
	debug.FreeOSMemory() // its pools, before the next ones
	if v.Guarded, err = in.guarded(ctx, a, g); err != nil {
		return nil, fmt.Errorf("guarded run: %w", err)
	}
	return v, nil
}

// unguarded serves the open path on a loopback port, so that both runs are asked
// by the same client.
func (in *incident) unguarded(ctx context.Context) (o outcome, err error) {
	s := &in.scene
	in.progress("without pdgate: a prefill pool of %d tokens, a decode pool of %d", s.prefillTokens, s.decodeTokens)
	open, err := newOpenServer(s, in.threads, in.device)
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, open.close()) }()
	open.rec = newOpenRecord(in, open)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return outcome{}, err
	}
	srv := &http.Server{Handler: open, ReadHeaderTimeout: 10 * time.Second}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() { served <- gateway.Serve(ctx, srv, l, 0, time.Second) }()
	defer func() {
		cancel()
		<-served
	}()
	url := "http://" + l.Addr().String()
	for i, c := range s.victims {
		in.progress("without pdgate: %s sends %d tokens of records", c.tenant, len(c.prompt))
		ans, err := complete(ctx, url, "", "faulty", c)
		if err == nil && ans.status != http.StatusOK {
			err = fmt.Errorf("HTTP %d: %s", ans.status, ans.problem)
		}
		if err != nil {
			return outcome{}, fmt.Errorf("%s: %w", s.victims[i].tenant, err)
		}
	}
	open.endBatch()
	in.progress("without pdgate: %s sends %d tokens, prefill takes at most %d", s.intruder.tenant, len(s.intruder.prompt), s.prefillTokens)
	start := time.Now()
	ans, err := complete(ctx, url, "", "faulty", s.intruder)
	if err != nil {
		return outcome{}, err
	}
	o = s.outcome(ans, time.Since(start))
	if o.Leaked != "" {
		o.StoppedBy = "nobody"
	}
	open.endBatch()
	return o, open.rec.write(in.record)
}

// outcome judges the intruder's answer.
func (s *scene) outcome(ans answer, took time.Duration) outcome {
	o := outcome{Status: ans.status, Text: ans.text, Error: ans.problem, RequestID: ans.requestID, Took: took.Round(time.Millisecond).String()}
	if l, ok := s.findLeak(ans.text); ok {
		o.Leaked, o.Victim, o.Offset = l.text, s.victims[l.victim].tenant, l.offset
	}
	return o
}
