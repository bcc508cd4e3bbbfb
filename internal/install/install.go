package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
)

// Plan is an installation. A part's name is the host name under which the others
// reach it.
type Plan struct {
	Dir        string   // created when missing
	Servers    []string // NATS servers: one, or three and more
	Lifecycles []string
	Gateways   []string
	Prefill    []string
	Decode     []string
	Auditors   []string
	Models     []string // whose work queues workers may read
	Hosts      []string // further names and addresses of the gateways and auditors in their certificates
	Tenants    []byte   // the first tenants.yaml of each gateway
	Now        func() time.Time
}

// ClientPort and others are what the servers listen on.
const (
	ClientPort  = 4222
	RoutePort   = 6222
	MonitorPort = 8222
)

// Paths of a server's files where it runs.
const (
	serverFiles = "/etc/nats"
	serverStore = "/data/jetstream"
)

// Report lists files by their paths below Dir.
type Report struct {
	Written []string
	Kept    []string
}

// writer is one run.
type writer struct {
	plan   Plan
	ring   *keyring.Ring
	ca     *authority
	report Report
}

// Write writes what is missing. After an error it can be run again.
func Write(p Plan) (*Report, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	w := &writer{plan: p}
	if err := os.MkdirAll(p.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("install: %w", err)
	}
	var err error
	if w.ring, err = keyring.Open(filepath.Join(p.Dir, "keys"), keyring.Names{Gateways: p.Gateways, Prefill: p.Prefill, Decode: p.Decode}); err != nil {
		return nil, err
	}
	if w.ca, err = w.openCA(); err != nil {
		return nil, err
	}
	for _, s := range p.Servers {
		if err := w.server(s); err != nil {
			return nil, err
		}
	}
	for _, part := range p.parts() {
		if err := w.part(part); err != nil {
			return nil, err
		}
	}
	return &w.report, nil
}

func (p *Plan) validate() error {
	if p.Now == nil {
		p.Now = time.Now
	}
	if p.Dir == "" {
		return errors.New("install: Dir is empty")
	}
	switch n := len(p.Servers); {
	case n == 0:
		return errors.New("install: no NATS server: want one, or three")
	case n == 2:
		return errors.New("install: two NATS servers stop when one does: want one, or three and more")
	}
	seen := map[string]bool{}
	for _, l := range []struct {
		kind  string
		names []string
	}{{"NATS server", p.Servers}, {"lifecycle replica", p.Lifecycles}, {"gateway", p.Gateways}, {"prefill worker", p.Prefill}, {"decode worker", p.Decode}, {"auditor", p.Auditors}} {
		if len(l.names) == 0 {
			return fmt.Errorf("install: no %s", l.kind)
		}
		for _, name := range l.names {
			switch {
			case !events.ValidName(name):
				return fmt.Errorf("install: %s %q: want 1 to 64 letters, digits, '-' and '_'", l.kind, name)
			case seen[name]:
				return fmt.Errorf("install: %q names two parts: each name is a host of its own", name)
			}
			seen[name] = true
		}
	}
	return nil
}

// part is one process and what it needs.
type part struct {
	name    string
	keys    []string // files of the ring
	digests bool     // with the keys of the tenants' digests
	https   bool
	tenants bool
}

func nk(u keyring.User) string { return string(u) + ".nk" }

// parts lists every part that is not a NATS server. What each is given is the
// table of keys in docs/operations.md.
func (p *Plan) parts() []part {
	var all []part
	for _, n := range p.Lifecycles {
		all = append(all, part{name: n, keys: []string{nk(keyring.LifecycleLog), nk(keyring.LifecycleBus), "log-mac.key", "digest-secret.key", "grant.pem"}, digests: true})
	}
	for _, n := range p.Gateways {
		all = append(all, part{name: n, keys: []string{nk(keyring.Gateway(n)), "digest-secret.key"}, digests: true, https: true, tenants: true})
	}
	for role, names := range map[events.Role][]string{events.RolePrefill: p.Prefill, events.RoleDecode: p.Decode} {
		for _, n := range names {
			u := keyring.Worker(role, n)
			all = append(all, part{name: n, keys: []string{nk(u), string(u) + ".pem", "grant.pub.pem"}})
		}
	}
	for _, n := range p.Auditors {
		all = append(all, part{name: n, keys: []string{nk(keyring.Auditor), nk(keyring.AuditorBus), "log-mac.key", "audit.pem", "audit-readers"}, https: true})
	}
	slices.SortFunc(all, func(a, b part) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	return all
}

// server writes one NATS server's directory.
func (w *writer) server(name string) error {
	dir := path.Join("nats", name)
	if err := w.certificate(dir, name, true, nil); err != nil {
		return err
	}
	if err := w.put(path.Join(dir, keyring.CAFile), w.ca.pem, 0o644); err != nil {
		return err
	}
	cfg := broker.Config{
		StoreDir: serverStore, Host: "0.0.0.0", Port: ClientPort, Models: w.plan.Models, Ring: w.ring,
		Name: name, Monitor: fmt.Sprintf("127.0.0.1:%d", MonitorPort), // for the health check, which runs beside it
		TLS: &broker.TLS{Cert: serverFiles + "/tls.pem", Key: serverFiles + "/tls-key.pem", CA: serverFiles + "/" + keyring.CAFile},
	}
	if len(w.plan.Servers) > 1 {
		c := &broker.Cluster{Name: "pdgate", Listen: fmt.Sprintf("0.0.0.0:%d", RoutePort)}
		for _, s := range w.plan.Servers {
			c.Routes = append(c.Routes, fmt.Sprintf("%s:%d", s, RoutePort))
		}
		cfg.Cluster = c
	}
	text, err := cfg.Text()
	if err != nil {
		return err
	}
	if err := w.same(path.Join(dir, "nats.conf"), []byte(text), 0o600); err != nil {
		return err
	}
	return w.dir(path.Join("data", name))
}

// part writes one part's directory.
func (w *writer) part(p part) error {
	dir := path.Join("parts", p.name)
	keys := p.keys
	if p.digests {
		all, err := filepath.Glob(filepath.Join(w.ring.Dir(), "tenants", "*.key"))
		if err != nil {
			return fmt.Errorf("install: %w", err)
		}
		for _, k := range all {
			keys = append(keys, path.Join("tenants", filepath.Base(k)))
		}
	}
	for _, k := range keys {
		b, err := os.ReadFile(filepath.Join(w.ring.Dir(), k))
		if err != nil {
			return fmt.Errorf("install: %w", err)
		}
		mode := os.FileMode(0o600)
		if k == "grant.pub.pem" {
			mode = 0o644
		}
		if err := w.put(path.Join(dir, "keys", k), b, mode); err != nil {
			return err
		}
	}
	if err := w.put(path.Join(dir, "keys", keyring.CAFile), w.ca.pem, 0o644); err != nil {
		return err
	}
	if p.https {
		if err := w.certificate(dir, p.name, false, w.plan.Hosts); err != nil {
			return err
		}
	}
	if p.tenants {
		if err := w.put(path.Join(dir, "tenants.yaml"), w.plan.Tenants, 0o600); err != nil {
			return err
		}
	}
	return w.dir(path.Join("data", p.name))
}

func (w *writer) dir(name string) error {
	if err := os.MkdirAll(filepath.Join(w.plan.Dir, filepath.FromSlash(name)), 0o700); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	return nil
}

// put writes a file that is not there.
func (w *writer) put(name string, b []byte, mode os.FileMode) error {
	full := filepath.Join(w.plan.Dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
		return fmt.Errorf("install: %w", err)
	}
	err := keyring.WriteOnce(full, b, mode)
	switch {
	case errors.Is(err, fs.ErrExist):
		w.report.Kept = append(w.report.Kept, name)
		return nil
	case err != nil:
		return fmt.Errorf("install: %w", err)
	}
	w.report.Written = append(w.report.Written, name)
	return nil
}

// same is put for a file that has to be as the plan has it: a server that does
// not know a user refuses the part.
func (w *writer) same(name string, b []byte, mode os.FileMode) error {
	if err := w.put(name, b, mode); err != nil {
		return err
	}
	have, err := os.ReadFile(filepath.Join(w.plan.Dir, filepath.FromSlash(name)))
	if err != nil {
		return fmt.Errorf("install: %w", err)
	}
	if string(have) != string(b) {
		return fmt.Errorf("install: %s is not what this installation has: keep a copy, remove it, and run init again", filepath.Join(w.plan.Dir, filepath.FromSlash(name)))
	}
	return nil
}
