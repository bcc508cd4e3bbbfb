package events

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"
)

// What is published of digests can be checked with the standard tools alone.
func TestDigestForms(t *testing.T) {
	key := RequestKey([]byte("secret"), requestID)
	m := hmac.New(sha256.New, KindKey(key, KindPrompt))
	m.Write([]byte("hello"))
	if got := Digest(key, KindPrompt, []byte("hello")); got != "hmac-sha256-kind:"+hex.EncodeToString(m.Sum(nil)) {
		t.Errorf("prompt: %s", got)
	}
	old := hmac.New(sha256.New, key)
	old.Write([]byte("prompt\x00hello"))
	recorded := "hmac-sha256:" + hex.EncodeToString(old.Sum(nil))
	for _, tt := range []struct {
		recorded, kind, content string
		want                    bool
	}{
		{recorded, KindPrompt, "hello", true},
		{recorded, KindPrompt, "hello!", false},
		{recorded, KindOutput, "hello", false},
		{Digest(key, KindPrompt, []byte("hello")), KindPrompt, "hello", true},
		{Digest(key, KindPrompt, []byte("hello")), KindOutput, "hello", false},
		{"", KindPrompt, "hello", false},
	} {
		if got := SameDigest(tt.recorded, key, tt.kind, []byte(tt.content)); got != tt.want {
			t.Errorf("%s against %s %q: %v", tt.recorded, tt.kind, tt.content, got)
		}
	}

	d := Disclosure{Event: "e.1", Field: "user", Salt: []byte{1, 2}, Value: "é"}
	sum := sha256.Sum256([]byte("\x00\x00\x00\x02\x01\x02\x00\x00\x00\x04user\x00\x00\x00\x02é"))
	if got := d.Digest(); got != "sha256-salted:"+hex.EncodeToString(sum[:]) {
		t.Errorf("salted: %s", got)
	}
}

// Salts differ by key, event and field, and no other derived key is one of them.
func TestSalts(t *testing.T) {
	k := NewTenantKey([]byte("secret"))
	seen := map[string]string{
		string(k.Request("e.1")): "request key", string(KindKey(k.Secret, FieldUser)): "kind key", string(k.Secret): "secret",
	}
	for _, key := range []DigestKey{k, NewTenantKey([]byte("Secret"))} {
		for _, event := range []string{"e.1", "e.2", "e.1\x00"} {
			for _, field := range []string{FieldLabel, FieldUser} {
				name := key.Fingerprint + event + field
				s := string(key.Salt(event, field))
				if was, doubled := seen[s]; doubled {
					t.Errorf("%q and %q have one salt", name, was)
				}
				seen[s] = name
			}
		}
	}
	if len(k.Fingerprint) != 16 || strings.HasPrefix(hex.EncodeToString(k.Secret), k.Fingerprint[:8]) {
		t.Errorf("fingerprint %s", k.Fingerprint)
	}
}

type fixedKeys map[string]DigestKey

func (f fixedKeys) Key(tenant string) (DigestKey, bool) { k, ok := f[tenant]; return k, ok }
func (fixedKeys) Refresh()                              {}
func (fixedKeys) Forget(string, string)                 {}

func TestKeys(t *testing.T) {
	own := NewTenantKey([]byte("own"))
	k := Keys{Secret: []byte("cluster"), Tenants: fixedKeys{"acme": own}}
	bare := Keys{Secret: []byte("cluster")}
	for _, tt := range []struct {
		keys        *Keys
		tenant, key string
		secret      string // "": none is found
	}{
		{&k, "acme", own.Fingerprint, "own"},
		{&k, "acme", "", "cluster"}, // admitted before the tenant had a key
		{&k, "acme", "0123456789abcdef", ""},
		{&k, "globex", "", "cluster"},
		{&k, "globex", own.Fingerprint, ""},
		{&bare, "acme", "", "cluster"},
		{&bare, "acme", own.Fingerprint, ""},
	} {
		got, ok := tt.keys.Under(tt.tenant, tt.key)
		if ok != (tt.secret != "") || ok && string(got.Secret) != tt.secret {
			t.Errorf("%s under %q: %q %v, want %q", tt.tenant, tt.key, got.Secret, ok, tt.secret)
		}
	}
	if got := k.Of("acme"); got.Fingerprint != own.Fingerprint {
		t.Errorf("of acme: %+v", got)
	}
	if got := k.Of("globex"); got.Fingerprint != "" || string(got.Secret) != "cluster" {
		t.Errorf("of globex: %+v", got)
	}
}
