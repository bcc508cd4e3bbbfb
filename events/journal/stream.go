package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
)

// metaPartitions is the stream's metadata key for the number of partitions. The
// number belongs to the stream: a request's partition is a hash modulo it, so
// another number would split histories.
const metaPartitions = "pdgate_partitions"

// apiTimeout bounds one request to the JetStream API where the caller's context
// has no deadline of its own.
const apiTimeout = 10 * time.Second

// tryTimeout is how long one try to open the stream waits for an answer.
const tryTimeout = 2 * time.Second

// wanted is the configuration that a created stream gets. Each field that could
// make an acknowledged event disappear, or change, is in [weaknesses] too.
func wanted(cfg Config, partitions int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              events.LogStream,
		Description:       "pdgate: the log of request lifecycles. Append-only; never edit.",
		Subjects:          []string{events.LogAll},
		Retention:         jetstream.LimitsPolicy,
		Storage:           jetstream.FileStorage,
		Replicas:          cfg.Replicas,
		Discard:           jetstream.DiscardNew, // should a limit ever be set: refuse the new, keep the old
		MaxConsumers:      -1,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgsPerSubject: -1,
		MaxMsgSize:        -1,
		Duplicates:        time.Second, // no message carries an id; the window would only cost memory
		DenyDelete:        true,
		DenyPurge:         false, // for good otherwise; whose user may purge is the account's to say
		AllowDirect:       true,
		Compression:       jetstream.NoCompression,
		PersistMode:       jetstream.DefaultPersistMode,
		Metadata:          map[string]string{metaPartitions: strconv.Itoa(partitions)},
	}
}

// Difference is one way in which a stream is weaker than asked for.
type Difference struct {
	Field, Want, Have, Fix string
}

// WeakStreamError lists why a stream cannot be the log.
type WeakStreamError struct {
	Stream      string
	Differences []Difference
}

// Error implements error: one line.
func (e *WeakStreamError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "journal: stream %s is weaker than asked for:", e.Stream)
	for i, d := range e.Differences {
		if i > 0 {
			b.WriteByte(';')
		}
		fmt.Fprintf(&b, " %s is %s, want %s (%s)", d.Field, d.Have, d.Want, d.Fix)
	}
	return b.String()
}

// recreate is the fix for what a server does not let be changed.
const recreate = "cannot be changed: back the stream up, delete it, let pdgate create it, restore"

func edit(flag string) string { return "nats stream edit " + events.LogStream + " " + flag }

// weaknesses compares a stream's configuration with what the log needs. It
// accepts what is stronger (more replicas), and ignores what cannot lose, change
// or add an event.
func weaknesses(cfg Config, have *jetstream.StreamConfig) []Difference {
	var ds []Difference
	check := func(ok bool, field string, want, is any, fix string) {
		if !ok {
			ds = append(ds, Difference{field, fmt.Sprint(want), fmt.Sprint(is), fix})
		}
	}
	unlimited := func(n int64) bool { return n <= 0 }

	check(slices.Equal(have.Subjects, []string{events.LogAll}), "subjects", events.LogAll, strings.Join(have.Subjects, ","), edit("--subjects '"+events.LogAll+"'"))
	check(have.Storage == jetstream.FileStorage, "storage", jetstream.FileStorage, have.Storage, recreate)
	check(have.Retention == jetstream.LimitsPolicy, "retention", jetstream.LimitsPolicy, have.Retention, recreate)
	check(have.Replicas >= cfg.Replicas, "replicas", cfg.Replicas, have.Replicas, edit("--replicas "+strconv.Itoa(cfg.Replicas)))
	check(have.PersistMode == jetstream.DefaultPersistMode, "persist mode", jetstream.DefaultPersistMode, have.PersistMode, "async cancels sync_interval: "+recreate)
	check(have.DenyDelete, "deny delete", true, false, edit("--deny-delete"))
	check(have.AllowDirect, "allow direct", true, false, edit("--allow-direct"))
	check(have.Discard == jetstream.DiscardNew, "discard", jetstream.DiscardNew, have.Discard, edit("--discard new"))
	check(have.MaxAge == 0, "max age", "none", have.MaxAge, edit("--max-age -1"))
	check(unlimited(have.MaxMsgs), "max messages", "none", have.MaxMsgs, edit("--max-msgs -1"))
	check(unlimited(have.MaxBytes), "max bytes", "none", have.MaxBytes, edit("--max-bytes -1"))
	check(unlimited(have.MaxMsgsPerSubject), "max messages per subject", "none", have.MaxMsgsPerSubject, edit("--max-msgs-per-subject -1"))
	check(have.MaxMsgSize <= 0 || have.MaxMsgSize >= 1<<20, "max message size", "none, or at least 1 MiB", have.MaxMsgSize, edit("--max-msg-size -1"))
	check(have.Compression == jetstream.NoCompression, "compression", jetstream.NoCompression, have.Compression, "it makes a random read a hundred times slower: "+edit("--compression none"))
	check(!have.NoAck, "no ack", false, true, edit("--ack"))
	check(!have.Sealed, "sealed", false, true, recreate)
	check(!have.AllowRollup, "allow rollup", false, true, edit("--no-allow-rollup"))
	check(!have.AllowMsgTTL, "allow message ttl", false, true, recreate)
	check(have.SubjectDeleteMarkerTTL == 0, "subject delete marker ttl", "none", have.SubjectDeleteMarkerTTL, edit("--subject-del-markers-ttl 0"))
	check(!have.AllowMsgSchedules, "allow message schedules", false, true, recreate)
	check(!have.AllowMsgCounter, "allow message counter", false, true, recreate)
	check(have.Mirror == nil, "mirror", "none", "set", recreate)
	check(len(have.Sources) == 0, "sources", "none", len(have.Sources), "it takes in messages without a compare-and-swap: remove them with nats stream edit")
	check(have.SubjectTransform == nil, "subject transform", "none", "set", "it moves messages between partitions: remove it with nats stream edit")
	check(have.RePublish == nil, "republish", "none", "set", "it copies events out of the log's account: remove it with nats stream edit")

	n, err := strconv.Atoi(have.Metadata[metaPartitions])
	if err != nil || n < 1 || n > events.MaxPartitions {
		check(false, "metadata "+metaPartitions, "the number of partitions", strconv.Quote(have.Metadata[metaPartitions]), "set it to the number that the stream was written with: "+edit("--metadata "+metaPartitions+"=N"))
	} else {
		check(cfg.Partitions == 0 || cfg.Partitions == n, "partitions", cfg.Partitions, n, "the number is fixed for the life of a stream: configure "+strconv.Itoa(n)+", or 0 to take the stream's")
	}
	return ds
}

// settle runs ensure until it is answered: a cluster that is electing its leader
// drops requests without a word.
func settle(ctx context.Context, js jetstream.JetStream, cfg Config) (jetstream.Stream, int, error) {
	for {
		try, cancel := context.WithTimeout(ctx, tryTimeout)
		s, n, err := ensure(try, js, cfg)
		cancel()
		if !silent(err) || ctx.Err() != nil {
			return s, n, err
		}
	}
}

// silent says whether nobody answered.
func silent(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout)
}

// ensure creates the stream or checks the one that is there. It returns the
// number of partitions. It may run again after any of its steps.
func ensure(ctx context.Context, js jetstream.JetStream, cfg Config) (jetstream.Stream, int, error) {
	s, err := js.Stream(ctx, events.LogStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) && cfg.Domain != "" {
		return nil, 0, ErrNoLog
	}
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		n := cfg.Partitions
		if n == 0 {
			n = events.DefaultPartitions
		}
		s, err = js.CreateStream(ctx, wanted(cfg, n))
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			// Another replica created it between the two calls: its
			// configuration is judged like any other that is found.
			s, err = js.Stream(ctx, events.LogStream)
		}
	}
	if err != nil {
		return nil, 0, err
	}
	have := s.CachedInfo().Config
	// A server may also change what it was asked to create, so a created stream
	// is judged too.
	if ds := weaknesses(cfg, &have); len(ds) > 0 {
		return nil, 0, &WeakStreamError{Stream: events.LogStream, Differences: ds}
	}
	n, err := strconv.Atoi(have.Metadata[metaPartitions])
	return s, n, err
}

// Error codes of the JetStream API that explain has an answer to.
const (
	codeNoPeers     = 10005 // no suitable peers for placement
	codeNoReplicas  = 10074 // replicas > 1 not supported in non-clustered mode
	codeOverlap     = 10065 // subjects overlap with an existing stream
	codeNoResources = 10028 // the account's or the server's limits are too small
)

// explain turns what the JetStream API says into one line with a remedy.
func explain(err error, nc *nats.Conn, cfg Config) error {
	where := nc.ConnectedUrlRedacted()
	if where == "" {
		where = "(not connected)"
	}
	var api *jetstream.APIError
	var weak *WeakStreamError
	switch {
	case errors.As(err, &weak):
		return weak
	case errors.Is(err, ErrNoLog):
		return ErrNoLog
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("journal: the NATS server %s has no JetStream: add \"jetstream { store_dir: …, sync_interval: always }\" to its configuration and restart it, or use pdgate's embedded server: %w", where, err)
	case errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return fmt.Errorf("journal: JetStream is off for this account on NATS server %s: add \"jetstream: enabled\" to the account, or connect with the log's account: %w", where, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("journal: the NATS server %s does not answer requests for stream %s: either the user may not use $JS.API.>, or the cluster has no majority now: %w", where, events.LogStream, err)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrDisconnected):
		return fmt.Errorf("journal: no connection to NATS: %w", err)
	case errors.As(err, &api):
		switch api.ErrorCode {
		case codeNoPeers, codeNoReplicas:
			return fmt.Errorf("journal: %d replicas need a cluster of at least %d servers with JetStream, NATS server %s has not that many: add servers, or configure fewer replicas: %w", cfg.Replicas, cfg.Replicas, where, err)
		case codeOverlap:
			return fmt.Errorf("journal: another stream on NATS server %s already takes subjects under %s: remove them from it: %w", where, events.LogAll, err)
		case codeStorage, codeInsufficient, codeNoResources:
			return fmt.Errorf("journal: the NATS server %s has no room for stream %s: free disk space there, or raise max_file_store: %w", where, events.LogStream, err)
		}
	}
	return fmt.Errorf("journal: open stream %s on NATS server %s: %w", events.LogStream, where, err)
}

// Weaknesses lists the ways in which a stream could lose, change or add an event.
// How many replicas it needs is the operator's to say, and not looked at.
func Weaknesses(have *jetstream.StreamConfig) []Difference { return weaknesses(Config{}, have) }
