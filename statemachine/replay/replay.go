package replay

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// Options say how traces are replayed. The zero value is for a whole log.
type Options struct {
	Key       []byte        // of the envelopes' MAC; nil: not checked
	SkewBound time.Duration // how far a history's time may step back; 0: 5 seconds
	Slack     time.Duration // how late an end may be recorded; 0: the checker's
	Now       time.Time     // what open requests are judged by; zero: the log's last time
	At        *Point        // stop there, and show the state
	WhatIf    *Policy       // judge admissions and leases by another policy too

	// What the caller vouches for.
	AcceptUnanchored bool // lines without anything behind their ends
	AcceptLifecycle  bool // lives that engines tell of

	// Each is called for each event, after it was judged.
	Observed  func(*statemachine.Observation)
	Violation func(statemachine.Kind, Evidence)

	Maps *[]PageMap // is given the pools at affected responses, by whoever runs the replay
}

// Properties say what a source's envelopes are.
type Properties struct {
	Partitions int // of the log; 0: not checked
	Unlinked   bool
	Unplaced   bool
	Lifecycle  bool
	Midway     bool
	Torn       bool
	Anchored   bool      // something vouches for the whole: a digest, a signature, the stream
	Sum        hash.Hash // of a trace, see [Trace]
}

// Replay is one run over any number of inputs.
type Replay struct {
	o      Options
	res    *Result
	logs   []*logRun
	groups map[groupKey]*Group
	radius *radius
	stop   bool // the point that was asked for has come
	worst  Severity

	configs []*Config
}

// New begins a replay.
func New(o Options) *Replay {
	if o.SkewBound <= 0 {
		o.SkewBound = 5 * time.Second
	}
	r := &Replay{o: o, groups: map[groupKey]*Group{}, radius: newRadius(),
		res: &Result{Format: ResultFormat, Coverage: CoveragePages, Range: Range{Types: map[string]int64{}}}}
	if o.WhatIf != nil {
		r.res.WhatIf = newWhatIf(o.WhatIf)
	}
	return r
}

// logRun is one log: inputs that follow one another.
type logRun struct {
	r       *Replay
	p       Properties
	checker *statemachine.Checker
	pages   *pageLog
	sum     forward
	last    uint64 // sequence of the last envelope
	n       uint64 // of envelopes of an unplaced log
	types   map[events.Type]int64
	config  *Config // that the last admission was judged under

	in      *Input
	where   Where
	pending []statemachine.Violation // of the event at hand
	final   map[string]events.State  // of ended requests, only for a point in time
}

// forward is a writer whose target changes with the input.
type forward struct{ to io.Writer }

func (f *forward) Write(b []byte) (int, error) {
	if f.to == nil {
		return len(b), nil
	}
	return f.to.Write(b)
}

// Add replays one input. An error is about the reading itself; what is wrong with
// the content is in the result.
func (r *Replay) Add(in *Input, src Source, p Properties) error {
	if !slices.Contains(r.res.Inputs, in) {
		r.res.Inputs = append(r.res.Inputs, in)
	}
	if p.Lifecycle {
		r.res.Coverage = LifecycleOnly
	}
	for !r.stop {
		env, err := src.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		var m *Malformed
		if errors.As(err, &m) {
			r.problem(of(src, in), m)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", in.Name, err)
		}
		l := r.log(p, env)
		if in.Events == 0 {
			l.sum.to = p.Sum
		}
		l.add(of(src, in), src.Where(), env)
	}
	r.markers(in, src)
	if s, ok := src.(interface{ Marks() []Mark }); ok {
		for _, m := range s.Marks() {
			r.mark(m.Kind, m.Evidence)
			if byID[m.Kind].Exposes {
				r.radius.suspect(m.Evidence.Subject, m.Kind)
			}
		}
	}
	if in.Events == 0 && len(in.Problems) == 0 && !r.stop {
		r.problem(in, &Malformed{Want: "at least one event", Cut: true})
	}
	return nil
}

// Include lists an input whose records come with another one's, as those of the
// several logs of one cluster do.
func (r *Replay) Include(in *Input) { r.res.Inputs = append(r.res.Inputs, in) }

// Vouch adds what somebody else found of an input: whether it is what was written.
func (r *Replay) Vouch(s Severity, notes ...string) {
	r.worst = max(r.worst, s)
	r.res.Integrity = append(r.res.Integrity, notes...)
}

// Mark is a violation that a source has seen by itself.
type Mark struct {
	Kind     statemachine.Kind
	Evidence Evidence
}

// of is the input that the source's last envelope is of.
func of(src Source, in *Input) *Input {
	if s, ok := src.(interface{ Input() *Input }); ok && s.Input() != nil {
		return s.Input()
	}
	return in
}

// log is the one that the input goes on with, or another one.
func (r *Replay) log(p Properties, env *events.Envelope) *logRun {
	same := func(a, b Properties) bool {
		return a.Unlinked == b.Unlinked && a.Unplaced == b.Unplaced && a.Lifecycle == b.Lifecycle && a.Torn == b.Torn && (a.Partitions == b.Partitions || b.Partitions == 0)
	}
	if n := len(r.logs); n > 0 {
		if l := r.logs[n-1]; same(l.p, p) && (p.Unplaced || env.Seq > l.last || env.Seq == l.last && env.Expected > 0) {
			l.p.Anchored = l.p.Anchored && p.Anchored
			return l
		}
	}
	l := &logRun{r: r, p: p, pages: newPageLog(r.radius), types: map[events.Type]int64{}}
	cfg := statemachine.CheckerConfig{
		Partitions: p.Partitions, Key: r.o.Key, Slack: r.o.Slack, NoIndex: true,
		Unlinked: p.Unlinked, Unplaced: p.Unplaced, Lifecycle: p.Lifecycle, Midway: p.Midway, Torn: p.Torn,
		Violated: func(v statemachine.Violation) { l.pending = append(l.pending, v) }, Observed: l.observe,
	}
	if p.Sum != nil {
		cfg.Sum = &l.sum
	}
	if p.Lifecycle {
		cfg.Key = nil
	}
	l.pages.external = p.Lifecycle
	if r.o.At != nil {
		l.final = map[string]events.State{}
	}
	l.checker = statemachine.NewChecker(cfg)
	r.logs = append(r.logs, l)
	return l
}

func (l *logRun) add(in *Input, where Where, env *events.Envelope) {
	if at := l.r.o.At; at != nil && at.Seq > 0 && !l.p.Unplaced && env.Seq > at.Seq {
		l.r.stop = true
		return
	}
	if at := l.r.o.At; at != nil && !at.Time.IsZero() {
		line, _, _ := bytes.Cut(env.Lines, []byte{'\n'})
		if e, err := events.Decode(line); err == nil && e.Time.After(at.Time) {
			l.r.stop = true
			return
		}
	}
	l.n++
	if l.p.Unplaced {
		env.Seq = l.n
	}
	l.last = max(l.last, env.Seq)
	if l.r.res.Range.FirstSeq == 0 && !l.p.Unplaced {
		l.r.res.Range.FirstSeq = env.Seq
	}
	l.in, l.where = in, where
	if err := l.checker.Add(env); err != nil {
		l.flush(nil) // whatever the checker has said of the envelope
		l.r.problem(in, &Malformed{Where: where, Want: wantEvent, Err: err, Broken: true})
	}
	l.flush(nil)
}

// problem notes what cannot be read.
func (r *Replay) problem(in *Input, m *Malformed) {
	s := Incomplete
	if m.Broken {
		s = Broken
	}
	r.worst = max(r.worst, s)
	if len(in.Problems) == maxListed {
		in.More++
		return
	}
	want := m.Want
	if m.Err != nil {
		want += ": " + m.Err.Error()
	}
	in.Problems = append(in.Problems, Problem{m.Where.Line, m.Where.Offset, want, s})
}

// markers takes over what a source noted beside its envelopes.
func (r *Replay) markers(in *Input, src Source) {
	switch s := src.(type) {
	case *Lines:
		for _, g := range s.Gaps {
			r.res.Range.Gaps += int64(g.To - g.From + 1)
			r.mark(KindLogHole, Evidence{Subject: "log", Input: in.Name, Position: fmt.Sprint(g.From), What: fmt.Sprintf("the stream has none of the messages %d to %d", g.From, g.To)})
		}
		for range s.Foreign {
			r.mark(KindForeign, Evidence{Subject: "log", Input: in.Name, What: "a message that no holder of the log key wrote"})
		}
		if s.BOM {
			in.Notes = append(in.Notes, "begins with a byte order mark, which was left out")
		}
		if s.CRLF > 0 {
			in.Notes = append(in.Notes, fmt.Sprintf("%d lines end in CR LF, and were read without the CR", s.CRLF))
		}
	case *Trace:
		in.Digest = s.Digest()
	}
}

func (r *Replay) mark(k statemachine.Kind, e Evidence) { r.group(groupKey{kind: k}, e) }

type groupKey struct {
	kind            statemachine.Kind
	version, policy string
}

const maxSamples = 4 // of a group, besides first and last

func (r *Replay) group(k groupKey, e Evidence) {
	g := r.groups[k]
	f := byID[k.kind]
	if g == nil {
		k.version, k.policy = strings.Clone(k.version), strings.Clone(k.policy)
		g = &Group{ID: k.kind, Rule: f.Rule, Title: f.Title, Severity: f.Severity, Version: k.version, Policy: k.policy, First: e}
		r.groups[k] = g
	} else if len(g.Samples) < maxSamples {
		g.Samples = append(g.Samples, e)
	}
	g.Count++
	g.Last = e
	r.worst = max(r.worst, f.Severity)
}

// observe takes an event after it was judged.
func (l *logRun) observe(o *statemachine.Observation) {
	e, res := o.Event, l.r.res
	if l.p.Unplaced {
		o.Position = events.Position{} // a line's number is no place in the log
	}
	l.in.Events++
	l.types[e.Type]++
	rg := &res.Range
	if rg.First.IsZero() || e.Time.Before(rg.First) {
		rg.First = e.Time
	}
	if e.Time.After(rg.Last) {
		rg.Last = e.Time
	}
	if o.Request != nil {
		l.request(o)
	} else {
		l.other(o)
	}
	if l.r.o.Observed != nil {
		l.r.o.Observed(o)
	}
	if len(l.pending) > 0 {
		l.flush(o)
	}
}

func (l *logRun) other(o *statemachine.Observation) {
	switch d := o.Event.Data.(type) {
	case *events.WorkerJoined:
		l.pages.joined(d)
		l.config = nil
	case *events.TenantNotified:
		if all := &l.r.res.Notifications; len(*all) < maxResponses {
			*all = append(*all, Notification{strings.Clone(d.Tenant), strings.Clone(d.Incident), d.SentAt, strings.Clone(d.Channel), strings.Clone(d.Content), d.AckAt, o.Position.String()})
		}
	default:
		if o.Partition != events.OpsPartition && o.Event.N > 1 {
			l.r.res.Range.Unjudged++
		}
	}
}

func (l *logRun) request(o *statemachine.Observation) {
	e := o.Event
	x := l.pages.life(e)
	if x.config == nil {
		x.config = l.config // of a request that had ended, or that went on against its end
	}
	if back := x.last.Sub(e.Time); back > 0 && !x.last.IsZero() {
		rg := &l.r.res.Range
		rg.SkewUS = max(rg.SkewUS, back.Microseconds())
		if back > l.r.o.SkewBound {
			l.pending = append(l.pending, statemachine.Violation{Kind: KindClockSkew, Subject: e.Subject, Position: o.Position, Message: "the event's time is before that of the one before it",
				Expected: "at most " + l.r.o.SkewBound.String() + " earlier", Actual: back.String() + " earlier"})
		}
	}
	x.last = e.Time
	switch d := e.Data.(type) {
	case *events.RequestAdmitted:
		l.admission(x, &d.Facts, e)
	case *events.RequestRejected:
		if d.Facts != nil {
			l.admission(x, d.Facts, e)
		}
	}
	// Violations of this event are known before what its pages say.
	for i := range l.pending {
		if v := &l.pending[i]; byID[v.Kind].Exposes {
			l.r.radius.suspect(v.Subject, v.Kind)
		}
	}
	before := l.r.radius.out.Rings
	l.pages.see(x, o)
	if now := l.r.radius.out.Rings; now != before {
		l.stale(o, now.Confirmed > before.Confirmed)
	}
	if w := l.r.res.WhatIf; w != nil {
		w.see(x, o)
	}
	l.pages.ended(x, o.Request.State)
	if l.final != nil {
		l.final[strings.Clone(e.Subject)] = o.Request.State
	}
}

// stale adds the violation that an affected response is by itself.
func (l *logRun) stale(o *statemachine.Observation, confirmed bool) {
	all := l.r.radius.out.Responses
	if len(all) == 0 {
		return
	}
	x := all[len(all)-1]
	switch {
	case confirmed:
		l.pending = append(l.pending, statemachine.Violation{Kind: KindStalePages, Subject: x.Request, Position: o.Position,
			Message: fmt.Sprintf("%d of the pages that were read hold the KV of %d other requests", x.Pages, x.Owners), Expected: "pages that its own transfer wrote", Actual: fmt.Sprintf("%d foreign pages", x.Pages)})
	case slices.Contains(x.Why, string(KindUnknownRead)):
		l.pending = append(l.pending, statemachine.Violation{Kind: KindUnknownRead, Subject: x.Request, Position: o.Position,
			Message: "pages were read that the input names no writer of", Expected: "pages that its own transfer wrote"})
	}
}

type configKey struct {
	policy                    string
	context, input, decodable int
}

const maxConfigs = 100

// admission notes the configuration that an admission was judged under.
func (l *logRun) admission(x *life, f *events.AdmissionFacts, e *events.Event) {
	key := configKey{f.Policy, f.ContextTokens, f.MaxInputTokens, f.MaxDecodeTokens}
	if c := l.config; c == nil || c.key != key {
		l.config = l.r.configOf(key, l.checker.Operations(), e.Time)
	}
	if l.config == nil {
		return
	}
	l.config.Last = e.Time
	l.config.Requests++
	x.config = l.config
}

func (r *Replay) configOf(key configKey, ops *statemachine.Ops, at time.Time) *Config {
	if key == (configKey{}) {
		return nil
	}
	workers := workersOf(ops)
	for _, c := range r.configs {
		if c.key == key && slices.Equal(c.Workers, workers) {
			return c
		}
	}
	if len(r.configs) == maxConfigs {
		return nil
	}
	key.policy = strings.Clone(key.policy)
	c := &Config{Policy: key.policy, ContextTokens: key.context, MaxInputTokens: key.input, MaxDecode: key.decodable, First: at, Last: at, Workers: workers, key: key}
	r.configs = append(r.configs, c)
	return c
}

func workersOf(ops *statemachine.Ops) []ConfigWorker {
	all := make([]ConfigWorker, 0, len(ops.Workers))
	for _, w := range ops.Workers {
		all = append(all, ConfigWorker{w.Worker, w.Role, w.Engine, w.Version, w.MaxInputTokens, w.PoolTokens(), w.PageTokens, w.Layout})
	}
	slices.SortFunc(all, func(a, b ConfigWorker) int { return cmp.Compare(a.Worker, b.Worker) })
	return all
}

// flush puts what was found into its groups. o is nil outside of events.
func (l *logRun) flush(o *statemachine.Observation) {
	for i := range l.pending {
		v := &l.pending[i]
		e := Evidence{Subject: v.Subject, What: v.Message, Expected: v.Expected, Actual: v.Actual, Input: l.in.Name, Line: l.where.Line, Offset: l.where.Offset}
		if !l.p.Unplaced {
			e.Position = v.Position.String()
		}
		k := groupKey{kind: v.Kind}
		if o != nil {
			e.Time, e.Tenant = o.Event.Time, strings.Clone(o.Event.Tenant)
			if !l.p.Unplaced && l.where.Line > 0 {
				e.Line += int64(o.Position.Line) + 1
			}
			k.version = l.version(o.Event.Data)
		}
		if l.config != nil {
			k.policy = l.config.Policy
		}
		l.r.group(k, e)
		if l.r.o.Violation != nil {
			l.r.o.Violation(v.Kind, e)
		}
	}
	l.pending = l.pending[:0]
}

// version is the engine of the worker that an event is of.
func (l *logRun) version(d events.Data) string {
	name := ""
	switch d := d.(type) {
	case *events.RequestPrefilled:
		name = d.Worker
	case *events.TransferGranted:
		name = d.Worker
	case *events.RequestTransferred:
		name = d.Worker
	case *events.RequestDecoded:
		name = d.Worker
	case *events.RequestReleased:
		name = d.Worker
	}
	if w := l.checker.Operations().Workers[name]; w != nil {
		return w.Engine + " " + w.Version
	}
	return ""
}

// Finish judges what is open, and closes the result.
func (r *Replay) Finish() *Result {
	res := r.res
	for _, l := range r.logs {
		now := r.o.Now
		if now.IsZero() {
			now = l.checker.Clock()
		}
		if !r.stop {
			l.pages.finish()
			l.checker.Close(now)
			l.where = Where{}
			l.flush(nil)
		}
		rep := l.checker.Report()
		res.Range.Requests += int64(rep.Requests)
		res.Range.Open += int64(rep.Open)
		res.Range.Events += int64(rep.Events)
		if !l.p.Unplaced {
			res.Range.LastSeq = max(res.Range.LastSeq, l.last)
		}
		for t, n := range l.types {
			res.Range.Types[string(t)] += n
		}
		if l.pages.shadow {
			res.Coverage = LifecycleOnly
		}
	}
	res.Range.SkewBound = r.o.SkewBound.Microseconds()
	for _, c := range r.configs {
		res.Configs = append(res.Configs, *c)
	}
	res.Groups = r.sortedGroups()
	res.Exposure = r.radius.result()
	if r.stop && len(r.logs) > 0 {
		res.At = r.logs[len(r.logs)-1].state(r.o.At)
	} else if r.o.At != nil && len(r.logs) > 0 {
		res.At = r.logs[len(r.logs)-1].state(r.o.At)
	}
	r.limits()
	res.Verdict = r.verdict()
	return res
}

func (r *Replay) sortedGroups() []*Group {
	all := make([]*Group, 0, len(r.groups))
	for _, g := range r.groups {
		all = append(all, g)
	}
	order := map[statemachine.Kind]int{}
	for i, f := range catalogue {
		order[f.ID] = i
	}
	slices.SortFunc(all, func(a, b *Group) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), cmp.Compare(a.Rule, b.Rule), cmp.Compare(order[a.ID], order[b.ID]), cmp.Compare(a.Version, b.Version), cmp.Compare(a.Policy, b.Policy))
	})
	return all
}
