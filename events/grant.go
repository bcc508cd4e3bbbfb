package events

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Grant is the right to pull one request's KV once. It is made from a durable
// request.transfer_granted.v1 and signed by the lifecycle service; the owner of
// the pages checks it against its own memory and its own clock.
type Grant struct {
	RequestID    string    `json:"request_id"`
	Model        string    `json:"model"`
	Tenant       string    `json:"tenant"`
	GrantEpoch   int       `json:"grant_epoch"`
	Event        string    `json:"event"` // position of the event behind the grant
	Owner        string    `json:"owner"`
	OwnerEpoch   uint64    `json:"owner_epoch"`
	OwnerKey     string    `json:"owner_key"` // Ed25519, base64
	OwnerAddress string    `json:"owner_address"`
	Worker       string    `json:"worker"` // who may pull
	WorkerEpoch  uint64    `json:"worker_epoch"`
	WorkerKey    string    `json:"worker_key"` // the puller proves that it holds it
	Pages        []PageRun `json:"pages"`      // the owner's
	PromptTokens int       `json:"prompt_tokens"`
	KVBytes      int64     `json:"kv_bytes"`
	KVDigest     string    `json:"kv_digest"`
	Layout       string    `json:"layout"`
	Lease        time.Time `json:"lease"`
}

// SignedGrant is a grant's exact bytes and the signature over them.
type SignedGrant struct {
	Grant     json.RawMessage `json:"grant"`
	Signature []byte          `json:"signature"`
}

// ErrGrantSignature means that no trusted key signed these bytes.
var ErrGrantSignature = errors.New("grant: signature is not by a trusted lifecycle key")

const grantContext = "pdgate grant v1\x00"

// SignGrant signs g. The signature is deterministic, so a repeated command gets
// the same grant.
func SignGrant(key ed25519.PrivateKey, g *Grant) (*SignedGrant, error) {
	b, err := g.appendJSON(nil)
	if err != nil {
		return nil, fmt.Errorf("encode grant: %w", err)
	}
	return &SignedGrant{Grant: b, Signature: ed25519.Sign(key, append([]byte(grantContext), b...))}, nil
}

// Open verifies the signature by any of the keys and decodes the grant, which
// must be in canonical form: then what was signed can be read in one way only.
func (s *SignedGrant) Open(keys ...ed25519.PublicKey) (*Grant, error) {
	msg := append([]byte(grantContext), s.Grant...)
	for _, k := range keys {
		if len(k) == ed25519.PublicKeySize && ed25519.Verify(k, msg, s.Signature) {
			return decodeGrant(s.Grant)
		}
	}
	return nil, ErrGrantSignature
}

func decodeGrant(b []byte) (*Grant, error) {
	p := parser{b: b, strict: true}
	g := new(Grant)
	g.readJSON(&p)
	p.end()
	if p.err != nil {
		return nil, fmt.Errorf("decode grant: %w", p.err)
	}
	return g, nil
}
