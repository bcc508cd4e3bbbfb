package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	auditlog "github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
	"github.com/pdgate/pdgate/services/auditor"
	"github.com/pdgate/pdgate/services/disclosure"
	"github.com/pdgate/pdgate/services/gateway"
	"github.com/pdgate/pdgate/services/lifecycle/client"
)

// erasable is a system of which one tenant has a key of its own, and another has not.
func erasable(t *testing.T) *system {
	t.Helper()
	s := newSystem(0)
	s.names = tenantsOfExport[:2]
	s.stack.audit, s.natsHost, s.natsPort = "127.0.0.1:0", "127.0.0.1", -1
	s.own = map[string]events.DigestKey{}
	files := s.stack.tenants
	s.stack.tenants = func(dir string) (*gateway.Tenants, error) {
		ring, err := keyring.Load(filepath.Join(dir, "keys"))
		if err != nil {
			return nil, err
		}
		key, err := ring.NewTenantKey(s.names[0])
		if err != nil {
			return nil, err
		}
		s.own[key.Fingerprint] = key
		return files(dir)
	}
	return s
}

// pdgate runs the program on the system.
func (s *system) pdgate(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	return cli(ctx, append(args, "--data", s.dir, "--nats-url", s.endpoints.nats)...)
}

// personal sends a request that names people.
func (s *system) personal(ctx context.Context, tenant string, i int) (reply, error) {
	r, err := s.send(ctx, s.http, order{tenant: tenant, prompt: fmt.Appendf(nil, "%s %d", tenant, i), most: 2,
		extra: map[string]any{"user": fmt.Sprintf("user-%d@%s", i, tenant)}, header: http.Header{"X-Request-Id": {fmt.Sprintf("order-%d", i)}}})
	if err == nil && r.status != http.StatusOK {
		err = fmt.Errorf("%s", r.problem())
	}
	return r, err
}

// TestErasure erases a tenant of a running system, and crashes after each step of
// it. What was proven stays proven, byte for byte; what the digests stand for is
// gone; the other tenant notices nothing.
func TestErasure(t *testing.T) {
	s := erasable(t)
	acme, globex := tenantsOfExport[0], tenantsOfExport[1]
	dir := t.TempDir()
	var proofs map[string][]byte
	var key events.DigestKey // acme's first one
	log := s.run(t, func(ctx context.Context) error {
		var err error
		if key, err = s.ring.TenantKey(acme); err != nil {
			return err
		}
		ids := map[string][]string{}
		for i := range 4 {
			for _, tenant := range s.names {
				r, err := s.personal(ctx, tenant, i)
				if err != nil {
					return err
				}
				ids[tenant] = append(ids[tenant], r.id)
			}
		}
		disclose := func(id string) (int, string) {
			code, stdout, stderr := s.pdgate(ctx, "tenant", "disclose", "--request", id)
			return code, stdout + stderr
		}
		for _, tenant := range s.names {
			for i, id := range ids[tenant] {
				if err := poll(ctx, "the disclosures are stored", func() bool {
					code, out := disclose(id)
					return code == 0 && strings.Contains(out, fmt.Sprintf("user-%d@%s", i, tenant)) && strings.Contains(out, fmt.Sprintf("order-%d", i))
				}); err != nil {
					return err
				}
			}
		}
		export := func(name string, args ...string) (string, error) {
			code, _, stderr := s.pdgate(ctx, append([]string{"export", "--audit-url", s.endpoints.audit, "--out", filepath.Join(dir, name)}, args...)...)
			if code != 0 {
				return "", fmt.Errorf("export %s: exit %d: %s", name, code, stderr)
			}
			return stderr, nil
		}
		if _, err := export("before.zip", "--tenant", acme, "--disclose"); err != nil {
			return err
		}
		if _, err := export("plain.zip", "--tenant", acme); err != nil {
			return err
		}
		if proofs, err = s.proofs(ctx); err != nil {
			return err
		}

		if err := s.eraseWithCrashes(ctx, t, acme); err != nil {
			return err
		}
		s.forgets(ctx, t, acme, globex, ids)
		after, err := s.proofs(ctx)
		if err != nil {
			return err
		}
		for receipt, b := range proofs {
			if !bytes.Equal(lineOf(t, b), lineOf(t, after[receipt])) {
				t.Errorf("receipt %s proves another line", receipt)
			}
		}
		said, err := export("after.zip", "--tenant", acme, "--disclose")
		if err != nil {
			return err
		}
		if !strings.Contains(said, "it was erased") || !strings.Contains(said, "8 salted digests are not disclosed") {
			t.Errorf("the export says nothing of the key that is gone: %s", said)
		}
		if said, err = export("other.zip", "--tenant", globex, "--disclose"); err != nil || !strings.Contains(said, "2 salted digests are not disclosed") { // one request's were purged
			t.Errorf("the other tenant: %s %v", said, err)
		}

		// Another key, and the tenant is served again, under it.
		if code, _, stderr := s.pdgate(ctx, "tenant", "add", acme); code != 0 {
			return fmt.Errorf("add: %s", stderr)
		}
		if err := poll(ctx, "the tenant is served again", func() bool {
			_, err := s.personal(ctx, acme, 9)
			return err == nil
		}); err != nil {
			return err
		}
		fresh, err := s.ring.TenantKey(acme)
		s.own[fresh.Fingerprint] = fresh
		return err
	})
	if r := s.check(log); len(r.Violations) > 0 {
		t.Errorf("the log: %+v", r.Violations)
	}
	vkey, err := os.ReadFile(filepath.Join(s.dir, "auditor", "au1", "log.vkey"))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"before.zip": "8 of 8 salted digests; 0 are not", "plain.zip": "0 of 8 salted digests; 8 are not",
		"after.zip": "0 of 8 salted digests; 8 are not", "other.zip": "8 of 10 salted digests; 2 are not",
	} {
		code, stdout, stderr := cli(t.Context(), "verify", "bundle", "--vkey", strings.TrimSpace(string(vkey)), filepath.Join(dir, name))
		if code != 0 || !strings.Contains(stdout, want) {
			t.Errorf("%s: exit %d, want %q in\n%s%s", name, code, want, stdout, stderr)
		}
	}
	// What the bundle of before shows stands in that of after, byte for byte.
	was, is := unzipped(t, filepath.Join(dir, "plain.zip"))[auditlog.FileLines], unzipped(t, filepath.Join(dir, "after.zip"))[auditlog.FileLines]
	was = was[:bytes.LastIndexByte(was[:len(was)-1], '\n')+1] // the epoch leaf is another one
	if !bytes.HasPrefix(is, was) || len(was) == 0 {
		t.Error("the tenant's lines are not what they were")
	}
	for name, b := range unzipped(t, filepath.Join(dir, "after.zip")) {
		if bytes.Contains(b, []byte("user-")) || bytes.Contains(b, []byte("order-")) {
			t.Errorf("%s shows what was erased", name)
		}
	}
	found := 0
	for _, env := range log.envelopes {
		_ = events.Split(env.Lines, func(_ int, line []byte) error {
			e, err := events.Decode(line)
			if err != nil {
				return nil
			}
			if d, ok := e.Data.(*events.TenantErased); ok {
				found++
				if d.Tenant != acme || d.TenantKey != key.Fingerprint || d.By != "alice" || e.Principal != "operator.operator" {
					t.Errorf("recorded: %+v by %s", d, e.Principal)
				}
			}
			return nil
		})
	}
	if found != 1 {
		t.Errorf("%d erasures are recorded, want 1", found)
	}
}

var errCrash = errors.New("crash")

// eraseWithCrashes begins an erasure again and again, and stops behind one step
// more each time.
func (s *system) eraseWithCrashes(ctx context.Context, t *testing.T, tenant string) error {
	path := s.ring.TenantKeyPath(tenant)
	a := &app{stdin: strings.NewReader(""), stdout: io.Discard, stderr: io.Discard, data: s.dir, log: slog.New(slog.DiscardHandler)}
	try := func(after func(string) error) (string, error) {
		nc, err := s.dial(ctx, keyring.Eraser)
		if err != nil {
			return "", err
		}
		defer nc.Close()
		op, err := s.dial(ctx, keyring.Operator)
		if err != nil {
			return "", err
		}
		defer op.Close()
		store, err := disclosure.Open(nc)
		if err != nil {
			return "", err
		}
		c, err := client.New(ctx, client.Config{Conn: op, Role: events.RoleOperator, Principal: keyring.Operator.Principal(), Logger: a.log})
		if err != nil {
			return "", err
		}
		var out bytes.Buffer
		a.stdout = &out
		e := &erasure{app: a, ring: s.ring, tenant: tenant, by: "alice", yes: true, nc: nc, store: store, client: c, after: after}
		return out.String(), e.run(ctx)
	}
	for _, step := range []string{"note", "record", "purge", "destroy"} {
		if _, err := try(func(name string) error {
			if name == step {
				return errCrash
			}
			return nil
		}); !errors.Is(err, errCrash) {
			return fmt.Errorf("crash after %s: %w", step, err)
		}
		_, there := os.Stat(path)
		if gone := errors.Is(there, fs.ErrNotExist); gone != (step == "destroy") {
			t.Errorf("after %s the key file is gone: %v", step, gone)
		}
		if _, err := s.ring.NewTenantKey(tenant); !errors.Is(err, keyring.ErrErasing) {
			t.Errorf("after %s: another key can be made: %v", step, err)
		}
	}
	if _, err := try(nil); err != nil {
		return err
	}
	if _, err := s.ring.Erasing(tenant); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the erasure is not over: %v", err)
	}
	if _, err := try(nil); err == nil || !strings.Contains(err.Error(), "has no key here") {
		t.Errorf("once more: %v", err)
	}
	return nil
}

// forgets checks what an erased tenant meets, and another one does not.
func (s *system) forgets(ctx context.Context, t *testing.T, gone, stays string, ids map[string][]string) {
	if r, err := s.personal(ctx, gone, 5); err == nil || r.status != http.StatusForbidden || r.code != string(events.CodeTenantErased) {
		t.Errorf("an erased tenant: %d %s %v", r.status, r.code, err)
	}
	if _, err := s.personal(ctx, stays, 5); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	code, stdout, stderr := s.pdgate(ctx, "tenant", "disclose", "--request", ids[gone][0])
	if code != exitFailure || !strings.Contains(stderr, "it was erased") || strings.Contains(stdout, "user-") {
		t.Errorf("disclose: exit %d: %s%s", code, stdout, stderr)
	}
	if code, stdout, _ := s.pdgate(ctx, "tenant", "disclose", "--request", ids[stays][0]); code != 0 || !strings.Contains(stdout, "user-0") {
		t.Errorf("disclose another's: exit %d: %s", code, stdout)
	}
	// By request, of the one that stays.
	if code, _, stderr := s.pdgate(ctx, "tenant", "erase", stays, "--request", ids[stays][1]); code != 0 {
		t.Errorf("erase one request: %s", stderr)
	}
	if code, _, _ := s.pdgate(ctx, "tenant", "disclose", "--request", ids[stays][1]); code != exitFailure {
		t.Errorf("disclosed after it was purged")
	}
}

// proofs are the auditor's proofs of all receipts so far.
func (s *system) proofs(ctx context.Context) (map[string][]byte, error) {
	token, err := os.ReadFile(filepath.Join(s.dir, "keys", "audit-token"))
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	replies := append([]reply(nil), s.replies...)
	s.mu.Unlock()
	all := map[string][]byte{}
	for _, r := range replies {
		for _, receipt := range r.receipts {
			if err := poll(ctx, "the receipt is proven", func() bool {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.endpoints.audit+"/receipt/"+receipt, nil)
				if err != nil {
					return false
				}
				req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
				resp, err := s.web.Do(req)
				if err != nil {
					return false
				}
				defer resp.Body.Close()
				all[receipt], err = io.ReadAll(resp.Body)
				return err == nil && resp.StatusCode == http.StatusOK
			}); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// lineOf is the event that a proof brings.
func lineOf(t *testing.T, proof []byte) []byte {
	t.Helper()
	for line := range strings.SplitSeq(string(proof), "\n") {
		if b64, ok := strings.CutPrefix(line, "extra "); ok {
			b, err := base64.StdEncoding.DecodeString(b64)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
	t.Errorf("a proof without its line")
	return nil
}

// TestEraseUnderLegalHold: while nothing may be trimmed nothing is destroyed, and
// when the hold is lifted the same command goes through that check.
func TestEraseUnderLegalHold(t *testing.T) {
	dir := t.TempDir()
	ring, err := keyring.Open(filepath.Join(dir, "keys"), keyring.Names{Gateways: []string{"gw1"}})
	if err != nil {
		t.Fatal(err)
	}
	quiet := slog.New(slog.DiscardHandler)
	b, err := broker.Start(broker.Config{StoreDir: filepath.Join(dir, "nats"), Ring: ring, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Shutdown()
	as := func(u keyring.User) jetstream.JetStream {
		nc, err := natsclient.Connect(t.Context(), natsclient.Config{InProcess: b.InProcess(), Ring: ring, User: u, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		return js
	}
	key, err := ring.NewTenantKey("acme")
	if err != nil {
		t.Fatal(err)
	}
	eraser := as(keyring.Eraser).Conn()
	if held, err := legalHold(t.Context(), eraser); held || err != nil {
		t.Fatalf("without an auditor: %v %v", held, err)
	}
	au := as(keyring.Auditor)
	if _, err := au.CreateStream(t.Context(), jetstream.StreamConfig{Name: events.AuditStream, Subjects: []string{events.AuditSigned}}); err != nil {
		t.Fatal(err)
	}
	for _, hold := range []bool{true, false} {
		rec, err := json.Marshal(auditor.Signed{Origin: "pdgate.local/x", LegalHold: hold, Signer: "au1"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := au.Publish(t.Context(), events.AuditSigned, rec); err != nil {
			t.Fatal(err)
		}
		e := &erasure{app: &app{stdin: strings.NewReader("acm\n"), stderr: io.Discard}, ring: ring, tenant: "acme", nc: eraser}
		err = e.run(t.Context())
		want := map[bool]string{true: "under legal hold", false: "not the name"}[hold]
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("hold %v: %v, want %q", hold, err, want)
		}
		if got, err := ring.TenantKey("acme"); err != nil || got.Fingerprint != key.Fingerprint {
			t.Errorf("hold %v: the key is gone: %v", hold, err)
		}
		if _, err := ring.Erasing("acme"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("hold %v: an erasure was begun", hold)
		}
	}
}

// TestTenantAdd makes tenants, and overwrites nothing of what is there.
func TestTenantAdd(t *testing.T) {
	dir := t.TempDir()
	if _, err := keyring.Open(filepath.Join(dir, "keys"), keyring.Names{Gateways: []string{"gw1"}}); err != nil {
		t.Fatal(err)
	}
	tenant := func(args ...string) (int, string) {
		code, stdout, stderr := cli(t.Context(), append(append([]string{"tenant"}, args...), "--data", dir)...)
		return code, stdout + stderr
	}
	code, out := tenant("add", "acme", "--max-in-flight", "3")
	if code != 0 || strings.Count(out, "pdg_") != 1 {
		t.Fatalf("exit %d: %s", code, out)
	}
	file := filepath.Join(dir, "tenants.yaml")
	b, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(b), "pdg_") {
		t.Fatalf("%v\n%s", err, b)
	}
	if err := os.WriteFile(file, append([]byte("# who may ask\n"), b...), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out := tenant("add", "team/globex"); code != 0 {
		t.Fatal(out)
	}
	if code, out := tenant("add", "acme"); code != exitFailure || !strings.Contains(out, "nothing is changed") {
		t.Errorf("exit %d: %s", code, out)
	}
	if code, _ := tenant("add", "a.b"); code == 0 {
		t.Error("a name that is none was taken")
	}
	if b, err = os.ReadFile(file); err != nil || !strings.Contains(string(b), "# who may ask") || !strings.Contains(string(b), "max_in_flight: 3") {
		t.Errorf("%v\n%s", err, b)
	}
	code, out = tenant("list")
	ring, err := keyring.Load(filepath.Join(dir, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"acme", "team/globex"} {
		key, err := ring.TenantKey(name)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out, name) || !strings.Contains(out, key.Fingerprint) || strings.Contains(out, fmt.Sprintf("%x", key.Secret)) {
			t.Errorf("exit %d:\n%s", code, out)
		}
	}
}
