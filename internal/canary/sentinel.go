package canary

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"regexp"
	"strings"
	"sync"
)

// A sentinel is "zq", 12 random letters, and 8 that authenticate them. The MAC
// tells a sentinel of an earlier run, or of another canary with the same tenants,
// from one that a model misspelt.
const (
	sentinelMark   = "zq"
	sentinelRandom = 12
	sentinelMAC    = 8
)

var sentinelForm = regexp.MustCompile(sentinelMark + `[a-z2-7]{20}`)

// piece is how many bytes in a row of a sentinel count as it.
const piece = 10

// maxRemembered bounds the sentinels of which pieces are recognised. Whole ones
// are recognised for ever.
const maxRemembered = 4096

// mint makes sentinels, and finds them.
type mint struct {
	key [32]byte

	mu    sync.Mutex
	known []string // the latest; guarded by mu
}

// newMint derives the key of the MAC from what only the canaries of these tenants
// share.
func newMint(tenants []Tenant) *mint {
	h := sha256.New()
	h.Write([]byte("pdgate canary\x00"))
	for _, t := range tenants {
		h.Write([]byte(t.Key + "\x00"))
	}
	return &mint{key: [32]byte(h.Sum(nil))}
}

var letters = base32.StdEncoding.WithPadding(base32.NoPadding)

func (m *mint) mac(random string) string {
	h := hmac.New(sha256.New, m.key[:])
	h.Write([]byte(random))
	return strings.ToLower(letters.EncodeToString(h.Sum(nil)))[:sentinelMAC]
}

// sentinel makes one that nobody else has.
func (m *mint) sentinel() string {
	b := make([]byte, 8)
	rand.Read(b)
	random := strings.ToLower(letters.EncodeToString(b))[:sentinelRandom]
	s := sentinelMark + random + m.mac(random)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known = append(m.known, s); len(m.known) > 2*maxRemembered {
		m.known = append([]string(nil), m.known[maxRemembered:]...)
	}
	return s
}

// foreign says whether text holds a sentinel, or a piece of one, that is not own.
func (m *mint) foreign(text, own string) bool {
	for _, s := range sentinelForm.FindAllString(text, -1) {
		random := s[len(sentinelMark) : len(sentinelMark)+sentinelRandom]
		if s != own && s[len(s)-sentinelMAC:] == m.mac(random) {
			return true
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.known {
		if s == own {
			continue
		}
		for i := 0; i+piece <= len(s); i++ {
			if p := s[i : i+piece]; strings.Contains(text, p) && !strings.Contains(own, p) {
				return true
			}
		}
	}
	return false
}
