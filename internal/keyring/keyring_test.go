package keyring

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/pdgate/pdgate/events"
)

var testNames = Names{Gateways: []string{"gw1"}, Prefill: []string{"p1"}, Decode: []string{"d1"}}

func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(b)
	}
	return files
}

func TestOpenCreatesOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "keys")
	if _, err := Open(dir, testNames); err != nil {
		t.Fatal(err)
	}
	first := read(t, dir)
	want := []string{"lifecycle-log.nk", "lifecycle-bus.nk", "lifecycle-trim.nk", "operator.nk", "canary.nk", "auditor.nk", "auditor-bus.nk", "eraser.nk", "admin.nk", "gateway-gw1.nk", "prefill-p1.nk", "decode-d1.nk",
		"log-mac.key", "digest-secret.key", "grant.pem", "grant.pub.pem", "audit.pem", "audit.pub.pem", "audit-readers", "audit-token", "prefill-p1.pem", "decode-d1.pem"}
	for _, name := range want {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		mode := fs.FileMode(0o600)
		if strings.HasSuffix(name, ".pub.pem") {
			mode = 0o644
		}
		if fi.Mode().Perm() != mode {
			t.Errorf("%s has mode %04o, want %04o", name, fi.Mode().Perm(), mode)
		}
	}
	if len(first) != len(want) {
		t.Errorf("%d files, want %d: %v", len(first), len(want), first)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v %v", fi.Mode(), err)
	}
	more := testNames
	more.Decode = []string{"d1", "d2"}
	if _, err := Open(dir, more); err != nil {
		t.Fatal(err)
	}
	second := read(t, dir)
	for name, content := range first {
		if second[name] != content {
			t.Errorf("%s was overwritten", name)
		}
	}
	if len(second) != len(first)+2 {
		t.Errorf("%d files, want %d", len(second), len(first)+2)
	}
}

// TestOpenAtOnce starts several processes' worth of Open on one directory: all
// must end up with the same keys.
func TestOpenAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	keys := make([][]byte, 8)
	var wg sync.WaitGroup
	for i := range keys {
		wg.Go(func() {
			r, err := Open(dir, testNames)
			if err != nil {
				t.Error(err)
				return
			}
			keys[i], _ = r.LogKey()
		})
	}
	wg.Wait()
	for _, k := range keys {
		if !bytes.Equal(k, keys[0]) {
			t.Fatal("two callers hold different log keys")
		}
	}
	for name := range read(t, dir) {
		if strings.HasPrefix(name, ".") {
			t.Errorf("%s was left behind", name)
		}
	}
}

func TestBadFiles(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(dir string) error
		want  string
	}{
		{"empty seed", func(d string) error { return os.Truncate(d+"/operator.nk", 0) }, "operator.nk is damaged"},
		{"another kind of seed", func(d string) error {
			return os.WriteFile(d+"/operator.nk", []byte("SAAFTWVR6FFVFQTTAL7IKEVPQ6LRIMA6YFKUGCHQEQO74L3SAZGN4VLEQM"), 0o600)
		}, "operator.nk is damaged"},
		{"half a secret", func(d string) error { return os.Truncate(d+"/log-mac.key", 30) }, "log-mac.key is damaged"},
		{"not hex", func(d string) error { return os.WriteFile(d+"/digest-secret.key", []byte("zz"), 0o600) }, "digest-secret.key is damaged"},
		{"not PEM", func(d string) error { return os.WriteFile(d+"/prefill-p1.pem", []byte("x"), 0o600) }, "prefill-p1.pem is damaged"},
		{"a public half of another", func(d string) error { return os.Remove(d + "/grant.pem") }, "does not belong to grant.pem"},
		{"readable by others", func(d string) error { return os.Chmod(d+"/grant.pem", 0o640) }, "chmod 600 "},
		{"directory open to others", func(d string) error { return os.Chmod(d, 0o755) }, "chmod 700 "},
		{"a directory in its place", func(d string) error {
			os.Remove(d + "/admin.nk")
			return os.Mkdir(d+"/admin.nk", 0o700)
		}, "not a regular file"},
		{"too long", func(d string) error { return os.Truncate(d+"/grant.pem", 1<<20) }, "too many for a key"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "keys")
			if _, err := Open(dir, testNames); err != nil {
				t.Fatal(err)
			}
			secrets := read(t, dir)
			if err := tt.spoil(dir); err != nil {
				t.Fatal(err)
			}
			_, err := Open(dir, testNames)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error %v, want %q in it", err, tt.want)
			}
			for name, s := range secrets {
				if name != "grant.pub.pem" && strings.Contains(err.Error(), strings.TrimSpace(s)) {
					t.Errorf("the error holds the content of %s", name)
				}
			}
		})
	}
}

func TestLoadCreatesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	if _, err := Load(dir); err == nil {
		t.Fatal("a directory that is not there was loaded")
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	r, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.LogKey(); err == nil || !strings.Contains(err.Error(), "log-mac.key is missing: copy it") {
		t.Errorf("error %v", err)
	}
	if n := len(read(t, dir)); n != 0 {
		t.Errorf("%d files were created", n)
	}
}

func TestLoadEqualsOpen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	a, err := Open(dir, testNames)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []*Ring{a, b} {
		g, err := r.GrantKey()
		if err != nil {
			t.Fatal(err)
		}
		pub, err := r.GrantPublicKey()
		if err != nil || !pub.Equal(g.Public()) {
			t.Errorf("public half: %v %v", pub, err)
		}
	}
	ka, _ := a.Identity(events.RolePrefill, "p1")
	kb, err := b.Identity(events.RolePrefill, "p1")
	if err != nil || !ka.Equal(kb) {
		t.Errorf("identity differs: %v", err)
	}
	pa, _ := a.PublicKey(Operator)
	pb, err := b.PublicKey(Operator)
	if err != nil || pa != pb {
		t.Errorf("operator: %s %s %v", pa, pb, err)
	}
}

func TestUsers(t *testing.T) {
	type row struct {
		User             User
		Role             events.Role
		Principal, Inbox string
	}
	var got []row
	for _, u := range testNames.Users() {
		got = append(got, row{u, u.Role(), u.Principal(), u.InboxPrefix()})
	}
	want := []row{
		{"lifecycle-log", "lifecycle", "lifecycle-log", "_INBOX.lifecycle-log"},
		{"lifecycle-bus", "lifecycle", "lifecycle-bus", "_INBOX.lifecycle-bus"},
		{"lifecycle-trim", "lifecycle", "lifecycle-trim", "_INBOX.lifecycle-trim"},
		{"operator", "operator", "operator", "_INBOX.operator-operator"},
		{"canary", "canary", "canary", "_INBOX.canary-canary"},
		{"auditor", "auditor", "auditor", "_INBOX.auditor-auditor"},
		{"auditor-bus", "auditor", "auditor", "_INBOX.auditor-auditor"},
		{"eraser", "lifecycle", "eraser", "_INBOX.eraser"},
		{"admin", "lifecycle", "admin", "_INBOX.admin"},
		{"gateway-gw1", "gateway", "gw1", "_INBOX.gateway-gw1"},
		{"prefill-p1", "prefill", "p1", "_INBOX.prefill-p1"},
		{"decode-d1", "decode", "d1", "_INBOX.decode-d1"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestNames(t *testing.T) {
	for _, bad := range []string{"", "a.b", "a*", ">", "a/b", "../x", "a b", strings.Repeat("x", 65)} {
		if _, err := Open(filepath.Join(t.TempDir(), "keys"), Names{Decode: []string{bad}}); err == nil {
			t.Errorf("name %q was taken", bad)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "keys"), Names{Decode: []string{"a", "a"}}); err == nil {
		t.Error("a name given twice was taken")
	}
}

func TestOption(t *testing.T) {
	r, err := Open(filepath.Join(t.TempDir(), "keys"), testNames)
	if err != nil {
		t.Fatal(err)
	}
	opt, err := r.Option(Gateway("gw1"))
	if err != nil {
		t.Fatal(err)
	}
	o := nats.GetDefaultOptions()
	if err := opt(&o); err != nil {
		t.Fatal(err)
	}
	pub, _ := r.PublicKey(Gateway("gw1"))
	if o.Nkey != pub || o.InboxPrefix != "_INBOX.gateway-gw1" || o.Name != "gateway-gw1" {
		t.Errorf("options: %q %q %q", o.Nkey, o.InboxPrefix, o.Name)
	}
	if sig, err := o.SignatureCB([]byte("nonce")); err != nil || len(sig) != 64 {
		t.Errorf("signature: %d bytes, %v", len(sig), err)
	}
}
