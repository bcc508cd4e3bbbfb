package events

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// Kinds of digested content.
const (
	KindPrompt    = "prompt"
	KindOutput    = "output"
	KindLabel     = "label"
	KindReference = "reference"
)

// RequestKey derives the key of all digests of one request from the cluster's
// digest secret. Lifecycle and gateways hold the secret; a worker is told the
// key of the request it works on. Without the key a digest of a short prompt
// cannot be guessed at.
func RequestKey(secret []byte, requestID string) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("pdgate request digest\x00"))
	m.Write([]byte(requestID))
	return m.Sum(nil)
}

// Digester is a keyed digest over content that arrives in pieces.
type Digester struct{ h hash.Hash }

// NewDigester starts a digest of one kind of content.
func NewDigester(key []byte, kind string) Digester {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(kind))
	m.Write([]byte{0})
	return Digester{m}
}

// Write adds content.
func (d Digester) Write(p []byte) (int, error) { return d.h.Write(p) }

// String is "hmac-sha256:" and 64 hex digits.
func (d Digester) String() string { return "hmac-sha256:" + hex.EncodeToString(d.h.Sum(nil)) }

// Digest is the digest of content at hand.
func Digest(key []byte, kind string, content []byte) string {
	d := NewDigester(key, kind)
	d.h.Write(content)
	return d.String()
}

// KVKey derives the key of the KV checksum from a request key.
func KVKey(requestKey []byte) uint64 {
	m := hmac.New(sha256.New, requestKey)
	m.Write([]byte("kv\x00"))
	return binary.LittleEndian.Uint64(m.Sum(nil))
}
