package lifecycle

import (
	"strconv"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/services/lifecycle/partition"
	"github.com/pdgate/pdgate/statemachine"
)

// opsShard is pdgate.log.ops: registrations, quarantines and erasures. Its node's lock
// guards it; everybody else reads the copies in the roster.
type opsShard struct {
	svc     *Service
	machine *statemachine.Machine
	ops     *statemachine.Ops
	unknown *answers // denials about subjects of which nothing is recorded
	facts   statemachine.Facts
}

// alone are the events that are their own subject, with the first word of their
// ids. Nothing follows them: a history of one event for each would stay in memory
// for ever.
var alone = map[events.Type]string{events.TypeAuditRead: "read", events.TypeCanaryRan: "canary"}

func newOpsShard(svc *Service) *opsShard {
	return &opsShard{svc: svc, machine: statemachine.NewMachine(svc.cfg.Guards), ops: &statemachine.Ops{}, unknown: newAnswers(maxUnknown)}
}

// Recorded returns the recorded answer to an order, while it still counts.
func (s *opsShard) Recorded(c *events.Command, key string) (*events.Answer, bool) {
	if s.ops.Subjects[c.Subject].N == 0 {
		return s.unknown.get(key)
	}
	rec, ok := s.ops.Answer(c.Subject, key)
	if !ok {
		return nil, false
	}
	return opsAnswer(c.Subject, rec), true
}

func opsAnswer(subject string, rec statemachine.Recorded) *events.Answer {
	return &events.Answer{
		Subject: subject, State: rec.State, Type: rec.Type, ID: subject + "." + strconv.Itoa(rec.N),
		Position: rec.Pos.String(), Hash: rec.Hash, Denied: rec.Denied,
	}
}

// Begin starts an envelope; orders of one subject never share one, and nothing
// else carries over.
func (s *opsShard) Begin() partition.Draft { return s }

// Encoded has nothing to chain: operations are no tenant's.
func (s *opsShard) Encoded(*events.Event, string) {}

// Decide returns the event to append for the order.
func (s *opsShard) Decide(c *events.Command, key string, now time.Time) *events.Event {
	s.facts.Now = now
	data := s.machine.DecideOps(s.ops, c, &s.facts)
	last := s.ops.Subjects[c.Subject]
	e := &events.Event{
		Source: s.svc.source, Type: data.EventType(), Subject: c.Subject, Time: events.Micros(now),
		Command: key, Principal: c.From(), Traceparent: c.Traceparent, Data: data,
	}
	if e.Type == events.TypeDenied && last.N == 0 {
		// The subject is the sender's word. A history for each name that somebody
		// invents would stay in memory for ever: the denial stands outside of any.
		e.ID = "denied." + e.Command + "." + s.svc.unique()
		return e
	}
	if family := alone[e.Type]; family != "" {
		e.ID = family + "." + c.Subject + "." + s.svc.unique()
		return e
	}
	e.N, e.Prev = last.N+1, last.Pos
	e.ID = c.Subject + "." + strconv.Itoa(e.N)
	return e
}

// Fold applies one stored event and tells the roster.
func (s *opsShard) Fold(e *events.Event, pos events.Position, hash string) *events.Answer {
	if e.N == 0 {
		a := stray(e, pos, hash)
		s.unknown.put(e.Command, a)
		return a
	}
	if err := statemachine.FoldOps(s.ops, e, pos, hash); err != nil {
		s.svc.alarm("an event of operations is not legal where it stands", "subject", e.Subject, "position", pos.String(), "err", err)
		return void(e, pos, hash)
	}
	if e.Type != events.TypeDenied {
		s.svc.roster.publish(s.ops, e, s.svc.now())
		if d, ok := e.Data.(*events.TenantErased); ok {
			s.svc.forgetKeys(map[string][]string{d.Tenant: {d.TenantKey}})
		}
		s.svc.opsChanged()
	}
	if rs := s.ops.Subjects[e.Subject].Recorded; len(rs) > 0 && rs[len(rs)-1].N == e.N {
		return opsAnswer(e.Subject, rs[len(rs)-1])
	}
	return stray(e, pos, hash)
}
