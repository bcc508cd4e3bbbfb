package gateway

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
)

// shelf keeps disclosures by request.
type shelf struct {
	mu   sync.Mutex
	kept map[string][]events.Disclosure
	fail error
	hang bool
}

func (s *shelf) Put(ctx context.Context, key events.DigestKey, tenant, id string, fields []events.Disclosure) error {
	if s.hang {
		<-ctx.Done()
		return ctx.Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil {
		s.kept = map[string][]events.Disclosure{}
	}
	if tenant != "acme" || len(key.Secret) == 0 {
		return errors.New("not the tenant's")
	}
	s.kept[id] = fields
	return s.fail
}

func (s *shelf) of(id string) []events.Disclosure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kept[id]
}

// keyed has acme's key, and counts what is asked of it.
type keyed struct {
	mu        sync.Mutex
	key       events.DigestKey
	refreshed int
	forgotten []string
}

func (k *keyed) Key(tenant string) (events.DigestKey, bool) { return k.key, tenant == "acme" }

func (k *keyed) Refresh() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refreshed++
}

func (k *keyed) Forget(tenant, fingerprint string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgotten = append(k.forgotten, tenant+" "+fingerprint)
}

// Personal fields are salted digests in the admission, and go to the store once
// that is durable; the prompt is under the tenant's key as well.
func TestPersonalFields(t *testing.T) {
	t.Parallel()
	key := events.NewTenantKey([]byte("a key of the tenant's own"))
	for name, tt := range map[string]struct {
		rest, label string
		want        map[string]string
	}{
		"none":                      {"", "", map[string]string{}},
		"label":                     {"", "order-7", map[string]string{"label": "order-7"}},
		"user":                      {`,"user":"alice"`, "", map[string]string{"user": "alice"}},
		"safety identifier":         {`,"safety_identifier":"h-1"`, "", map[string]string{"user": "h-1"}},
		"both":                      {`,"safety_identifier":"h-1","user":"alice"`, "order-7", map[string]string{"label": "order-7", "user": "h-1"}},
		"empty":                     {`,"user":""`, "", map[string]string{}},
		"null":                      {`,"user":null`, "", map[string]string{}},
		"the longest":               {`,"user":"` + strings.Repeat("u", events.MaxField) + `"`, "", map[string]string{"user": strings.Repeat("u", events.MaxField)}},
		"a label that is too long":  {"", strings.Repeat("l", events.MaxField+1), map[string]string{}},
		"a label that is not UTF-8": {"", "\xff", map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &shelf{}
			r := newRig(t, rigConfig{cfg: func(c *Config) { c.Disclosures, c.TenantKeys = s, &keyed{key: key} }})
			// The backend stands for workers, which are told the request's key.
			r.b.script = func(rec *record) {
				rec.commit(&events.RequestFailed{Error: *events.NewError(events.CodeInternal, "not here"), From: events.Admitted, Stage: "prefill"})
			}
			r.post("/v1/completions", `{"model":"ref","prompt":"`+testPrompt+`","max_tokens":8`+tt.rest+`}`, "X-Request-Id", tt.label)
			rec := r.b.record(0)
			if rec.admit.TenantKey != key.Fingerprint || rec.admit.PromptDigest != events.Digest(key.Request(rec.id), events.KindPrompt, []byte(testPrompt)) {
				t.Errorf("admission under key %q", rec.admit.TenantKey)
			}
			digests := map[string]string{"label": rec.admit.Label, "user": rec.admit.User}
			for field, digest := range digests {
				want := ""
				if v, ok := tt.want[field]; ok {
					d := key.Disclose(rec.id+".1", field, v)
					want = d.Digest()
				}
				if digest != want {
					t.Errorf("%s: %q, want %q", field, digest, want)
				}
			}
			if len(tt.want) > 0 {
				await(t, "it is stored", func() bool { return s.of(rec.id) != nil })
			}
			got := map[string]string{}
			for _, d := range s.of(rec.id) {
				got[d.Field] = d.Value
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A store that fails or hangs costs the disclosure, and not the request; and
// nothing is stored of a request that was refused.
func TestDisclosuresLost(t *testing.T) {
	t.Parallel()
	body := `{"model":"ref","prompt":"` + testPrompt + `","max_tokens":64,"user":"alice"}`
	for name, s := range map[string]*shelf{"fails": {fail: errors.New("the disk is full")}, "hangs": {hang: true}} {
		r := newRig(t, rigConfig{cfg: func(c *Config) { c.Disclosures, c.Timeouts.Disclose = s, 1 }})
		if a := r.post("/v1/completions", body); a.status != http.StatusOK {
			t.Errorf("%s: %d: %s", name, a.status, a.body)
		}
		await(t, "it is counted", func() bool { return r.g.Stats().Withheld == 1 })
		await(t, "it is logged", func() bool { return strings.Contains(r.log.String(), "personal fields are not stored") })
		if log := r.log.String(); strings.Contains(log, "alice") {
			t.Errorf("%s: log:\n%s", name, log)
		}
	}
	s := &shelf{}
	r := newRig(t, rigConfig{cfg: func(c *Config) { c.Disclosures = s }})
	r.b.refuse = func(*events.Admit) *events.Error { return events.NewError(events.CodeOverloaded, "full") }
	if a := r.post("/v1/completions", body); a.status != http.StatusServiceUnavailable {
		t.Errorf("%d: %s", a.status, a.body)
	}
	if s.mu.Lock(); len(s.kept) != 0 {
		t.Errorf("stored of a refused request: %v", s.kept)
	}
	s.mu.Unlock()
}

// A key that lifecycle does not hold is looked at again, and one that was erased is
// dropped; the client is told which of the two it was.
func TestTenantKeyRefused(t *testing.T) {
	t.Parallel()
	keys := &keyed{key: events.NewTenantKey([]byte("a key of the tenant's own"))}
	r := newRig(t, rigConfig{cfg: func(c *Config) { c.TenantKeys = keys }})
	r.b.refuse = func(*events.Admit) *events.Error { return events.NewError(events.CodeTenantErased, "erased") }
	a := r.post("/v1/completions", completionBody(testPrompt, false))
	if a.status != http.StatusForbidden || !strings.Contains(a.body, string(events.CodeTenantErased)) {
		t.Errorf("erased: %d: %s", a.status, a.body)
	}
	if diff := cmp.Diff([]string{"acme " + keys.key.Fingerprint}, keys.forgotten); diff != "" {
		t.Error(diff)
	}
	r.b.mu.Lock()
	r.b.denyAs = &events.Denial{Code: events.CodeTenantKey, Message: "this replica has none; copy keys/tenants/acme.key"}
	r.b.mu.Unlock()
	a = r.post("/v1/completions", completionBody(testPrompt, false))
	if a.status != http.StatusServiceUnavailable || !strings.Contains(a.body, string(events.CodeTenantKey)) || strings.Contains(a.body, "copy") {
		t.Errorf("another key: %d: %s", a.status, a.body)
	}
	if keys.refreshed != 1 || !strings.Contains(r.log.String(), "copy keys/tenants/acme.key") {
		t.Errorf("looked again %d times; log:\n%s", keys.refreshed, r.log)
	}
	keys.key = events.DigestKey{Fingerprint: "unreadable"}
	if a = r.post("/v1/completions", completionBody(testPrompt, false)); a.status != http.StatusServiceUnavailable {
		t.Errorf("a key that cannot be read: %d: %s", a.status, a.body)
	}
}
