package canary

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Schedule runs a canary over and over, where it is this process's turn.
type Schedule struct {
	Every  time.Duration
	Turn   func() bool                                // whether this process is to run it now
	Canary func(ctx context.Context) (*Canary, error) // made for each round: keys may change
	Done   func(*Report, error)                       // after each model; nil: nobody looks
}

// Run goes on until ctx ends. A round that fails is followed by the next.
func (s Schedule) Run(ctx context.Context, log *slog.Logger) {
	t := time.NewTicker(s.Every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if s.Turn() {
			s.round(ctx, log)
		}
	}
}

func (s Schedule) round(ctx context.Context, log *slog.Logger) {
	c, err := s.Canary(ctx)
	if err != nil {
		log.Error("canary cannot run", "err", err)
		return
	}
	models, err := c.Models(ctx)
	if err != nil {
		log.Warn("canary cannot run", "err", err)
		return
	}
	for _, m := range models {
		r, err := c.Run(ctx, m)
		args := []any{"model", m, "verdict", r.Verdict, "passed", r.count(Pass), "refused", r.count(Refused), "wrong", r.count(Wrong),
			"foreign", r.count(Foreign), "unreachable", r.count(Unreachable), "took", r.Took, "position", r.Position}
		switch {
		case ctx.Err() != nil:
			return
		case r.Quarantined:
			log.Error("canary quarantined the model", args...)
		case err != nil && !errors.Is(err, ErrNoVerdict):
			log.Error("canary ran", append(args, "err", err)...)
		case err != nil || r.Verdict != events.CanaryClean:
			log.Warn("canary ran", append(args, "err", err)...)
		default:
			log.Info("canary ran", args...)
		}
	}
}
