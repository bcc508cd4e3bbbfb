package partition

import (
	"errors"
	"strconv"
	"time"

	"github.com/pdgate/pdgate/events"
)

var errTooLong = errors.New("event is longer than a log entry may be")

// decode reads another writer's envelope. A line that cannot be decoded keeps
// its number and is passed over.
func (l *Loop) decode(env *events.Envelope) []entry {
	var es []entry
	err := events.Split(env.Lines, func(i int, line []byte) error {
		e, err := events.Decode(line)
		if err != nil {
			l.undecodable(events.Position{Seq: env.Seq, Line: i}, err)
			es = append(es, entry{})
			return nil
		}
		es = append(es, entry{e, line, events.Hash(line)})
		return nil
	})
	if err != nil {
		l.undecodable(events.Position{Seq: env.Seq}, err)
	}
	return es
}

func (l *Loop) undecodable(pos events.Position, err error) {
	l.stats.Undecodable++
	l.port.Alarm(&LineError{Partition: l.cfg.Partition, Pos: pos, Err: err})
}

// fold applies one message. It is the only place where state changes and where
// answers are born; it ends the attempt, which either was this message or can
// never land.
func (l *Loop) fold(seq uint64, es []entry, own bool) {
	for i := range es {
		e := es[i].event
		if e == nil {
			continue
		}
		pos := events.Position{Seq: seq, Line: i}
		a := l.machine.Fold(e, pos, es[i].hash)
		l.stats.Lines++
		l.port.Committed(e, pos, es[i].line, own)
		if l.broken == onlyOwnSettles && !own {
			continue
		}
		w := l.queue.byKey[e.Command]
		for _, to := range l.queue.settle(e.Command) {
			l.port.Answer(to, a, nil)
		}
		if l.broken == settledStays && w != nil {
			l.queue.list = append(l.queue.list, &waiter{command: w.command, key: w.key})
			l.queue.n++
		}
	}
	if l.broken == keepAttempt {
		l.applied = max(l.applied, seq)
		return
	}
	l.advance(seq)
}

// advance moves the tail. An attempt under the old one is over.
func (l *Loop) advance(seq uint64) {
	l.applied = seq
	if l.broken != resendUndecided {
		l.endAttempt()
	}
	l.below, l.tailTold = 0, false
	if l.overtaken == 0 && seq >= l.hint {
		l.until = time.Time{}
	}
}

// endAttempt forgets the attempt. Its buffers are the next one's: whoever
// published it has copied what is still on its way.
func (l *Loop) endAttempt() {
	if a := l.attempt; a != nil {
		clear(a.entries)
		l.lines, l.entries = a.lines[:0], a.entries[:0]
		l.attempt = nil
	}
}

// flush decides what waits and sends it, if nothing is on its way. Nothing
// delays a lone command, and whatever comes while its envelope is out shares the
// next one.
func (l *Loop) flush(now time.Time) {
	if l.attempt != nil || !l.until.IsZero() || l.queue.waiting() == 0 {
		return
	}
	lines, es := l.draft(now)
	if len(es) == 0 {
		l.lines, l.entries = lines, es
		return
	}
	l.token++
	l.stats.Attempts++
	a := &attempt{l.token, l.prefix + strconv.FormatUint(l.token, 10), lines, es, now.Add(l.cfg.Resend)}
	l.attempt, l.overtaken = a, 0
	if err := l.port.Publish(a.token, &events.Envelope{Partition: l.cfg.Partition, Expected: l.applied, ID: a.id, Lines: lines}); err != nil {
		l.unknown(err, now)
		return
	}
	if l.broken == predict {
		l.fold(l.applied+1, es, true)
	}
}

// draft decides waiting commands, oldest first, until the envelope is full. The
// buffers belong to the attempt until it ends.
func (l *Loop) draft(now time.Time) ([]byte, []entry) {
	clear(l.seen)
	lines, es := l.lines, l.entries
	l.lines, l.entries = nil, nil
	d := l.machine.Begin()
	if l.broken == sameDraft && l.kept != nil {
		d = l.kept
	}
	l.kept = d
	l.queue.scan(func(w *waiter) verdict {
		if len(es) == l.cfg.MaxEvents {
			return full
		}
		if _, ok := l.seen[w.command.Subject]; ok && l.broken != twoPerRequest {
			return keep
		}
		e := d.Decide(w.command, w.key, now)
		b, err := events.Append(lines, e)
		if err == nil && len(b)-len(lines) > events.MaxEvent {
			err = errTooLong
		}
		if err != nil {
			l.port.Alarm(&EncodeError{Partition: l.cfg.Partition, Event: string(e.Type) + " of " + e.Subject, Err: err})
			for _, to := range w.to {
				l.port.Answer(to, nil, events.NewError(events.CodeInternal, "the event cannot be recorded"))
			}
			return drop
		}
		if len(b)+1 > l.cfg.MaxBytes {
			return full
		}
		line := b[len(lines):len(b):len(b)]
		lines = append(b, '\n')
		l.seen[w.command.Subject] = struct{}{}
		hash := events.Hash(line)
		es = append(es, entry{e, line, hash})
		if l.broken != noChain {
			d.Encoded(e, hash)
		}
		return keep
	})
	return lines, es
}
