package main

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
	auditlog "github.com/pdgate/pdgate/events/audit"
)

var tenantsOfExport = []string{"acme-corp", "globex-inc", "initech-ltd"}

// traffic sends count requests of each tenant, and returns their ids.
func (s *system) traffic(ctx context.Context, count int) (map[string][]string, error) {
	ids := map[string][]string{}
	var mu sync.Mutex
	var all sync.WaitGroup
	var failed error
	for _, tenant := range s.names {
		all.Go(func() {
			for i := range count {
				r, err := s.send(ctx, s.http, order{tenant: tenant, prompt: fmt.Appendf(nil, "%s %d", tenant, i), most: 2})
				mu.Lock()
				if err == nil && r.status != http.StatusOK {
					err = fmt.Errorf("%s", r.problem())
				}
				if err != nil {
					failed = err
				}
				ids[tenant] = append(ids[tenant], r.id)
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return ids, failed
}

// cli runs the program in this process.
func cli(ctx context.Context, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(ctx, args, strings.NewReader(""), &out, &errs, nil)
	return code, out.String(), errs.String()
}

// unzipped are a bundle's files by name.
func unzipped(t *testing.T, path string) map[string][]byte {
	t.Helper()
	z, err := zip.OpenReader(path)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	files := map[string][]byte{}
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		if files[f.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
		r.Close()
	}
	return files
}

// forge writes a bundle without one of its lines, with a manifest that fits.
func forge(t *testing.T, path string, files map[string][]byte, remove int) {
	t.Helper()
	files = cloneFiles(files)
	lines := bytes.SplitAfter(files[auditlog.FileLines], []byte("\n"))
	files[auditlog.FileLines] = bytes.Join(slices.Delete(lines, remove, remove+1), nil)
	m, err := auditlog.ParseManifest(files[auditlog.FileManifest])
	if err != nil {
		t.Fatal(err)
	}
	m.Lines--
	if m.Completeness == auditlog.CompleteRange {
		m.Withheld++
	}
	for i, f := range m.Files {
		sum := sha256.Sum256(files[f.Name])
		m.Files[i].Size, m.Files[i].SHA256 = int64(len(files[f.Name])), hex.EncodeToString(sum[:])
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		t.Fatal(err)
	}
	files[auditlog.FileManifest] = b.Bytes()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z := zip.NewWriter(f)
	for name, content := range files {
		w, err := z.Create(name)
		if err == nil {
			_, err = w.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
}

func cloneFiles(files map[string][]byte) map[string][]byte {
	out := map[string][]byte{}
	for name, b := range files {
		out[name] = bytes.Clone(b)
	}
	return out
}

// A tenant's bundle, made by the program from a running system, verifies, shows
// nothing of other tenants, and misses no event that could be taken out.
func TestExport(t *testing.T) {
	s := newSystem(0)
	s.names = tenantsOfExport
	s.stack.audit = "127.0.0.1:0"
	dir := t.TempDir()
	var ids map[string][]string
	log := s.run(t, func(ctx context.Context) (err error) {
		if ids, err = s.traffic(ctx, 12); err != nil {
			return err
		}
		for name, args := range map[string][]string{
			"tenant": {"--tenant", "acme-corp", "--with", "jsonl,csv"}, "model": {"--model", "m"}, "request": {"--request", ids["acme-corp"][3]},
			"seq": {"--from", "5", "--to", "40"}, "both": {"--tenant", "acme-corp", "--from", time.Now().Add(-time.Minute).Format(time.RFC3339)}, "none": {"--model", "other"},
			"csv": {"--format", "csv"}, "empty": {"--tenant", "nobody-yet"},
			"midway": {"--tenant", "acme-corp", "--from", "60"}, "whole": {"--with", "jsonl,ocsf,parquet,csv,otlp"},
		} {
			out := filepath.Join(dir, name+".zip")
			code, _, stderr := cli(ctx, append([]string{"export", "--data", s.dir, "--audit-url", s.endpoints.audit, "--out", out}, args...)...)
			if code != 0 {
				return fmt.Errorf("export %s: exit %d: %s", name, code, stderr)
			}
			if name == "csv" {
				continue
			}
			if _, line, ok := strings.Cut(stderr, "verify with: pdgate "); !ok || !strings.HasSuffix(line, out+"\n") || strings.Contains(line, "--midway") != (name == "midway") {
				t.Errorf("%s: %s", name, stderr)
			}
		}
		// Without an auditor, from its directory, up to the last heads of the tenant.
		code, _, stderr := cli(ctx, "export", "--data", t.TempDir(), "--dir", filepath.Join(s.dir, "auditor", "au1"), "--out", filepath.Join(dir, "dir.zip"), "--tenant", "acme-corp")
		if code != 0 || !strings.Contains(stderr, "recorded nowhere") {
			return fmt.Errorf("export of a directory: exit %d: %s", code, stderr)
		}
		return nil
	})
	if r := s.check(log); len(r.Violations) > 0 {
		t.Errorf("the log: %+v", r.Violations)
	}
	key, err := os.ReadFile(filepath.Join(s.dir, "auditor", "au1", "log.vkey"))
	if err != nil {
		t.Fatal(err)
	}
	verify := func(path string) (int, string) {
		code, stdout, stderr := cli(t.Context(), "verify", "bundle", "--vkey", strings.TrimSpace(string(key)), path)
		return code, stdout + stderr
	}
	for name, want := range map[string]int{"tenant": 0, "model": 0, "request": 0, "seq": 0, "both": 0, "none": 0, "empty": 0, "dir": 0, "midway": 3, "whole": 0} {
		if code, out := verify(filepath.Join(dir, name+".zip")); code != want {
			t.Errorf("%s: exit %d, want %d\n%s", name, code, want, out)
		}
	}

	files := unzipped(t, filepath.Join(dir, "tenant.zip"))
	lines := bytes.SplitAfter(files[auditlog.FileLines], []byte("\n"))
	count := len(lines) - 2 // the epoch leaf, and nothing behind the last newline
	if count < 12*6 || files["derived/cloudevents.jsonl"] == nil || bytes.Count(files["derived/events.csv"], []byte("\n")) != count+1 {
		t.Errorf("%d events", count)
	}
	for name, b := range files {
		for _, tenant := range tenantsOfExport[1:] {
			for _, secret := range append(ids[tenant], tenant) {
				if bytes.Contains(b, []byte(secret)) {
					t.Errorf("%s holds %q of another tenant", name, secret)
				}
			}
		}
	}
	for _, id := range ids["acme-corp"] {
		if !bytes.Contains(files[auditlog.FileLines], []byte(id)) {
			t.Errorf("request %s is not in the bundle", id)
		}
	}
	bad := filepath.Join(dir, "bad.zip")
	for _, i := range []int{0, 1, count / 2, count - 2, count - 1, count} {
		forge(t, bad, files, i)
		if code, out := verify(bad); code != 3 && code != 4 {
			t.Errorf("without line %d of %d: exit %d\n%s", i, count, code, out)
		}
	}
	if got := bytes.Count(unzipped(t, filepath.Join(dir, "request.zip"))[auditlog.FileLines], []byte("\n")); got < 6 || got > 12 {
		t.Errorf("a request has %d events", got)
	}
	if got := unzipped(t, filepath.Join(dir, "none.zip"))[auditlog.FileLines]; len(got) != 0 {
		t.Errorf("another model has\n%s", got)
	}
}

// The auditor is killed in the middle of an export. What was read is kept; with the
// auditor back, --resume reads the rest, on the account of the same record.
func TestExportResumes(t *testing.T) {
	s := newSystem(0)
	s.names = tenantsOfExport
	s.natsHost, s.natsPort = "127.0.0.1", -1
	dir := t.TempDir()
	out := filepath.Join(dir, "tenant.zip")
	log := s.run(t, func(ctx context.Context) error {
		data := filepath.Join(dir, "auditor")
		var a *exec.Cmd
		var address string
		start := func() error {
			a = exec.Command("pdgate", "auditor", "--data", data, "--keys", filepath.Join(s.dir, "keys"), "--nats-url", s.endpoints.nats, "--audit-listen", "127.0.0.1:0")
			if err := os.RemoveAll(filepath.Join(data, "run")); err != nil {
				return err
			}
			if err := a.Start(); err != nil {
				return err
			}
			return poll(ctx, "the auditor is ready", func() bool {
				address, _ = publishedURL(data, auditorURLFile)
				_, ok := ask(ctx, s.web, address+"/ready")
				return address != "" && ok
			})
		}
		if err := start(); err != nil {
			return err
		}
		defer func() { _ = a.Process.Kill(); _ = a.Wait() }()
		if _, err := s.traffic(ctx, 45); err != nil {
			return err
		}

		var exports atomic.Int32
		var begun atomic.Bool // the first leaf was read; the heads at the log's end were before it
		var killed sync.Once
		front := httptest.NewServer(&httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				target, _ := url.Parse(address)
				r.SetURL(target)
				if r.In.URL.Path == "/export" {
					exports.Add(1)
				}
				switch path := r.In.URL.Path; {
				case path == "/tile/entries/000":
					begun.Store(true)
				case strings.HasPrefix(path, "/tile/entries/") && begun.Load():
					killed.Do(func() { _ = a.Process.Kill(); _ = a.Wait() })
				}
			},
			ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
			Transport:    &http.Transport{DisableKeepAlives: true},
		})
		defer front.Close()
		args := []string{"export", "--data", data, "--audit-url", front.URL, "--token-file", filepath.Join(s.dir, "keys", "audit-token"),
			"--out", out, "--tenant", "globex-inc", "--patience", "1s"}
		code, _, stderr := cli(ctx, args...)
		if code != exitFailure || !strings.Contains(stderr, "--resume") {
			return fmt.Errorf("export: exit %d: %s", code, stderr)
		}
		if _, err := os.Stat(out); err == nil {
			return fmt.Errorf("there is a bundle although the auditor was killed")
		}
		if code, _, stderr := cli(ctx, args...); code != exitFailure || !strings.Contains(stderr, "did not end") {
			return fmt.Errorf("a second export over the part: exit %d: %s", code, stderr)
		}
		if err := start(); err != nil {
			return err
		}
		if code, _, stderr := cli(ctx, append(args[:len(args):len(args)], "--tenant", "acme-corp", "--resume")...); code != exitFailure || !strings.Contains(stderr, "another filter") {
			return fmt.Errorf("resumed with another filter: exit %d: %s", code, stderr)
		}
		code, _, stderr = cli(ctx, append(args, "--resume")...)
		if code != 0 || !strings.Contains(stderr, "goes on at leaf") || strings.Contains(stderr, "goes on at leaf 0 ") {
			return fmt.Errorf("resume: exit %d: %s", code, stderr)
		}
		if n := exports.Load(); n != 1 {
			return fmt.Errorf("%d exports were recorded, want 1", n)
		}
		key, err := os.ReadFile(filepath.Join(data, "auditor", "au1", "log.vkey"))
		if err != nil {
			return err
		}
		code, stdout, stderr := cli(ctx, "verify", "bundle", "--vkey", strings.TrimSpace(string(key)), out)
		if code != 0 {
			return fmt.Errorf("verify: exit %d: %s%s", code, stdout, stderr)
		}
		if left, _ := filepath.Glob(out + ".*"); len(left) != 0 {
			return fmt.Errorf("left behind: %v", left)
		}
		return nil
	})
	found := 0
	for _, env := range log.envelopes {
		_ = events.Split(env.Lines, func(_ int, line []byte) error {
			if e, err := events.Decode(line); err == nil {
				if d, ok := e.Data.(*events.AuditRead); ok && d.Kind == events.ReadExport && d.Tenant == "globex-inc" && d.Reader == "local" {
					found++
				}
				if d, ok := e.Data.(*events.AuditRead); ok && d.Kind == events.ReadEntries {
					t.Error("entries of an export are recorded one by one")
				}
			}
			return nil
		})
	}
	if found != 1 {
		t.Errorf("%d exports are in the log, want 1", found)
	}
}
