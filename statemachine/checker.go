package statemachine

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Rules that a log can break. S1 to S5 and L1 are the safety and liveness
// claims; D is a decision that its own table, or its own recorded facts,
// contradict.
const (
	RuleOutput   = "S1" // no grant, transfer or output of a request that was rejected, failed or cancelled before
	RulePages    = "S2" // no page of one request reaches another
	RuleFinal    = "S3" // final states are final
	RuleLog      = "S4" // what was acknowledged is in the log, whole and in order
	RuleClient   = "S5" // a client gets 200 only for its own, transferred KV
	RuleLive     = "L1" // every request ends by its deadline, and every page comes back
	RuleDecision = "D"
)

// CheckerConfig says how a log is checked. The zero value is for the whole log
// of a test.
type CheckerConfig struct {
	Partitions int           // of the log, to check where requests lie; 0: not checked
	Key        []byte        // of the envelopes' MAC; nil: not checked
	Slack      time.Duration // how late an end may be recorded; 0: 30 seconds
	Keep       time.Duration // how long, by the log's time, a closed request is remembered; 0: 15 minutes
	// NoIndex keeps memory bounded by the open requests, for logs of any
	// length. CheckAnswers and CheckClients must then come before the first Add.
	NoIndex bool

	// Inputs that are no stored log. They take away what the input cannot show.
	Unlinked  bool // envelopes do not name the one before, and partitions are not known
	Unplaced  bool // nor do events have their positions: each envelope is one line, numbered from 1
	Lifecycle bool // no pages, digests or facts: rules over those are not judged
	Midway    bool // the log begins before the input
	Torn      bool // events of other requests are left out, and tenants' chains have holes

	// Violated takes each violation, which is then not kept. Observed is called
	// for each event after it was judged; what it is given is good until it returns.
	Violated func(Violation)
	Observed func(*Observation)
	// Sum takes the SHA-256 of each event line, 32 bytes each, in the log's order.
	Sum io.Writer
}

// Observation is one event as it was judged.
type Observation struct {
	Event     *events.Event
	Position  events.Position
	Partition int
	Before    events.State // "" outside of a request's history
	Request   *Request     // after the event; nil outside of a request's history
	Broken    bool         // the history has a hole: the event was not judged
}

// Violation is one breach.
type Violation struct {
	Rule     string
	Subject  string // request, worker, model or partition
	Position events.Position
	Message  string // names and numbers only
	Kind     Kind
	Expected string // "" where the message says it
	Actual   string
}

func (v Violation) String() string {
	return fmt.Sprintf("%s %s at %q: %s", v.Rule, v.Subject, v.Position, v.Message)
}

// Report is what a checker found.
type Report struct {
	Events     int
	Requests   int
	Open       int // requests that are not final, or hold pages
	Violations []Violation
	More       int // violations beyond those that are listed
}

// OK says whether nothing was found.
func (r *Report) OK() bool { return len(r.Violations) == 0 }

// maxViolations bounds a report: a log that is broken throughout fills no memory.
const maxViolations = 1000

// Checker reads a log, envelope by envelope in the order of the stream, and
// judges every event again: against the table, against the facts that it
// records, and against a ledger of pages of its own. It reads nothing else, so
// it can be run by whoever holds the log.
type Checker struct {
	cfg   CheckerConfig
	clock time.Time // latest time an event names

	decoder   events.Decoder
	keep      keeper
	parts     map[int]*part
	envelopes recent
	outside   recent              // ids of events outside of any history
	requests  map[string]*checked // those that are open
	ended     map[string]ended    // those that are closed and remembered
	closed    endings             // in order of their time
	free      []*checked          // to be used again
	scratch   []byte
	hash      []byte                       // of the event at hand, as text
	sum       [sha256.Size]byte            // the same, as bytes
	newest    events.Position              // the latest one that an event names, of an unplaced log
	floors    map[string]events.Position   // of operations, see place
	chains    map[string]map[string]uint64 // of an unlinked log: tenant, hash of a chain's end, its tenantseq
	observed  Observation
	ops       Ops
	pages     ledger
	first     uint64          // sequence of the first envelope that the log still has
	halves    map[string]half // by request id: of those whose history the log's beginning is in
	clients   clientSide

	events, total int
	violations    []Violation
	more          int
}

// part is the end of one partition.
type part struct {
	last    uint64 // sequence of its last envelope
	tenants map[string]*tenantEnd
}

// tenantEnd is the end of one tenant's chain in a partition.
type tenantEnd struct {
	seq  uint64
	hash []byte // the end's own, and written over
}

// NewChecker makes a checker of one log.
func NewChecker(cfg CheckerConfig) *Checker {
	if cfg.Slack <= 0 {
		cfg.Slack = 30 * time.Second
	}
	if cfg.Keep <= 0 {
		cfg.Keep = 15 * time.Minute
	}
	limit := 0
	if cfg.NoIndex {
		limit = 1 << 16
	}
	return &Checker{
		cfg: cfg, parts: map[int]*part{}, requests: map[string]*checked{}, ended: map[string]ended{},
		envelopes: recent{limit: limit}, outside: recent{limit: limit}, pages: ledger{}, chains: map[string]map[string]uint64{},
		clients: newClientSide(!cfg.NoIndex),
	}
}

func (c *Checker) violate(kind Kind, subject string, pos events.Position, format string, args ...any) {
	if c.cfg.Violated == nil && len(c.violations) >= maxViolations {
		c.more++
		return
	}
	c.found(Violation{Kind: kind, Subject: strings.Clone(subject), Position: pos, Message: fmt.Sprintf(format, args...)})
}

// breach reports one; its texts may be the decoder's.
func (c *Checker) breach(b breach, subject string, pos events.Position) {
	if c.cfg.Violated == nil && len(c.violations) >= maxViolations {
		c.more++
		return
	}
	c.found(Violation{Kind: b.kind, Subject: strings.Clone(subject), Position: pos, Message: b.what, Expected: strings.Clone(b.want), Actual: strings.Clone(b.got)})
}

func (c *Checker) found(v Violation) {
	v.Rule = kindRule[v.Kind]
	if c.cfg.Violated != nil {
		c.more++
		c.cfg.Violated(v)
		return
	}
	c.violations = append(c.violations, v)
}

// Add reads the next envelope. An envelope that cannot be read is an error, and
// a violation: the rest of it is not judged.
func (c *Checker) Add(env *events.Envelope) error {
	if env == nil {
		return errors.New("check: no envelope")
	}
	at := events.Position{Seq: env.Seq}
	subject := events.LogSubject(env.Partition)
	p := c.parts[env.Partition]
	if p == nil {
		p = &part{tenants: map[string]*tenantEnd{}}
		c.parts[env.Partition] = p
	}
	if c.cfg.Key != nil {
		if err := env.Verify(c.cfg.Key); err != nil {
			// Not written by the service: its events are no part of the log. It
			// stands in the stream all the same, and writers go on from there.
			p.last = env.Seq
			c.violate(KindLogMAC, subject, at, "the envelope's MAC is wrong")
			c.sumFrom(env.Lines, 0)
			return fmt.Errorf("check %s at %d: %w", subject, env.Seq, err)
		}
	}
	if c.first == 0 {
		c.first = env.Seq
	}
	if p.last == 0 && c.left(env.Expected) {
		p.last = env.Expected // what the partition's first envelope was written on has left
	}
	switch {
	case c.cfg.Unlinked && env.Seq > p.last, c.cfg.Midway && p.last == 0:
	case env.Expected != p.last || env.Seq <= p.last:
		c.violate(KindLogGap, subject, at, "envelope %d was written on %d, and the one before is %d", env.Seq, env.Expected, p.last)
	}
	p.last = env.Seq
	if env.ID != "" && !c.envelopes.add(env.ID) {
		c.violate(KindLogDuplicate, subject, at, "the envelope stands twice")
	}
	read := 0
	err := events.Split(env.Lines, func(line int, b []byte) error {
		e, err := c.decode(env.Partition, b)
		if err != nil {
			return err
		}
		c.digest(e, b)
		read++
		c.event(env.Partition, p, e, events.Position{Seq: env.Seq, Line: line})
		return nil
	})
	if err != nil {
		c.violate(KindLogUnreadable, subject, at, "the envelope cannot be read")
		c.sumFrom(env.Lines, read)
		return fmt.Errorf("check %s at %d: %w", subject, env.Seq, err)
	}
	c.forget()
	return nil
}

// digest hashes the line where its hash is asked for, and once.
func (c *Checker) digest(e *events.Event, line []byte) {
	c.hash = c.hash[:0]
	if e.Tenant == "" && c.cfg.Sum == nil && !c.clients.listen() {
		return
	}
	c.sum = sha256.Sum256(line)
	c.hash = base64.RawURLEncoding.AppendEncode(c.hash, c.sum[:])
	if c.cfg.Sum != nil {
		_, _ = c.cfg.Sum.Write(c.sum[:]) // a hash never fails
	}
}

// sumFrom hashes the lines of an envelope that are not judged, from one on: what
// they are summed for is the input and not its content.
func (c *Checker) sumFrom(lines []byte, from int) {
	if c.cfg.Sum == nil {
		return
	}
	_ = events.Split(lines, func(line int, b []byte) error { // what is no lines is no trace either
		if line >= from {
			sum := sha256.Sum256(b)
			_, _ = c.cfg.Sum.Write(sum[:])
		}
		return nil
	})
}

// decode reads an event. Those of requests are the decoder's, and good until the
// next one: what is kept of them goes through the keeper. Operations are few,
// and their aggregate keeps them whole.
func (c *Checker) decode(partition int, line []byte) (*events.Event, error) {
	if partition == events.OpsPartition {
		return events.Decode(line)
	}
	return c.decoder.Decode(line)
}

func (c *Checker) event(partition int, p *part, e *events.Event, pos events.Position) {
	c.events++
	if e.Time.After(c.clock) {
		c.clock = e.Time
	}
	if c.cfg.Unlinked {
		c.chainUnlinked(e, pos)
	} else {
		c.chainTenant(p, e, pos)
	}
	c.observed = Observation{Event: e, Position: pos, Partition: partition}
	switch {
	case partition == events.OpsPartition:
		c.operation(e, pos)
	case e.N == 0:
		c.outsider(e, pos, events.New)
	default:
		c.request(partition, e, pos)
		return // which has told the observer
	}
	if c.cfg.Observed != nil {
		c.cfg.Observed(&c.observed)
	}
}

// chainTenant checks that the tenant's history in the partition has no hole.
func (c *Checker) chainTenant(p *part, e *events.Event, pos events.Position) {
	if e.Tenant == "" {
		return
	}
	end := p.tenants[e.Tenant]
	first := end == nil
	if first {
		end = &tenantEnd{}
		p.tenants[strings.Clone(e.Tenant)] = end
		if c.first > 1 && e.TenantSeq > 1 {
			// The event before it has left.
			end.seq, end.hash = e.TenantSeq-1, append(end.hash, e.TenantPrev...)
		}
	}
	switch {
	case first && c.cfg.Midway:
	case e.TenantSeq != end.seq+1:
		c.violate(KindTenantGap, e.Subject, pos, "tenantseq %d follows %d", e.TenantSeq, end.seq)
	case e.TenantPrev != string(end.hash):
		c.breach(broke(KindTenantHash, "tenantprev is not the hash of the tenant's event before").are(string(end.hash), e.TenantPrev), e.Subject, pos)
	}
	end.seq, end.hash = e.TenantSeq, append(end.hash[:0], c.hash...)
}

func (c *Checker) operation(e *events.Event, pos events.Position) {
	if e.N == 0 {
		c.outsider(e, pos, "")
		return
	}
	if c.cfg.Unplaced {
		f := c.floors[e.Subject]
		c.place(e, pos, c.ops.Subjects[e.Subject].Pos, &f)
		if c.floors == nil {
			c.floors = map[string]events.Position{}
		}
		c.floors[e.Subject] = f // operations' events are their own
	}
	skip := c.midway(e)
	if !c.cfg.Midway {
		c.assume(e)
	}
	if err := FoldOps(&c.ops, e, pos, ""); err != nil && !skip {
		c.violate(KindOps, e.Subject, pos, "%v", err)
	}
	if d, ok := e.Data.(*events.WorkerJoined); ok {
		c.pages.joined(d.Worker, d.Epoch)
	}
	c.clients.saw(e, pos, c.hash, "")
}

// outsider is a denial of a command that met no history, a read of the audit log
// or a canary's run; state is what it met.
func (c *Checker) outsider(e *events.Event, pos events.Position, state events.State) {
	switch q := c.requests[e.Subject]; {
	case (e.Type == events.TypeAuditRead || e.Type == events.TypeCanaryRan) && state == "":
		// On the operations' subject: they say who looked, and decide nothing.
	case e.Type != denied:
		c.violate(KindOutside, e.Subject, pos, "%s stands outside of any history", e.Type)
	case q != nil && q.Open():
		c.violate(KindDenialOutside, e.Subject, pos, "a denial stands outside of the history of an open request")
	}
	if !c.outside.add(e.ID) {
		c.violate(KindLogDuplicate, e.Subject, pos, "the event's id stands twice")
	}
	c.clients.saw(e, pos, c.hash, state)
}

func (c *Checker) request(partition int, e *events.Event, pos events.Position) {
	q := c.find(e.Subject)
	if q == nil {
		if !c.begins(e, pos) {
			c.clients.saw(e, pos, c.hash, "")
			if c.cfg.Observed != nil {
				c.cfg.Observed(&c.observed)
			}
			return
		}
		q = c.begin(e.Subject)
		q.partition = partition
		c.total++
		if n := c.cfg.Partitions; n > 0 && events.PartitionOf(e.Subject, n) != partition {
			c.violate(KindPartition, e.Subject, pos, "the request is in partition %d", partition)
		}
	} else if q.partition != partition {
		c.violate(KindPartition, e.Subject, pos, "the history goes on in partition %d", partition)
	}
	q.last = e.Time
	if c.cfg.Unplaced {
		c.place(e, pos, q.Pos, &q.floor)
	}
	before := q.State
	found := len(c.violations) + c.more
	ok := c.judge(q, e, pos)
	// Without the hash: answers carry it, and a checker gives none.
	if err := Fold(&q.Request, e, pos, ""); err != nil {
		if found == len(c.violations)+c.more && !q.broken {
			c.violate(KindHistory, e.Subject, pos, "%v", err)
		}
		ok = false
	} else {
		q.own(e, &c.keep)
	}
	if ok {
		c.account(q, e, pos)
	}
	c.clients.saw(e, pos, c.hash, q.State)
	if c.cfg.Observed != nil {
		c.observed.Before, c.observed.Request, c.observed.Broken = before, &q.Request, q.broken
		c.cfg.Observed(&c.observed)
	}
	if !q.Open() {
		c.end(q)
	}
}

// Requests calls f for each request that is open, in the order of their ids.
func (c *Checker) Requests(f func(*Request)) {
	for _, q := range c.stillOpen() {
		f(&q.Request)
	}
}

// Operations are workers and models as the log leaves them. They are the checker's.
func (c *Checker) Operations() *Ops { return &c.ops }

// Clock is the latest time that an event names.
func (c *Checker) Clock() time.Time { return c.clock }

// begins says whether the event may be the first one known of its request. An
// event of a request that was closed long ago is known by the age of its id.
func (c *Checker) begins(e *events.Event, pos events.Position) bool {
	born, err := events.RequestTime(e.Subject)
	old := err == nil && e.Time.Sub(born) > c.cfg.Keep
	if c.halved(e, pos) {
		return false
	}
	switch {
	case e.N == 1 && old && e.Type != denied:
		c.violate(KindReborn, e.Subject, pos, "%s begins a request whose id is older than what is remembered", e.Type)
	case e.N > 1 && old && (e.Type == denied || e.Type == events.TypeReleased):
		return false // after the end of a request that is forgotten
	case e.N > 1 && c.cfg.Midway:
		return false // it began before the input
	case e.N > 1:
		c.violate(KindHeadless, e.Subject, pos, "number %d is the first one in the log", e.N)
	}
	return true
}

// Close judges what is still open at the end of the log, as of now.
func (c *Checker) Close(now time.Time) {
	if t := c.ops.Trimmed; c.first > 1 && !c.cfg.Midway && !c.cfg.Unlinked && (t == nil || t.BelowSeq < c.first) {
		c.violate(KindLogGap, events.LogStream, events.Position{Seq: c.first}, "the log begins at %d, and no event says that what is before may leave it", c.first)
	}
	for _, q := range c.stillOpen() {
		if q.broken || q.Deadline.IsZero() || !now.After(q.Deadline.Add(c.cfg.Slack)) {
			continue
		}
		if !q.State.Final() {
			c.violate(KindUnended, q.ID, q.Pos, "the request is %s after its deadline", q.State)
		}
		for _, h := range q.Held {
			c.violate(KindPagesKept, q.ID, q.Pos, "%s %s holds %d pages after the deadline", h.Role, h.Worker, h.Pages)
		}
	}
}

// stillOpen lists open requests in the order of their ids.
func (c *Checker) stillOpen() []*checked {
	all := slices.Collect(maps.Values(c.requests))
	slices.SortFunc(all, func(a, b *checked) int {
		if a.ID < b.ID {
			return -1
		}
		return 1
	})
	return all
}

// Report says what was found so far.
func (c *Checker) Report() Report {
	r := Report{Events: c.events, Requests: c.total, Open: len(c.requests), More: c.more}
	r.Violations = append(slices.Clone(c.violations), c.clients.judge()...)
	return r
}

// recent is a set of the last limit words; 0: of all.
type recent struct {
	limit int
	set   map[string]struct{}
	order []string
}

// add is false if the word is in the set already.
func (r *recent) add(s string) bool {
	if _, ok := r.set[s]; ok {
		return false
	}
	if r.set == nil {
		r.set = map[string]struct{}{}
	}
	s = strings.Clone(s)
	r.set[s] = struct{}{}
	if r.limit > 0 {
		r.order = append(r.order, s)
		if len(r.order) > r.limit {
			delete(r.set, r.order[0])
			r.order = r.order[1:]
		}
	}
	return true
}
