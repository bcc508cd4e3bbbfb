package canary

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// TestSchedule: rounds come at the interval, where it is this process's turn, and
// one that fails is followed by the next.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn, asked, rounds := 0, 0, []time.Duration{}
		start := time.Now()
		s := Schedule{Every: time.Minute, Turn: func() bool { asked++; turn++; return turn%2 == 0 },
			Canary: func(context.Context) (*Canary, error) {
				rounds = append(rounds, time.Since(start))
				return nil, errors.New("no key")
			}}
		ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute+time.Second)
		defer cancel()
		s.Run(ctx, slog.New(slog.DiscardHandler))
		if asked != 6 || len(rounds) != 3 || rounds[0] != 2*time.Minute || rounds[2] != 6*time.Minute {
			t.Errorf("asked %d times, rounds at %v", asked, rounds)
		}
	})
}
