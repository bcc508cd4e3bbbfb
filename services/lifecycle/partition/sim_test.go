package partition

import (
	"errors"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
)

// sim is a world in one goroutine, fixed by its seed: one log with a
// compare-and-swap; replicas that lag behind it and crash; requests to the log
// and replies from it that are delayed, reordered, lost or doubled; refusals
// without a hint, with a stale one, without a reason, or of what was stored;
// outsiders who write garbage; clients that retry anywhere.
type sim struct {
	rnd    *rand.Rand
	now    time.Time
	log    []*events.Envelope
	tail   uint64   // of the log: the last sequence of the partition
	due    []func() // may happen next, in any order
	reps   []*replica
	broken mutation
	calls  []*call
	got    map[string]*events.Answer // what clients were told, by command key
	bad    []string
	stats  Stats
}

// replica is one life of one replica.
type replica struct {
	s    *sim
	loop *Loop
	next int // index in the log of the next message to follow
	dead bool
}

// call is one delivery of one command to one replica.
type call struct {
	command  *events.Command
	rep      *replica
	answers  int
	refused  bool // with "not taken"
	required bool // the client repeats the command until it is answered
}

func (s *sim) complain(format string, args ...any) {
	if len(s.bad) < 5 {
		s.bad = append(s.bad, fmt.Sprintf(format, args...))
	}
}

func (s *sim) boot(i int) {
	if old := s.reps[i]; old != nil {
		old.dead = true
		s.addStats(old.loop.Stats())
	}
	r := &replica{s: s}
	writer := fmt.Sprintf("r%d.%d", i, s.rnd.Int63())
	l, err := New(Config{
		Writer: writer, MaxEvents: 1 + s.rnd.Intn(6), QueueLimit: 3 + s.rnd.Intn(20),
		CommandTimeout: time.Duration(100+s.rnd.Intn(300)) * time.Millisecond,
		Resend:         20 * time.Millisecond, Backoff: 7 * time.Millisecond, MaxBackoff: 30 * time.Millisecond,
	}, newMachine("/pdgate/lifecycle/"+writer, s.complain), r)
	if err != nil {
		panic(err)
	}
	l.broken = s.broken
	r.loop = l
	s.reps[i] = r
}

// alive wraps what reaches a replica from outside.
func (r *replica) alive(f func()) func() {
	return func() {
		if !r.dead {
			f()
		}
	}
}

// Publish implements Port: the envelope is on its way.
func (r *replica) Publish(token uint64, env *events.Envelope) error {
	s := r.s
	if s.rnd.Intn(40) == 0 {
		return errors.New("not connected")
	}
	env = copied(env)
	s.due = append(s.due, func() { s.arrive(r, token, env) })
	return nil
}

// arrive is the log's side of an append.
func (s *sim) arrive(r *replica, token uint64, env *events.Envelope) {
	if s.rnd.Intn(10) == 0 {
		return // lost on the way
	}
	reply := func(f func()) {
		f = r.alive(f)
		switch s.rnd.Intn(10) {
		case 0: // lost
		case 1:
			s.due = append(s.due, f, f)
		default:
			s.due = append(s.due, f)
		}
	}
	hint := s.tail
	switch s.rnd.Intn(4) {
	case 0:
		hint = 0
	case 1:
		if len(s.log) > 0 {
			hint = s.log[s.rnd.Intn(len(s.log))].Seq
		}
	}
	refuse := func() { reply(func() { r.loop.Refused(token, hint, s.now) }) }
	switch {
	case s.rnd.Intn(15) == 0:
		reply(func() { r.loop.Unknown(token, errors.New("no leader"), s.now) })
	case env.Expected != s.tail || s.rnd.Intn(25) == 0:
		refuse()
	default:
		seq := s.store(env)
		switch s.rnd.Intn(20) {
		case 0:
			refuse() // by a deposed leader; the append landed all the same
		case 1:
			reply(func() { r.loop.Unknown(token, errors.New("no leader"), s.now) })
		default:
			reply(func() { r.loop.Stored(token, seq, s.now) })
		}
	}
}

// store appends; other partitions share the sequence.
func (s *sim) store(env *events.Envelope) uint64 {
	e := *env
	s.tail += 1 + uint64(s.rnd.Intn(3))
	e.Seq = s.tail
	s.log = append(s.log, &e)
	return e.Seq
}

// Answer implements Port.
func (r *replica) Answer(to any, a *events.Answer, err *events.Error) {
	s, c := r.s, to.(*call)
	c.answers++
	if c.answers > 1 {
		s.complain("a caller is answered twice for %s of %s", c.command.Type, c.command.Subject)
	}
	if (a == nil) == (err == nil) {
		s.complain("an answer is both or neither: %v %v", a, err)
	}
	if err != nil {
		c.refused = err.Code == events.CodeBackpressure
		return
	}
	key := c.command.Key()
	if old, ok := s.got[key]; ok && !cmp.Equal(old, a) {
		s.complain("two answers for %s of %s: %+v and %+v", c.command.Type, c.command.Subject, old, a)
	}
	if s.rnd.Intn(8) == 0 && c.required {
		// Lost on the way to the client: it asks again. What was said counts.
		s.due = append(s.due, func() { s.send(c.command, true) })
	}
	s.got[key] = a
}

// Committed implements Port.
func (r *replica) Committed(e *events.Event, pos events.Position, line []byte, own bool) {
	if own != (e.Source == r.loop.machine.(*machine).source) {
		r.s.complain("%s at %s: own is %v", e.ID, pos, own)
	}
}

// Alarm implements Port. Foreign messages alone are expected here.
func (r *replica) Alarm(err error) {
	var foreign *ForeignError
	var tail *TailError
	if !errors.As(err, &foreign) && !errors.As(err, &tail) {
		r.s.complain("alarm: %v", err)
	}
}

// send delivers a command to some replica, later.
func (s *sim) send(c *events.Command, required bool) {
	r := s.reps[s.rnd.Intn(len(s.reps))]
	s.due = append(s.due, r.alive(func() {
		k := &call{command: c, rep: r, required: required}
		s.calls = append(s.calls, k)
		r.loop.Command(c, k, s.now)
	}))
}

// follow hands the replica its next message.
func (s *sim) follow(r *replica) {
	if r.next >= len(s.log) {
		return
	}
	m := s.log[r.next]
	r.next++
	// The follower loses one. It proves by itself that it lost none before a
	// foreign message, so there it does not.
	if s.rnd.Intn(20) == 0 && r.next < len(s.log) && len(m.Lines) > 0 && len(s.log[r.next].Lines) > 0 {
		m = s.log[r.next]
		r.next++
	}
	if err := r.loop.Followed(m, s.now); err != nil {
		for r.next = 0; r.next < len(s.log) && s.log[r.next].Seq <= r.loop.Applied(); r.next++ {
		}
	}
}

// life is one request's client: a command after the other, each repeated until
// it is answered.
type life struct {
	subject string
	step    int
	command *events.Command
}

var steps = []events.CommandType{events.CmdAdmit, events.CmdPrefilled, events.CmdTransferred, events.CmdDecoded}

func command(t events.CommandType, subject, principal string, n int) *events.Command {
	return &events.Command{Type: t, Subject: subject, Role: events.RoleGateway, Principal: principal, Raw: []byte(strconv.Itoa(n))}
}

const (
	stormSteps = 1000
	maxSteps   = 30_000
)

func (s *sim) run() {
	n := 1 + s.rnd.Intn(3)
	s.reps = make([]*replica, n)
	for i := range s.reps {
		s.boot(i)
	}
	lives := make([]*life, 6)
	for i := range lives {
		lives[i] = &life{subject: fmt.Sprintf("01890a5d-ac96-774b-bcce-b302099a80%02d", i)}
	}
	var extra []*events.Command
	crashes := s.rnd.Intn(60)
	for step := range maxSteps {
		calm := step > stormSteps
		s.now = s.now.Add(time.Duration(s.rnd.Intn(2000)) * time.Microsecond)
		switch k := s.rnd.Intn(40); {
		case k < 18 && len(s.due) > 0:
			i := s.rnd.Intn(len(s.due))
			f := s.due[i]
			s.due[i] = s.due[len(s.due)-1]
			s.due = s.due[:len(s.due)-1]
			f()
		case k < 26:
			s.follow(s.reps[s.rnd.Intn(n)])
		case k < 30:
			s.reps[s.rnd.Intn(n)].loop.Tick(s.now)
		case k == 30 && !calm && s.rnd.Intn(60) < crashes:
			s.boot(s.rnd.Intn(n))
		case k == 31 && !calm && s.rnd.Intn(10) == 0:
			s.store(&events.Envelope{}) // an outsider
		default:
			extra = s.client(lives[s.rnd.Intn(len(lives))], extra, step)
		}
		if len(s.bad) > 0 || calm && step%50 == 0 && s.settled(lives, extra) {
			break
		}
	}
	if len(s.bad) == 0 && !s.settled(lives, extra) {
		s.complain("it does not settle: %d commands told, %d calls", len(s.got), len(s.calls))
	}
	for _, r := range s.reps {
		s.addStats(r.loop.Stats())
	}
	s.judge()
}

// client moves one life on, or repeats what is not answered.
func (s *sim) client(l *life, extra []*events.Command, step int) []*events.Command {
	if l.step > 0 && s.got[l.command.Key()] == nil {
		if s.rnd.Intn(8) == 0 {
			s.send(l.command, true)
		}
		return extra
	}
	if l.step < len(steps) {
		l.command = command(steps[l.step], l.subject, "gw1", l.step)
		l.step++
		s.send(l.command, true)
		switch s.rnd.Intn(6) {
		case 0: // a racing command: a cancellation, or something out of order
			all := append([]events.CommandType{events.CmdCancel}, steps...)
			c := command(all[s.rnd.Intn(len(all))], l.subject, "gw2", step)
			extra = append(extra, c)
			s.send(c, true)
		case 1: // one that is sent once and never again
			s.send(command(events.CmdCancel, l.subject, "gw3", step), false)
		}
		return extra
	}
	for _, c := range extra {
		if s.got[c.Key()] == nil && s.rnd.Intn(8) == 0 {
			s.send(c, true)
		}
	}
	return extra
}

// settled says whether every client has its answer, and every caller one of any
// kind.
func (s *sim) settled(lives []*life, extra []*events.Command) bool {
	for _, l := range lives {
		if l.step < len(steps) || s.got[l.command.Key()] == nil {
			return false
		}
	}
	for _, c := range extra {
		if s.got[c.Key()] == nil {
			return false
		}
	}
	for _, c := range s.calls {
		if !c.rep.dead && c.answers == 0 {
			return false
		}
	}
	return true
}

// judge folds the final log with a machine of its own and compares it with what
// everybody was told.
func (s *sim) judge() {
	m := newMachine("", func(f string, a ...any) { s.complain("log: "+f, a...) })
	last := uint64(0)
	for _, env := range s.log {
		if len(env.Lines) == 0 {
			last = env.Seq
			continue
		}
		if env.Expected != last {
			s.complain("log: message %d names %d as the one before, it is %d", env.Seq, env.Expected, last)
		}
		last = env.Seq
		if err := events.Split(env.Lines, func(i int, line []byte) error {
			e, err := events.Decode(line)
			if err != nil {
				return err
			}
			m.Fold(e, events.Position{Seq: env.Seq, Line: i}, events.Hash(line))
			return nil
		}); err != nil {
			s.complain("log: message %d: %v", env.Seq, err)
		}
	}
	for key, a := range s.got {
		if r, ok := m.recorded[key]; !ok {
			s.complain("a client was told %s %s, which is not in the log", a.Type, a.ID)
		} else if !cmp.Equal(r, a) {
			s.complain("a client was told %+v, the log has %+v", a, r)
		}
	}
	notTaken := map[string]bool{}
	for _, c := range s.calls {
		key := c.command.Key()
		if no, ok := notTaken[key]; !ok || no {
			notTaken[key] = c.refused
		}
	}
	for key, no := range notTaken {
		if no && m.recorded[key] != nil {
			s.complain("%s %s is in the log, and all its callers were told that it was not taken", m.recorded[key].Type, m.recorded[key].ID)
		}
	}
}

func (s *sim) addStats(x Stats) {
	t := &s.stats
	for _, p := range []struct {
		to *uint64
		n  uint64
	}{
		{&t.Attempts, x.Attempts}, {&t.Acked, x.Acked}, {&t.Own, x.Own}, {&t.Refused, x.Refused}, {&t.Unknown, x.Unknown},
		{&t.Overtaken, x.Overtaken}, {&t.Stale, x.Stale}, {&t.Gaps, x.Gaps}, {&t.Foreign, x.Foreign}, {&t.Lines, x.Lines},
		{&t.Recorded, x.Recorded}, {&t.Joined, x.Joined}, {&t.Backpressure, x.Backpressure}, {&t.TimedOut, x.TimedOut},
	} {
		*p.to += p.n
	}
}

// simulate runs one seed and returns what is wrong.
func simulate(seed int64, broken mutation) (bad []string, stats Stats) {
	s := &sim{rnd: rand.New(rand.NewSource(seed)), now: time.Unix(1_000_000, 0), got: map[string]*events.Answer{}, broken: broken}
	defer func() {
		// A broken loop may also break itself.
		if p := recover(); p != nil && broken != none {
			bad = append(bad, fmt.Sprint("panic: ", p))
		} else if p != nil {
			panic(p)
		}
	}()
	s.run()
	return s.bad, s.stats
}

func seeds(t *testing.T, otherwise int) int {
	v := os.Getenv("PDGATE_SEEDS")
	if v == "" {
		return otherwise
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		t.Fatalf("PDGATE_SEEDS: %v", err)
	}
	return n
}

func TestSimulation(t *testing.T) {
	n := seeds(t, 700)
	all := &sim{}
	for seed := range int64(n) {
		bad, stats := simulate(seed, none)
		if len(bad) > 0 {
			t.Fatalf("seed %d: %q", seed, bad)
		}
		all.addStats(stats)
	}
	t.Logf("%d seeds: %+v", n, all.stats)
	// A simulation in which something never happens does not test it.
	quiet := all.stats
	quiet.Waiting, quiet.Applied, quiet.Undecodable = 0, 0, 0
	for name, n := range counters(quiet) {
		if n == 0 {
			t.Errorf("%s never happened", name)
		}
	}
}

func counters(s Stats) map[string]uint64 {
	return map[string]uint64{
		"attempts": s.Attempts, "acked": s.Acked, "own": s.Own, "refused": s.Refused, "unknown": s.Unknown,
		"overtaken": s.Overtaken, "stale": s.Stale, "gaps": s.Gaps, "foreign": s.Foreign, "lines": s.Lines,
		"recorded": s.Recorded, "joined": s.Joined, "backpressure": s.Backpressure, "timed out": s.TimedOut,
	}
}

// TestMutations takes the loop's rules away one at a time: the simulation must
// see each.
func TestMutations(t *testing.T) {
	for m := none + 1; m < mutations; m++ {
		t.Run(m.String(), func(t *testing.T) {
			for seed := range int64(seeds(t, 300)) {
				if bad, _ := simulate(seed, m); len(bad) > 0 {
					t.Logf("seed %d: %s", seed, bad[0])
					return
				}
			}
			t.Error("no seed sees it")
		})
	}
}
