package replay

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

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
	err := l.checker.Add(env)
	switch {
	case errors.Is(err, events.ErrUnknownType):
		// Nobody changed it: another build wrote it.
		l.pending = slices.DeleteFunc(l.pending, func(v statemachine.Violation) bool { return v.Kind == statemachine.KindLogUnreadable })
		l.r.problem(in, &Malformed{Where: where, Want: "event types that this build knows: a newer pdgate reads the rest", Err: events.ErrUnknownType})
	case err != nil:
		l.r.problem(in, &Malformed{Where: where, Want: wantEvent, Err: err, Broken: true})
	}
	l.flush(nil) // what the checker has said of the envelope
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
