package auditor

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"github.com/nats-io/nats.go/micro"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/internal/keyring"
)

// client keeps no connection of another test alive.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}

func get(t *testing.T, url, token string) (int, string) {
	t.Helper()
	code, _, body := fetch(t, url, token)
	return code, body
}

func fetch(t *testing.T, url, token string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return send(t, req)
}

func send(t *testing.T, req *http.Request) (int, http.Header, string) {
	t.Helper()
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

func (s *site) token() string {
	s.t.Helper()
	b, err := os.ReadFile(filepath.Join(s.ring.Dir(), "audit-token"))
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// reads is a recorder for tests.
type reads struct {
	mu   sync.Mutex
	all  []events.Audit
	fail error
	site *site // where exports are stored; nil: nowhere
}

func (r *reads) Audit(_ context.Context, d *events.Audit) (*events.Answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return nil, r.fail
	}
	r.all = append(r.all, *d)
	a := &events.Answer{}
	if r.site != nil {
		a.Position = r.site.audit(d).String()
	}
	return a, nil
}

func (r *reads) take() []events.Audit {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all
	r.all = nil
	return all
}

func TestHTTP(t *testing.T) {
	s := newSite(t, nil)
	s.fill(600)
	seq := s.append(0, 3)
	rec := &reads{}
	cfg := s.config("a1", t.TempDir())
	cfg.Recorder = rec
	r := s.start(cfg)
	c := r.signedAll()
	token := s.token()

	for path, want := range map[string]struct {
		token string
		code  int
		cache string
	}{
		"/checkpoint":                {"", 200, "no-cache"},
		"/checkpoint.cosigned":       {"", 404, "no-cache"},
		"/complete-until":            {"", 200, "no-cache"},
		"/health":                    {"", 200, "no-cache"},
		"/ready":                     {"", 200, "no-cache"},
		"/tile/0/000":                {"", 200, "public, max-age=604800, immutable"},
		"/tile/0/002.p/91":           {"", 200, "public, max-age=604800, immutable"},
		"/tile/0/002.p/7":            {"", 200, "public, max-age=604800, immutable"},
		"/tile/1/000.p/2":            {"", 200, "public, max-age=604800, immutable"},
		"/tile/0/002.p/92":           {"", 404, "no-cache"},
		"/tile/0/002":                {"", 404, "no-cache"},
		"/tile/0/003":                {"", 404, "no-cache"},
		"/tile/9/000":                {"", 404, "no-cache"},
		"/tile/0/x/../../state.json": {"", 404, "no-cache"},
		"/tile/x":                    {"", 404, "no-cache"},
		"/state.json":                {"", 404, "no-cache"},
		"/tile/entries/000":          {"", 401, "no-cache"},
		"/tile/entries/001":          {"wrong", 401, "no-cache"},
		"/tile/entries/002.p/91":     {token, 200, "private, max-age=604800, immutable"},
		"/receipt/1.0":               {"", 401, "no-cache"},
	} {
		code, h, body := fetch(t, r.url+path, want.token)
		if code != want.code || h.Get("Cache-Control") != want.cache {
			t.Errorf("%s: %d, cache %q, want %d, %q: %.100s", path, code, h.Get("Cache-Control"), want.code, want.cache, body)
		}
	}
	from, to := s.seqOf(512), s.seqOf(602)
	if got := rec.take(); !slices.Equal(got, []events.Audit{{Reader: "local", Kind: events.ReadEntries, Via: "http", Reads: 1, FromSeq: from, ToSeq: to}}) {
		t.Errorf("recorded %+v", got)
	}

	// A partial tile is the beginning of a wider one, hashes and entries alike.
	_, wide := get(t, r.url+"/tile/0/002.p/91", "")
	_, narrow := get(t, r.url+"/tile/0/002.p/7", "")
	if len(narrow) != 7*tlog.HashSize || !strings.HasPrefix(wide, narrow) {
		t.Errorf("tile of 7 hashes has %d bytes", len(narrow))
	}
	_, wide = get(t, r.url+"/tile/entries/002.p/91", token)
	_, narrow = get(t, r.url+"/tile/entries/002.p/1", token)
	if !strings.HasPrefix(wide, narrow) || len(narrow) != 2+len(s.leaves[512]) {
		t.Errorf("tile of one entry has %d bytes, want %d", len(narrow), 2+len(s.leaves[512]))
	}
	rec.take()

	last := s.leaves[len(s.leaves)-1]
	pos := events.Position{Seq: seq, Line: 2}
	for _, tt := range []struct {
		receipt string
		code    int
	}{
		{pos.String() + ";" + events.Hash(last), 200},
		{pos.String(), 200},
		{pos.String() + ";" + events.Hash([]byte("other")), 409},
		{events.Position{Seq: seq, Line: 3}.String(), 404},
		{events.Position{Seq: seq + 1}.String(), 404},
		{"x", 400},
		{"0.0", 400},
		{pos.String() + ";", 400},
	} {
		code, body := get(t, r.url+"/receipt/"+tt.receipt, token)
		if code != tt.code {
			t.Errorf("receipt %s: %d %s, want %d", tt.receipt, code, body, tt.code)
			continue
		}
		if code == 200 {
			p, err := audit.ParseProof([]byte(body))
			if err != nil {
				t.Fatal(err)
			}
			if got, err := p.Verify(r.policy(), last); err != nil || got.Tree != c.Tree || string(p.Extra) != string(last) {
				t.Errorf("receipt %s: %v", tt.receipt, err)
			}
		}
	}
	if got := rec.take(); len(got) != 1 || got[0].FromSeq != seq || got[0].Kind != events.ReadReceipt {
		t.Errorf("recorded %+v", got)
	}

	// Who cannot record does not show.
	rec.mu.Lock()
	rec.fail = errors.New("full")
	rec.mu.Unlock()
	r.ledger.forget()
	for _, path := range []string{"/tile/entries/000", "/receipt/" + pos.String()} {
		if code, body := get(t, r.url+path, token); code != 503 {
			t.Errorf("%s without a record: %d %.100s", path, code, body)
		}
	}
}

// An event that is in the log and in no signed tree is asked for again later.
func TestReceiptNotYet(t *testing.T) {
	s := newSite(t, nil)
	s.fill(5)
	dir := t.TempDir()
	cfg := s.config("a1", dir)
	r := s.start(cfg)
	r.signedAll()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	// One that commits and signs once an hour.
	cfg.Interval = time.Hour
	r = s.start(cfg)
	seq := s.append(0, 1)
	s.until("it answers", func() bool {
		code, h, _ := fetch(t, r.url+"/receipt/"+events.Position{Seq: seq}.String(), s.token())
		return code == 503 && h.Get("Retry-After") == "3600"
	})
}

func TestReceiptOverNATS(t *testing.T) {
	s := newSite(t, nil)
	s.fill(50)
	seq := s.append(1, 2)
	rec := &reads{}
	cfg := s.config("a1", t.TempDir())
	cfg.Recorder = rec
	r := s.start(cfg)
	r.signedAll()
	last := s.leaves[len(s.leaves)-1]
	at := events.Position{Seq: seq, Line: 1}.String()
	full := `{"receipt":"` + at + ";" + events.Hash(last) + `"}`
	for _, tt := range []struct {
		user          keyring.User
		request, code string
	}{
		{keyring.Gateway("gw1"), full, ""},
		{keyring.Auditor, full, ""},
		{keyring.Auditor, `{"receipt":"` + at + `"}`, ""},
		{keyring.Gateway("gw1"), `{"receipt":"` + at + `"}`, "400"}, // a gateway may not walk the log
		{keyring.Gateway("gw1"), `{"receipt":"` + at + `;AAAA"}`, "409"},
		{keyring.Auditor, `{"receipt":"999999.0"}`, "404"},
		{keyring.Auditor, `no`, "400"},
	} {
		m, err := s.connect(tt.user).Request(events.ReceiptSubject(tt.user.Role(), tt.user.Principal()), []byte(tt.request), patience)
		if err != nil {
			t.Fatal(err)
		}
		if got := m.Header.Get(micro.ErrorCodeHeader); got != tt.code {
			t.Errorf("%s asks %s: %q, want %q: %s", tt.user, tt.request, got, tt.code, m.Data)
		}
		if tt.code != "" {
			continue
		}
		p, err := audit.ParseProof(m.Data)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.Verify(r.policy(), last); err != nil {
			t.Errorf("%s asks %s: %v", tt.user, tt.request, err)
		}
	}
	// One for each reader; the windows may have closed in between on a slow machine.
	got := rec.take()
	readers := map[string]bool{}
	for _, d := range got {
		readers[d.Reader] = true
	}
	if len(readers) != 2 || got[0] != (events.Audit{Reader: "gateway/gw1", Kind: events.ReadReceipt, Via: "nats", Reads: 1, FromSeq: seq, ToSeq: seq}) {
		t.Errorf("recorded %+v", got)
	}
}
