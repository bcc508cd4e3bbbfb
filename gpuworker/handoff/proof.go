package handoff

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
)

const (
	proofContext   = "pdgate handoff puller v1\x00"
	trailerContext = "pdgate handoff owner v1\x00"
	hashContext    = "pdgate handoff transcript v1\x00"
)

// transcript binds a proof to one connection and one grant. All parts but the
// last have a fixed length.
func transcript(ownerNonce, pullerNonce, channel, grant []byte) []byte {
	h := sha256.New()
	h.Write([]byte(hashContext))
	h.Write(ownerNonce)
	h.Write(pullerNonce)
	h.Write(channel)
	h.Write(grant)
	return h.Sum(nil)
}

func proofMessage(transcript []byte) []byte { return append([]byte(proofContext), transcript...) }

// trailerMessage is what the owner signs at the end: it vouches for the header,
// the first token in it, and the sum.
func trailerMessage(transcript, header []byte, sum uint64) []byte {
	m := append([]byte(trailerContext), transcript...)
	h := sha256.Sum256(header)
	m = append(m, h[:]...)
	return binary.BigEndian.AppendUint64(m, sum)
}

// EncodeKey is the wire form of a worker's public key.
func EncodeKey(k ed25519.PublicKey) string { return base64.StdEncoding.EncodeToString(k) }

func decodeKey(s string) (ed25519.PublicKey, error) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil || len(b) != ed25519.PublicKeySize {
		return nil, fmt.Errorf("worker key: want %d bytes in base64", ed25519.PublicKeySize)
	}
	return b, nil
}

func sameKey(k ed25519.PublicKey, wire string) bool {
	d, err := decodeKey(wire)
	return err == nil && bytes.Equal(k, d)
}
