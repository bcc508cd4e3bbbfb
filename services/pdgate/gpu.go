package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/gpuworker/kvpool"
	"github.com/pdgate/pdgate/gpuworker/kvpool/kernels"
	"github.com/pdgate/pdgate/internal/gpu"
)

func (a *app) gpuCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "gpu",
		Short: "Prove and measure a device for KV pools",
		Args:  subcommandOnly,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	c.AddCommand(a.gpuSelftestCommand(), a.gpuBenchCommand(), a.gpuOwnerCommand())
	return c
}

// defaultGPU is the device that is proven where none is named: the one that every
// build has.
const defaultGPU = "interpreter"

func (a *app) gpuSelftestCommand() *cobra.Command {
	var (
		device string
		asJSON bool
		named  []string
	)
	c := &cobra.Command{
		Use:   "selftest",
		Short: "Run the conformance suite on a device",
		Long: `selftest runs the suite that the pool's devices are held to: fresh random data,
places for results that hold something else before, every wrong owner, generation
and range, torn copies; and the reference engine, whose answers and pages must
equal those in host memory bit for bit. The exit code is 1 if anything differs.

  pdgate gpu selftest --device interpreter    the embedded kernels, on any machine
  pdgate gpu selftest --device cuda:0         a GPU (a binary built for CUDA)`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sizes, err := pageSizes(device, named, gpu.PageSizes)
			if err != nil {
				return &usageError{err, cmd}
			}
			s, err := gpu.RunSelftest(cmd.Context(), device, sizes)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(a.stdout, s)
			} else {
				err = printSelftest(a.stdout, s)
			}
			if err == nil && !s.OK() {
				err = errors.New("the device does not do what it must: run no worker on it")
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&device, "device", defaultGPU, "cuda, cuda:N, or interpreter")
	f.StringSliceVar(&named, "page-bytes", nil, "page sizes, multiples of 16 (default: seven from 16 bytes to 2 MiB, to 40 KiB on the interpreter)")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

// pageSizes reads page sizes for a device that has a driver. The interpreter takes
// minutes for large pages: it gets those only where they are named.
func pageSizes(device string, named []string, standard []int) (sizes []int, err error) {
	if err := kvpool.CheckDevice(device); err != nil {
		return nil, err
	}
	if device == hostDevice {
		return nil, fmt.Errorf("device %q: want cuda, cuda:N or interpreter", device)
	}
	for _, s := range named {
		n, err := strconv.Atoi(s)
		if err != nil || n < 16 || n%16 != 0 || n > 64<<20 {
			return nil, fmt.Errorf("page-bytes %q: want multiples of 16, up to 64 MiB", s)
		}
		sizes = append(sizes, n)
	}
	if len(sizes) > 0 {
		return sizes, nil
	}
	for _, n := range standard {
		if device != defaultGPU || n < 64<<10 {
			sizes = append(sizes, n)
		}
	}
	return sizes, nil
}

func printSelftest(w io.Writer, s *gpu.Selftest) error {
	fmt.Fprintf(w, "%s (%s)\n", s.Name, s.Device)
	for _, p := range s.Parts {
		name, verdict := p.Name, "ok"
		if p.PageBytes > 0 {
			name = fmt.Sprintf("%s, pages of %d bytes", p.Name, p.PageBytes)
		}
		if p.Error != "" {
			verdict = "FAILED: " + p.Error
		}
		if _, err := fmt.Fprintf(w, "%-40s %6.2f s  %s\n", name, p.Seconds, verdict); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) gpuBenchCommand() *cobra.Command {
	var (
		cfg       gpu.BenchConfig
		asJSON    bool
		pull      bool
		named     []string
		atLeastOf = map[string]*float64{kvpool.MeasuredGather: new(float64), kvpool.MeasuredScrub: new(float64)}
	)
	c := &cobra.Command{
		Use:   "bench",
		Short: "Measure a device's kernels beside its own plain copy",
		Long: `bench times the page kernels and a pull across two processes. Each is held
against the device's own plain copy, or memset, of as many bytes in the same run.
Results are checked before their time counts. Run selftest first.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			cfg.PageSizes, err = pageSizes(cfg.Device, named, []int{32 << 10, 64 << 10, 2 << 20})
			for _, n := range cfg.PageSizes {
				if err == nil && (cfg.TotalBytes < int64(n) || cfg.PullBytes < int64(n) || cfg.TotalBytes/int64(n) > kernels.MaxJobs) {
					err = fmt.Errorf("page-bytes %d: bytes and pull-bytes must hold 1 to %d such pages", n, kernels.MaxJobs)
				}
			}
			if err = firstOf(err, atLeast("rounds", cfg.Rounds, 1)); err != nil {
				return &usageError{err, cmd}
			}
			if cfg.Dir, err = os.MkdirTemp("", "pdgate-gpu-"); err != nil {
				return fmt.Errorf("gpu bench: %w", err)
			}
			defer os.RemoveAll(cfg.Dir)
			cfg.Progress = func(format string, args ...any) { fmt.Fprintf(a.stderr, format+"\n", args...) }
			if pull {
				cfg.Owner = a.owner
			}
			b, err := gpu.RunBench(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			if asJSON {
				err = printJSON(a.stdout, b)
			} else {
				err = printGPUBench(a.stdout, b)
			}
			for _, r := range b.Rows {
				if want := atLeastOf[r.Operation]; want != nil && r.Ratio < *want {
					err = errors.Join(err, fmt.Errorf("pages of %d bytes: %s is %.3f of %s, want %.3f", r.PageBytes, r.Operation, r.Ratio, r.Against, *want))
				}
			}
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Device, "device", defaultGPU, "cuda, cuda:N, or interpreter (its times mean nothing)")
	f.StringSliceVar(&named, "page-bytes", nil, "page sizes, multiples of 16 (default: 32 KiB, 64 KiB and 2 MiB; on the interpreter 32 KiB)")
	f.Int64Var(&cfg.TotalBytes, "bytes", 2<<30-1<<20, "bytes of pages: several times the device's cache")
	f.Int64Var(&cfg.PullBytes, "pull-bytes", 512<<20, "bytes of one pull")
	f.IntVar(&cfg.Rounds, "rounds", 7, "times that each is measured, after two that warm up")
	f.Float64Var(atLeastOf[kvpool.MeasuredGather], "min-gather", 0, "exit with 1 where a gather with check is a smaller part of the plain copy")
	f.Float64Var(atLeastOf[kvpool.MeasuredScrub], "min-scrub", 0, "exit with 1 where a scrub is a smaller part of the plain memset")
	f.BoolVar(&pull, "pull", true, "measure pulls across two processes too")
	f.BoolVar(&asJSON, "json", false, "print JSON")
	return c
}

func printGPUBench(w io.Writer, b *gpu.Bench) error {
	fmt.Fprintf(w, "%s (%s), %d MiB of pages, median of %d\n", b.Name, b.Device, b.TotalBytes>>20, b.Rounds)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "page\toperation\tGB/s\tratio")
	for _, r := range b.Rows {
		ratio := ""
		if r.Against != "" {
			ratio = fmt.Sprintf("%.3f of %s", r.Ratio, r.Against)
		}
		fmt.Fprintf(t, "%d KiB\t%s\t%.3f\t%s\n", r.PageBytes>>10, r.Operation, r.GBs, ratio)
	}
	return t.Flush()
}

// owner starts this binary again as the owner of a pull's pages. What it says of a
// failure goes to our own errors.
func (a *app) owner(ctx context.Context) (io.WriteCloser, io.Reader, func() error, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("owner: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, "gpu", "owner")
	cmd.Env, cmd.Stderr = a.env, a.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("owner: %w", err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("owner: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, nil, fmt.Errorf("owner: %w", err)
	}
	return stdin, stdout, cmd.Wait, nil
}

func (a *app) gpuOwnerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "owner",
		Short:  "Serve pages to a bench",
		Hidden: true,
		RunE:   func(cmd *cobra.Command, _ []string) error { return gpu.RunOwner(cmd.Context(), a.stdin, a.stdout) },
	}
}
