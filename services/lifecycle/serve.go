package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
)

// What replicas tell each other, on events.ReplicaSubject(name).
const (
	wordBeat = "beat"
	wordBye  = "bye"
	wordKept = "kept " // and the sequence from which on the replica needs the log
)

const lookEvery = 100 * time.Millisecond

// front is what this replica has open on the bus. Its methods run on the
// goroutine of serve.
type front struct {
	s        *Service
	subs     []*nats.Subscription
	services []micro.Service // queries, and the subjects that all replicas hear
	arrived  chan struct{}   // a replica was heard for the first time, or left

	// When the follower last moved, for healthy.
	followed uint64
	moved    time.Time
}

// serve opens the endpoints and keeps the membership until ctx or the loops end.
// When it returns, the others know that this replica is gone, and every endpoint
// is drained.
func (s *Service) serve(ctx, loops context.Context) (err error) {
	v := &front{s: s, arrived: make(chan struct{}, 1), moved: s.now()}
	defer v.close(loops)
	if err := v.listen(); err != nil {
		return err
	}
	beat := time.NewTicker(beatEvery)
	defer beat.Stop()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	connected := s.cfg.Bus.StatusChanged(nats.CONNECTED)
	defer s.cfg.Bus.RemoveStatusListener(connected)

	// The log first: a replica that does not know what is recorded serves nobody.
	// Then a while of listening, so that partitions are not taken from replicas
	// that are merely not heard yet.
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	v.sayKept()
	for !s.caughtUp() {
		select {
		case <-beat.C:
			v.sayKept()
		case <-ctx.Done():
			return nil
		case <-loops.Done():
			return nil
		case <-poll.C:
		}
	}
	v.say(wordBeat)
	quiet := time.NewTimer(s.cfg.BootQuiet)
	defer quiet.Stop()
	select {
	case <-ctx.Done():
		return nil
	case <-loops.Done():
		return nil
	case <-quiet.C:
	}
	if err := v.open(loops); err != nil {
		return err
	}
	if err := v.look(s.now()); err != nil {
		return err
	}
	// Ready means that a command sent now is heard.
	if err := s.flush(ctx, stopTime); err != nil && !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return fmt.Errorf("flush: %w", err)
	}
	s.log.Info("lifecycle is ready", "seq", s.followed.Load(), "partitions", len(s.nodes))
	close(s.ready)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-loops.Done():
			return nil
		case <-connected:
			// The server may have restarted, and its memory with it.
			s.work.poke()
			v.say(wordBeat)
		case <-v.arrived:
			if v.healthy(s.now()) {
				v.say(wordBeat)
			}
			if err := v.look(s.now()); err != nil {
				return err
			}
		case <-beat.C:
			v.sayKept()
			if v.healthy(s.now()) {
				v.say(wordBeat)
			}
		case <-look.C:
			if err := v.look(s.now()); err != nil {
				return err
			}
		}
	}
}

// listen subscribes to the other replicas and to the workers.
func (v *front) listen() error {
	s := v.s
	for subject, h := range map[string]nats.MsgHandler{
		events.ReplicaSubject("*"): func(m *nats.Msg) {
			name := strings.TrimPrefix(m.Subject, events.ReplicaSubject(""))
			// Only what a replica says counts. A worker can make the server publish
			// here, by naming the subject as the reply of a pull: a status without a
			// payload. Taken for a sign of life, it would give partitions to nobody.
			switch word := string(m.Data); {
			case !events.ValidName(name) || name == s.cfg.Name:
			case word == wordBye:
				s.members.bye(name)
				v.poke()
			case word == wordBeat && s.members.beat(name, s.now()):
				v.poke()
			case strings.HasPrefix(word, wordKept):
				if seq, err := strconv.ParseUint(word[len(wordKept):], 10, 64); err == nil {
					s.members.keeps(name, seq, s.now())
				}
			}
		},
		events.HeartbeatSubject("*", "*"): func(m *nats.Msg) { s.heartbeat(m.Subject, m.Data) },
	} {
		sub, err := s.cfg.Bus.Subscribe(subject, h)
		if err != nil {
			return fmt.Errorf("subscribe to %s: %w", subject, err)
		}
		v.subs = append(v.subs, sub)
	}
	subs, err := s.serveSnapshots()
	v.subs = append(v.subs, subs...)
	return err
}

// heartbeat takes a worker's sign of life.
func (s *Service) heartbeat(subject string, payload []byte) {
	a, err := events.ParseAddress(subject)
	if err != nil || a.Role != events.RolePrefill && a.Role != events.RoleDecode {
		return
	}
	b, err := events.DecodeHeartbeat(payload)
	if err != nil {
		s.log.Warn("heartbeat is not understood", "worker_id", a.Principal, "err", err)
		return
	}
	s.roster.beat(a.Principal, a.Role, *b, s.now())
}

func (v *front) poke() {
	select {
	case v.arrived <- struct{}{}:
	default:
	}
}

// say tells the other replicas a word. An error is silence, which they judge.
func (v *front) say(word string) {
	if !v.s.silent.Load() {
		_ = v.s.cfg.Bus.Publish(events.ReplicaSubject(v.s.cfg.Name), []byte(word))
	}
}

// sayKept tells the others up to where they may trim the log.
func (v *front) sayKept() { v.say(wordKept + strconv.FormatUint(v.s.needs(), 10)) }

// healthy says whether the loops make progress. A replica whose loops hang goes
// quiet, so that the others take its partitions over, although its connection
// still answers pings.
func (v *front) healthy(now time.Time) bool {
	if now.Sub(time.Unix(0, v.s.ticked.Load())) > deadAfter/2 {
		return false
	}
	f := v.s.followed.Load()
	if f != v.followed || f >= v.s.logSeq.Load() {
		v.followed, v.moved = f, now
	}
	return now.Sub(v.moved) < deadAfter
}

// open opens what every replica serves.
func (v *front) open(loops context.Context) error {
	q, err := v.s.serveQueries(loops)
	if err != nil {
		return err
	}
	v.services = append(v.services, q)
	a, err := v.s.serveAny()
	if err != nil {
		return err
	}
	v.services = append(v.services, a)
	return nil
}

// look claims the partitions that this replica is preferred for and lets go of
// the others. Two replicas may serve a partition at once for a moment: the log
// decides between them.
func (v *front) look(now time.Time) error {
	live := v.s.members.live(now)
	for _, n := range v.s.all() {
		mine := preferred(live, n.partition) == v.s.cfg.Name
		switch {
		case mine && n.endpoints == nil:
			svc, err := v.s.servePartition(n.partition)
			if err != nil {
				return fmt.Errorf("partition %s: %w", partitionName(n.partition), err)
			}
			n.endpoints = svc
			n.mine.Store(true)
			items := 0
			if n.shard != nil {
				items = v.s.work.again(n)
			}
			v.s.log.Debug("partition is served", "partition", partitionName(n.partition), "members", len(live), "dispatched", items)
		case !mine && n.endpoints != nil:
			v.drop(n)
		}
	}
	return nil
}

// drop closes a partition's endpoints. They drain: what was delivered is still
// answered.
func (v *front) drop(n *node) {
	n.mine.Store(false)
	if err := n.endpoints.Stop(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		v.s.log.Warn("endpoints of a partition are not closed", "partition", partitionName(n.partition), "err", err)
	}
	n.endpoints = nil
}

// close says goodbye and drains everything.
func (v *front) close(loops context.Context) {
	v.say(wordBye)
	for _, n := range v.s.all() {
		if n.endpoints != nil {
			v.drop(n)
		}
	}
	for _, svc := range v.services {
		if err := svc.Stop(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
			v.s.log.Warn("endpoints are not closed", "err", err)
		}
	}
	for _, sub := range v.subs {
		_ = sub.Unsubscribe() // fails on a closed connection only
	}
	_ = v.s.flush(loops, stopTime/4) // a lost bus ends the wait
}
