package importer

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine/replay"
)

// role is which leg a record is of.
type role string

const (
	unknown role = ""
	prefill role = "prefill"
	decode  role = "decode"
)

// record is what one line, or one span, says of one leg.
type record struct {
	engine  string // "sglang" or "vllm"
	role    role
	key     string // that joins the legs
	request string // the leg's own id
	worker  string
	tenant  string
	begin   time.Time
	end     time.Time
	prompt  int // tokens; 0: not told
	output  int
	finish  string // "stop", "length", "abort"; "": the leg did not end
	status  int    // HTTP, of an abort; 0: not told
	message string // of an abort
	zero    bool   // finished with length 0: the end of a prefill leg
	expired time.Time
	late    time.Time // when pages were read whose lease had ended
	in      *replay.Input
	where   replay.Where
}

// Joiner puts legs together. Memory grows with the requests of which only one leg
// was told.
type Joiner struct {
	Year  int // of log lines that name none
	files []*file

	open  map[string]*joined
	order []*joined // that are waiting for a leg, in the order of their first record
	ready []*joined
	done  []*joined // whole, and held back
	marks []replay.Mark
	seen  map[string]uint64 // subjects: times a key was used
	env   *chain
	queue []made
	at    made
	ended bool
	atEnd []func()
}

// joined is what is known of one request.
type joined struct {
	key  string
	legs []*record
	done bool // both legs have ended
	out  bool // it was handed on
}

// made is an envelope with its provenance.
type made struct {
	env   *events.Envelope
	in    *replay.Input
	where replay.Where
}

// file is one input of the joiner.
type file struct {
	in   *replay.Input
	next func() ([]*record, error)
}

// NewJoiner makes an empty one.
func NewJoiner(year int) *Joiner {
	return &Joiner{Year: year, open: map[string]*joined{}, seen: map[string]uint64{}, env: newChain()}
}

// AtEnd calls f when everything that the joiner was given is read.
func (j *Joiner) AtEnd(f func()) { j.atEnd = append(j.atEnd, f) }

// Properties are those of what the joiner yields.
func (*Joiner) Properties() replay.Properties {
	return replay.Properties{Unlinked: true, Unplaced: true, Lifecycle: true}
}

// Next implements [replay.Source].
func (j *Joiner) Next() (*events.Envelope, error) {
	for {
		if len(j.queue) > 0 {
			j.at, j.queue = j.queue[0], j.queue[1:]
			return j.at.env, nil
		}
		if len(j.ready) > 0 {
			q := j.ready[0]
			j.ready = j.ready[1:]
			j.make(q)
			continue
		}
		if len(j.files) == 0 {
			if j.ended {
				return nil, io.EOF
			}
			j.finish()
			continue
		}
		f := j.files[0]
		j.at.in = f.in
		all, err := f.next()
		for _, r := range all {
			r.in = f.in
			j.take(r)
		}
		if err == io.EOF {
			j.files = j.files[1:]
			continue
		}
		if err != nil {
			return nil, err
		}
	}
}

// Where implements [replay.Source].
func (j *Joiner) Where() replay.Where { return j.at.where }

// Input is the one that the last envelope, or the last error, is of.
func (j *Joiner) Input() *replay.Input { return j.at.in }

// Marks are violations that show in the joining itself.
func (j *Joiner) Marks() []replay.Mark { return j.marks }

// take adds a record to its request.
func (j *Joiner) take(r *record) {
	if r.key == "" {
		return
	}
	q := j.open[r.key]
	if q == nil {
		q = &joined{key: r.key}
		j.open[r.key] = q
		j.order = append(j.order, q)
	}
	for _, l := range q.legs {
		if l.merge(r) {
			j.complete(q)
			return
		}
	}
	q.legs = append(q.legs, r)
	j.complete(q)
}

// merge takes over what another record tells of the same leg: a request's log line
// and its time statistics are of one leg.
func (l *record) merge(r *record) bool {
	if l.request != r.request || l.role != r.role && l.role != unknown && r.role != unknown || l.engine != r.engine {
		return false
	}
	pick := func(a *time.Time, b time.Time) {
		if a.IsZero() {
			*a = b
		}
	}
	l.role = cmp.Or(l.role, r.role)
	l.prompt, l.output, l.status = cmp.Or(l.prompt, r.prompt), max(l.output, r.output), cmp.Or(l.status, r.status)
	l.finish, l.message, l.worker, l.tenant = cmp.Or(l.finish, r.finish), cmp.Or(l.message, r.message), cmp.Or(l.worker, r.worker), cmp.Or(l.tenant, r.tenant)
	l.zero = l.zero || r.zero
	pick(&l.begin, r.begin)
	pick(&l.end, r.end)
	pick(&l.expired, r.expired)
	pick(&l.late, r.late)
	return true
}

// complete hands a request on when both of its legs have ended. Engines report
// their lines in any order, so one that a later line adds to is held back until
// then.
func (j *Joiner) complete(q *joined) {
	if len(q.legs) < 2 || q.done {
		return
	}
	q.roles()
	p, d := q.leg(prefill), q.leg(decode)
	if p == nil || d == nil || p.finish == "" || d.finish == "" || len(q.legs) > 2 {
		return
	}
	q.done = true
	j.done = append(j.done, q)
	if len(j.done) > window {
		j.emit(j.done[0])
		j.done = j.done[1:]
	}
}

// window is how many requests of which both legs have ended are held back: what a
// server logs of one leg stands in several lines.
const window = 8192

// emit hands a request on, and lets go of it.
func (j *Joiner) emit(q *joined) {
	q.out = true
	delete(j.open, q.key)
	j.ready = append(j.ready, q)
	if len(j.order) > 2*len(j.open)+1024 {
		j.order = slices.DeleteFunc(j.order, func(q *joined) bool { return q.out })
	}
}

// roles says which leg is which, where the records do not: a prefill leg ends with
// one token, or was refused.
func (q *joined) roles() {
	for _, l := range q.legs {
		if l.role == unknown && (l.zero || l.finish == "length" && l.output <= 1) {
			l.role = prefill
		}
	}
	if len(q.legs) != 2 {
		return
	}
	a, b := q.legs[0], q.legs[1]
	other := func(r role) role {
		if r == prefill {
			return decode
		}
		return prefill
	}
	switch {
	case a.role == unknown && b.role == unknown:
		if a.finish == "abort" && b.finish != "abort" || b.finish != "abort" && a.output < b.output {
			a.role, b.role = prefill, decode
		} else {
			a.role, b.role = decode, prefill
		}
	case a.role == unknown:
		a.role = other(b.role)
	case b.role == unknown:
		b.role = other(a.role)
	}
}

func (q *joined) leg(r role) *record {
	for _, l := range q.legs {
		if l.role == r {
			return l
		}
	}
	return nil
}

// finish hands on whatever is left, in the order of first records.
func (j *Joiner) finish() {
	j.ended = true
	for _, f := range j.atEnd {
		f()
	}
	slices.SortStableFunc(j.order, func(a, b *joined) int { return a.first().Compare(b.first()) })
	for _, q := range j.order {
		if q.out {
			continue
		}
		q.roles()
		j.ready = append(j.ready, q)
	}
	j.order, j.open, j.done = nil, nil, nil
}

func (q *joined) first() (t time.Time) {
	for _, l := range q.legs {
		for _, at := range []time.Time{l.begin, l.end, l.expired, l.late} {
			if !at.IsZero() && (t.IsZero() || at.Before(t)) {
				t = at
			}
		}
	}
	return t
}

// make turns a request into the events that pdgate would have recorded.
func (j *Joiner) make(q *joined) {
	p, d := q.leg(prefill), q.leg(decode)
	if n := len(q.legs); n > 2 {
		j.twice(q)
	}
	one := cmp.Or(d, p)
	if one == nil {
		one = q.legs[0]
	}
	w := &writer{j: j, one: one, subject: cmp.Or(one.request, q.key), at: q.first()}
	if n := j.seen[w.subject]; n > 0 {
		w.subject = fmt.Sprintf("%s#%d", w.subject, n+1)
	}
	j.seen[w.subject]++
	w.tenant = one.tenant
	if w.tenant != "" && !events.ValidName(w.tenant) {
		w.tenant = ""
	}
	switch {
	case !one.late.IsZero() || !one.expired.IsZero():
		w.lease(one)
		return
	case p == nil || d == nil:
		missing, is := "prefill", one
		if p != nil {
			missing = "decode"
		}
		j.marks = append(j.marks, replay.Mark{Kind: replay.KindLegs, Evidence: replay.Evidence{Subject: w.subject, Tenant: w.tenant, Input: is.in.Name, Line: is.where.Line, Offset: is.where.Offset, Time: q.first(),
			What: "the input has no " + missing + " leg", Expected: "two records of " + q.key, Actual: "one"}})
	}
	w.legs(p, d)
}

// twice reports that one reference joins more than two legs.
func (j *Joiner) twice(q *joined) {
	l := q.legs[len(q.legs)-1]
	ids := make([]string, 0, len(q.legs))
	for _, x := range q.legs {
		ids = append(ids, strings.TrimSpace(string(x.role)+" "+x.request))
	}
	if len(ids) > 8 {
		ids = append(ids[:8], "…")
	}
	j.marks = append(j.marks, replay.Mark{Kind: replay.KindRoomTwice, Evidence: replay.Evidence{Subject: cmp.Or(l.request, q.key), Tenant: l.tenant, Input: l.in.Name, Line: l.where.Line, Offset: l.where.Offset, Time: l.begin,
		What: fmt.Sprintf("%s joins %d legs", q.key, len(q.legs)), Expected: "one prefill and one decode leg", Actual: strings.Join(ids, ", ")}})
}
