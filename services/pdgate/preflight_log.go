package main

import (
	"context"
	"errors"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/preflight"
)

// describeLog adds to l what the log's stream is like.
func describeLog(ctx context.Context, nc *nats.Conn, l preflight.Log) preflight.Log {
	js, err := jetstream.NewWithDomain(nc, broker.AuditDomain)
	if err != nil {
		l.Unseen = err.Error()
		return l
	}
	s, err := js.Stream(ctx, events.LogStream)
	switch {
	case errors.Is(err, jetstream.ErrStreamNotFound):
		l.Problem, l.Fix = "there is no stream "+events.LogStream, "start lifecycle: it makes the stream"
		return l
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		l.Problem, l.Fix = "the NATS server has no JetStream for the log", "enable JetStream, and take the accounts from: pdgate nats --print-config"
		return l
	case err != nil:
		l.Unseen, l.Fix = err.Error(), "look at the NATS server"
		return l
	}
	cfg := s.CachedInfo().Config
	l.Replicas = cfg.Replicas
	for _, d := range journal.Weaknesses(&cfg) {
		l.Weak = append(l.Weak, preflight.Weakness{Text: d.Field + " is " + d.Have + ", want " + d.Want, Fix: d.Fix})
	}
	return l
}
