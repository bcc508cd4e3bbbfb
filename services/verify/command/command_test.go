package command

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/events"
)

const golden = "../../../events/audit/testdata/"

func run(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = Run("verify", args, &out, &errs)
	return code, out.String(), errs.String()
}

// files takes the golden bundle apart.
func files(t *testing.T) (dir, proof, line, vkey string) {
	t.Helper()
	dir = t.TempDir()
	z, err := zip.OpenReader(golden + "tenant.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	for _, f := range z.File {
		r, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(dir, filepath.Base(f.Name))
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.HasPrefix(f.Name, "proofs/"):
			proof = name
		case f.Name == "events.jsonl":
			lines := strings.Split(strings.TrimSpace(string(b)), "\n")
			line = lines[len(lines)-1] // the epoch leaf
		case f.Name == "log.vkey":
			vkey = strings.TrimSpace(string(b))
		}
	}
	return dir, proof, line, vkey
}

func TestExitCodes(t *testing.T) {
	dir, proof, line, vkey := files(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string) string {
		t.Helper()
		if err := os.WriteFile(in(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return in(name)
	}
	leaf := write("leaf", line+"\n")
	policy, bundle := golden+"policy.txt", golden+"tenant.zip"
	receipt := "41.0;" + events.Hash([]byte(line))
	otherKey := "example.com/other+d7b2e4c6+AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	for _, c := range []struct {
		code int
		args []string
	}{
		{0, []string{"bundle", bundle, "--policy", policy}},
		{0, []string{"bundle", "--policy=" + policy, bundle}},
		{0, []string{"bundle", bundle, "--vkey", vkey}},
		{0, []string{"bundle", bundle, "--own-key"}},
		{0, []string{"bundle", bundle, "--policy", policy, "--start", in("checkpoint.start")}},
		{4, []string{"bundle", bundle, "--policy", policy, "--start", in("checkpoint.end")}},
		{2, []string{"bundle", bundle, "--start", in("checkpoint.start")}},
		{3, []string{"bundle", bundle}},
		{2, []string{"bundle", in("nowhere"), "--own-key"}},
		{2, []string{"bundle", policy, "--own-key"}},
		{2, []string{"bundle", bundle, bundle}},
		{2, []string{"bundle", bundle, "--policy", in("nowhere")}},
		{2, []string{"bundle", bundle, "--policy", bundle}},
		{2, []string{"bundle", bundle, "--policy", policy, "--vkey", vkey}},
		{2, []string{"bundle", bundle, "--vkey", otherKey}},
		{2, []string{"bundle", bundle, "--policy", write("nolog", "quorum none\n")}},
		{0, []string{"proof", proof, "--policy", policy, "--line", line}},
		{0, []string{"proof", proof, "--policy", policy, "--leaf", leaf}},
		{4, []string{"proof", proof, "--policy", policy, "--line", line + " "}},
		{3, []string{"proof", proof, "--policy", policy}},
		{2, []string{"proof", proof, "--line", line}},
		{2, []string{"proof", proof, "--policy", policy, "--line", line, "--leaf", leaf}},
		{0, []string{"receipt", receipt, "--proof", proof, "--policy", policy, "--line", line}},
		{4, []string{"receipt", "41.0;" + events.Hash(nil), "--proof", proof, "--policy", policy, "--line", line}},
		{2, []string{"receipt", "41.0;denied", "--proof", proof, "--policy", policy, "--line", line}},
		{2, []string{"receipt", receipt, "--policy", policy, "--line", line}},
		{0, []string{"checkpoint", in("checkpoint.end"), "--policy", policy}},
		{1, []string{"checkpoint", write("unwitnessed", withoutCosignatures(t, in("checkpoint.end"))), "--policy", policy}},
		{4, []string{"checkpoint", leaf, "--policy", policy}},
		{2, []string{"checkpoint", in("checkpoint.end")}},
		{0, []string{"consistency", in("checkpoint.start"), in("checkpoint.end"), "--proof", in("consistency.json"), "--policy", policy}},
		{4, []string{"consistency", in("checkpoint.end"), in("checkpoint.start"), "--proof", in("consistency.json"), "--policy", policy}},
		{4, []string{"consistency", in("checkpoint.start"), in("checkpoint.end"), "--tiles", dir, "--policy", policy}},
		{4, []string{"consistency", in("checkpoint.start"), in("checkpoint.end"), "--proof", leaf, "--policy", policy}},
		{2, []string{"consistency", in("checkpoint.start"), in("checkpoint.end"), "--policy", policy}},
		{2, []string{"consistency", in("checkpoint.start"), "--proof", leaf, "--policy", policy}},
		{2, nil},
		{2, []string{"everything"}},
		{2, []string{"bundle", bundle, "--no-such-flag"}},
		{0, []string{"--help"}},
		{0, []string{"bundle", "--help"}},
	} {
		code, stdout, stderr := run(c.args...)
		if code != c.code {
			t.Errorf("%q: exit %d, want %d\n%s%s", c.args, code, c.code, stdout, stderr)
		}
		if (code == 2) != (stdout == "") || (code == 2) != (stderr != "") {
			t.Errorf("%q: exit %d with stdout %q and stderr %q", c.args, code, stdout, stderr)
		}
	}
}

func withoutCosignatures(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(b), "— w1.example")
	return head
}

func TestOutput(t *testing.T) {
	code, stdout, _ := run("bundle", golden+"tenant.zip", "--policy", golden+"policy.txt")
	for _, want := range []string{"VERIFIED: ", "Proven:", "Not proven:", "That everything that happened was logged", "complete until"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("exit %d, %q is not in\n%s", code, want, stdout)
		}
	}
	_, stdout, _ = run("bundle", golden+"tenant.zip", "--json")
	var r struct {
		Verdict  string
		Exit     int
		Problems []struct{ Severity, Where, What string }
		Proven   []string
		Not      []string `json:"not_proven"`
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	if r.Exit != 3 || r.Verdict != "incomplete or inconclusive" || len(r.Problems) != 1 || r.Problems[0].Severity != "incomplete" || len(r.Not) == 0 {
		t.Errorf("%+v", r)
	}
}

// What an auditor has to trust is the standard library, x/mod and two packages.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "..").Output()
	if err != nil {
		t.Fatal(err)
	}
	const module = "github.com/pdgate/pdgate/"
	allowed := map[string]bool{module + "events": true, module + "events/audit": true, module + "services/verify": true,
		module + "services/verify/command": true, "golang.org/x/mod/sumdb/note": true, "golang.org/x/mod/sumdb/tlog": true}
	seen := strings.Fields(string(out))
	if len(seen) < 5 {
		t.Fatalf("go list found %q", seen)
	}
	for _, p := range seen {
		if !allowed[p] {
			t.Errorf("verify depends on %s", p)
		}
	}
	std, err := exec.Command("go", "list", "-f", `{{join .Imports " "}}`, "../../../events/audit").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range strings.Fields(string(std)) {
		if p == "os" || p == "net" || strings.HasPrefix(p, "net/") || strings.HasPrefix(p, "os/") {
			t.Errorf("audit imports %s: it opens no files and no connections", p)
		}
	}
}
