package events

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Personal fields: what a client says about people. The log holds a salted digest
// of each, and the value itself lies in the disclosure store, sealed.
const (
	FieldLabel = "label" // the client's own id of the request
	FieldUser  = "user"  // the end user, by the client's name for them
)

// MaxField is the longest value of a personal field, in bytes.
const MaxField = 512

// Disclosure opens one personal field of one event: with its salt the value can be
// held against the digest in the log. It says nothing about another field.
type Disclosure struct {
	Event string `json:"event"` // id
	Field string `json:"field"`
	Salt  []byte `json:"salt"`
	Value string `json:"value"`
}

// Digest is what the event must hold.
func (d *Disclosure) Digest() string { return SaltedDigest(d.Salt, d.Field, d.Value) }

// AdmissionID is the id of the event that admits a request: a request's history
// begins with it, so a gateway knows it before it asks.
func AdmissionID(requestID string) string { return requestID + ".1" }

// Salt is that of one field of one event. Without the key it cannot be told from
// chance, so that nobody can try values against the digest.
func (k DigestKey) Salt(eventID, field string) []byte {
	m := hmac.New(sha256.New, k.Secret)
	m.Write([]byte("pdgate field salt\x00"))
	m.Write([]byte(eventID))
	m.Write([]byte{0})
	m.Write([]byte(field))
	return m.Sum(nil)
}

// Disclose makes the disclosure of a field.
func (k DigestKey) Disclose(eventID, field, value string) Disclosure {
	return Disclosure{Event: eventID, Field: field, Salt: k.Salt(eventID, field), Value: value}
}

// SaltedDigest is "sha256-salted:" and the SHA-256, in 64 hex digits, of salt,
// field and value, each behind its length in four bytes, big-endian.
func SaltedDigest(salt []byte, field, value string) string {
	b := make([]byte, 0, 12+len(salt)+len(field)+len(value))
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(salt))), salt...)
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(field))), field...)
	b = append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
	h := sha256.Sum256(b)
	return prefixSalted + hex.EncodeToString(h[:])
}

// SaltedField is a salted digest that an event holds.
type SaltedField struct{ Field, Digest string }

// SaltedFields lists an event's salted digests, in the order in which disclosures
// come. Personal fields that an older build recorded under a key are not among
// them: they cannot be disclosed alone.
func SaltedFields(d Data) []SaltedField {
	a, ok := d.(*RequestAdmitted)
	if !ok {
		return nil
	}
	var all []SaltedField
	for _, f := range [...]SaltedField{{FieldLabel, a.Label}, {FieldUser, a.User}} {
		if isSalted(f.Digest) {
			all = append(all, f)
		}
	}
	return all
}
