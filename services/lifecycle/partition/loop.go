package partition

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Loop is one replica's view of one partition. It is not safe for concurrent
// use: the caller serialises its inputs.
type Loop struct {
	cfg     Config
	machine Machine
	port    Port
	prefix  string // of envelope ids

	applied uint64
	attempt *attempt // nil: none
	token   uint64   // of the last attempt

	// behind: no attempt is sent before until, unless applied reaches hint
	// first, or the reply to the overtaken attempt comes. A zero until is: not
	// behind.
	until     time.Time
	hint      uint64
	overtaken uint64 // token of the attempt whose reply is still out; 0: none

	backoff  time.Duration // next wait after an unknown; 0: the configured one
	lastErr  error         // of the last unknown reply: for callers that time out
	below    int           // refusals in a row that named a tail before applied
	tailTold bool          // the alarm for them was raised

	queue queue
	seen  map[string]struct{}

	// Of the attempt that ended last: the next one's buffers.
	lines   []byte
	entries []entry

	stats  Stats
	broken mutation // tests only
	kept   Draft    // for a mutation
}

// attempt is an envelope that was sent and is not settled. It lives only while
// it was sent under applied.
type attempt struct {
	token    uint64
	id       string
	lines    []byte
	entries  []entry
	deadline time.Time
}

// entry is one event of an envelope, with its canonical bytes and their hash.
type entry struct {
	event *events.Event
	line  []byte
	hash  string
}

// New is a loop that has folded nothing. The caller first feeds it the log from
// the beginning, or from where a snapshot of the machine ends (see Resume).
func New(cfg Config, machine Machine, port Port) (*Loop, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Loop{
		cfg: cfg, machine: machine, port: port,
		prefix: cfg.Writer + "-" + name(cfg.Partition) + "-",
		queue:  newQueue(),
		seen:   map[string]struct{}{},
	}, nil
}

// Applied is the sequence of the partition's last message that was folded.
func (l *Loop) Applied() uint64 { return l.applied }

// Resume says that the machine already holds everything up to and with applied.
// It comes before any other input.
func (l *Loop) Resume(applied uint64) { l.applied = applied }

// Stats is what happened so far.
func (l *Loop) Stats() Stats {
	s := l.stats
	s.Waiting, s.Applied = l.queue.callers, l.applied
	return s
}

// Command takes one command from one caller. A recorded answer is given at once;
// everything else waits for the log.
func (l *Loop) Command(c *events.Command, to any, now time.Time) {
	key := c.Key()
	if a, ok := l.machine.Recorded(c, key); ok && l.broken != noRecorded {
		l.stats.Recorded++
		l.port.Answer(to, a, nil)
		return
	}
	if l.queue.callers >= l.cfg.QueueLimit {
		l.stats.Backpressure++
		if l.queue.holds(key) {
			// An earlier call's command waits here: "not taken" would be false.
			l.port.Answer(to, nil, l.unavailable())
			return
		}
		l.port.Answer(to, nil, events.NewError(events.CodeBackpressure, strconv.Itoa(l.queue.callers)+" commands wait for the log; try again later"))
		return
	}
	if n := l.queue.subject[c.Subject]; n >= l.cfg.SubjectLimit && c.Role != events.RoleLifecycle && !l.queue.holds(key) {
		l.stats.Backpressure++
		l.port.Answer(to, nil, events.NewError(events.CodeBackpressure, strconv.Itoa(n)+" commands of this request wait for the log; try again later"))
		return
	}
	if l.broken == denyFromMemory && l.answerFromMemory(c, key, to, now) {
		return
	}
	if l.queue.add(c, key, to, now.Add(l.cfg.CommandTimeout), l.broken != noJoin) {
		l.stats.Joined++
		return
	}
	l.flush(now)
}

// Followed takes one message of this partition from the log, in the log's order,
// own ones included. A *GapError says that a message before it is missing.
func (l *Loop) Followed(env *events.Envelope, now time.Time) error {
	if env.Seq <= l.applied {
		return nil // folded at its acknowledgement, or followed twice
	}
	if len(env.Lines) == 0 {
		l.foreign(env.Seq, now)
		return nil
	}
	if env.Expected != l.applied && l.broken != anyPrev {
		l.stats.Gaps++
		return &GapError{Partition: l.cfg.Partition, Seq: env.Seq, Expected: env.Expected, Applied: l.applied}
	}
	a := l.attempt
	// An earlier envelope of this replica, given up after a silence, is own too:
	// nobody else dispatches what it led to.
	own := strings.HasPrefix(env.ID, l.prefix)
	switch {
	case a == nil:
		l.fold(env.Seq, l.decode(env), own)
	case a.id == env.ID && bytes.Equal(a.lines, env.Lines):
		// Ours, before its acknowledgement. It needs no decoding.
		l.stats.Own++
		l.fold(env.Seq, a.entries, true)
	default:
		l.overtake(a, now)
		l.fold(env.Seq, l.decode(env), own)
	}
	l.flush(now)
	return nil
}

// foreign passes over a message that no holder of the log key wrote. It changes
// nothing but the tail: the next append must name it, or nothing could ever be
// appended again. That no message before it was missed is the follower's
// promise; a foreign message proves nothing.
func (l *Loop) foreign(seq uint64, now time.Time) {
	l.stats.Foreign++
	l.port.Alarm(&ForeignError{Partition: l.cfg.Partition, Seq: seq})
	if l.broken == foreignIgnored {
		return
	}
	if l.attempt != nil {
		l.overtake(l.attempt, now)
	}
	l.advance(seq)
	l.flush(now)
}

// overtake ends an attempt that another's message came before: under a tail that
// has moved it can never land. The next attempt waits for this one's reply, or
// for a short time.
func (l *Loop) overtake(a *attempt, now time.Time) {
	l.stats.Overtaken++
	l.overtaken, l.until = a.token, now.Add(l.cfg.Backoff)
}

// Stored says that the attempt is the message seq. By the compare-and-swap it is
// the one after applied, so it is folded without waiting for the follower. A
// crash before the fold costs nothing: the log has the envelope, and whoever
// follows it folds the same lines.
func (l *Loop) Stored(token, seq uint64, now time.Time) {
	a := l.attempt
	if l.broken == foldStale && a != nil {
		token = a.token
	}
	if a == nil || a.token != token || seq <= l.applied && l.broken != keepAttempt {
		l.stale(token, 0, now)
		return
	}
	l.stats.Acked++
	l.backoff, l.lastErr = 0, nil
	l.fold(seq, a.entries, true)
	l.flush(now)
}

// Refused says that the expectation did not hold where it was looked at. It does
// not say that the envelope is not in the log. hint is the tail that the refusal
// named, 0 if it named none; it says how long to wait, and the next
// compare-and-swap is the judge.
func (l *Loop) Refused(token, hint uint64, now time.Time) {
	if l.attempt == nil || l.attempt.token != token {
		l.stale(token, hint, now)
		return
	}
	l.stats.Refused++
	if l.broken == refusedIsNo {
		l.answerNotApplied(l.attempt)
	}
	if l.broken == hintIsApplied && hint > l.applied {
		l.applied = hint
	}
	l.endAttempt()
	l.until, l.hint = now.Add(l.cfg.Backoff), hint
	if hint == 0 || hint >= l.applied {
		l.below = 0
		return
	}
	// A deposed leader may answer like that for a while. A log that stays so
	// has lost its tail.
	l.below++
	if l.below >= tailPatience && !l.tailTold {
		l.tailTold = true
		l.port.Alarm(&TailError{Partition: l.cfg.Partition, Tail: hint, Applied: l.applied})
	}
}

// tailPatience is how many refusals in a row must name a tail before applied. At
// the default backoff that takes a second.
const tailPatience = 50

// Unknown says that the log gave neither yes nor no: no responder, no leader, no
// space. err says more, and reaches the callers that time out.
func (l *Loop) Unknown(token uint64, err error, now time.Time) {
	if l.attempt == nil || l.attempt.token != token {
		l.stale(token, 0, now)
		return
	}
	l.unknown(err, now)
}

func (l *Loop) unknown(err error, now time.Time) {
	l.stats.Unknown++
	if l.broken == unknownIsNo {
		l.answerNotApplied(l.attempt)
	}
	l.endAttempt()
	l.lastErr = err
	l.backoff = min(max(2*l.backoff, l.cfg.Backoff), l.cfg.MaxBackoff)
	l.until, l.hint = now.Add(l.backoff), 0
}

// stale takes a reply for an attempt that is over. It changes nothing, but if it
// is the reply of the overtaken attempt, the next one need not wait longer.
func (l *Loop) stale(token, hint uint64, now time.Time) {
	l.stats.Stale++
	if token != l.overtaken || token == 0 {
		return
	}
	l.overtaken = 0
	l.hint = max(l.hint, hint)
	if l.applied >= l.hint {
		l.until = time.Time{}
	}
	l.flush(now)
}

// Tick passes time: silences, waits and callers' patience end. It is due every
// few milliseconds.
func (l *Loop) Tick(now time.Time) {
	if l.attempt != nil && now.After(l.attempt.deadline) {
		// Silence. The old copy lands before the new one or never; both are
		// sent under the same applied.
		l.stats.Unknown++
		if l.broken == silenceIsNo {
			l.answerNotApplied(l.attempt)
		}
		if l.broken != resendUndecided {
			l.endAttempt()
		} else {
			l.resend(now)
		}
	}
	if !l.until.IsZero() && now.After(l.until) {
		l.until, l.overtaken = time.Time{}, 0
	}
	l.queue.expire(now, func(to any) {
		l.stats.TimedOut++
		l.port.Answer(to, nil, l.unavailable())
	})
	l.flush(now)
}

// unavailable is what a caller hears whose command the log did not settle.
func (l *Loop) unavailable() *events.Error {
	msg := "the log did not settle the command in " + l.cfg.CommandTimeout.String() + "; it may still be recorded, and asking again gives its answer"
	if l.lastErr != nil {
		msg += " (" + l.lastErr.Error() + ")"
	}
	return events.NewError(events.CodeUnavailable, msg)
}
