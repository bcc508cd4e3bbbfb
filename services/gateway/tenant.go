package gateway

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/pdgate/pdgate/events"
)

// Tenant is who a key belongs to, and what it may ask for.
type Tenant struct {
	Name string

	MaxInFlight       int // open requests, over all gateways; 0: no limit
	RequestsPerMinute int // at this gateway; 0: no limit
	TokensPerMinute   int // prompt and max_tokens, at this gateway; 0: no limit
	MaxPromptTokens   int // 0: the model's own limit

	requests, tokens *rate.Limiter
}

// Tenants finds the tenant of a key. It may be read while it is loaded again.
type Tenants struct {
	path  string
	blind [32]byte

	mu     sync.RWMutex
	loaded stamp            // of the file that was read last
	byKey  map[[32]byte]key // by the blinded digest of the key
	byName map[string]*Tenant
}

type key struct {
	digest [32]byte
	tenant *Tenant
}

// LoadTenants reads a tenants file:
//
//	tenants:
//	  - name: acme
//	    api_keys:            # SHA-256 of each key, in hex; see GenerateKey
//	      - 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
//	    max_in_flight: 32
//	    requests_per_minute: 600
//	    tokens_per_minute: 2000000
//	    max_prompt_tokens: 900000
//
// Limits may be left out. An error names the line.
func LoadTenants(path string) (*Tenants, error) {
	t := &Tenants{path: path}
	rand.Read(t.blind[:])
	if err := t.Reload(); err != nil {
		return nil, err
	}
	return t, nil
}

// stamp tells one state of a file from another.
type stamp struct {
	mod  time.Time
	size int64
}

func stampOf(path string) (stamp, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return stamp{}, fmt.Errorf("read tenants: %w", err)
	}
	return stamp{fi.ModTime(), fi.Size()}, nil
}

// Follow reads the file again if it is another one than at the last try, and says
// whether it did.
func (t *Tenants) Follow() (bool, error) {
	now, err := stampOf(t.path)
	if err != nil {
		return false, err
	}
	t.mu.RLock()
	same := now == t.loaded
	t.mu.RUnlock()
	if same {
		return false, nil
	}
	return true, t.Reload()
}

// All lists the tenants by name.
func (t *Tenants) All() []Tenant {
	t.mu.RLock()
	defer t.mu.RUnlock()
	var all []Tenant
	for _, n := range t.byName {
		all = append(all, *n)
	}
	slices.SortFunc(all, func(a, b Tenant) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Reload reads the file again. After an error the tenants are those of before.
// A tenant whose limits are the same keeps what it has used of them.
func (t *Tenants) Reload() error {
	at, _ := stampOf(t.path) // before the content: a change in between is seen again
	t.mu.Lock()
	t.loaded = at
	t.mu.Unlock()
	b, err := os.ReadFile(t.path)
	if err != nil {
		return fmt.Errorf("read tenants: %w (docs/operations.md shows the file; `pdgate up` writes one)", err)
	}
	list, err := parseTenants(b)
	if err != nil {
		return fmt.Errorf("tenants file %s: %w", t.path, err)
	}
	byKey, byName := make(map[[32]byte]key), make(map[string]*Tenant)
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, e := range list {
		n := &e.tenant
		n.requests, n.tokens = perMinute(n.RequestsPerMinute), perMinute(n.TokensPerMinute)
		if old := t.byName[n.Name]; old != nil {
			if old.RequestsPerMinute == n.RequestsPerMinute {
				n.requests = old.requests
			}
			if old.TokensPerMinute == n.TokensPerMinute {
				n.tokens = old.tokens
			}
		}
		byName[n.Name] = n
		for _, d := range e.keys {
			byKey[t.hidden(d)] = key{d, n}
		}
	}
	t.byKey, t.byName = byKey, byName
	return nil
}

func perMinute(n int) *rate.Limiter {
	if n == 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(float64(n)/60), n)
}

// hidden blinds a digest by a secret of this process. A map compares keys in
// time that depends on them; what it compares must tell nothing about the
// digests in the file.
func (t *Tenants) hidden(digest [32]byte) (h [32]byte) {
	m := hmac.New(sha256.New, t.blind[:])
	m.Write(digest[:])
	m.Sum(h[:0])
	return h
}

// find returns the tenant of an API key, nil if there is none.
func (t *Tenants) find(apiKey string) *Tenant {
	d := sha256.Sum256([]byte(apiKey))
	h := t.hidden(d)
	t.mu.RLock()
	defer t.mu.RUnlock()
	k, ok := t.byKey[h]
	if !ok || subtle.ConstantTimeCompare(k.digest[:], d[:]) != 1 {
		return nil
	}
	return k.tenant
}

// admit charges one request of so many tokens. A request that is over a limit
// is charged nothing.
func (t *Tenant) admit(now time.Time, prompt, most int) *failure {
	if t.MaxPromptTokens > 0 && prompt > t.MaxPromptTokens {
		return recorded(events.ContextExceeded("prompt, by the tenant's limit", prompt, t.MaxPromptTokens))
	}
	if t.tokens != nil && prompt+most > t.TokensPerMinute {
		return newFailure(events.CodeInvalidRequest, "prompt and max_tokens: "+strconv.Itoa(prompt+most)+
			" tokens are more than the tenant's "+strconv.Itoa(t.TokensPerMinute)+" a minute")
	}
	first, wait := reserve(t.requests, now, 1)
	if wait > 0 {
		return limited("requests", t.RequestsPerMinute, wait)
	}
	if _, wait := reserve(t.tokens, now, prompt+most); wait > 0 {
		if first != nil {
			first.CancelAt(now)
		}
		return limited("tokens", t.TokensPerMinute, wait)
	}
	return nil
}

// reserve takes n, or says how long to wait for them.
func reserve(l *rate.Limiter, now time.Time, n int) (*rate.Reservation, time.Duration) {
	if l == nil {
		return nil, 0
	}
	r := l.ReserveN(now, n)
	if d := r.DelayFrom(now); d > 0 {
		r.CancelAt(now)
		return nil, d
	}
	return r, 0
}

func limited(what string, limit int, wait time.Duration) *failure {
	f := newFailure(events.CodeRateLimit, "the tenant's limit is "+strconv.Itoa(limit)+" "+what+" a minute")
	f.retry = wait
	return f
}

var errNoTenants = errors.New("no tenant is named")
