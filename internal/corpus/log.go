package corpus

import (
	"fmt"
	"strconv"
	"time"

	"github.com/pdgate/pdgate/events"
)

// Log numbers, chains and encodes events as the lifecycle service does, an envelope
// for each Put, and hands the envelopes on.
type Log struct {
	Partitions int // set before the first Put
	Batch      int // most events of one envelope; 0: 1
	Source     string
	Command    string // of the events that follow

	emit     func(*events.Envelope) error
	seq      uint64
	last     map[int]uint64
	subjects map[string]*place
	tenants  map[chainKey]*chain
	buf      []byte
	lines    []byte // of the envelope that is being filled
	n        int    // events in it
	at       int    // its partition
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
	if l.n > 0 && l.at != partition {
		l.Flush()
	}
	if l.err != nil {
		return
	}
	p := l.subjects[subject]
	if p == nil {
		p = &place{}
		l.subjects[subject] = p
	}
	e := events.Event{Source: l.Source, Type: d.EventType(), Subject: subject, Time: events.Micros(at), N: p.n + 1, Prev: p.pos, Tenant: tenant, Command: l.Command, Data: d}
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
	if l.n == 0 {
		l.seq++
		l.at = partition
	}
	p.n, p.pos = e.N, events.Position{Seq: l.seq, Line: l.n}
	l.lines = append(append(l.lines, l.buf...), '\n')
	if l.n++; l.n >= l.Batch {
		l.Flush()
	}
}

// Flush ends the envelope that is being filled.
func (l *Log) Flush() {
	if l.n == 0 || l.err != nil {
		return
	}
	l.err = l.emit(&events.Envelope{Partition: l.at, Seq: l.seq, Expected: l.last[l.at], ID: "corpus." + strconv.FormatUint(l.seq, 10), Lines: l.lines})
	l.last[l.at] = l.seq
	l.lines, l.n = l.lines[:0], 0
}

// Err is the first error.
func (l *Log) Err() error { return l.err }
