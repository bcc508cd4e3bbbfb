package lifecycle

import (
	"strconv"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/services/lifecycle/partition"
	"github.com/pdgate/pdgate/statemachine"
)

// How long what has ended is remembered.
const (
	// retain is the age of a request id after which an ended request is
	// forgotten. It is well above the age at which an admission is refused as
	// stale (Timeouts.Fresh, checked in New), whatever the replicas' clocks say:
	// a late command never finds its request forgotten and its id still fresh.
	retain = 5 * time.Minute
	// maxClosed bounds the ended requests that a partition remembers whole. Above
	// it the oldest shrink to their ids, and lose their recorded answers.
	maxClosed = 32 << 10
	// maxUnknown bounds the remembered denials of unknown requests.
	maxUnknown = 4096
)

// entry is one request in memory.
type entry struct {
	r        *statemachine.Request
	deadline timer     // of the present state; armed while the request is not final
	since    time.Time // time of the event that led to the present state
	sent     time.Time // when this replica last dispatched work for it; its own clock
	resent   int       // how often it dispatched again
	first    uint64    // sequence of the request's first event: its history stays in the log while it is open
}

// chain is the end of one tenant's events in this partition.
type chain struct {
	Seq  uint64 `json:"seq"`
	Hash string `json:"hash"`
}

// shard is one partition's requests: what the pure partition loop decides with
// and folds into. The node's lock guards all of it.
type shard struct {
	svc     *Service
	number  int // of the partition
	machine *statemachine.Machine

	open    map[string]*entry // not final, or pages are held
	closed  map[string]*entry // ended: kept for their recorded answers
	endings []string          // keys of closed, in the order they ended
	gone    map[[16]byte]bool // ended and shrunk to their ids
	going   [][16]byte        // keys of gone, oldest first
	horizon time.Time         // the latest birth of a request that is forgotten altogether
	unknown *answers          // denials of requests of which nothing is recorded
	tenants map[string]chain
	wheel   wheel

	draft draft
	facts statemachine.Facts
}

// draft is the envelope that is being built: what its earlier events add to the
// tenants' chains, and the admissions that it counts. There is one at a time, and
// the next Begin makes it void.
type draft struct {
	s        *shard
	overlay  map[string]chain
	reserved []reservation
}

type reservation struct{ tenant, model string }

func newShard(svc *Service, number int) *shard {
	s := &shard{
		svc: svc, number: number, machine: statemachine.NewMachine(svc.cfg.Guards),
		open: map[string]*entry{}, closed: map[string]*entry{}, gone: map[[16]byte]bool{},
		unknown: newAnswers(maxUnknown), tenants: map[string]chain{},
	}
	s.draft = draft{s: s, overlay: map[string]chain{}}
	return s
}

func (s *shard) find(id string) *entry {
	if x := s.open[id]; x != nil {
		return x
	}
	return s.closed[id]
}

// Recorded returns the recorded answer to a command, if there is one.
func (s *shard) Recorded(c *events.Command, key string) (*events.Answer, bool) {
	x := s.find(c.Subject)
	if x == nil {
		return s.unknown.get(key)
	}
	rec, ok := x.r.Answer(key)
	if !ok || early(c, rec.Denied) {
		return nil, false
	}
	return answerOf(x.r, rec), true
}

// early says whether a worker's word that ends the request was denied for the
// worker's registration alone. The registration may have been on its way to the
// replica that decided, so the word is judged again: with its denial as the answer
// for good, the request would last until its deadline.
func early(c *events.Command, d *events.Denial) bool {
	return d != nil && (c.Type == events.CmdReject || c.Type == events.CmdFail) &&
		(d.Code == events.CodeWorkerUnknown || d.Code == events.CodeWorkerEpoch)
}

// answerOf is the answer that an event of r gave. It is made from folded state
// alone, so every replica gives the same one, as often as it is asked.
func answerOf(r *statemachine.Request, rec statemachine.Recorded) *events.Answer {
	a := &events.Answer{
		Subject: r.ID, State: rec.State, Type: rec.Type, ID: r.ID + "." + strconv.Itoa(rec.N),
		Position: rec.Pos.String(), Hash: rec.Hash, Denied: rec.Denied,
	}
	switch rec.State {
	case events.Rejected, events.Failed, events.Cancelled:
		a.Error = r.Error
	}
	return a
}

// Begin starts an envelope: what the one before it assumed is void.
func (s *shard) Begin() partition.Draft {
	clear(s.draft.overlay)
	s.draft.unreserve()
	return &s.draft
}

// unreserve gives back what the envelope's admissions counted.
func (d *draft) unreserve() {
	for _, v := range d.reserved {
		d.s.svc.counts.add(v.tenant, -1, v.model, -1)
	}
	d.reserved = d.reserved[:0]
}

// Encoded is told the hash of the event just decided: the tenant's next event in
// the same envelope chains on it, and an admission counts from here on.
func (d *draft) Encoded(e *events.Event, hash string) {
	if e.TenantSeq > 0 {
		d.overlay[e.Tenant] = chain{e.TenantSeq, hash}
	}
	if a, ok := e.Data.(*events.RequestAdmitted); ok {
		d.s.svc.counts.add(e.Tenant, 1, a.Model, 1)
		d.reserved = append(d.reserved, reservation{e.Tenant, a.Model})
	}
}

// Decide returns the event to append for the command.
func (d *draft) Decide(c *events.Command, key string, now time.Time) *events.Event {
	s := d.s
	var r *statemachine.Request
	if x := s.find(c.Subject); x != nil {
		r = x.r
	}
	var data events.Data
	if r == nil && c.Type == events.CmdAdmit && s.forgotten(c.Subject) {
		data = &events.CommandDenied{Command: c.Type, State: events.New, Code: events.CodeStaleRequestID, Message: "the request has ended and is forgotten"}
	} else {
		data = s.machine.Decide(r, c, s.gather(c, r, now))
	}
	e := &events.Event{
		Source: s.svc.source, Type: data.EventType(), Subject: c.Subject, Time: events.Micros(now),
		Command: key, Principal: c.From(), Traceparent: c.Traceparent, Data: data,
	}
	switch {
	case r != nil:
		e.N, e.Prev, e.Tenant = r.N+1, r.Pos, r.Tenant
		if r.Traceparent != "" {
			e.Traceparent = r.Traceparent
		}
	case e.Type == events.TypeDenied:
		// Of a request that nothing is recorded of. The command's subject and
		// tenant are the sender's word; the denial stands outside of any history.
		e.ID = "denied." + e.Command + "." + s.svc.unique()
		return e
	default:
		e.N, e.Tenant = 1, c.Data.(*events.Admit).Tenant
	}
	e.ID = c.Subject + "." + strconv.Itoa(e.N)
	if e.Tenant != "" {
		head, ok := d.overlay[e.Tenant]
		if !ok {
			head = s.tenants[e.Tenant]
		}
		e.TenantSeq, e.TenantPrev = head.Seq+1, head.Hash
	}
	return e
}

// gather collects what the decision rests on besides the request's history.
func (s *shard) gather(c *events.Command, r *statemachine.Request, now time.Time) *statemachine.Facts {
	f := &s.facts
	*f = statemachine.Facts{Now: now, Timeouts: s.svc.cfg.Timeouts}
	switch {
	case c.Type == events.CmdAdmit:
		d, ok := c.Data.(*events.Admit)
		if !ok {
			break
		}
		f.Known, f.Admission = s.svc.roster.admission(d.Model, now)
		f.Admission.TenantOpen, f.Admission.QueueDepth = s.svc.counts.of(d.Tenant, d.Model)
		f.Admission.QueueLimit = s.svc.cfg.QueueLimit
		f.Admission.Policy = s.svc.policy
		f.Admission.TenantErased = s.svc.roster.gone(d.Tenant, d.TenantKey)
		f.TenantKey = s.svc.tenantKey(d)
	case c.Role == events.RolePrefill || c.Role == events.RoleDecode:
		f.Sender = s.svc.roster.worker(c.Principal)
	}
	if c.Type == events.CmdGrant && r != nil && r.Prefill != nil {
		f.Owner = s.svc.roster.worker(r.Prefill.Worker)
	}
	return f
}

// Fold applies one stored event and returns the answer to its command.
func (s *shard) Fold(e *events.Event, pos events.Position, hash string) *events.Answer {
	s.draft.unreserve() // the envelope is settled; what it admitted counts by being folded
	if e.TenantSeq > 0 {
		if head := s.tenants[e.Tenant]; e.TenantSeq != head.Seq+1 || e.TenantPrev != head.Hash {
			s.svc.alarm("a tenant's chain is broken", "partition", partitionName(s.number), "position", pos.String(), "tenant", e.Tenant)
		}
		s.tenants[e.Tenant] = chain{e.TenantSeq, hash}
	}
	if e.N == 0 {
		a := stray(e, pos, hash)
		s.unknown.put(e.Command, a)
		return a
	}
	x := s.find(e.Subject)
	if x == nil {
		if e.N > 1 {
			// Forgotten here and not yet there: a denial of a request that has ended.
			return stray(e, pos, hash)
		}
		x = &entry{r: &statemachine.Request{ID: e.Subject, State: events.New}, deadline: timer{id: e.Subject}, first: pos.Seq}
		s.open[e.Subject] = x
	}
	was := x.r.State
	if err := statemachine.Fold(x.r, e, pos, hash); err != nil {
		s.svc.alarm("an event of the log is not legal where it stands", "request_id", e.Subject, "position", pos.String(), "err", err)
		return void(e, pos, hash)
	}
	s.moved(x, was, e)
	if n := len(x.r.Recorded); n > 0 && x.r.Recorded[n-1].N == e.N {
		return answerOf(x.r, x.r.Recorded[n-1])
	}
	return stray(e, pos, hash)
}

// stray is the answer of an event that stands in no history here.
func stray(e *events.Event, pos events.Position, hash string) *events.Answer {
	a := &events.Answer{Subject: e.Subject, Type: e.Type, ID: e.ID, Position: pos.String(), Hash: hash, State: events.New}
	if d, ok := e.Data.(*events.CommandDenied); ok {
		a.State = d.State
		a.Denied = &events.Denial{Code: d.Code, Message: d.Message, State: d.State}
	}
	return a
}

// void is the answer of an event that is not legal where it stands: it changed
// nothing, and its sender must not go on as if it had.
func void(e *events.Event, pos events.Position, hash string) *events.Answer {
	a := stray(e, pos, hash)
	if a.Denied == nil {
		a.Denied = &events.Denial{Code: events.CodeInternal, Message: "the event is recorded where it is not legal, and does not count"}
	}
	return a
}

// moved keeps the indexes beside the aggregate: counts, deadline, and which map
// the entry is in.
func (s *shard) moved(x *entry, was events.State, e *events.Event) {
	r := x.r
	if was != r.State || e.Type == events.TypeTransferGranted {
		x.since = e.Time
	}
	if was != r.State {
		tenant, queue := 0, 0
		if open, before := !r.State.Final(), was != events.New && !was.Final(); open && !before {
			tenant = 1
		} else if !open && before {
			tenant = -1
		}
		if r.State == events.Admitted {
			queue = 1
		} else if was == events.Admitted {
			queue = -1
		}
		s.svc.counts.add(r.Tenant, tenant, r.Model, queue)
		if r.State.Final() {
			s.wheel.remove(&x.deadline)
		} else if !r.StateBy.IsZero() {
			s.wheel.set(&x.deadline, r.StateBy)
		}
	}
	if !r.Open() {
		s.close(x)
	}
}

// close moves an entry to those that have ended.
func (s *shard) close(x *entry) {
	id := x.r.ID
	if s.open[id] == nil {
		return
	}
	delete(s.open, id)
	s.closed[id] = x
	s.endings = append(s.endings, id)
}

// evict forgets what ended long enough ago, and shrinks what is too much.
func (s *shard) evict(now time.Time) {
	n := 0
	for _, id := range s.endings {
		born, err := events.RequestTime(id)
		old := err != nil || now.Sub(born) > retain
		if !old && len(s.closed) <= maxClosed {
			break
		}
		delete(s.closed, id)
		if old {
			s.horizon = later(s.horizon, born)
		} else {
			k := compact(id)
			s.gone[k] = true
			s.going = append(s.going, k)
		}
		n++
	}
	s.endings = drop(s.endings, n)
	n = 0
	for _, k := range s.going {
		if now.Sub(bornOf(k)) <= retain {
			break
		}
		delete(s.gone, k)
		s.horizon = later(s.horizon, bornOf(k))
		n++
	}
	s.going = drop(s.going, n)
}

// drop takes n elements off the front, and copies what is left when most of the
// backing array is behind it.
func drop[T any](q []T, n int) []T {
	if n == 0 {
		return q
	}
	q = q[n:]
	if cap(q) > 1024 && len(q) < cap(q)/4 {
		q = append(make([]T, 0, 2*len(q)), q...)
	}
	return q
}

// forgotten says whether a request has ended and shrunk to its id, or may have
// ended and left nothing. The second does not rest on the clock, which may have
// been set back since: an id that looks fresh again is still not after the last
// one that was forgotten.
func (s *shard) forgotten(id string) bool {
	born, err := events.RequestTime(id)
	return err == nil && (s.gone[compact(id)] || !born.After(s.horizon))
}

// compact is a request id in 16 bytes; id is a valid one.
func compact(id string) (k [16]byte) {
	n := 0
	for i := 0; i < len(id) && n < 32; i++ {
		c := id[i]
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		default:
			continue
		}
		k[n/2] = k[n/2]<<4 | c
		n++
	}
	return k
}

// bornOf is the time in a compact id.
func bornOf(k [16]byte) time.Time {
	var ms int64
	for _, b := range k[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms)
}
