package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/internal/bench"
)

func (a *app) benchGrowth(b *benchFlags) *cobra.Command {
	var sizes []string
	g := bench.GrowthOptions{}
	c := &cobra.Command{
		Use:   "growth",
		Short: "What a log costs that has grown: disk, memory, throughput, starts, replay",
		Long: `growth fills one log with whole request lifecycles, through the state machine, the
partition loops and the journal, and stops at each size to measure on that very
log: its bytes, the memory of server and service, whole lifecycles over NATS, a
clean start, a start after kill -9 of both, and a replay by the checker. A size
of 100,000 requests comes first, for the others to be compared with. Filling
leaves fsync to the system; what is measured has the fsync that is asked for.

With --retention-requests the service trims the log while it is filled, as it does
with --retention-bytes and without an auditor: disk, memory and starts stay as they are.

A request is 7 events of about 700 bytes, and a row of the read side: a million
requests take about 6 GB. A disk without room for all of it is refused.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := b.complete(a)
			for _, s := range sizes {
				n, bad := strconv.Atoi(s)
				if bad != nil || n < 1 {
					err = fmt.Errorf("requests %q: want numbers above 0", s)
				}
				g.Requests = append(g.Requests, n)
			}
			err = firstOf(err, atLeast("retention-requests", g.Retain, 0))
			if err != nil {
				return &usageError{err, cmd}
			}
			r, err := bench.RunGrowth(cmd.Context(), b.options, g)
			if err != nil {
				return err
			}
			return b.write(a, r)
		},
	}
	c.Flags().StringSliceVar(&sizes, "requests", []string{"1000000"}, "sizes to measure at, in requests")
	c.Flags().IntVar(&g.Retain, "retention-requests", 0, "about how many requests the live log keeps while it is filled: the oldest leave (0: all stay)")
	c.Flags().IntVar(&g.Baseline, "baseline", 0, "size that comes before them, for comparison (0: 100,000)")
	return c
}
