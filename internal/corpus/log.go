package corpus

import (
	"fmt"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Log numbers, chains and encodes events as the lifecycle service does, an envelope
// for each Put, and hands the envelopes on.
type Log struct {
	Partitions int // 0: 8
	Source     string

	emit     func(*events.Envelope) error
	seq      uint64
	last     map[int]uint64
	subjects map[string]*place
	tenants  map[chainKey]*chain
	buf      []byte
	err      error
}

type place struct {
	n   int
	pos events.Position
}

type chainKey struct {
	partition int
	tenant    string
}

type chain struct {
	seq  uint64
	hash string
}

// NewLog begins a log. An envelope is good until emit returns.
func NewLog(emit func(*events.Envelope) error) *Log {
	return &Log{Partitions: events.DefaultPartitions, Source: "/pdgate/lifecycle/lc1", emit: emit,
		last: map[int]uint64{}, subjects: map[string]*place{}, tenants: map[chainKey]*chain{}}
}

// Put appends one event of a request.
func (l *Log) Put(at time.Time, subject, tenant string, d events.Data) {
	l.put(events.PartitionOf(subject, l.Partitions), at, subject, tenant, d)
}

// PutOps appends one event of operations.
func (l *Log) PutOps(at time.Time, subject string, d events.Data) {
	l.put(events.OpsPartition, at, subject, "", d)
}

// Forget drops what is known of a request that gets no more events.
func (l *Log) Forget(subject string) { delete(l.subjects, subject) }

func (l *Log) put(partition int, at time.Time, subject, tenant string, d events.Data) {
	if l.err != nil {
		return
	}
	p := l.subjects[subject]
	if p == nil {
		p = &place{}
		l.subjects[subject] = p
	}
	e := events.Event{Source: l.Source, Type: d.EventType(), Subject: subject, Time: events.Micros(at), N: p.n + 1, Prev: p.pos, Tenant: tenant, Data: d}
	e.ID = fmt.Sprintf("%s.%d", subject, e.N)
	var c *chain
	if tenant != "" {
		k := chainKey{partition, tenant}
		if c = l.tenants[k]; c == nil {
			c = &chain{}
			l.tenants[k] = c
		}
		e.TenantSeq, e.TenantPrev = c.seq+1, c.hash
	}
	l.buf, l.err = events.Append(l.buf[:0], &e)
	if l.err != nil {
		l.err = fmt.Errorf("%s of %s: %w", e.Type, subject, l.err)
		return
	}
	if c != nil {
		c.seq, c.hash = e.TenantSeq, events.Hash(l.buf)
	}
	l.seq++
	p.n, p.pos = e.N, events.Position{Seq: l.seq}
	l.buf = append(l.buf, '\n')
	l.err = l.emit(&events.Envelope{Partition: partition, Seq: l.seq, Expected: l.last[partition], ID: fmt.Sprintf("corpus.%d", l.seq), Lines: l.buf})
	l.last[partition] = l.seq
}

// Err is the first error.
func (l *Log) Err() error { return l.err }
