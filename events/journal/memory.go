package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/pdgate/pdgate/events"
)

// Mode is which of JetStream's two contracts a [MemoryLog] keeps.
type Mode int

const (
	// Single is a stream with one replica: a refusal names the tail.
	Single Mode = iota
	// Replicated is a stream with several: a refusal may name no sequence, and
	// may be for an append that is in the log (see Fault.StoreThenRefuse).
	Replicated
)

// MemoryLog is a log in memory, for tests and simulations: what the server and
// its stream are to [JetStream]. Writers open a [Memory] each.
type MemoryLog struct {
	mode       Mode
	partitions int

	mu      sync.Mutex
	msgs    []*message     // msgs[i] has sequence i+1; nil: deleted; mu
	tail    map[string]int // subject -> index of its last message + 1; mu
	changed chan struct{}  // closed and replaced when a follower may go on; mu
	fault   func(*events.Envelope) Fault
	held    []func() // replies that wait for Release; mu
}

// Fault is what goes wrong with one append. The zero Fault is: nothing.
type Fault struct {
	Drop            bool   // the append never reaches the log, and nobody answers
	Unavailable     error  // nothing is stored, the reply is Unknown with this error
	Refuse          bool   // nothing is stored, the reply is Refused
	StoreThenRefuse bool   // stored if the expectation holds, yet Refused
	Hint            uint64 // with a refusal, if not 0: this in place of the tail
	LoseReply       bool
	HoldReply       bool // until MemoryLog.Release
}

// NewMemoryLog is an empty log. 0 partitions is events.DefaultPartitions.
func NewMemoryLog(mode Mode, partitions int) *MemoryLog {
	if partitions == 0 {
		partitions = events.DefaultPartitions
	}
	return &MemoryLog{mode: mode, partitions: partitions, tail: map[string]int{}, changed: make(chan struct{})}
}

// SetFault asks f about every append from here on; nil: nothing goes wrong. f
// runs under the log's lock and must not call back.
func (l *MemoryLog) SetFault(f func(*events.Envelope) Fault) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault = f
}

// Release sends all held replies, in the order of their appends.
func (l *MemoryLog) Release() {
	l.mu.Lock()
	held := l.held
	l.held = nil
	l.mu.Unlock()
	for _, f := range held {
		f()
	}
}

// Inject stores a message as someone does who may publish to the log's subjects
// and knows nothing of its rules: without a compare-and-swap.
func (l *MemoryLog) Inject(subject string, header map[string]string, data []byte) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.store(&message{subject: subject, expected: header[events.HeaderExpected], id: header[events.HeaderEnvelope], mac: header[events.HeaderMAC], data: append([]byte(nil), data...)})
}

// Delete removes a message, as nobody may.
func (l *MemoryLog) Delete(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.msgs[seq-1] = nil
}

// Trim takes everything below a sequence off the log.
func (l *MemoryLog) Trim(below uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.msgs[:min(below-1, uint64(len(l.msgs)))] {
		l.msgs[i] = nil
	}
}

// Open is a writer and reader of the log.
func (l *MemoryLog) Open(cfg Config) (*Memory, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if cfg.Partitions != 0 && cfg.Partitions != l.partitions {
		return nil, fmt.Errorf("journal: partitions is %d, want %d: the number is fixed for the life of a log", l.partitions, cfg.Partitions)
	}
	m := &Memory{cfg: cfg, log: l, wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go m.deliver()
	return m, nil
}

// store appends and wakes followers; l.mu is held.
func (l *MemoryLog) store(m *message) uint64 {
	m.seq = uint64(len(l.msgs)) + 1
	l.msgs = append(l.msgs, m)
	l.tail[m.subject] = len(l.msgs)
	l.wakeFollowers()
	return m.seq
}

func (l *MemoryLog) wakeFollowers() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// judge is the server: it stores or refuses one append. l.mu is held. answered
// is false for silence.
func (l *MemoryLog) judge(env *events.Envelope, fault Fault) (r Reply, answered bool) {
	if fault.Drop {
		return Reply{}, false
	}
	subject := events.LogSubject(env.Partition)
	tail := uint64(l.tail[subject])
	refused := Reply{Kind: Refused, Hint: tail, Code: codeWrongSequence}
	if l.mode == Replicated {
		refused = Reply{Kind: Refused, Code: codeWrongSequenceOther}
	}
	if fault.Hint != 0 {
		refused.Hint = fault.Hint
	}
	switch {
	case fault.Unavailable != nil:
		r = Reply{Kind: Unknown, Err: fault.Unavailable}
	case fault.Refuse || env.Expected != tail:
		r = refused
	default:
		seq := l.store(&message{subject: subject, expected: strconv.FormatUint(env.Expected, 10), id: env.ID, mac: env.MAC, data: env.Lines})
		r = Reply{Kind: Stored, Seq: seq}
		if fault.StoreThenRefuse {
			r = refused
		}
	}
	return r, !fault.LoseReply
}

// Memory is one writer's and reader's end of a [MemoryLog].
type Memory struct {
	cfg Config
	log *MemoryLog

	wake chan struct{} // something is in queue
	stop chan struct{}
	done chan struct{}

	// Under log.mu.
	queue  []func()
	cut    bool
	closed bool
}

// Partitions is the log's number of partitions.
func (m *Memory) Partitions() int { return m.log.partitions }

// Close ends the replies.
func (m *Memory) Close() error {
	m.log.mu.Lock()
	was := m.closed
	m.closed = true
	m.log.mu.Unlock()
	if !was {
		close(m.stop)
	}
	<-m.done
	return nil
}

// Disconnect cuts this end off: appends vanish, replies are lost, Follow and
// Read wait.
func (m *Memory) Disconnect() { m.setCut(true) }

// Reconnect ends a Disconnect.
func (m *Memory) Reconnect() { m.setCut(false) }

func (m *Memory) setCut(cut bool) {
	m.log.mu.Lock()
	defer m.log.mu.Unlock()
	m.cut = cut
	m.log.wakeFollowers()
}

// Append implements [Journal].
func (m *Memory) Append(env *events.Envelope, reply func(Reply)) error {
	env.MAC = events.MAC(m.cfg.Key, env.Partition, env.Expected, env.Lines)
	l := m.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	if m.cut {
		return nil
	}
	env = &events.Envelope{Partition: env.Partition, Expected: env.Expected, ID: env.ID, MAC: env.MAC, Lines: bytes.Clone(env.Lines)}
	var fault Fault
	if l.fault != nil {
		fault = l.fault(env)
	}
	r, answered := l.judge(env, fault)
	if !answered {
		return nil
	}
	send := func() { reply(r) }
	if fault.HoldReply {
		l.held = append(l.held, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			m.enqueue(send)
		})
		return nil
	}
	m.enqueue(send)
	return nil
}

// enqueue has deliver call send, unless the connection is cut; log.mu is held.
func (m *Memory) enqueue(send func()) {
	if m.cut {
		return
	}
	m.queue = append(m.queue, send)
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// deliver is the goroutine that replies come on; Close stops it.
func (m *Memory) deliver() {
	defer close(m.done)
	for {
		select {
		case <-m.stop:
			return
		case <-m.wake:
		}
		for {
			m.log.mu.Lock()
			if len(m.queue) == 0 || m.closed {
				m.log.mu.Unlock()
				break
			}
			send := m.queue[0]
			m.queue = m.queue[1:]
			m.log.mu.Unlock()
			send()
		}
	}
}

// Follow implements [Journal].
func (m *Memory) Follow(ctx context.Context, next uint64, handle func(*events.Envelope) error, known ...Known) error {
	for next = max(next, 1); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		msg, err := m.wait(ctx, next)
		if err != nil {
			return err
		}
		next++
		if msg.known(m.log.partitions, known) {
			continue
		}
		env, foreign := msg.open(m.cfg.Key, m.log.partitions)
		if foreign != nil {
			m.cfg.foreign(foreign)
		}
		if err := handle(env); err != nil {
			return err
		}
	}
}

// wait returns message seq once it is there. Deleted messages at the end of the
// log do not show: a gap needs something behind it.
func (m *Memory) wait(ctx context.Context, seq uint64) (*message, error) {
	for {
		msg, changed := m.from(seq)
		switch {
		case msg == nil:
		case msg.seq != seq:
			return nil, &GapError{From: seq, To: msg.seq}
		default:
			return msg, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// from is the first message at or after seq, or nil and what to wait for.
func (m *Memory) from(seq uint64) (*message, <-chan struct{}) {
	l := m.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.cut {
		return nil, l.changed
	}
	for i := seq - 1; i < uint64(len(l.msgs)); i++ {
		if l.msgs[i] != nil {
			return l.msgs[i], l.changed
		}
	}
	return nil, l.changed
}

// Read implements [Journal].
func (m *Memory) Read(ctx context.Context, seq uint64) (*events.Envelope, error) {
	m.log.mu.Lock()
	defer m.log.mu.Unlock()
	if m.cut {
		return nil, fmt.Errorf("journal: read %d: %w", seq, errCut)
	}
	if seq == 0 || seq > uint64(len(m.log.msgs)) || m.log.msgs[seq-1] == nil {
		return nil, ErrNotFound
	}
	env, foreign := m.log.msgs[seq-1].open(m.cfg.Key, m.log.partitions)
	if foreign != nil {
		return nil, foreign
	}
	return env, nil
}

// Last implements [Journal].
func (m *Memory) Last(ctx context.Context) (uint64, error) {
	m.log.mu.Lock()
	defer m.log.mu.Unlock()
	if m.cut {
		return 0, fmt.Errorf("journal: last sequence: %w", errCut)
	}
	return uint64(len(m.log.msgs)), nil
}

// Extent implements [Journal].
func (m *Memory) Extent(ctx context.Context) (*Extent, error) {
	l := m.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if m.cut {
		return nil, fmt.Errorf("journal: extent: %w", errCut)
	}
	e := &Extent{First: uint64(len(l.msgs)) + 1, Last: uint64(len(l.msgs))}
	for i, msg := range l.msgs {
		if msg == nil {
			continue
		}
		e.First = min(e.First, uint64(i)+1)
		e.Messages++
		e.Bytes += uint64(len(msg.data))
	}
	if e.First > 1 {
		e.Ops = uint64(l.tail[events.LogOps])
	}
	return e, nil
}

var errCut = errors.New("connection is cut")
