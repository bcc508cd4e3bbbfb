package journal

import (
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

// open judges a message. It returns an envelope in any case; with an error the
// envelope is stripped of all that the message claims about itself.
func (m *message) open(key []byte, partitions int) (*events.Envelope, *ForeignError) {
	env := &events.Envelope{Partition: NoPartition, Seq: m.seq}
	foreign := func(err error) (*events.Envelope, *ForeignError) {
		return env, &ForeignError{Seq: m.seq, Subject: m.subject, Bytes: len(m.data), Err: err}
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
