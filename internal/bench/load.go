package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// maxInFlight bounds the lifecycles that an open loop has begun and not ended.
// A server that cannot keep up reaches it, and the measurement fails.
const maxInFlight = 1 << 15

// load takes requests through their lives over NATS, as gateway and workers
// would, without a goroutine for each: an answer's callback sends the next
// command. Each principal has one inbox for all its answers, whose last two
// tokens name the lifecycle and the command.
type load struct {
	site       *site
	partitions int
	conns      map[events.Role]*nats.Conn
	inbox      map[events.Role]string
	want       [][]byte // what an answer to each step must contain; nil: anything
	subs       []*nats.Subscription

	prefillEpoch, decodeEpoch uint64
	stops                     []func()
	patience                  time.Duration // how long it may go without one answer

	mu         sync.Mutex // guards all below
	lives      []life
	free       []int32 // slots that nobody is in
	generation uint64
	token      uint32
	buf        []byte
	again      bool // a life that ends makes room for another one: closed loop
	open       int  // lives that have not ended
	counting   bool
	answered   int // while counting
	ended      int
	wrong      int // answers that are not what they must be
	firstWrong string
	latency    Recorder
	whole      Recorder // admission to the last answer
	progress   uint64
	idle       chan struct{} // closed when open falls to 0; nil: nobody waits
	sizes      [transitions + 2]sizes
}

type sizes struct{ n, bytes int }

// life is one request on its way, in its slot.
type life struct {
	slot       int
	id         string
	generation uint64
	begun      time.Time // when it was meant to begin
	calls      [2]call   // the second one is for the second release
}

// call is a command that waits for its answer; token 0: none.
type call struct {
	token uint32
	step  int
	sent  time.Time
}

// newLoad connects the three principals. With real set the answers must be the
// service's, and workers are registered.
func (s *site) newLoad(ctx context.Context, real bool) (*load, error) {
	l := &load{site: s, partitions: s.b.Partitions, conns: map[events.Role]*nats.Conn{}, inbox: map[events.Role]string{},
		lives: make([]life, maxInFlight), patience: stalled}
	for i := range l.lives {
		l.lives[i].slot = i
		l.free = append(l.free, int32(maxInFlight-1-i))
	}
	for role, u := range map[events.Role]keyring.User{
		events.RoleGateway: keyring.Gateway(siteGateway), events.RolePrefill: keyring.Worker(events.RolePrefill, sitePrefill), events.RoleDecode: keyring.Worker(events.RoleDecode, siteDecode),
	} {
		nc, err := s.connect(ctx, u)
		if err != nil {
			return nil, err
		}
		l.conns[role] = nc
		l.inbox[role] = nc.NewRespInbox() + "."
		if err := l.subscribe(nc, l.inbox[role]+"*.*", func(m *nats.Msg) { l.answer(m, len(l.inbox[role])) }); err != nil {
			return nil, err
		}
	}
	l.want = make([][]byte, len(steps))
	if !real {
		return l, nil
	}
	for i, s := range steps {
		l.want[i] = []byte(`"event":"` + string(s.event) + `"`)
	}
	// The gateway hears of every event and looks whose it is, as gateways do.
	if err := l.subscribe(l.conns[events.RoleGateway], events.NotifyAll, func(m *nats.Msg) {
		_ = events.ReadNotice(m.Header.Get(events.HeaderPosition), m.Data, func(_ events.Position, line []byte) { events.PeekSubject(line) })
	}); err != nil {
		return nil, err
	}
	var err error
	var stop func()
	if l.prefillEpoch, l.decodeEpoch, stop, err = s.workers(ctx, l.conns[events.RolePrefill], l.conns[events.RoleDecode], maxInFlight*requestPages); err != nil {
		return nil, err
	}
	l.stops = append(l.stops, stop)
	for _, role := range []events.Role{events.RolePrefill, events.RoleDecode} {
		if err := l.drainQueue(role); err != nil {
			return nil, errors.Join(err, l.close())
		}
	}
	return l, nil
}

func (l *load) subscribe(nc *nats.Conn, subject string, h nats.MsgHandler) error {
	sub, err := nc.Subscribe(subject, h)
	if err == nil {
		err = sub.SetPendingLimits(-1, -1)
	}
	if err == nil {
		err = nc.Flush()
	}
	if err != nil {
		return fmt.Errorf("load: subscribe to %s: %w", subject, err)
	}
	l.subs = append(l.subs, sub)
	return nil
}

// drainQueue takes the work items and acknowledges them, as a worker does. The
// load itself goes by the answers.
func (l *load) drainQueue(role events.Role) error {
	nc := l.conns[role]
	pull := "$JS.API.CONSUMER.MSG.NEXT." + events.WorkStream + "." + events.WorkConsumer(loadModel, role)
	const batch = 256
	inbox := nc.NewRespInbox()
	left, request := 0, []byte(`{"batch":`+strconv.Itoa(batch)+`,"expires":2000000000}`)
	sub := (*nats.Subscription)(nil)
	ask := func() {
		left = batch
		_ = nc.PublishRequest(pull, inbox, request) // a closed connection ends the load anyway
	}
	sub, err := nc.Subscribe(inbox, func(m *nats.Msg) {
		switch {
		case m.Reply != "": // an item
			_ = nc.Publish(m.Reply, []byte("+ACK"))
			if left--; left == 0 {
				ask()
			}
		case m.Header.Get("Status") != "": // the pull is over
			ask()
		}
	})
	if err != nil {
		return fmt.Errorf("load: work queue: %w", err)
	}
	l.subs = append(l.subs, sub)
	ask()
	return nil
}

// close ends the workers and the subscriptions; the connections are the site's.
func (l *load) close() error {
	for _, stop := range l.stops {
		stop()
	}
	var errs []error
	for _, sub := range l.subs {
		errs = append(errs, sub.Unsubscribe())
	}
	return errors.Join(errs...)
}

// begin starts a life, meant to have begun at due; false: no slot is free. The
// lock is held.
func (l *load) begin(due time.Time) bool {
	if len(l.free) == 0 {
		return false
	}
	x := &l.lives[l.free[len(l.free)-1]]
	l.free = l.free[:len(l.free)-1]
	l.open++
	l.generation++
	x.id, x.generation, x.begun = uuid.Must(uuid.NewV7()).String(), l.generation, due
	l.send(x, 0, 0, due)
	return true
}

// send sends the command of a step; its time counts from since. The lock is held.
func (l *load) send(x *life, which, at int, since time.Time) {
	s := &steps[at]
	c := events.Command{Type: s.command, Subject: x.id, Data: s.data(x, l)}
	b, err := events.AppendCommand(l.buf[:0], &c)
	if err != nil {
		panic(err) // the load's own commands are well formed
	}
	l.buf = b
	l.token++
	x.calls[which] = call{token: l.token, step: at, sent: since}
	subject := events.CommandSubject(s.role, principals[s.role], s.command, events.PartitionOf(x.id, l.partitions))
	reply := l.inbox[s.role] + strconv.Itoa(x.slot) + "." + strconv.FormatUint(uint64(l.token), 10)
	if err := l.conns[s.role].PublishRequest(subject, reply, b); err != nil && l.firstWrong == "" {
		l.wrong++
		l.firstWrong = err.Error()
	}
}

// answer takes one answer, and sends what comes after it. An answer that nobody
// waits for is a second one to the same command: two replicas may serve a
// partition for a moment.
func (l *load) answer(m *nats.Msg, prefix int) {
	now := time.Now()
	slot, token, ok := strings.Cut(m.Subject[prefix:], ".")
	i, err1 := strconv.Atoi(slot)
	t, err2 := strconv.ParseUint(token, 10, 32)
	if !ok || err1 != nil || err2 != nil || i >= len(l.lives) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	x := &l.lives[i]
	which := 0
	if x.calls[1].token == uint32(t) {
		which = 1
	}
	c := x.calls[which]
	if c.token != uint32(t) {
		return
	}
	x.calls[which] = call{}
	l.progress++
	l.sizes[c.step].n++
	l.sizes[c.step].bytes += len(m.Data)
	if l.counting {
		l.answered++
		l.latency.Add(now.Sub(c.sent))
	}
	// Without anybody there, the server itself answers, with nothing.
	if len(m.Data) == 0 || !bytes.Contains(m.Data, l.want[c.step]) {
		l.wrong++
		if l.firstWrong == "" {
			l.firstWrong = fmt.Sprintf("%s: %q %q", steps[c.step].command, m.Header.Get("Nats-Service-Error")+m.Header.Get("Status"), m.Data[:min(len(m.Data), 300)])
		}
		l.end(x, now)
		return
	}
	switch {
	case c.step+1 < transitions:
		l.send(x, 0, c.step+1, now)
	case c.step+1 == transitions:
		l.send(x, 0, transitions, now)
		l.send(x, 1, transitions+1, now)
	case x.calls[0].token == 0 && x.calls[1].token == 0:
		if l.counting {
			l.ended++
			l.whole.Add(now.Sub(x.begun))
		}
		l.end(x, now)
	}
}

// end frees a life's slot. The lock is held.
func (l *load) end(x *life, now time.Time) {
	x.calls = [2]call{}
	l.free = append(l.free, int32(x.slot))
	l.open--
	if l.again {
		l.begin(now)
	}
	if l.open == 0 && l.idle != nil {
		close(l.idle)
		l.idle = nil
	}
}

// loaded is what a load came to.
type loaded struct {
	lifecycles, answers int
	seconds             float64
	latency, whole      *Latency // of a command; of a lifecycle
}

// shape says how a load is run: rate 0 is a closed loop of inFlight.
type shape struct {
	inFlight         int
	rate             float64
	warmup, duration time.Duration
	warm             func() (bool, error) // the warm-up goes on, up to four durations more, until it says so; nil: it does not
	border           func()               // called at both ends of what is counted
}

// stalled is how long anything may go without one answer.
const stalled = 10 * time.Second

// run runs a load. It returns when every life has ended.
func (l *load) run(ctx context.Context, s shape) (loaded, error) {
	l.mu.Lock()
	l.answered, l.ended, l.wrong, l.firstWrong = 0, 0, 0, ""
	l.latency, l.whole = Recorder{}, Recorder{}
	l.again = s.rate == 0
	start := time.Now()
	for range s.inFlight {
		if l.again && !l.begin(start) {
			break
		}
	}
	l.mu.Unlock()
	pacing, stop := context.WithCancel(ctx)
	defer stop()
	paced := make(chan error, 1)
	go func() {
		if s.rate > 0 {
			paced <- l.pace(pacing, Schedule{Start: start, Rate: s.rate})
		} else {
			paced <- nil
		}
	}()

	err := l.wait(ctx, s.warmup)
	for most := time.Now().Add(4 * s.duration); err == nil && s.warm != nil && time.Now().Before(most); {
		var warm bool
		if warm, err = s.warm(); warm || err != nil {
			break
		}
		err = l.wait(ctx, min(restLook, s.duration))
	}
	s.border()
	from := time.Now()
	l.beginCounting()
	if err == nil {
		err = l.wait(ctx, s.duration)
	}
	l.endCounting()
	took := time.Since(from)
	s.border()
	stop()
	err = errors.Join(err, <-paced)
	if err == nil {
		err = l.settle(ctx)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && l.wrong > 0 {
		err = fmt.Errorf("load: %d answers are not what they must be, the first one: %s", l.wrong, l.firstWrong)
	}
	return loaded{l.ended, l.answered, took.Seconds(), l.latency.Latency(), l.whole.Latency()}, err
}

func (l *load) beginCounting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counting = true
}

// endCounting also ends a closed loop: no life begins where one ends.
func (l *load) endCounting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counting, l.again = false, false
}

// wait lets the load run, and ends early with a load that hangs.
func (l *load) wait(ctx context.Context, d time.Duration) error {
	end := time.NewTimer(d)
	defer end.Stop()
	look := time.NewTicker(l.patience)
	defer look.Stop()
	last := l.seen()
	for {
		select {
		case <-end.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-look.C:
			n := l.seen()
			if n == last {
				return fmt.Errorf("load: no answer in %v", l.patience)
			}
			last = n
		}
	}
}

func (l *load) seen() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.progress
}

// settle waits for the lives that are open.
func (l *load) settle(ctx context.Context) error {
	l.mu.Lock()
	idle := make(chan struct{})
	if l.open == 0 {
		close(idle)
	} else {
		l.idle = idle
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, 2*l.patience)
	defer cancel()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("load: lifecycles do not end: %w", context.Cause(ctx))
	}
}

// pace begins lives on a schedule until ctx ends.
func (l *load) pace(ctx context.Context, s Schedule) error {
	t := time.NewTimer(0)
	defer t.Stop()
	for n := 0; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		l.mu.Lock()
		for owed := s.Owed(time.Now()); n < owed; n++ {
			if !l.begin(s.Due(n)) {
				l.mu.Unlock()
				return fmt.Errorf("load: %d lifecycles are open at %.0f a second: the service cannot keep up", maxInFlight, s.Rate)
			}
		}
		l.mu.Unlock()
		t.Reset(max(time.Until(s.Due(n)), 50*time.Microsecond))
	}
}

// lifecycles is how many have ended, counted or not.
func (l *load) lifecycles() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sizes[transitions].n
}

// answerSizes are the mean sizes of the answers to each step.
func (l *load) answerSizes() []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []int
	for _, s := range l.sizes {
		out = append(out, s.bytes/max(1, s.n))
	}
	return out
}
