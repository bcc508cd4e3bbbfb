package journal

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Config is what a writer or reader of the log needs to know.
type Config struct {
	// Key is the log key, at least 16 bytes. Whoever holds it can write events
	// that readers believe.
	Key []byte

	// Partitions is the number of partitions; 0 takes an existing stream's
	// number, and events.DefaultPartitions for a stream that is created. The
	// number is fixed when the stream is created: another one is refused.
	Partitions int

	// Domain is the JetStream domain under which the connection's account sees
	// the log; empty: the log is the account's own. Through a domain the log is
	// read only: a stream that does not exist is ErrNoLog, and is not created.
	Domain string

	// Replicas is how many servers must hold the stream; 0 is 1. An existing
	// stream with more is accepted.
	Replicas int

	// OnForeign is told of each foreign message that Follow passes, on the
	// goroutine of Follow; nil: only the log line is written. A Follow that
	// begins before one tells of it again.
	OnForeign func(*ForeignError)

	// ReplyTimeout is how long the reply function of an append that was never
	// answered is kept; 0 is a minute. Silence is the caller's to judge.
	ReplyTimeout time.Duration

	// Logger gets reconnects of the follower and foreign messages; nil discards.
	Logger *slog.Logger
}

func (c Config) withDefaults() (Config, error) {
	if len(c.Key) < minKey {
		return c, fmt.Errorf("journal: the log key has %d bytes, want at least %d", len(c.Key), minKey)
	}
	if c.Partitions < 0 || c.Partitions > events.MaxPartitions {
		return c, fmt.Errorf("journal: %d partitions, want 1 to %d", c.Partitions, events.MaxPartitions)
	}
	if c.Replicas < 0 || c.Replicas > 5 {
		return c, fmt.Errorf("journal: %d replicas, want 1 to 5", c.Replicas)
	}
	if c.ReplyTimeout < 0 {
		return c, errors.New("journal: negative reply timeout")
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.ReplyTimeout == 0 {
		c.ReplyTimeout = time.Minute
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// foreign reports a foreign message in both ways.
func (c *Config) foreign(err *ForeignError) {
	c.Logger.Error("foreign message in the log", "seq", err.Seq, "subject", err.Subject, "bytes", err.Bytes, "cause", err.Err)
	if c.OnForeign != nil {
		c.OnForeign(err)
	}
}
