package lifecycle

import (
	"context"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
)

// Core is a replica without connections, files and goroutines: the same nodes,
// shards, deadlines and chores as [Service.Run] has, moved by calls instead of
// tickers and subscriptions. A simulation holds several, and so decides what
// happens when, and what is lost in between. Everything enters and leaves in the
// form that the wire has.
//
// Its methods are called from one goroutine.
type Core struct {
	s   *Service
	end uint64 // what the log held at the start
}

// CoreConfig is a replica's surroundings. Config.Bus and Config.StateDir are not
// used; of Config.Journal only Append is, and the envelopes of the log come in
// through [Core.Follow].
type CoreConfig struct {
	Config
	Now    func() time.Time                         // the replica's clock
	Send   func(*nats.Msg)                          // answers, notifications and work items; must not call back
	Unique func() string                            // a name that nobody else has
	Queued func(model string, role events.Role) int // items in a work queue, waiting and with workers
}

// NewCore makes a replica that has read nothing. It serves once it followed the
// log up to and with the sequence end.
func NewCore(cfg CoreConfig, end uint64) (*Core, error) {
	cfg.StateDir = ""
	s, err := newService(cfg.Config, func(m *nats.Msg) error { cfg.Send(m); return nil }, cfg.Unique)
	if err != nil {
		return nil, err
	}
	s.now = cfg.Now
	s.work = &dispatcher{svc: s, kick: make(chan struct{}, 1), consumers: map[queueKey]bool{}}
	s.work.depth = func(_ context.Context, k queueKey) int { return cfg.Queued(k.model, k.role) }
	s.roster.listen(s.now())
	s.saw(end)
	s.following.Store(end == 0)
	return &Core{s, end}, nil
}

// Follow takes the log's next envelope. A *partition.GapError says that one
// before it is missing: follow again from [Core.Applied] + 1.
func (c *Core) Follow(env *events.Envelope) error {
	if n := c.s.nodeAt(env.Partition); n != nil {
		if err := n.follow(env, c.s.now()); err != nil {
			return err
		}
	}
	c.s.saw(env.Seq)
	c.s.followed.Store(env.Seq)
	if env.Seq >= c.end {
		c.s.following.Store(true)
	}
	return nil
}

// Applied is the sequence of the last message that a partition has folded.
func (c *Core) Applied(partition int) uint64 { return c.s.nodeAt(partition).applied() }

// CaughtUp says whether the replica has folded what the log held at its start.
func (c *Core) CaughtUp() bool { return c.s.caughtUp() }

// Command takes a command off the bus.
func (c *Core) Command(subject, reply string, payload []byte) { c.s.take(subject, reply, payload) }

// Heartbeat takes a worker's sign of life off the bus.
func (c *Core) Heartbeat(subject string, payload []byte) { c.s.heartbeat(subject, payload) }

// Prefer says whether the replica is the preferred one of a partition. One that
// becomes so dispatches what waits, as after a takeover.
func (c *Core) Prefer(partition int, mine bool) {
	n := c.s.nodeAt(partition)
	if was := n.mine.Swap(mine); mine && !was && n.shard != nil {
		c.s.work.again(n)
	}
}

// Tick passes time to the partitions: silences and deadlines.
func (c *Core) Tick() {
	now := c.s.now()
	for _, n := range c.s.all() {
		n.tick(now)
	}
}

// Chores ends the lives of silent workers, and what hung on lives that ended.
func (c *Core) Chores() { c.s.choresOnce(c.s.now()) }

// Sweep dispatches lost work again.
func (c *Core) Sweep(ctx context.Context) { c.s.work.sweep(ctx, c.s.now()) }

// View is a request as memory has it; nil if it has none.
func (c *Core) View(id string) *events.RequestView { return c.s.view(id) }
