package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
	"github.com/pdgate/pdgate/statemachine"
)

const quickTrimsVar = "PDGATE_TEST_QUICK_TRIMS"

// quickTrims lets a process that a test starts trim what is hardly a moment old.
func quickTrims() {
	if os.Getenv(quickTrimsVar) != "" {
		leastRetention = time.Nanosecond
		pace.snapshots, pace.trims, pace.least = time.Millisecond, 20*time.Millisecond, 1
	}
}

// trimmed is a pdgate up in a process of its own, that is killed and started again.
type trimmed struct {
	t    *testing.T
	dir  string
	cmd  *exec.Cmd
	out  lockedBuffer
	args []string
}

func (u *trimmed) start() {
	u.t.Helper()
	if err := os.RemoveAll(filepath.Join(u.dir, "run")); err != nil {
		u.t.Fatal(err)
	}
	u.cmd = exec.Command("pdgate", append([]string{"up", "--data", u.dir, "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0"}, u.args...)...)
	u.cmd.Env = append(os.Environ(), quickTrimsVar+"=1")
	u.cmd.Stdout, u.cmd.Stderr = &u.out, &u.out
	if err := u.cmd.Start(); err != nil {
		u.t.Fatal(err)
	}
	u.until("the gateway is there", func() bool { url, err := publishedURL(u.dir, gatewayURLFile); return err == nil && url != "" })
}

func (u *trimmed) kill() {
	_ = u.cmd.Process.Kill()
	_ = u.cmd.Wait()
}

func (u *trimmed) until(what string, f func() bool) {
	u.t.Helper()
	if err := poll(u.t.Context(), what, f); err != nil {
		u.kill()
		u.t.Fatalf("%v\n%s", err, u.out.String())
	}
}

// ask sends one request, and gives its id and receipt.
func (u *trimmed) ask(client *http.Client, n int) (id, receipt string) {
	u.t.Helper()
	url, err := publishedURL(u.dir, gatewayURLFile)
	if err != nil {
		u.t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(u.dir, "keys", demoKeyFile))
	if err != nil {
		u.t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, url+"/v1/completions", strings.NewReader(fmt.Sprintf(`{"model":"ref","prompt":"request %d","max_tokens":2}`, n)))
	if err != nil {
		u.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(key)))
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		u.t.Fatalf("%v\n%s", err, u.out.String())
	}
	defer resp.Body.Close()
	b, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		u.t.Fatalf("request %d: HTTP %d: %s\n%s", n, resp.StatusCode, b, u.out.String())
	}
	return resp.Header.Get("X-Request-Id"), resp.Header.Get("Pdgate-Receipt")
}

// log is the log as lifecycle reads it.
func (u *trimmed) log() (*journal.JetStream, func()) {
	u.t.Helper()
	ring, err := keyring.Load(filepath.Join(u.dir, "keys"))
	if err != nil {
		u.t.Fatal(err)
	}
	url, err := publishedURL(u.dir, natsURLFile)
	if err != nil {
		u.t.Fatal(err)
	}
	key, err := ring.LogKey()
	if err != nil {
		u.t.Fatal(err)
	}
	nc, err := natsclient.Connect(u.t.Context(), natsclient.Config{URL: url, Ring: ring, User: keyring.LifecycleLog})
	if err != nil {
		u.t.Fatal(err)
	}
	j, err := journal.OpenJetStream(u.t.Context(), nc, journal.Config{Key: key})
	if err != nil {
		u.t.Fatal(err)
	}
	return j, func() { j.Close(); nc.Close() }
}

// judge runs the checker over what the log has.
func (u *trimmed) judge(j *journal.JetStream) statemachine.Report {
	u.t.Helper()
	x, err := j.Extent(u.t.Context())
	if err == nil {
		err = x.Check(u.t.Context(), j)
	}
	if err != nil {
		u.t.Fatal(err)
	}
	k := statemachine.NewChecker(statemachine.CheckerConfig{Partitions: j.Partitions()})
	err = j.Follow(u.t.Context(), x.First, func(env *events.Envelope) error {
		if err := k.Add(env); err != nil {
			return err
		}
		if env.Seq >= x.Last {
			return errRead
		}
		return nil
	})
	if !errors.Is(err, errRead) {
		u.t.Fatal(err)
	}
	k.Close(time.Now())
	return k.Report()
}

// What has left the live log is in the audit log: after a kill -9 of everything and
// a start on the trimmed log, the bundle of a request that has left verifies, its
// receipt resolves, and people are told where it is.
func TestTrimmedSystem(t *testing.T) {
	dir := t.TempDir()
	u := &trimmed{t: t, dir: dir, args: []string{"--retention", "1ms"}}
	u.start()
	t.Cleanup(func() { u.kill() })
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	id, receipt := u.ask(client, 0)
	at, _, _ := strings.Cut(receipt, ";")
	pos, err := events.ParsePosition(at)
	if err != nil {
		t.Fatal(err)
	}
	receipts := []string{receipt}
	for n := 1; n < 80; n++ {
		_, r := u.ask(client, n)
		receipts = append(receipts, r)
	}
	j, end := u.log()
	first := func() uint64 {
		x, err := j.Extent(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := x.Check(t.Context(), j); err != nil {
			t.Error(err)
		}
		return x.First
	}
	u.until("the first request has left", func() bool { return first() > pos.Seq })
	if r := u.judge(j); len(r.Violations) > 0 {
		t.Errorf("the rest of the log: %+v", r.Violations)
	}
	end()
	u.kill()
	u.start()
	if newer, _ := u.ask(client, 99); newer == id {
		t.Error("an id came again")
	}
	audit, err := publishedURL(dir, auditorURLFile)
	if err != nil {
		t.Fatal(err)
	}
	u.until("the auditor is ready", func() bool { _, ok := ask(t.Context(), client, audit+"/ready"); return ok })

	out := filepath.Join(t.TempDir(), "left.zip")
	if code, _, stderr := cli(t.Context(), "export", "--data", dir, "--request", id, "--out", out); code != 0 {
		t.Fatalf("export: exit %d: %s", code, stderr)
	}
	vkey, err := os.ReadFile(filepath.Join(dir, "auditor", "au1", "log.vkey"))
	if err != nil {
		t.Fatal(err)
	}
	key := strings.TrimSpace(string(vkey))
	if code, stdout, stderr := cli(t.Context(), "verify", "bundle", "--vkey", key, out); code != 0 {
		t.Errorf("verify: exit %d: %s%s", code, stdout, stderr)
	}
	if lines := unzipped(t, out)["events.jsonl"]; strings.Count(string(lines), `"subject":"`+id+`"`) < 7 {
		t.Errorf("the bundle does not hold the whole request:\n%s", lines)
	}
	token, err := os.ReadFile(filepath.Join(dir, "keys", "audit-token"))
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range receipts {
		if i%20 != 0 {
			continue
		}
		req, _ := http.NewRequest(http.MethodGet, audit+"/receipt/"+r, nil)
		req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		proof := filepath.Join(t.TempDir(), "proof")
		if err := os.WriteFile(proof, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if code, stdout, stderr := cli(t.Context(), "verify", "receipt", r, "--proof", proof, "--vkey", key); code != 0 {
			t.Errorf("receipt %s: HTTP %d, exit %d: %s%s", r, resp.StatusCode, code, stdout, stderr)
		}
	}
	code, _, stderr := cli(t.Context(), "request", "history", id, "--data", dir)
	if code == 0 && !strings.Contains(stderr, "has left the live log") || code != 0 && !strings.Contains(stderr, "pdgate export --request") {
		t.Errorf("history of what has left: exit %d: %s", code, stderr)
	}
	u.until("the list says where it begins", func() bool {
		code, _, stderr := cli(t.Context(), "request", "list", "--data", dir)
		return code == 0 && strings.Contains(stderr, "the live log is trimmed")
	})
	if strings.Contains(u.out.String(), "alarm=true") || strings.Contains(u.out.String(), "ALARM") {
		t.Errorf("alarms:\n%s", u.out.String())
	}
}

// What cannot be meant is refused with a reason, and a missing key with its name.
func TestRetentionFlags(t *testing.T) {
	for _, tt := range []struct {
		args []string
		says string
	}{
		{[]string{"--retention", "59m"}, "want 0s, which keeps all, or at least 1h0m0s"},
		{[]string{"--retention", "-1h"}, "want 0s"},
		{[]string{"--retention-bytes", "1000"}, "want 0, which keeps all, or at least"},
		{[]string{"--retain-without-audit"}, "want --retention"},
	} {
		for _, command := range []string{"up", "lifecycle"} {
			code, _, stderr := cli(t.Context(), append([]string{command, "--data", t.TempDir()}, tt.args...)...)
			if code != exitUsage || !strings.Contains(stderr, tt.says) {
				t.Errorf("%s %v: exit %d: %s", command, tt.args, code, stderr)
			}
		}
	}
	// The key is asked for only by who trims.
	keys := filepath.Join(t.TempDir(), "keys")
	if err := os.Mkdir(keys, 0o700); err != nil {
		t.Fatal(err)
	}
	ring, err := keyring.Load(keys)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(_ context.Context, u keyring.User) (*nats.Conn, error) { _, err := ring.Option(u); return nil, err }
	_, _, err = (&retention{age: time.Hour}).open(t.Context(), nil, dial, ring)
	if err == nil || !strings.Contains(err.Error(), "lifecycle-trim.nk is missing") || !strings.Contains(err.Error(), "leave --retention out") {
		t.Errorf("%v", err)
	}
	if _, _, err = (&retention{}).open(t.Context(), nil, dial, ring); err != nil {
		t.Error(err)
	}
}
