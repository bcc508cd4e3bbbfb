package auditor

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"crypto/ed25519"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// Hold says what becomes of the legal hold, which stops everybody from taking
// anything off the stream.
type Hold string

const (
	// HoldKeep leaves it as it is. The zero Hold is HoldKeep.
	HoldKeep Hold = ""
	// HoldOn sets it.
	HoldOn Hold = "on"
	// HoldOff lifts it.
	HoldOff Hold = "off"
)

// Config describes a replica.
type Config struct {
	Name   string     // of the replica; replicas that share a log differ in it
	Dir    string     // tiles, index and state; created when missing
	Conn   *nats.Conn // as user auditor; it should reconnect for ever
	Domain string     // JetStream domain under which the connection sees the log
	LogKey []byte     // tells the log's own messages from foreign ones

	// Key signs. The name of the log goes with it into every checkpoint.
	Key ed25519.PrivateKey
	// Origin names a log that does not exist yet, as a URL without a scheme;
	// empty: pdgate.local/<random>. An existing log keeps its name, and another
	// one here is an error.
	Origin string

	Replicas int               // of the stream that holds the last signed tree; 0: 1
	Policy   []byte            // witnesses to ask, see audit.ParsePolicy; nil: none
	Hold     Hold              // the legal hold
	Listener net.Listener      // of the read API; nil: no HTTP
	Readers  []keyring.Reader  // who may read entries and receipts over HTTP
	Recorder Recorder          // of every such read; nil: the Logger, and no exports
	Ready    func(head string) // called when the tree is caught up for the first time; nil: nobody waits

	Batch     int           // leaves of one commit at most; 0: 4,096
	Interval  time.Duration // between commits, and between signatures; 0: 1 s
	Takeover  time.Duration // without a signature although one is due, until another replica signs; 0: 5 s
	Witnesses time.Duration // how long a witness may take; 0: 10 s

	Logger *slog.Logger // nil discards

	// step is called before each commit point; an error ends the replica as a
	// crash there would.
	step func(point string) error
	// headsAfter stands in for the constant of that name; 0: as it is.
	headsAfter int64
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case !events.ValidName(c.Name):
		return c, fmt.Errorf("auditor: Name %q: want 1 to 64 letters, digits, '-' and '_'", c.Name)
	case c.Dir == "":
		return c, errors.New("auditor: Dir is empty")
	case c.Conn == nil:
		return c, errors.New("auditor: Conn is nil")
	case len(c.Key) != ed25519.PrivateKeySize:
		return c, fmt.Errorf("auditor: Key has %d bytes, want %d", len(c.Key), ed25519.PrivateKeySize)
	case c.Batch < 0 || c.Interval < 0 || c.Takeover < 0 || c.Witnesses < 0 || c.Replicas < 0:
		return c, errors.New("auditor: Batch, Interval, Takeover, Witnesses and Replicas want 0 or more")
	case c.Hold != HoldKeep && c.Hold != HoldOn && c.Hold != HoldOff:
		return c, fmt.Errorf("auditor: Hold %q: want %q, %q or nothing", c.Hold, HoldOn, HoldOff)
	}
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.Interval, time.Second)
	def(&c.Takeover, 5*time.Second)
	def(&c.Witnesses, 10*time.Second)
	if c.Batch == 0 {
		c.Batch = 4096
	}
	if c.Replicas == 0 {
		c.Replicas = 1
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Recorder == nil {
		c.Recorder = logRecorder{c.Logger}
	}
	if c.headsAfter == 0 {
		c.headsAfter = headsAfter
	}
	if c.step == nil {
		c.step = func(string) error { return nil }
	}
	return c, nil
}
