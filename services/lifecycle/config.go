package lifecycle

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/statemachine"
)

// Version is what the service's endpoints announce.
const Version = "1.0.0"

// Config is one replica's.
type Config struct {
	Name         string                // of the replica, unique among those that run
	Journal      journal.Journal       // the log, through the log's connection; it stays the caller's
	Bus          *nats.Conn            // everything else; it stays the caller's, and should reconnect for ever
	Partitions   int                   // of the log
	GrantKey     ed25519.PrivateKey    // signs grants
	DigestSecret []byte                // keys the digests of tenants without a key of their own; at least 16 bytes
	TenantKeys   events.TenantKeys     // of the others; nil: no tenant has one
	LogKey       []byte                // authenticates snapshots, as it does the log; at least 16 bytes
	StateDir     string                // snapshots and the read side's file; "": neither is kept
	Timeouts     statemachine.Timeouts // zero fields: the defaults of statemachine.Timeouts
	Guards       statemachine.Guards   // the zero value: all on
	QueueLimit   int                   // most requests of a model that wait for prefill; 0: no limit
	Replicas     int                   // NATS servers that hold the work queues; 0: 1
	Retention    Retention             // the zero value: all of the log is kept
	Logger       *slog.Logger          // nil: nothing is logged

	// BootQuiet is how long a replica listens for others before it claims its
	// first partition; 0: 300 ms.
	BootQuiet time.Duration
	// SnapshotEvery is the time between snapshots; 0: one minute. A snapshot is
	// also written after 10,000 envelopes, and at a clean stop.
	SnapshotEvery time.Duration
	// FetchWait is how long a start on a trimmed log waits for another replica's
	// snapshot, where its own reaches not so far; 0: 15 seconds.
	FetchWait time.Duration
}

const minSecret = 16

// defaults of statemachine.Timeouts, where the service itself depends on them.
const (
	defaultRequest = 10 * time.Minute
	defaultFresh   = time.Minute
)

func (c Config) withDefaults() (Config, error) {
	switch {
	case !events.ValidName(c.Name):
		return c, fmt.Errorf("lifecycle: %q is not a replica's name", c.Name)
	case c.Journal == nil:
		return c, errors.New("lifecycle: Journal is missing")
	case c.Partitions < 1 || c.Partitions > events.MaxPartitions:
		return c, fmt.Errorf("lifecycle: %d partitions, want 1 to %d", c.Partitions, events.MaxPartitions)
	case len(c.GrantKey) != ed25519.PrivateKeySize:
		return c, fmt.Errorf("lifecycle: the grant key has %d bytes, want %d", len(c.GrantKey), ed25519.PrivateKeySize)
	case len(c.DigestSecret) < minSecret:
		return c, fmt.Errorf("lifecycle: the digest secret has %d bytes, want at least %d", len(c.DigestSecret), minSecret)
	case len(c.LogKey) < minSecret:
		return c, fmt.Errorf("lifecycle: the log key has %d bytes, want at least %d", len(c.LogKey), minSecret)
	case c.QueueLimit < 0:
		return c, errors.New("lifecycle: the queue limit is negative")
	case c.Replicas < 0:
		return c, errors.New("lifecycle: the number of replicas of the work queues is negative")
	case c.Retention.check() != nil:
		return c, c.Retention.check()
	case c.BootQuiet < 0 || c.SnapshotEvery < 0:
		return c, errors.New("lifecycle: BootQuiet and SnapshotEvery are 0 or more")
	}
	if c.Timeouts.Request <= 0 {
		c.Timeouts.Request = defaultRequest
	}
	if c.Timeouts.Fresh <= 0 {
		c.Timeouts.Fresh = defaultFresh
	}
	// An ended request must be remembered for longer than its id can be taken for
	// a fresh one, by a replica whose clock is behind.
	if c.Timeouts.Fresh > retain/2 {
		return c, fmt.Errorf("lifecycle: ids are fresh for %s, want at most %s: ended requests are forgotten after %s", c.Timeouts.Fresh, retain/2, retain)
	}
	if c.BootQuiet == 0 {
		c.BootQuiet = bootQuiet
	}
	if c.SnapshotEvery == 0 {
		c.SnapshotEvery = time.Minute
	}
	if c.FetchWait == 0 {
		c.FetchWait = fetchWait
	}
	c.Retention = c.Retention.withDefaults()
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}

// maxEnvelope is the most bytes of one envelope's lines: 512 KiB, or what the
// log takes in one message, if that is less.
func (c *Config) maxEnvelope() int {
	n := 512 << 10
	if j, ok := c.Journal.(interface{ MaxPayload() int }); ok {
		n = min(n, j.MaxPayload())
	}
	return n
}

// policy names the admission policy in force: a digest of what an admission
// depends on besides the recorded facts.
func (c *Config) policy() string {
	b, err := json.Marshal(struct {
		Timeouts   statemachine.Timeouts
		Guards     statemachine.Guards
		QueueLimit int
	}{c.Timeouts, c.Guards, c.QueueLimit})
	if err != nil {
		panic(err) // plain numbers and booleans
	}
	h := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(h[:16])
}
