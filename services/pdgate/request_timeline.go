package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/services/lifecycle/client"
	"github.com/pdgate/pdgate/statemachine"
	"github.com/pdgate/pdgate/statemachine/replay"
)

func (a *app) requestTimeline(f *requestFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "timeline ID",
		Short: "Draw a request's life: the time in each state, and each event",
		Long: `timeline reads the request's history from the log, as history does, and draws it. For a
request that is only in a file: pdgate replay timeline ID FILE.`,
		Args: requestIDArg,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.operator(cmd, f, queryTimeout, func(ctx context.Context, c *client.Client) error {
				h, err := c.History(ctx, args[0])
				if err != nil {
					return err
				}
				l, err := timelineOf(args[0], h)
				if err != nil {
					return err
				}
				if f.output == "json" {
					return printJSON(a.stdout, l)
				}
				return l.WriteText(a.stdout)
			})
		},
	}
}

// timelineOf folds a history into what is drawn of it.
func timelineOf(id string, h *events.HistoryView) (*replay.Timeline, error) {
	t := replay.NewTimelines(summary, id)
	q := &statemachine.Request{ID: id, State: events.New}
	for i, raw := range h.Events {
		e, err := events.Decode(raw)
		if err != nil {
			return nil, fmt.Errorf("event at %s: %w", h.Positions[i], err)
		}
		pos, err := events.ParsePosition(h.Positions[i])
		if err != nil {
			return nil, err
		}
		before := q.State
		if err := statemachine.Fold(q, e, pos, ""); err != nil {
			t.Found("", replay.Evidence{Subject: id, Tenant: e.Tenant, Position: pos.String(), Time: e.Time, What: err.Error()})
		}
		t.See(&statemachine.Observation{Event: e, Position: pos, Before: before, Request: q})
	}
	if len(t.All()) == 0 {
		return nil, fmt.Errorf("no event of %s is recorded", id)
	}
	return t.All()[0], nil
}
