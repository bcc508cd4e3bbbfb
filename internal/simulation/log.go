package simulation

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/statemachine"
)

// stream is the log: messages of all partitions in one sequence, with a
// compare-and-swap on each partition's last.
type stream struct {
	w    *world
	all  []*events.Envelope // all[i] has sequence i+1
	tail map[int]uint64     // partition -> its last message

	// The auditor reads along. It sees the log and nothing else.
	auditor *statemachine.Checker
}

func newStream(w *world) *stream {
	return &stream{w: w, tail: map[int]uint64{}, auditor: statemachine.NewChecker(statemachine.CheckerConfig{
		Partitions: w.partitions, Key: w.logKey, Slack: slack, Keep: time.Hour,
	})}
}

// writer is one replica's connection to the log. It implements journal.Journal.
type writer struct {
	w *world
	l *life
}

// Append implements journal.Journal: the envelope is on its way, and may be lost
// on it, and so may the answer. A refusal or a shrug proves nothing, as on the
// real server.
func (j *writer) Append(env *events.Envelope, reply func(journal.Reply)) error {
	w := j.w
	if w.chance(0.01) {
		return errors.New("not connected")
	}
	env.MAC = events.MAC(w.logKey, env.Partition, env.Expected, env.Lines)
	e := *env
	e.Lines = bytes.Clone(env.Lines)
	if w.chance(w.odds.lost) {
		w.say("%s: an append to %s is lost", j.l.name, events.LogSubject(e.Partition))
		return nil
	}
	w.after(w.delay(), func() { j.arrive(&e, reply) })
	return nil
}

func (j *writer) arrive(env *events.Envelope, reply func(journal.Reply)) {
	w, s := j.w, j.w.log
	answer := func(r journal.Reply) {
		if w.chance(w.odds.lost) {
			w.say("%s: the log's reply is lost", j.l.name)
			return
		}
		w.on(j.l, w.delay(), func() { reply(r) })
	}
	tail := s.tail[env.Partition]
	refused := journal.Reply{Kind: journal.Refused, Hint: tail}
	if w.chance(0.3) {
		refused.Hint = 0
	}
	unknown := journal.Reply{Kind: journal.Unknown, Err: errors.New("no leader")}
	switch {
	case w.chance(0.02):
		answer(unknown)
	case env.Expected != tail || w.chance(0.02):
		w.seen["append refused"]++
		answer(refused)
	default:
		seq := s.store(env, j.l.name)
		switch {
		case w.chance(0.02): // by a deposed leader; the append landed all the same
			w.seen["refused but landed"]++
			answer(refused)
		case w.chance(0.02):
			answer(unknown)
		default:
			answer(journal.Reply{Kind: journal.Stored, Seq: seq})
		}
	}
	if w.chance(w.odds.crash) {
		w.seen["crash after append"]++
		w.crashReplica(j.l) // between append and answer
	}
}

func (s *stream) store(env *events.Envelope, by string) uint64 {
	env.Seq = uint64(len(s.all)) + 1
	s.all = append(s.all, env)
	s.tail[env.Partition] = env.Seq
	if err := s.auditor.Add(env); err != nil {
		s.w.breach(statemachine.RuleLog, "%v", err)
	}
	s.w.recite(env, by)
	s.w.logMoved()
	return env.Seq
}

// Read implements journal.Journal.
func (j *writer) Read(_ context.Context, seq uint64) (*events.Envelope, error) {
	if seq == 0 || seq > uint64(len(j.w.log.all)) {
		return nil, journal.ErrNotFound
	}
	return j.w.log.all[seq-1], nil
}

// Last implements journal.Journal.
func (j *writer) Last(context.Context) (uint64, error) { return uint64(len(j.w.log.all)), nil }

// Extent implements journal.Journal: nothing leaves a simulated log.
func (j *writer) Extent(context.Context) (*journal.Extent, error) {
	n := uint64(len(j.w.log.all))
	return &journal.Extent{First: min(n+1, 1), Last: n, Messages: n}, nil
}

// Follow implements journal.Journal. Replicas follow by deliveries instead.
func (j *writer) Follow(context.Context, uint64, func(*events.Envelope) error, ...journal.Known) error {
	return journal.ErrClosed
}

// recite writes an envelope's events into the transcript.
func (w *world) recite(env *events.Envelope, by string) {
	_ = events.Split(env.Lines, func(i int, line []byte) error {
		e, err := events.Decode(line)
		if err != nil {
			return err // the auditor says so
		}
		w.seen[string(e.Type)]++
		what := ""
		switch d := e.Data.(type) {
		case *events.CommandDenied:
			what = string(d.Command) + " in " + string(d.State) + ": " + string(d.Code) + ": " + d.Message
			w.stopped["lifecycle "+string(d.Command)+": "+string(d.Code)]++
		case *events.RequestFailed:
			what = d.Error.Error()
		case *events.RequestRejected:
			what = d.Error.Error()
			w.stopped["lifecycle rejected: "+string(d.Error.Code)]++
		case *events.RequestReleased:
			what = d.Worker + " " + d.Reason
		case *events.TransferGranted:
			what = d.Worker + " from " + d.Owner
		case *events.WorkerLeft:
			what = d.Reason
		}
		w.say("log %s: %s %s by %s for %s %s", events.Position{Seq: env.Seq, Line: i}, e.Type, short(e.Subject), by, e.Principal, what)
		return nil
	})
}

// short is the part of a request id that differs between requests of one run.
func short(id string) string {
	if len(id) == 36 {
		return "r" + id[33:]
	}
	return id
}
