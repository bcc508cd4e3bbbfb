package disclosure

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/pdgate/pdgate/events"
)

// message is what is stored of one event.
type message struct {
	Event  string   `json:"event"`
	Fields []sealed `json:"fields"`
}

type sealed struct {
	Field string `json:"field"`
	Box   []byte `json:"box"` // nonce, and what AES-256-GCM makes of the value
}

// ErrSealed means that a message does not open under the key: it is another
// tenant's or key's, or was tampered with.
var ErrSealed = errors.New("the disclosure does not open under this key")

// seal makes the stored form of one event's disclosures.
func seal(key events.DigestKey, tenant string, fields []events.Disclosure) ([]byte, error) {
	if len(fields) == 0 {
		return nil, errors.New("seal disclosures: want at least one")
	}
	m := message{Event: fields[0].Event}
	gcm := box(key, m.Event)
	for _, f := range fields {
		if f.Event != m.Event {
			return nil, errors.New("seal disclosures: want those of one event")
		}
		nonce := make([]byte, gcm.NonceSize(), gcm.NonceSize()+len(f.Value)+gcm.Overhead())
		rand.Read(nonce)
		m.Fields = append(m.Fields, sealed{f.Field, gcm.Seal(nonce, nonce, []byte(f.Value), bound(tenant, f.Event, f.Field))})
	}
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("seal disclosures: %w", err)
	}
	return b, nil
}

// open reads a stored message of a tenant.
func open(key events.DigestKey, tenant string, b []byte) ([]events.Disclosure, error) {
	var m message
	if err := json.Unmarshal(b, &m); err != nil || len(m.Fields) == 0 {
		return nil, ErrSealed
	}
	gcm := box(key, m.Event)
	var all []events.Disclosure
	for _, f := range m.Fields {
		if len(f.Box) < gcm.NonceSize() {
			return nil, ErrSealed
		}
		value, err := gcm.Open(nil, f.Box[:gcm.NonceSize()], f.Box[gcm.NonceSize():], bound(tenant, m.Event, f.Field))
		if err != nil {
			return nil, ErrSealed
		}
		all = append(all, key.Disclose(m.Event, f.Field, string(value)))
	}
	return all, nil
}

// box is the cipher of one event. A key of its own for each keeps random nonces
// far from their limit.
func box(key events.DigestKey, eventID string) cipher.AEAD {
	m := hmac.New(sha256.New, key.Secret)
	m.Write([]byte("pdgate disclosure\x00"))
	m.Write([]byte(eventID))
	block, err := aes.NewCipher(m.Sum(nil))
	if err == nil {
		var gcm cipher.AEAD
		if gcm, err = cipher.NewGCM(block); err == nil {
			return gcm
		}
	}
	panic(err) // 32 bytes are a key
}

// bound is what a box is authenticated with: each part behind its length.
func bound(parts ...string) []byte {
	var b []byte
	for _, p := range parts {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(p))), p...)
	}
	return b
}
