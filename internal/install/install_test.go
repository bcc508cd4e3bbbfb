package install

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/pdgate/pdgate/internal/keyring"
)

func plan(dir string) Plan {
	return Plan{
		Dir: dir, Servers: []string{"nats1", "nats2", "nats3"}, Lifecycles: []string{"lc1"}, Gateways: []string{"gw1"},
		Prefill: []string{"p1"}, Decode: []string{"d1"}, Auditors: []string{"au1"}, Models: []string{"ref"}, Hosts: []string{"api.example.org", "192.0.2.7"},
		Tenants: []byte("tenants: []\n"),
	}
}

func write(t *testing.T, p Plan) *Report {
	t.Helper()
	r, err := Write(p)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// files are the contents of all files, by path.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, path)
		all[filepath.ToSlash(rel)] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestWriteKeepsWhatIsThere(t *testing.T) {
	dir := t.TempDir()
	write(t, plan(dir))
	before := files(t, dir)
	r := write(t, plan(dir))
	if len(r.Written) > 0 {
		t.Errorf("a second run wrote %v", r.Written)
	}
	for name, text := range files(t, dir) {
		if before[name] != text {
			t.Errorf("%s was changed", name)
		}
	}
	// What a crash left out comes with the next run, and nothing else.
	if err := os.Remove(filepath.Join(dir, "parts", "gw1", "keys", "digest-secret.key")); err != nil {
		t.Fatal(err)
	}
	if r := write(t, plan(dir)); !slices.Equal(r.Written, []string{"parts/gw1/keys/digest-secret.key"}) {
		t.Errorf("wrote %v", r.Written)
	}
	// A part that the servers do not know would be refused by them.
	p := plan(dir)
	p.Decode = append(p.Decode, "d2")
	if _, err := Write(p); err == nil || !strings.Contains(err.Error(), "nats.conf is not what this installation has") {
		t.Errorf("a part was added: %v", err)
	}
}

func TestPartsHaveTheirOwnAndNothingElse(t *testing.T) {
	dir := t.TempDir()
	write(t, plan(dir))
	ring, err := keyring.Load(filepath.Join(dir, "keys"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ring.NewTenantKey("acme"); err != nil {
		t.Fatal(err)
	}
	write(t, plan(dir))
	for part, want := range map[string][]string{
		"lc1": {"ca.pem", "digest-secret.key", "grant.pem", "lifecycle-bus.nk", "lifecycle-log.nk", "log-mac.key", "tenants/acme.key"},
		"gw1": {"ca.pem", "digest-secret.key", "gateway-gw1.nk", "tenants/acme.key"},
		"p1":  {"ca.pem", "grant.pub.pem", "prefill-p1.nk", "prefill-p1.pem"},
		"d1":  {"ca.pem", "decode-d1.nk", "decode-d1.pem", "grant.pub.pem"},
		"au1": {"audit-readers", "audit.pem", "auditor-bus.nk", "auditor.nk", "ca.pem", "log-mac.key"},
	} {
		keys := filepath.Join(dir, "parts", part, "keys")
		var have []string
		for name := range files(t, keys) {
			have = append(have, name)
			if fi, err := os.Stat(filepath.Join(keys, name)); err != nil || fi.Mode().Perm()&0o077 != 0 && !strings.HasSuffix(name, ".pub.pem") && name != "ca.pem" {
				t.Errorf("%s: others may read %s", part, name)
			}
		}
		slices.Sort(have)
		if !slices.Equal(have, want) {
			t.Errorf("%s has %v, want %v", part, have, want)
		}
	}
}

func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	write(t, plan(dir))
	roots := x509.NewCertPool()
	pem, err := os.ReadFile(filepath.Join(dir, "ca", "ca.pem"))
	if err != nil || !roots.AppendCertsFromPEM(pem) {
		t.Fatal("no authority", err)
	}
	for _, c := range []struct {
		path, name string
		use        x509.ExtKeyUsage
		ok         bool
	}{
		{"nats/nats1", "nats1", x509.ExtKeyUsageServerAuth, true},
		{"nats/nats1", "nats2", x509.ExtKeyUsageServerAuth, false},
		{"nats/nats1", "nats1", x509.ExtKeyUsageClientAuth, true}, // to the others' routes
		{"parts/gw1", "gw1", x509.ExtKeyUsageServerAuth, true},
		{"parts/gw1", "api.example.org", x509.ExtKeyUsageServerAuth, true},
		{"parts/gw1", "192.0.2.7", x509.ExtKeyUsageServerAuth, true},
		{"parts/gw1", "gw1", x509.ExtKeyUsageClientAuth, false}, // or a gateway could join the cluster
		{"parts/au1", "au1", x509.ExtKeyUsageClientAuth, false},
	} {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, c.path, "tls.pem"), filepath.Join(dir, c.path, "tls-key.pem"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: c.name, KeyUsages: []x509.ExtKeyUsage{c.use}, CurrentTime: time.Now()})
		if (err == nil) != c.ok {
			t.Errorf("%s as %s, use %v: %v", c.path, c.name, c.use, err)
		}
	}
}

// The server itself reads what was written for it.
func TestServerConfiguration(t *testing.T) {
	dir := t.TempDir()
	write(t, plan(dir))
	b, err := os.ReadFile(filepath.Join(dir, "nats", "nats2", "nats.conf"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.ReplaceAll(string(b), serverFiles, filepath.Join(dir, "nats", "nats2"))
	o := &server.Options{}
	if err := o.ProcessConfigString(text); err != nil {
		t.Fatal(err)
	}
	switch {
	case o.ServerName != "nats2" || o.Cluster.Name != "pdgate" || len(o.Routes) != 3 || !o.Cluster.NoAdvertise:
		t.Errorf("name %q, cluster %q, %d routes", o.ServerName, o.Cluster.Name, len(o.Routes))
	case o.TLSConfig == nil || o.Cluster.TLSConfig == nil || o.Cluster.TLSConfig.ClientAuth != tls.RequireAndVerifyClientCert:
		t.Error("clients or routes without TLS, or routes that do not prove themselves")
	case !o.SyncAlways:
		t.Error("an acknowledgement does not wait for the disk")
	case o.HTTPHost != "127.0.0.1":
		t.Errorf("statistics are served on %s", o.HTTPHost)
	case len(o.Accounts) != 6:
		t.Errorf("%d accounts", len(o.Accounts))
	}
}

func TestPlanIsRefused(t *testing.T) {
	for want, change := range map[string]func(*Plan){
		"two NATS servers":   func(p *Plan) { p.Servers = p.Servers[:2] },
		"no NATS server":     func(p *Plan) { p.Servers = nil },
		"no gateway":         func(p *Plan) { p.Gateways = nil },
		`"gw1" names two`:    func(p *Plan) { p.Decode = []string{"gw1"} },
		`gateway "../x"`:     func(p *Plan) { p.Gateways = []string{"../x"} },
		`decode worker "a."`: func(p *Plan) { p.Decode = []string{"a."} },
	} {
		dir := t.TempDir()
		p := plan(dir)
		change(&p)
		_, err := Write(p)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
		if left := files(t, dir); len(left) > 0 {
			t.Errorf("%s: left %d files", want, len(left))
		}
	}
}
