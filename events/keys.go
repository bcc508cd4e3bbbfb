package events

import (
	"crypto/sha256"
	"encoding/hex"
)

// DigestKey is what the digests and the salts of a tenant's requests are derived
// from.
type DigestKey struct {
	Secret      []byte
	Fingerprint string // of the tenant's own key; "" for the cluster's secret
}

// NewTenantKey is the digest key that a tenant's own key makes.
func NewTenantKey(secret []byte) DigestKey {
	return DigestKey{secret, KeyFingerprint(secret)}
}

// KeyFingerprint names a tenant's key: 16 hex digits, from which nothing of the
// key can be learned.
func KeyFingerprint(secret []byte) string {
	h := sha256.New()
	h.Write([]byte("pdgate tenant key\x00"))
	h.Write(secret)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// TenantKeys finds the keys that tenants have of their own. It is called once for
// each admission and each item of work, and reads no file then.
type TenantKeys interface {
	// Key is the tenant's key as it stands; false where the tenant has none.
	Key(tenant string) (DigestKey, bool)
	// Refresh looks for keys that came or went since. It may do nothing if it was
	// called a moment ago.
	Refresh()
	// Forget drops a key that was erased, wherever it still lies.
	Forget(tenant, fingerprint string)
}

// Keys is the one rule for what a request's digests are keyed by: the key of its
// tenant, or the cluster's secret where the tenant has none.
type Keys struct {
	Secret  []byte     // the cluster's
	Tenants TenantKeys // nil: no tenant has a key of its own
}

// Of is the key under which a tenant's requests are admitted now.
func (k *Keys) Of(tenant string) DigestKey {
	if k.Tenants != nil {
		if own, ok := k.Tenants.Key(tenant); ok {
			return own
		}
	}
	return DigestKey{Secret: k.Secret}
}

// Under is the key that a request was admitted under, by the fingerprint that its
// admission recorded; false where it is not here: it was erased, or never copied.
func (k *Keys) Under(tenant, fingerprint string) (DigestKey, bool) {
	if fingerprint == "" {
		return DigestKey{Secret: k.Secret}, true
	}
	own := k.Of(tenant)
	return own, own.Fingerprint == fingerprint
}

// Request derives the key of a request's digests.
func (k DigestKey) Request(requestID string) []byte { return RequestKey(k.Secret, requestID) }
