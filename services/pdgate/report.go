package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/statemachine/replay"
)

// maxReport bounds a report that is read.
const maxReport = 256 << 20

// reportFlags are the command line of report.
type reportFlags struct {
	replayFlags
	statement                  replay.Statement
	phase                      string
	detected, aware, contained string
	previous, recompute, html  string
}

func (a *app) reportCommand() *cobra.Command {
	f := reportFlags{replayFlags: replayFlags{gate: true}}
	c := &cobra.Command{
		Use:   "report [FILE…]",
		Short: "Write the incident report of a trace as JSON and HTML, or recompute one",
		Long: `report replays a trace and puts what it says under what people say: when the incident
was detected, what caused it, what was done. Every number comes from the trace.

--phase initial, interim or final; --previous names the report that this one
supersedes, whose statements it keeps unless the command line says otherwise. A final
report wants a cause, measures, the time of containment, and a recorded notification to
every exposed tenant; what is missing is listed, and the exit code is 3.

--recompute REPORT replays the same trace and compares every number with the report's:
exit code 1 where one differs.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, files []string) error {
			if len(files) == 0 && !f.stream {
				return &usageError{errors.New("want a file, or --stream"), cmd}
			}
			if f.recompute != "" {
				return a.recompute(cmd, &f, files)
			}
			if f.out == "" {
				return &usageError{errors.New("out: want a file to write the report to"), cmd}
			}
			if err := f.fill(); err != nil {
				return &usageError{err, cmd}
			}
			return a.writeReport(cmd, &f, files)
		},
	}
	f.register(c, a)
	c.AddCommand(a.reportNotify())
	p := c.Flags()
	p.StringVar(&f.out, "out", "", "file to write the JSON to; it must not exist")
	p.StringVar(&f.html, "html", "", "file to write the HTML page to; it must not exist")
	p.StringVar(&f.recompute, "recompute", "", "report to compute again from the same trace")
	p.StringVar(&f.previous, "previous", "", "report that this one supersedes")
	p.StringVar(&f.phase, "phase", "", "initial, interim or final (default: the previous one's, or initial)")
	p.StringVar(&f.statement.IncidentID, "incident-id", "", "name of the incident")
	p.StringVar(&f.detected, "detected-at", "", "time (RFC 3339) when it was detected")
	p.StringVar(&f.aware, "aware-at", "", "time when you knew that it is a breach; 72 hours run from here")
	p.StringVar(&f.contained, "contained-at", "", "time when it was stopped")
	p.StringVar(&f.statement.RootCause, "root-cause", "", "what caused it")
	p.StringArrayVar(&f.statement.Measures, "measure", nil, "what was done; may be repeated")
	p.StringSliceVar(&f.statement.Categories, "data-category", nil, "kind of data that was exposed (default: unknown)")
	p.StringVar(&f.policy, "policy", "", "YAML file with a policy for the what-if (default: the gate)")
	return c
}

// fill completes the statement from the flags and from the report before.
func (f *reportFlags) fill() error {
	s := &f.statement
	var errs []error
	moment := func(name, text string, to *time.Time) {
		if text == "" {
			return
		}
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %q: want a time like 2026-01-02T15:04:05Z", name, text))
		}
		*to = t.UTC()
	}
	moment("detected-at", f.detected, &s.DetectedAt)
	moment("aware-at", f.aware, &s.AwareAt)
	moment("contained-at", f.contained, &s.ContainedAt)
	s.Measures = slices.DeleteFunc(s.Measures, func(m string) bool { return m == "" })
	s.Version, s.Phase = 1, replay.Phase(f.phase)
	if f.previous != "" {
		was, digest, err := readReport(f.previous)
		if err != nil {
			return fmt.Errorf("previous: %w", err)
		}
		s.Supersedes = digest
		s.Version = was.Version + 1
		keep := func(to *string, from string) {
			if *to == "" {
				*to = from
			}
		}
		at := func(to *time.Time, from time.Time) {
			if to.IsZero() {
				*to = from
			}
		}
		keep(&s.IncidentID, was.IncidentID)
		keep(&s.RootCause, was.RootCause)
		keep((*string)(&s.Phase), string(was.Phase))
		at(&s.DetectedAt, was.DetectedAt)
		at(&s.AwareAt, was.AwareAt)
		at(&s.ContainedAt, was.ContainedAt)
		if len(s.Measures) == 0 {
			s.Measures = was.Measures
		}
		if len(s.Categories) == 0 && was.WhyUnknown == "" {
			s.Categories = was.Categories
		}
	}
	switch s.Phase {
	case "":
		s.Phase = replay.PhaseInitial
	case replay.PhaseInitial, replay.PhaseInterim, replay.PhaseFinal:
	default:
		errs = append(errs, fmt.Errorf("phase %q: want initial, interim or final", s.Phase))
	}
	return firstOf(errs...)
}

// readReport reads a report, and the digest that the next one names it by.
func readReport(path string) (*replay.Report, string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxReport))
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	r := &replay.Report{}
	if err := d.Decode(r); err != nil || r.Format != replay.ReportFormat {
		return nil, "", fmt.Errorf("%s: want a %s", path, replay.ReportFormat)
	}
	sum := sha256.Sum256(b)
	return r, "sha256:" + hex.EncodeToString(sum[:]), nil
}

func (a *app) writeReport(cmd *cobra.Command, f *reportFlags, files []string) error {
	var p *page
	var err error
	if f.html != "" {
		p, err = a.page(cmd, &f.replayFlags, files, nil)
	} else {
		p = &page{}
		o, oerr := f.options()
		if oerr != nil {
			return &usageError{oerr, cmd}
		}
		p.Result, err = a.replay(cmd, &f.replayFlags, o, files)
	}
	if err != nil {
		return err
	}
	p.Report = replay.NewReport(f.statement, p.Result)
	p.Title = "Incident report " + f.statement.IncidentID
	if err := createFile(f.out, func(w *os.File) error { return printJSON(w, p.Report) }); err != nil {
		return err
	}
	if f.html != "" {
		if err := createFile(f.html, func(w *os.File) error { return p.write(w) }); err != nil {
			return err
		}
	}
	fmt.Fprintln(a.stdout, p.Result.Verdict.Line)
	exit := p.Result.Verdict.Exit
	if missing := p.Report.Check(); len(missing) > 0 {
		fmt.Fprintf(a.stdout, "the %s report lacks: %s\n", p.Report.Phase, strings.Join(missing, ", "))
		exit = max(exit, replay.Incomplete)
	}
	if exit != replay.Clean {
		return &exitError{int(exit)}
	}
	return nil
}

func (a *app) recompute(cmd *cobra.Command, f *reportFlags, files []string) error {
	r, _, err := readReport(f.recompute)
	if err != nil {
		return &unreadableError{err}
	}
	o, err := f.options()
	if err != nil {
		return &usageError{err, cmd}
	}
	res, err := a.replay(cmd, &f.replayFlags, o, files)
	if err != nil {
		return err
	}
	differs, err := r.Recompute(res)
	if err != nil {
		return err
	}
	for _, d := range differs {
		fmt.Fprintln(a.stdout, replay.Printable(d))
	}
	if len(differs) > 0 {
		return &exitError{exitFailure}
	}
	fmt.Fprintf(a.stdout, "every number of %s comes out again\n", f.recompute)
	if res.Verdict.Exit > replay.Violated {
		return &exitError{int(res.Verdict.Exit)}
	}
	return nil
}
