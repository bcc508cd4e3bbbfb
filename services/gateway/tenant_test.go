package gateway

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

func writeTenants(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTenantsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.yaml")
	a, b := strings.Repeat("a", 64), strings.Repeat("B", 64)
	for text, want := range map[string]string{
		"tenants:\n- name: x\n  api_keys: [" + a + "]\n":                                                        "",
		"tenants:\n- name: x\n  api_keys: [" + a + ", " + b + "]\n  max_in_flight: 0\n  tokens_per_minute: 5\n": "",
		"tenants:\n- name: x\n  api_keys: [" + strings.Repeat("1", 64) + "]\n":                                  "",
		"":                           "no tenant is named",
		"tenants: []\n":              "no tenant is named",
		"tenants: {}\n":              "line 1: want a list",
		"- a\n":                      "line 1: want a mapping",
		"tenant:\n- name: x\n":       "line 2: unknown field; want tenants",
		"tenants:\n- name: x y\n":    "line 2: name: want",
		"tenants:\n- api_keys: []\n": "line 2: name is missing",
		"tenants:\n- name: x\n":      "line 2: api_keys is missing",
		"tenants:\n- name: x\n  api_keys: [pdg_" + canary + "]\n":                            "line 3: api_keys[0]: want the SHA-256 of a key",
		"tenants:\n- name: x\n  api_keys: [" + a + "]\n  max_in_flight: " + canary + "\n":    "line 4: max_in_flight: want a whole number",
		"tenants:\n- name: x\n  api_keys: [" + a + "]\n  max_in_flight: -1\n":                "line 4: max_in_flight: want a whole number",
		"tenants:\n- name: x\n  api_keys: [" + a + "]\n  max_in_flight: 1.5\n":               "line 4: max_in_flight: want a whole number",
		"tenants:\n- name: x\n  api_keys: [" + a + "]\n  burst: 1\n":                         "line 4: unknown field; want name",
		"tenants:\n- name: x\n  name: x\n  api_keys: [" + a + "]\n":                          "line 3: a field stands twice",
		"tenants:\n- name: x\n  api_keys: [" + a + "]\n- name: x\n  api_keys: [" + b + "]\n": "line 4: name: the tenant stands at line 2 too",
		"tenants:\n- name: x\n  api_keys: [" + a + "]\n- name: y\n  api_keys: [" + a + "]\n": "line 4: api_keys: a key belongs to the tenant at line 2 too",
		"tenants:\n- name: x\n\tapi_keys: " + canary + "\n":                                  "not YAML: line",
		"tenants: *" + canary + "\n":                                                         "not YAML: unknown anchor",
	} {
		writeTenants(t, path, text)
		_, err := LoadTenants(path)
		switch {
		case want == "" && err != nil:
			t.Errorf("%q: %v", text, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), path+": "+want)):
			t.Errorf("%q: %v, want %s", text, err, want)
		case err != nil && strings.Contains(err.Error(), canary):
			t.Errorf("the error quotes a value: %v", err)
		}
	}
	if _, err := LoadTenants(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no file, no error")
	}
}

func TestKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tenants.yaml")
	key, digest := GenerateKey()
	other, otherDigest := GenerateKey()
	if key == other || len(key) < 40 || KeyDigest(key) != digest {
		t.Fatalf("keys of %d and %d characters", len(key), len(other))
	}
	writeTenants(t, path, "tenants:\n- name: x\n  api_keys: ["+digest+"]\n  requests_per_minute: 1\n- name: y\n  api_keys: ["+strings.ToUpper(otherDigest)+"]\n")
	ts, err := LoadTenants(path)
	if err != nil {
		t.Fatal(err)
	}
	x, y := ts.find(key), ts.find(other)
	if x == nil || x.Name != "x" || y == nil || y.Name != "y" {
		t.Fatalf("found %v and %v", x, y)
	}
	for _, k := range []string{"", digest, key + "x", key[:len(key)-1], strings.ToUpper(key)} {
		if ts.find(k) != nil {
			t.Errorf("a wrong key of %d characters opens a tenant", len(k))
		}
	}
	now := time.Unix(1000, 0)
	if f := x.admit(now, 1, 1); f != nil {
		t.Fatal(f)
	}
	// A file that is read again does not give back what was used; a broken one
	// changes nothing; a key that is gone is gone.
	if err := ts.Reload(); err != nil {
		t.Fatal(err)
	}
	if f := ts.find(key).admit(now, 1, 1); f == nil || f.code != events.CodeRateLimit {
		t.Errorf("after a reload: %v", f)
	}
	writeTenants(t, path, "tenants:\n- name: x\n")
	if err := ts.Reload(); err == nil || ts.find(key) == nil {
		t.Errorf("a broken file: %v", err)
	}
	writeTenants(t, path, "tenants:\n- name: x\n  api_keys: ["+otherDigest+"]\n")
	if err := ts.Reload(); err != nil || ts.find(key) != nil || ts.find(other).Name != "x" {
		t.Errorf("a changed file: %v", err)
	}
}

func TestTenantLimits(t *testing.T) {
	now := time.Unix(1000, 0)
	x := &Tenant{Name: "x", RequestsPerMinute: 2, TokensPerMinute: 100, MaxPromptTokens: 60, requests: perMinute(2), tokens: perMinute(100)}
	for i, c := range []struct {
		after        time.Duration
		prompt, most int
		code         events.Code
		retry        time.Duration
	}{
		{0, 61, 1, events.CodeContextLength, 0},
		{0, 50, 51, events.CodeInvalidRequest, 0},
		{0, 50, 30, "", 0},
		{0, 10, 20, events.CodeRateLimit, 6 * time.Second}, // 20 tokens are left, and the refusal costs nothing
		{0, 10, 10, "", 0},
		{0, 1, 1, events.CodeRateLimit, 30 * time.Second}, // both requests are used
		{30 * time.Second, 20, 30, "", 0},
		{0, 1, 1, events.CodeRateLimit, 30 * time.Second},
	} {
		now = now.Add(c.after)
		f := x.admit(now, c.prompt, c.most)
		if f == nil {
			f = &failure{}
		}
		if f.code != c.code || f.retry.Round(time.Millisecond) != c.retry {
			t.Errorf("%d: %s, retry after %s, want %s after %s", i, f.code, f.retry, c.code, c.retry)
		}
	}
	if f := (&Tenant{}).admit(now, 1<<30, 1<<30); f != nil {
		t.Errorf("no limits: %v", f)
	}
}

// Over HTTP: the limits answer 429 and Retry-After, before lifecycle is asked;
// the limit of open requests goes with the admission.
func TestTenantOverHTTP(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{tenants: "  requests_per_minute: 1\n  max_prompt_tokens: 100\n  max_in_flight: 7\n"})
	e := r.post("/v1/completions", completionBody(testPrompt+strings.Repeat("x", 100), true)).wantError(t, http.StatusBadRequest, "context_length_exceeded")
	if !strings.Contains(e.Error.Message, "the limit is 100") {
		t.Errorf("message %q", e.Error.Message)
	}
	if a := r.post("/v1/completions", completionBody(testPrompt, false)); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	a := r.post("/v1/completions", completionBody(testPrompt, true))
	a.wantError(t, http.StatusTooManyRequests, "rate_limit_exceeded")
	if a.header.Get("Retry-After") != "60" {
		t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
	}
	if admits := r.b.sent(events.CmdAdmit); len(admits) != 1 || admits[0].Data.(*events.Admit).TenantLimit != 7 {
		t.Errorf("admissions %v", admits)
	}
}
