package gateway

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
)

// GenerateKey mints an API key and the digest that stands for it in a tenants
// file. A key has 256 random bits, which is why a plain SHA-256 of it is enough:
// there is nothing to guess at.
func GenerateKey() (key, digest string) {
	var b [32]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	key = "pdg_" + base64.RawURLEncoding.EncodeToString(b[:])
	return key, KeyDigest(key)
}

// KeyDigest is how a tenants file names a key: its SHA-256 in hex.
func KeyDigest(key string) string {
	h := sha256.Sum256([]byte(key))
	return hex.EncodeToString(h[:])
}
