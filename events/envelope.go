package events

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
)

// Headers of stored messages and notifications.
const (
	HeaderExpected = "Nats-Expected-Last-Subject-Sequence" // what the envelope was written under
	HeaderEnvelope = "Pdgate-Envelope"                     // the writer's name for it, unique
	HeaderMAC      = "Pdgate-Mac"                          // see MAC
	HeaderPosition = "Pdgate-Position"                     // of notified events, see Notice
	HeaderContent  = "Content-Type"
	ContentEvents  = "application/cloudevents+jsonl" // event lines
)

// Envelope is one stored message.
type Envelope struct {
	Partition int
	Seq       uint64 // stream sequence; 0 while unwritten
	Expected  uint64 // sequence of the subject's message before
	ID        string
	MAC       string
	Lines     []byte // event lines, each ended by '\n'
}

// ErrMAC means that an envelope was not written by a holder of the log key, or
// was moved or changed since.
var ErrMAC = errors.New("envelope: message authentication code is missing or wrong")

// MAC authenticates an envelope: HMAC-SHA256 over subject, expected sequence
// and payload. JetStream itself takes messages from anyone who may publish to
// the subject, with or without a compare-and-swap.
func MAC(key []byte, partition int, expected uint64, lines []byte) string {
	m := hmac.New(sha256.New, key)
	s := LogSubject(partition)
	b := make([]byte, 0, 64)
	b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
	b = append(b, s...)
	m.Write(binary.BigEndian.AppendUint64(b, expected))
	m.Write(lines)
	return encode64([sha256.Size]byte(m.Sum(b[:0])))
}

// Verify checks the envelope's MAC.
func (e *Envelope) Verify(key []byte) error {
	if !hmac.Equal([]byte(e.MAC), []byte(MAC(key, e.Partition, e.Expected, e.Lines))) {
		return ErrMAC
	}
	return nil
}

// Split calls f for each line, without its '\n'. A payload that is empty or
// does not end in '\n' is an error.
func Split(lines []byte, f func(line int, event []byte) error) error {
	if len(lines) == 0 || lines[len(lines)-1] != '\n' {
		return errors.New("envelope: want event lines, each ended by a newline")
	}
	for i := 0; len(lines) > 0; i++ {
		n := bytes.IndexByte(lines, '\n')
		if err := f(i, lines[:n]); err != nil {
			return fmt.Errorf("line %d: %w", i, err)
		}
		lines = lines[n+1:]
	}
	return nil
}

// Hash is the hash of an event's canonical bytes: SHA-256, base64url without
// padding. Receipts and tenant chains carry it.
func Hash(event []byte) string {
	h := sha256.Sum256(event)
	return encode64(h)
}

// AppendHash appends an event's [Hash].
func AppendHash(dst, event []byte) []byte {
	h := sha256.Sum256(event)
	return base64.RawURLEncoding.AppendEncode(dst, h[:])
}

// encode64 is base64url without padding.
func encode64(h [sha256.Size]byte) string {
	var b [43]byte
	base64.RawURLEncoding.Encode(b[:], h[:])
	return string(b[:])
}
