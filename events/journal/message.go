package journal

import (
	"crypto/sha256"
	"errors"
	"strconv"

	"github.com/pdgate/pdgate/events"
)

// minKey is the shortest log key: a MAC is worth no more than its key.
const minKey = 16

var (
	errSubject  = errors.New("subject is not a partition of the log")
	errExpected = errors.New("header " + events.HeaderExpected + " is missing or malformed")
	errEmpty    = errors.New("payload is empty")
)

// message is a stored message as the stream has it.
type message struct {
	subject  string
	seq      uint64
	expected string
	id       string
	mac      string
	data     []byte
}

// known asks whether the message need not be opened.
func (m *message) known(partitions int, known []Known) bool {
	if len(known) == 0 {
		return false
	}
	p, err := events.ParseLogSubject(m.subject)
	if err != nil || p >= partitions {
		return false
	}
	for _, k := range known {
		if k(p, m.seq, m.mac) {
			return true
		}
	}
	return false
}

// open judges a message. It returns an envelope in any case; with an error the
// envelope is stripped of all that the message claims about itself.
func (m *message) open(key []byte, partitions int) (*events.Envelope, *ForeignError) {
	env := &events.Envelope{Partition: NoPartition, Seq: m.seq}
	foreign := func(err error) (*events.Envelope, *ForeignError) {
		return env, &ForeignError{Seq: m.seq, Subject: m.subject, Bytes: len(m.data), Sum: sum(m.subject, m.data), Err: err}
	}
	p, err := events.ParseLogSubject(m.subject)
	if err != nil || p >= partitions {
		return foreign(errSubject)
	}
	env.Partition = p
	expected, err := strconv.ParseUint(m.expected, 10, 64)
	if err != nil || expected >= m.seq {
		return foreign(errExpected)
	}
	if len(m.data) == 0 {
		return foreign(errEmpty)
	}
	full := &events.Envelope{Partition: p, Seq: m.seq, Expected: expected, ID: m.id, MAC: m.mac, Lines: m.data}
	if err := full.Verify(key); err != nil {
		return foreign(err)
	}
	return full, nil
}

// sum is SHA-256 over a message's subject, a newline and its payload.
func sum(subject string, payload []byte) (s [32]byte) {
	h := sha256.New()
	h.Write([]byte(subject + "\n"))
	h.Write(payload)
	h.Sum(s[:0])
	return s
}
