package gpu

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// BenchConfig describes a benchmark.
type BenchConfig struct {
	Device     string
	PageSizes  []int
	TotalBytes int64  // of pages; several times what the device caches
	PullBytes  int64  // of one pull
	Rounds     int    // after two that warm up
	Dir        string // for sockets; short, a socket's path holds 103 bytes
	Owner      Owner  // nil: no pulls
	Progress   func(format string, args ...any)
}

// Bench is what was measured.
type Bench struct {
	Device     string `json:"device"`
	Name       string `json:"name"`
	TotalBytes int64  `json:"total_bytes"`
	Rounds     int    `json:"rounds"`
	Rows       []Row  `json:"rows"`
}

// Row is one operation on pages of one size. Ratio is its rate over that of the
// device's own plain operation of the same kind in the same run.
type Row struct {
	PageBytes int     `json:"page_bytes"`
	Operation string  `json:"operation"`
	GBs       float64 `json:"gb_per_s"` // of memory that is read or written: a copy counts twice
	Against   string  `json:"against,omitempty"`
	Ratio     float64 `json:"ratio,omitempty"`
}

// against is what each operation is held against.
var against = map[string]string{
	kvpool.MeasuredBare: kvpool.MeasuredCopy, kvpool.MeasuredGather: kvpool.MeasuredCopy, kvpool.MeasuredBoth: kvpool.MeasuredCopy,
	kvpool.MeasuredScrub: kvpool.MeasuredFill, kvpool.MeasuredSum: kvpool.MeasuredCopy, kvpool.MeasuredAudit: kvpool.MeasuredCopy,
}

// RunBench measures. Where the device gives a wrong result, it is an error.
func RunBench(ctx context.Context, cfg BenchConfig) (out *Bench, err error) {
	drv, err := kvpool.OpenDriver(cfg.Device)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, drv.Close()) }()
	out = &Bench{Device: cfg.Device, Name: drv.Name(), TotalBytes: cfg.TotalBytes, Rounds: cfg.Rounds}
	for _, size := range cfg.PageSizes {
		cfg.Progress("kernels on pages of %d KiB", size>>10)
		all, err := kvpool.Measure(drv, size, cfg.TotalBytes, cfg.Rounds)
		if err != nil {
			return nil, fmt.Errorf("pages of %d bytes: %w", size, err)
		}
		rates := map[string]float64{}
		for _, m := range all {
			rates[m.Name] = m.Rate()
			r := Row{PageBytes: size, Operation: m.Name, GBs: m.Rate() / 1e9, Against: against[m.Name]}
			if r.Against != "" {
				r.Ratio = m.Rate() / rates[r.Against]
			}
			out.Rows = append(out.Rows, r)
		}
		if cfg.Owner == nil {
			continue
		}
		pages := max(1, int(cfg.PullBytes/int64(size)))
		for _, network := range []string{"unix", "tcp"} {
			cfg.Progress("pulls of %d pages of %d KiB over %s", pages, size>>10, network)
			listen := "tcp://127.0.0.1:0"
			if network == "unix" {
				listen = "unix://" + filepath.Join(cfg.Dir, fmt.Sprintf("o%d", size))
			}
			took, err := pulls(ctx, cfg.Owner, OwnerConfig{Device: cfg.Device, PageBytes: size, Pages: pages, Listen: listen}, cfg.Rounds)
			if err != nil {
				return nil, fmt.Errorf("pull over %s, pages of %d bytes: %w", network, size, err)
			}
			rate := 2 * float64(pages) * float64(size) / median(took).Seconds()
			out.Rows = append(out.Rows, Row{PageBytes: size, Operation: "pull across two processes, " + network, GBs: rate / 1e9,
				Against: kvpool.MeasuredCopy, Ratio: rate / rates[kvpool.MeasuredCopy]})
		}
	}
	return out, nil
}

func median(t []time.Duration) time.Duration {
	t = slices.Sorted(slices.Values(t))
	return t[len(t)/2]
}
