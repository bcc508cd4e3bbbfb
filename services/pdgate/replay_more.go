package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/events/audit/export"
	"github.com/pdgate/pdgate/statemachine/replay"
)

// createFile writes a file that must not exist, whole or not at all.
func createFile(path string, write func(*os.File) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return fmt.Errorf("out: %s exists: name another file, or remove it", path)
	}
	if err != nil {
		return fmt.Errorf("out: %w", err)
	}
	err = write(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		_ = os.Remove(path) // the first error is the one to tell
	}
	return err
}

func (a *app) replayDiff() *cobra.Command {
	var f replayFlags
	match := string(replay.MatchID)
	c := &cobra.Command{
		Use:   "diff A B",
		Short: "Compare two traces, or two runs of the same load, request by request",
		Long: `diff replays both and compares how each request went: its state, error, token counts,
events and denials. --match id compares records of the same requests; --match order
compares the first request of one run with the first of the other, for two runs of the
same load. The exit code is 1 where they differ.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, files []string) error {
			if match != string(replay.MatchID) && match != string(replay.MatchOrder) {
				return &usageError{fmt.Errorf("match %q: want id or order", match), cmd}
			}
			o, err := f.options()
			if err != nil {
				return &usageError{err, cmd}
			}
			var res [2]*replay.Result
			var out [2]*replay.Outcomes
			for i := range 2 {
				out[i] = replay.NewOutcomes()
				o.Observed = out[i].See
				if res[i], err = a.replay(cmd, &f, o, files[i:i+1]); err != nil {
					return err
				}
			}
			d := replay.Compare(res[0], res[1], out[0], out[1], replay.Match(match))
			if f.format == "json" {
				err = printJSON(a.stdout, d)
			} else {
				err = d.WriteText(a.stdout, f.limit)
			}
			if err == nil && d.Exit() != replay.Clean {
				err = &exitError{int(d.Exit())}
			}
			return err
		},
	}
	f.register(c, a)
	c.Flags().StringVar(&match, "match", match, "which requests are the same: id or order")
	return c
}

// replayExport writes events in a form that other tools show, and that replays to
// the same result.
func (a *app) replayExport(cmd *cobra.Command, f *replayFlags, files []string) error {
	src, p, done, err := a.ownSource(cmd, f, files)
	if err != nil {
		return err
	}
	defer done()
	if p.Unplaced && f.export != "events" && f.export != "trace" {
		return &usageError{fmt.Errorf("export %s: lines and bundles do not say where their events stand: take a trace, or --stream", f.export), cmd}
	}
	if p.Unplaced && f.export == "trace" {
		return &usageError{errors.New("export trace: lines and bundles have no envelopes: take a trace, or --stream"), cmd}
	}
	return createFile(f.out, func(w *os.File) error {
		switch f.export {
		case "otlp":
			return export.Write(w, export.OTLP, exportRecords(src))
		case "perfetto":
			return replay.Perfetto(w, src)
		case "trace":
			return replay.Copy(w, src, p.Partitions, false)
		}
		return replay.Copy(w, src, 0, true)
	})
}

func (a *app) replayTimeline() *cobra.Command {
	var f replayFlags
	c := &cobra.Command{
		Use:   "timeline ID [FILE…]",
		Short: "Draw one request's life from a trace",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && !f.stream {
				return &usageError{errors.New("want a file, or --stream"), cmd}
			}
			all, _, err := a.timelines(cmd, &f, args[1:], args[:1])
			if err != nil {
				return err
			}
			if len(all) == 0 {
				return fmt.Errorf("the input has no event of %s", args[0])
			}
			if f.format == "json" {
				return printJSON(a.stdout, all[0])
			}
			return all[0].WriteText(a.stdout)
		},
	}
	f.register(c, a)
	return c
}

// timelines replays with single requests followed.
func (a *app) timelines(cmd *cobra.Command, f *replayFlags, files, ids []string) ([]*replay.Timeline, *replay.Result, error) {
	o, err := f.options()
	if err != nil {
		return nil, nil, &usageError{err, cmd}
	}
	t := replay.NewTimelines(summary, ids...)
	o.Observed = t.See
	o.Violation = t.Found
	res, err := a.replay(cmd, f, o, files)
	return t.All(), res, err
}

func (a *app) replayHTML() *cobra.Command {
	f := replayFlags{gate: true}
	var requests []string
	c := &cobra.Command{
		Use:   "html [FILE…]",
		Short: "Write what was found as one HTML page that needs no network",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, files []string) error {
			if len(files) == 0 && !f.stream || f.out == "" {
				return &usageError{errors.New("want a file, or --stream, and --out"), cmd}
			}
			p, err := a.page(cmd, &f, files, requests)
			if err != nil {
				return err
			}
			if err := createFile(f.out, func(w *os.File) error { return p.write(w) }); err != nil {
				return err
			}
			if p.Result.Verdict.Exit != replay.Clean {
				return &exitError{int(p.Result.Verdict.Exit)}
			}
			return nil
		},
	}
	f.register(c, a)
	c.Flags().StringVar(&f.out, "out", "", "file to write; it must not exist")
	c.Flags().StringSliceVar(&requests, "request", nil, "requests whose timelines to draw (default: the first affected ones)")
	return c
}

// maxDrawn is how many affected requests a page draws by itself.
const maxDrawn = 20

// page replays once for the result, and once more for the timelines of what was
// found: which requests those are is not known before.
func (a *app) page(cmd *cobra.Command, f *replayFlags, files, requests []string) (*page, error) {
	o, err := f.options()
	if err != nil {
		return nil, &usageError{err, cmd}
	}
	p := &page{Title: "Replay of " + fmt.Sprint(files)}
	o.Maps = &p.Maps
	if p.Result, err = a.replay(cmd, f, o, files); err != nil {
		return nil, err
	}
	if len(requests) == 0 {
		for _, r := range p.Result.Exposure.Responses[:min(maxDrawn, len(p.Result.Exposure.Responses))] {
			requests = append(requests, r.Request)
		}
	}
	if len(requests) > 0 && !f.stream {
		if p.Timelines, _, err = a.timelines(cmd, f, files, requests); err != nil {
			return nil, err
		}
	}
	return p, nil
}
