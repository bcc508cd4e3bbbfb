package events

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"strings"
)

// Kinds of digested content.
const (
	KindPrompt    = "prompt"
	KindOutput    = "output"
	KindReference = "reference"
)

// How digests are spelled. A text says how it was made, so that what older
// builds recorded stays checkable.
const (
	prefixKeyed  = "hmac-sha256:"      // under the request key; read only
	prefixKind   = "hmac-sha256-kind:" // under the key of its kind, see KindKey
	prefixSalted = "sha256-salted:"    // see SaltedDigest
)

// RequestKey derives the key of all digests of one request from the secret that
// the request was admitted under (see [Keys]). Lifecycle and gateways hold the
// secret; a worker is told the key of the request it works on. Without the key a
// digest of a short prompt cannot be guessed at.
func RequestKey(secret []byte, requestID string) []byte {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("pdgate request digest\x00"))
	m.Write([]byte(requestID))
	return m.Sum(nil)
}

// KindKey derives the key of one kind of digest from a request key. Whoever is
// given it can check that digest against content, and can guess at no other one.
func KindKey(requestKey []byte, kind string) []byte {
	m := hmac.New(sha256.New, requestKey)
	m.Write([]byte("pdgate digest key\x00"))
	m.Write([]byte(kind))
	return m.Sum(nil)
}

// Digester is a keyed digest over content that arrives in pieces.
type Digester struct{ h hash.Hash }

// NewDigester starts a digest of one kind of content under a request key.
func NewDigester(key []byte, kind string) Digester {
	return Digester{hmac.New(sha256.New, KindKey(key, kind))}
}

// Write adds content.
func (d Digester) Write(p []byte) (int, error) { return d.h.Write(p) }

// String is "hmac-sha256-kind:" and 64 hex digits.
func (d Digester) String() string { return prefixKind + hex.EncodeToString(d.h.Sum(nil)) }

// Digest is the digest of content at hand.
func Digest(key []byte, kind string, content []byte) string {
	d := NewDigester(key, kind)
	d.h.Write(content)
	return d.String()
}

// SameDigest says whether a recorded digest is that of the content, in the form
// that it was recorded in.
func SameDigest(recorded string, key []byte, kind string, content []byte) bool {
	if !strings.HasPrefix(recorded, prefixKeyed) {
		return recorded == Digest(key, kind, content)
	}
	m := hmac.New(sha256.New, key)
	m.Write([]byte(kind))
	m.Write([]byte{0})
	m.Write(content)
	return recorded == prefixKeyed+hex.EncodeToString(m.Sum(nil))
}

// KVKey derives the key of the KV checksum from a request key.
func KVKey(requestKey []byte) uint64 {
	m := hmac.New(sha256.New, requestKey)
	m.Write([]byte("kv\x00"))
	return binary.LittleEndian.Uint64(m.Sum(nil))
}
