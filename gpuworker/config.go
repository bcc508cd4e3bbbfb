package gpuworker

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/engine"
	"github.com/pdgate/pdgate/gpuworker/handoff"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// Lifecycle is what a worker asks of the lifecycle service. Do sets the sender,
// and sends the same content again until it has an answer or ctx ends; a denial
// is an answer.
type Lifecycle interface {
	Do(ctx context.Context, c *events.Command) (*events.Answer, error)
	Get(ctx context.Context, requestID string) (*events.RequestView, error)
	Info(ctx context.Context) (*events.InfoView, error)
	Heartbeat(b events.Heartbeat) error
}

// Queue hands out work of the worker's model and role. Next blocks until there
// is some, or ctx ends.
type Queue interface {
	Next(ctx context.Context) (Item, error)
}

// Item is one delivery of one piece of work. Until it is acknowledged, or given
// back, it belongs to this worker as long as Progress is called.
type Item interface {
	Work() *events.Work
	Ack() error
	Nak(delay time.Duration) error
	Progress() error
}

// Prompts fetches what the gateway holds: [events.PartPrompt] and
// [events.PartSampling].
type Prompts interface {
	FetchPrompt(ctx context.Context, w *events.Work, part string) ([]byte, error)
}

// Output carries pieces of output to the request's gateway.
type Output interface {
	SendOutput(w *events.Work, c events.OutputChunk) error
}

// Guards takes checks away. The zero value has all of them and is what runs;
// tests of the whole system remove some and see which of the others stops what
// gets through.
type Guards struct {
	NoRefusedCheck bool           // ask an engine's result whether it was refused, before all else
	NoPromptCheck  bool           // the prompt has the admitted digest and token count
	NoStateCheck   bool           // ask the lifecycle's view of a request while its inputs are fetched
	NoTransferred  bool           // decode only with the durable answer to transferred
	NoDrain        bool           // let transfers end before the pages are given back
	Handoff        handoff.Guards // those of the hand-off
}

// Config describes a Worker.
type Config struct {
	Name  string      // as lifecycle and NATS know it
	Role  events.Role // RolePrefill or RoleDecode
	Model string      // what it serves; also the work queue's

	Engine engine.Engine
	Pool   *kvpool.Pool  // its epoch is the worker's boot epoch; of an external engine, an account of its memory
	Pairs  *engine.Pairs // external engines: which workers fail together; shared with the others of the process; nil: nobody remembers

	Lifecycle Lifecycle
	Queue     Queue
	Prompts   Prompts
	Output    Output // decode only

	// Preflight is asked once the worker is registered, and before it takes any
	// work; an error ends this life. nil: nothing is asked.
	Preflight func(context.Context) error

	Identity  ed25519.PrivateKey         // the key that grants name
	GrantKeys func() []ed25519.PublicKey // lifecycle keys that may sign grants

	Listen    string // prefill only: data plane, "tcp://host:port" or "unix:///path"; "": a port of 127.0.0.1
	Advertise string // what peers dial; "": where it listens

	Concurrency int           // engine calls at once; 0: 4
	Lease       time.Duration // how long finished KV waits for its pull; 0: 30 s
	Grace       time.Duration // how long a stopping worker goes on with what it has, and twice that to report its end; 0: 5 s
	Timeout     time.Duration // of the data plane's frames; 0: handoff.DefaultTimeout

	Beat  time.Duration // between heartbeats; 0: 1 s
	Sweep time.Duration // between looks at each held request; 0: 5 s

	Clock  func() time.Time // for leases and deadlines; nil: time.Now
	Logger *slog.Logger     // nil: nothing is logged
	Guards Guards           // zero value: all checks
}

// Defaults of [Config].
const (
	DefaultConcurrency = 4
	DefaultLease       = 30 * time.Second
	DefaultGrace       = 5 * time.Second
	DefaultBeat        = time.Second
	DefaultSweep       = 5 * time.Second
)

// Fixed intervals.
const (
	tick          = 100 * time.Millisecond // of the loop that looks after leases
	progressEvery = 5 * time.Second        // well inside the queue's acknowledgement time
	leaseMargin   = 500 * time.Millisecond // pages outlive the lease by this, so that none ends on the edge
	drainTime     = 2 * time.Second        // for transfers of a request that is transferred already
	misfitDelay   = 100 * time.Millisecond // before work that this pool can never hold comes again
	elsewhereWait = 20 * time.Millisecond  // before work that waits at another worker's engine comes again
	tryAgain      = time.Second            // before work that could not be done comes again
	askTime       = 2 * time.Second        // for an answer that can be done without
)

// Work that a pool can never hold is given back so often before the lifecycle is
// asked whether another one holds it; so many are remembered.
const (
	misfitTries = 3
	maxMisfits  = 1024
)

// noAddress is what a decode worker registers: it serves no pages, and the port
// is the discard service's.
const noAddress = "tcp://127.0.0.1:9"

func (c *Config) validate() error {
	if !events.ValidName(c.Name) || !events.ValidModel(c.Model) {
		return errors.New("gpuworker: Name and Model are needed")
	}
	switch {
	case c.Role != events.RolePrefill && c.Role != events.RoleDecode:
		return fmt.Errorf("gpuworker %s: Role is %q", c.Name, c.Role)
	case c.Engine == nil || c.Pool == nil || c.Lifecycle == nil || c.Queue == nil || c.Prompts == nil:
		return fmt.Errorf("gpuworker %s: Engine, Pool, Lifecycle, Queue and Prompts are needed", c.Name)
	case c.Role == events.RoleDecode && c.Output == nil:
		return fmt.Errorf("gpuworker %s: decode needs Output", c.Name)
	case len(c.Identity) != ed25519.PrivateKeySize || c.GrantKeys == nil:
		return fmt.Errorf("gpuworker %s: Identity and GrantKeys are needed", c.Name)
	case c.Pool.PageBytes() != c.Engine.Info().PageBytes():
		return fmt.Errorf("gpuworker %s: the pool's pages have %d bytes, the engine's %d", c.Name, c.Pool.PageBytes(), c.Engine.Info().PageBytes())
	case c.Concurrency < 0 || c.Lease < 0 || c.Grace < 0 || c.Timeout < 0 || c.Beat < 0 || c.Sweep < 0:
		return fmt.Errorf("gpuworker %s: a limit is negative", c.Name)
	case c.Lease > 0 && c.Lease < 2*leaseMargin:
		return fmt.Errorf("gpuworker %s: a lease of %v is too short", c.Name, c.Lease)
	}
	set(&c.Concurrency, DefaultConcurrency)
	set(&c.Lease, DefaultLease)
	set(&c.Grace, DefaultGrace)
	set(&c.Beat, DefaultBeat)
	set(&c.Sweep, DefaultSweep)
	if c.Listen == "" {
		c.Listen = "tcp://127.0.0.1:0"
	}
	if c.Clock == nil {
		c.Clock = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

func set[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}
