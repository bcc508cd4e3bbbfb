package partition

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
)

// bench is a loop, its machine, and what came out of its port.
type bench struct {
	t       *testing.T
	loop    *Loop
	machine *machine
	now     time.Time
	sent    []*events.Envelope
	tokens  []uint64
	refuse  error // what Publish returns
	answers []string
	commits []string
	alarms  []error
}

func newBench(t *testing.T, cfg Config) *bench {
	t.Helper()
	b := &bench{t: t, now: time.Unix(1_000_000, 0)}
	b.machine = newMachine("/pdgate/lifecycle/lc1", func(f string, a ...any) { t.Errorf(f, a...) })
	if cfg.Writer == "" {
		cfg.Writer = "lc1.boot"
	}
	var err error
	if b.loop, err = New(cfg, b.machine, b); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *bench) Publish(token uint64, env *events.Envelope) error {
	if b.refuse != nil {
		return b.refuse
	}
	b.sent, b.tokens = append(b.sent, copied(env)), append(b.tokens, token)
	return nil
}

// copied is an envelope as the log keeps it: the lines are the loop's.
func copied(env *events.Envelope) *events.Envelope {
	e := *env
	e.Lines = bytes.Clone(env.Lines)
	return &e
}

func (b *bench) Answer(to any, a *events.Answer, err *events.Error) {
	if err != nil {
		b.answers = append(b.answers, fmt.Sprintf("%v: %s", to, err.Code))
		return
	}
	b.answers = append(b.answers, fmt.Sprintf("%v: %s at %s", to, a.Type, a.Position))
}

func (b *bench) Committed(e *events.Event, pos events.Position, line []byte, own bool) {
	b.commits = append(b.commits, fmt.Sprintf("%s at %s own %v", e.Type, pos, own))
}

func (b *bench) Alarm(err error) { b.alarms = append(b.alarms, err) }

func subject(i int) string { return fmt.Sprintf("01890a5d-ac96-774b-bcce-b302099a%04d", i) }

func (b *bench) admit(i int, to any) { b.command(events.CmdAdmit, i, to) }

func (b *bench) command(t events.CommandType, i int, to any) {
	b.loop.Command(command(t, subject(i), "gw1", 0), to, b.now)
}

// last is the token of the last envelope sent.
func (b *bench) last() uint64 { return b.tokens[len(b.tokens)-1] }

func (b *bench) pass(d time.Duration) {
	b.now = b.now.Add(d)
	b.loop.Tick(b.now)
}

// want compares and forgets.
func want[T any](t *testing.T, what string, got *[]T, want ...T) {
	t.Helper()
	if d := cmp.Diff(want, *got); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
	*got = nil
}

// wantSent compares the envelopes sent since the last call: expectation and
// number of lines.
func (b *bench) wantSent(want ...string) {
	b.t.Helper()
	var got []string
	for _, e := range b.sent {
		got = append(got, fmt.Sprintf("under %d: %d lines", e.Expected, strings.Count(string(e.Lines), "\n")))
	}
	if d := cmp.Diff(want, got); d != "" {
		b.t.Errorf("sent (-want +got):\n%s", d)
	}
	b.sent = nil
}

// other is what another replica appends: the commands' events, decided on the
// same state.
func (b *bench) other(seq uint64, commands ...*events.Command) *events.Envelope {
	b.t.Helper()
	d := b.machine.Begin()
	env := &events.Envelope{Seq: seq, Expected: b.loop.Applied(), ID: fmt.Sprintf("lc2.boot-0-%d", seq)}
	for _, c := range commands {
		e := d.Decide(c, c.Key(), b.now)
		line, err := events.Append(nil, e)
		if err != nil {
			b.t.Fatal(err)
		}
		d.Encoded(e, events.Hash(line))
		env.Lines = append(append(env.Lines, line...), '\n')
	}
	return env
}

func TestGroupCommit(t *testing.T) {
	b := newBench(t, Config{})
	b.admit(1, "a")
	b.wantSent("under 0: 1 lines") // a lone command waits for nothing
	b.admit(2, "b")
	b.admit(3, "c")
	b.wantSent() // one envelope at a time
	want(t, "answers before the log has anything", &b.answers)
	b.loop.Stored(b.last(), 7, b.now)
	want(t, "answers", &b.answers, "a: request.admitted.v1 at 7.0")
	want(t, "commits", &b.commits, "request.admitted.v1 at 7.0 own true")
	b.wantSent("under 7: 2 lines")
	b.loop.Stored(b.last(), 9, b.now)
	want(t, "answers", &b.answers, "b: request.admitted.v1 at 9.0", "c: request.admitted.v1 at 9.1")
	b.wantSent()
	b.admit(1, "again") // recorded: no append
	want(t, "answers", &b.answers, "again: request.admitted.v1 at 7.0")
	b.wantSent()
}

func TestOneCommandOfARequestPerEnvelope(t *testing.T) {
	b := newBench(t, Config{})
	b.admit(9, "first")
	b.wantSent("under 0: 1 lines")
	b.admit(1, "a")
	b.command(events.CmdPrefilled, 1, "b")
	b.admit(2, "c")
	b.loop.Stored(b.last(), 1, b.now)
	b.wantSent("under 1: 2 lines")
	b.loop.Stored(b.last(), 2, b.now)
	b.wantSent("under 2: 1 lines")
	b.loop.Stored(b.last(), 3, b.now)
	want(t, "answers", &b.answers, "first: request.admitted.v1 at 1.0", "a: request.admitted.v1 at 2.0", "c: request.admitted.v1 at 2.1", "b: request.prefilled.v1 at 3.0")
}

func TestEnvelopeBounds(t *testing.T) {
	t.Run("events", func(t *testing.T) {
		b := newBench(t, Config{MaxEvents: 3})
		for i := range 8 {
			b.admit(i, i)
		}
		var got []int
		for seq := uint64(1); len(b.sent) > 0; seq++ {
			got = append(got, strings.Count(string(b.sent[0].Lines), "\n"))
			b.sent = nil
			b.loop.Stored(b.last(), seq, b.now)
		}
		if d := cmp.Diff([]int{1, 3, 3, 1}, got); d != "" {
			t.Errorf("lines an envelope (-want +got):\n%s", d)
		}
		for i, a := range b.answers {
			if !strings.HasPrefix(a, fmt.Sprintf("%d:", i)) {
				t.Errorf("answer %d is %s: not first come, first served", i, a)
			}
		}
	})
	t.Run("bytes", func(t *testing.T) {
		const limit = 70_000
		b := newBench(t, Config{MaxBytes: limit, MaxEvents: 10_000})
		const n = 400
		for i := range n {
			b.admit(i, i)
		}
		envelopes := 0
		for seq := uint64(1); len(b.sent) > 0; seq++ {
			if s := len(b.sent[0].Lines); s > limit {
				t.Fatalf("an envelope has %d bytes, the limit is %d", s, limit)
			}
			envelopes++
			b.sent = nil
			b.loop.Stored(b.last(), seq, b.now)
		}
		if len(b.answers) != n || envelopes < 4 {
			t.Errorf("%d answers in %d envelopes, want %d in several", len(b.answers), envelopes, n)
		}
	})
}

func TestBackpressure(t *testing.T) {
	b := newBench(t, Config{QueueLimit: 2})
	for i, to := range []string{"a", "b", "c"} {
		b.admit(i, to)
	}
	b.admit(1, "b again")
	want(t, "answers", &b.answers, "c: backpressure", "b again: unavailable")
	b.loop.Stored(b.last(), 1, b.now)
	b.loop.Stored(b.last(), 2, b.now)
	want(t, "answers", &b.answers, "a: request.admitted.v1 at 1.0", "b: request.admitted.v1 at 2.0")
	b.admit(2, "c")
	b.loop.Stored(b.last(), 3, b.now)
	want(t, "answers", &b.answers, "c: request.admitted.v1 at 3.0")
}

// One request cannot keep the others out, nor the service's own commands.
func TestBackpressureOfOneRequest(t *testing.T) {
	b := newBench(t, Config{SubjectLimit: 2, Resend: time.Hour, CommandTimeout: time.Hour})
	ask := func(role events.Role, name, to string) *events.Command {
		c := &events.Command{Type: events.CmdCancel, Subject: subject(1), Role: role, Principal: name, Data: &events.Cancel{}}
		b.loop.Command(c, to, b.now)
		return c
	}
	ask(events.RoleOperator, "a", "a")
	ask(events.RoleOperator, "b", "b")
	ask(events.RoleOperator, "c", "c")
	ask(events.RoleOperator, "b", "b again")
	ask(events.RoleLifecycle, "lifecycle", "own")
	b.admit(2, "other")
	want(t, "answers", &b.answers, "c: backpressure")
	if s := b.loop.Stats(); s.Waiting != 5 || s.Joined != 1 {
		t.Errorf("stats %+v, want five callers, one of them joined", s)
	}
	for seq := uint64(1); seq <= 3; seq++ {
		b.loop.Stored(b.last(), seq, b.now)
	}
	if s := b.loop.Stats(); s.Waiting != 0 || len(b.loop.queue.subject) != 0 {
		t.Errorf("stats %+v, and %d subjects counted", s, len(b.loop.queue.subject))
	}
	b.answers = nil
	ask(events.RoleOperator, "d", "d")
	b.loop.Stored(b.last(), 4, b.now)
	if len(b.answers) != 1 {
		t.Errorf("answers %v", b.answers)
	}
}

func TestPatience(t *testing.T) {
	b := newBench(t, Config{CommandTimeout: 100 * time.Millisecond, Resend: time.Hour})
	b.admit(1, "a")
	b.pass(60 * time.Millisecond)
	b.admit(1, "joined")
	b.admit(2, "b")
	b.pass(41 * time.Millisecond)
	want(t, "answers", &b.answers, "a: unavailable")
	if s := b.loop.Stats(); s.Waiting != 2 || s.Joined != 1 || s.TimedOut != 1 {
		t.Errorf("stats %+v, want two waiting, one joined, one timed out", s)
	}
	b.pass(60 * time.Millisecond)
	want(t, "answers", &b.answers, "joined: unavailable", "b: unavailable")
	// What was sent may still land: it is folded, and asking again gives the
	// answer. What was not sent is forgotten.
	b.wantSent("under 0: 1 lines")
	b.loop.Stored(b.last(), 1, b.now)
	b.wantSent()
	b.admit(1, "again")
	want(t, "answers", &b.answers, "again: request.admitted.v1 at 1.0")
}

func TestSilenceIsSentAgainUnderTheSameTail(t *testing.T) {
	b := newBench(t, Config{Resend: 50 * time.Millisecond})
	b.admit(1, "a")
	first := b.sent[0]
	firstToken := b.last()
	b.pass(51 * time.Millisecond)
	b.wantSent("under 0: 1 lines", "under 0: 1 lines")
	// The first copy landed after all; it is followed, and the second is over.
	landed := *first
	landed.Seq = 4
	if err := b.loop.Followed(&landed, b.now); err != nil {
		t.Fatal(err)
	}
	want(t, "answers", &b.answers, "a: request.admitted.v1 at 4.0")
	want(t, "commits", &b.commits, "request.admitted.v1 at 4.0 own true")
	b.loop.Stored(firstToken, 4, b.now)
	b.loop.Refused(b.last(), 4, b.now)
	want(t, "answers", &b.answers)
	want(t, "commits", &b.commits)
	if s := b.loop.Stats(); s.Stale != 2 || s.Lines != 1 {
		t.Errorf("stats %+v, want two stale replies and one line", s)
	}
}

func TestRefusalWaitsForTheFollower(t *testing.T) {
	b := newBench(t, Config{Backoff: 20 * time.Millisecond})
	b.admit(1, "a")
	b.wantSent("under 0: 1 lines")
	b.loop.Refused(b.last(), 6, b.now)
	b.wantSent()
	if err := b.loop.Followed(b.other(3, command(events.CmdAdmit, subject(5), "gw1", 0)), b.now); err != nil {
		t.Fatal(err)
	}
	b.wantSent() // the refusal named 6
	if err := b.loop.Followed(b.other(6, command(events.CmdAdmit, subject(6), "gw1", 0)), b.now); err != nil {
		t.Fatal(err)
	}
	b.wantSent("under 6: 1 lines")
	b.loop.Refused(b.last(), 0, b.now)
	b.pass(21 * time.Millisecond) // nothing came: try anyway
	b.wantSent("under 6: 1 lines")
	want(t, "answers", &b.answers)
	want(t, "alarms", &b.alarms)
}

// TestCatchingUp follows many messages while a command waits: it is not sent
// once for each of them.
func TestCatchingUp(t *testing.T) {
	b := newBench(t, Config{})
	b.admit(1, "a")
	for i := range 100 {
		if err := b.loop.Followed(b.other(uint64(i+1), command(events.CmdAdmit, subject(100+i), "gw1", 0)), b.now); err != nil {
			t.Fatal(err)
		}
	}
	b.wantSent("under 0: 1 lines")
	b.loop.Refused(b.last(), 100, b.now) // the reply to what was overtaken
	b.wantSent("under 100: 1 lines")
}

func TestGap(t *testing.T) {
	b := newBench(t, Config{})
	env := b.other(5, command(events.CmdAdmit, subject(1), "gw1", 0))
	env.Expected = 3
	var gap *GapError
	if err := b.loop.Followed(env, b.now); !errors.As(err, &gap) || gap.Seq != 5 || gap.Expected != 3 || gap.Applied != 0 {
		t.Fatalf("got %v, want a gap before 5", err)
	}
	want(t, "commits", &b.commits)
	if s := b.loop.Stats(); s.Gaps != 1 || s.Applied != 0 {
		t.Errorf("stats %+v", s)
	}
	b.loop.Resume(3)
	if err := b.loop.Followed(env, b.now); err != nil {
		t.Error(err)
	}
	if err := b.loop.Followed(env, b.now); err != nil || len(b.commits) != 1 {
		t.Errorf("followed twice: %v, %d lines folded", err, len(b.commits))
	}
}

func TestForeignMessageMovesTheTailAlone(t *testing.T) {
	b := newBench(t, Config{})
	b.admit(1, "a")
	if err := b.loop.Followed(&events.Envelope{Seq: 8}, b.now); err != nil {
		t.Fatal(err)
	}
	want(t, "answers", &b.answers)
	want(t, "commits", &b.commits)
	if len(b.alarms) != 1 || !strings.Contains(b.alarms[0].Error(), "message 8 was not written by a holder of the log key") {
		t.Errorf("alarms %v", b.alarms)
	}
	b.sent = nil
	b.loop.Refused(b.last(), 8, b.now)
	b.wantSent("under 8: 1 lines")
	b.loop.Stored(b.last(), 9, b.now)
	want(t, "answers", &b.answers, "a: request.admitted.v1 at 9.0")
}

func TestUndecodableLineIsPassedOver(t *testing.T) {
	b := newBench(t, Config{})
	env := b.other(5, command(events.CmdAdmit, subject(1), "gw1", 0), command(events.CmdAdmit, subject(2), "gw1", 0))
	i := strings.IndexByte(string(env.Lines), '\n') + 1
	env.Lines = []byte(string(env.Lines[:i]) + `{"secret":"prompt"}` + "\n" + string(env.Lines[i:]))
	if err := b.loop.Followed(env, b.now); err != nil {
		t.Fatal(err)
	}
	want(t, "commits", &b.commits, "request.admitted.v1 at 5.0 own false", "request.admitted.v1 at 5.2 own false")
	var line *LineError
	if len(b.alarms) != 1 || !errors.As(b.alarms[0], &line) || line.Pos != (events.Position{Seq: 5, Line: 1}) {
		t.Errorf("alarms %v, want one for line 5.1", b.alarms)
	}
	b.alarms = nil
	if err := b.loop.Followed(&events.Envelope{Seq: 6, Expected: 5, Lines: []byte("no newline")}, b.now); err != nil || len(b.alarms) != 1 {
		t.Errorf("a payload that is no event lines: %v, alarms %v", err, b.alarms)
	}
	if b.loop.Applied() != 6 {
		t.Errorf("applied %d, want 6", b.loop.Applied())
	}
}

func TestUnknownBacksOff(t *testing.T) {
	b := newBench(t, Config{Backoff: 10 * time.Millisecond, MaxBackoff: 40 * time.Millisecond, CommandTimeout: 300 * time.Millisecond})
	b.refuse = errors.New("the disk is full: free space")
	b.admit(1, "a")
	var waits []int
	at := 0
	for ms := 1; len(waits) < 5; ms++ {
		before := b.loop.Stats().Attempts
		b.pass(time.Millisecond)
		if b.loop.Stats().Attempts > before {
			waits = append(waits, ms-at)
			at = ms
		}
	}
	if d := cmp.Diff([]int{11, 21, 41, 41, 41}, waits); d != "" {
		t.Errorf("milliseconds between attempts (-want +got):\n%s", d)
	}
	if e := b.loop.unavailable(); e.Code != events.CodeUnavailable || !strings.Contains(e.Message, "free space") {
		t.Errorf("callers are told %v", e)
	}
	b.refuse = nil
	b.pass(50 * time.Millisecond)
	b.loop.Stored(b.last(), 1, b.now)
	want(t, "answers", &b.answers, "a: request.admitted.v1 at 1.0")
	if e := b.loop.unavailable(); strings.Contains(e.Message, "free space") {
		t.Errorf("callers are told of what is over: %v", e)
	}
}

func TestLostTail(t *testing.T) {
	b := newBench(t, Config{Backoff: time.Millisecond})
	b.loop.Resume(100)
	b.admit(1, "a")
	for range 2 * tailPatience {
		b.loop.Refused(b.last(), 60, b.now)
		b.pass(2 * time.Millisecond)
	}
	var tail *TailError
	if len(b.alarms) != 1 || !errors.As(b.alarms[0], &tail) || tail.Tail != 60 || tail.Applied != 100 {
		t.Errorf("alarms %v, want one for a tail at 60", b.alarms)
	}
}

// cannotEncode decides events that no encoder takes.
type cannotEncode struct{ *machine }

func (m cannotEncode) Begin() Draft { return badDraft{m.machine.Begin()} }

type badDraft struct{ Draft }

func (d badDraft) Decide(c *events.Command, key string, now time.Time) *events.Event {
	e := d.Draft.Decide(c, key, now)
	if c.Subject == subject(1) {
		e.Data.(*events.RequestAdmitted).Model = strings.Repeat("m", events.MaxEvent)
	}
	return e
}

func TestEventThatCannotBeStored(t *testing.T) {
	b := newBench(t, Config{})
	b.loop.machine = cannotEncode{b.machine}
	b.admit(0, "first")
	b.admit(1, "too long")
	b.admit(2, "next")
	b.loop.Stored(b.last(), 1, b.now)
	want(t, "answers", &b.answers, "first: request.admitted.v1 at 1.0", "too long: internal")
	var enc *EncodeError
	if len(b.alarms) != 1 || !errors.As(b.alarms[0], &enc) || strings.Contains(enc.Error(), "mmm") {
		t.Errorf("alarms %v, want one that names the event", b.alarms)
	}
	b.sent = b.sent[1:]
	b.wantSent("under 1: 1 lines")
	b.loop.Stored(b.last(), 2, b.now)
	want(t, "answers", &b.answers, "next: request.admitted.v1 at 2.0")
}

func TestConfig(t *testing.T) {
	for name, c := range map[string]Config{
		"no writer":        {},
		"partition":        {Writer: "w", Partition: -2},
		"partition, large": {Writer: "w", Partition: events.MaxPartitions},
		"small envelope":   {Writer: "w", MaxBytes: events.MaxEvent},
		"events":           {Writer: "w", MaxEvents: -1},
		"queue":            {Writer: "w", QueueLimit: -1},
		"subject":          {Writer: "w", SubjectLimit: -1},
		"timeout":          {Writer: "w", CommandTimeout: -1},
		"backoff":          {Writer: "w", Backoff: time.Second, MaxBackoff: time.Millisecond},
	} {
		if _, err := New(c, nil, nil); err == nil {
			t.Errorf("%s: %+v is accepted", name, c)
		}
	}
	c, err := Config{Writer: "w"}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Config{Writer: "w", MaxBytes: 512 << 10, MaxEvents: 512, QueueLimit: 16384, SubjectLimit: 64, CommandTimeout: 10 * time.Second, Resend: time.Second, Backoff: 20 * time.Millisecond, MaxBackoff: time.Second}, c); d != "" {
		t.Errorf("defaults (-want +got):\n%s", d)
	}
}
