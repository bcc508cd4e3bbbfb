package journal_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/events/journal/journaltest"
)

// broken is a journal with one guard taken away.
type broken struct {
	journal.Journal
	raw    *journaltest.Log
	append func(b *broken, env *events.Envelope, reply func(journal.Reply)) error
	handle func(n int, env *events.Envelope, handle func(*events.Envelope) error) error
	read   func(env *events.Envelope, err error) (*events.Envelope, error)
	swap   bool // Follow does not report gaps
	known  func([]journal.Known) []journal.Known
	extent func(*journal.Extent)
}

func (b *broken) Extent(ctx context.Context) (*journal.Extent, error) {
	x, err := b.Journal.Extent(ctx)
	if b.extent != nil && err == nil {
		b.extent(x)
	}
	return x, err
}

func (b *broken) Append(env *events.Envelope, reply func(journal.Reply)) error {
	if b.append != nil {
		return b.append(b, env, reply)
	}
	return b.Journal.Append(env, reply)
}

func (b *broken) Follow(ctx context.Context, next uint64, handle func(*events.Envelope) error, known ...journal.Known) error {
	n := 0
	if b.known != nil && len(known) > 0 {
		known = b.known(known)
	}
	h := handle
	if b.handle != nil {
		h = func(e *events.Envelope) error { n++; return b.handle(n, e, handle) }
	}
	err := b.Journal.Follow(ctx, next, h, known...)
	if gap, ok := err.(*journal.GapError); ok && b.swap {
		return b.Journal.Follow(ctx, gap.To, h, known...)
	}
	return err
}

func (b *broken) Read(ctx context.Context, seq uint64) (*events.Envelope, error) {
	env, err := b.Journal.Read(ctx, seq)
	if b.read != nil {
		return b.read(env, err)
	}
	return env, err
}

// TestSuiteCatches runs the suite over journals that are broken on purpose: each
// must fail the check named for it.
func TestSuiteCatches(t *testing.T) {
	for _, c := range []struct {
		name   string
		broken broken
		deaf   bool // OnForeign is not called
		fails  string
	}{
		{name: "no compare-and-swap", fails: "one of many racers wins", broken: broken{append: func(b *broken, env *events.Envelope, reply func(journal.Reply)) error {
			seq, err := b.raw.Inject(events.LogSubject(env.Partition), map[string]string{
				events.HeaderExpected: strconv.FormatUint(env.Expected, 10), events.HeaderEnvelope: env.ID,
				events.HeaderMAC: events.MAC(journaltest.Key, env.Partition, env.Expected, env.Lines),
			}, env.Lines)
			reply(journal.Reply{Kind: journal.Stored, Seq: seq})
			return err
		}}},
		{name: "a refusal is shown as success", fails: "wrong expectation is refused", broken: broken{append: func(b *broken, env *events.Envelope, reply func(journal.Reply)) error {
			return b.Journal.Append(env, func(r journal.Reply) {
				r.Kind = journal.Stored
				reply(r)
			})
		}}},
		{name: "no retry is ever refused", fails: "lost reply is settled by the log", broken: broken{append: func(b *broken, env *events.Envelope, reply func(journal.Reply)) error {
			return b.Journal.Append(env, func(r journal.Reply) {
				if r.Kind == journal.Refused {
					r = journal.Reply{Kind: journal.Unknown}
				}
				reply(r)
			})
		}}},
		{name: "reply comes twice", fails: "one of many racers wins", broken: broken{append: func(b *broken, env *events.Envelope, reply func(journal.Reply)) error {
			return b.Journal.Append(env, func(r journal.Reply) { reply(r); reply(r) })
		}}},
		{name: "no reply", fails: "append", broken: broken{append: func(b *broken, env *events.Envelope, reply func(journal.Reply)) error {
			return b.Journal.Append(env, func(journal.Reply) {})
		}}},
		{name: "follow skips", fails: "follow from a sequence", broken: broken{handle: func(n int, env *events.Envelope, handle func(*events.Envelope) error) error {
			if n == 2 {
				return nil
			}
			return handle(env)
		}}},
		{name: "follow doubles", fails: "follow from a sequence", broken: broken{handle: func(n int, env *events.Envelope, handle func(*events.Envelope) error) error {
			if n == 2 {
				if err := handle(env); err != nil {
					return err
				}
			}
			return handle(env)
		}}},
		{name: "follow swallows the handler's error", fails: "follow ends with the handler's error", broken: broken{handle: func(n int, env *events.Envelope, handle func(*events.Envelope) error) error {
			_ = handle(env)
			return nil
		}}},
		{name: "foreign messages are believed", fails: "foreign messages count for nothing", broken: broken{handle: func(n int, env *events.Envelope, handle func(*events.Envelope) error) error {
			if journal.Foreign(env) {
				env.Lines = []byte("garbage\n")
			}
			return handle(env)
		}}},
		{name: "foreign messages are not handed over", fails: "foreign messages count for nothing", broken: broken{handle: func(n int, env *events.Envelope, handle func(*events.Envelope) error) error {
			if journal.Foreign(env) {
				return nil
			}
			return handle(env)
		}}},
		{name: "foreign messages raise no alarm", fails: "foreign messages count for nothing", deaf: true},
		{name: "foreign messages can be read", fails: "read", broken: broken{read: func(env *events.Envelope, err error) (*events.Envelope, error) {
			if err != nil && env == nil {
				return &events.Envelope{}, nil
			}
			return env, err
		}}},
		{name: "read gives other bytes", fails: "history", broken: broken{read: func(env *events.Envelope, err error) (*events.Envelope, error) {
			if env != nil {
				env.Lines = append([]byte("one line more\n"), env.Lines...)
			}
			return env, err
		}}},
		{name: "known messages are handed over", fails: "known messages are passed over", broken: broken{known: func([]journal.Known) []journal.Known { return nil }}},
		{name: "others' messages are passed over too", fails: "known messages are passed over", broken: broken{known: func(known []journal.Known) []journal.Known {
			return []journal.Known{func(p int, seq uint64, mac string) bool { return known[0](p, seq, mac) || seq == 7 }}
		}}},
		{name: "a cut log is called trimmed", fails: "extent says where the log begins, and why", broken: broken{extent: func(x *journal.Extent) {
			x.Messages, x.First, x.Ops = x.Messages+x.First-1, min(x.First, 1), 0
		}}},
		{name: "a trim is not found", fails: "extent says where the log begins, and why", broken: broken{extent: func(x *journal.Extent) { x.Ops = 0 }}},
		{name: "gaps are passed over", fails: "deleted messages are a gap", broken: broken{swap: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := memoryLog(t, journal.Single)
			open := l.Open
			raw := *l
			l.Open = func(onForeign func(*journal.ForeignError)) (journal.Journal, error) {
				if c.deaf {
					onForeign = nil
				}
				j, err := open(onForeign)
				b := c.broken
				b.Journal, b.raw = j, &raw
				return &b, err
			}
			for _, check := range journaltest.Checks() {
				if check.Name != c.fails {
					continue
				}
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				if err := check.Run(ctx, l); err == nil {
					t.Errorf("check %q passes", c.fails)
				} else {
					t.Log(err)
				}
				return
			}
			t.Errorf("there is no check %q", c.fails)
		})
	}
}
