package auditor

import (
	"crypto/ed25519"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Each kind of directory that does not fit is refused by name, before anything is
// signed.
func TestDirectory(t *testing.T) {
	edit := func(name string, f func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			t.Helper()
			path := filepath.Join(dir, name)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, f(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	half := func(b []byte) []byte { return b[:len(b)/2] }
	other := func(from, to string) func([]byte) []byte {
		return func(b []byte) []byte { return []byte(strings.Replace(string(b), from, to, 1)) }
	}
	for name, tt := range map[string]struct {
		damage func(t *testing.T, dir string)
		cfg    func(*Config)
		says   []string
		is     error
	}{
		"a flipped hash":     {damage: edit("tile/0/001.p/44", flip), says: []string{"root", "state.json"}, is: ErrDirectory},
		"a short tile":       {damage: edit("tile/0/001.p/44", half), says: []string{"001.p/44", restore}, is: ErrDirectory},
		"a flipped entry":    {damage: edit("tile/entries/001.p/44", flip), says: []string{"tile"}, is: ErrDirectory},
		"a short index":      {damage: edit("index/messages", half), says: []string{"index/messages", restore}, is: ErrDirectory},
		"a torn state":       {damage: edit("state.json", half), says: []string{"state.json", restore}, is: ErrDirectory},
		"a made up state":    {damage: edit("state.json", other(`"root":"`, `"root":"A`)), says: []string{"state.json"}, is: ErrDirectory},
		"another log's":      {damage: edit("state.json", other("pdgate.local", "elsewhere")), says: []string{"elsewhere", "its own directory"}, is: ErrDirectory},
		"a bad checkpoint":   {damage: edit("checkpoint", flip), says: []string{"checkpoint", "audit.pem"}, is: ErrDirectory},
		"without its state":  {damage: func(t *testing.T, dir string) { remove(t, filepath.Join(dir, "state.json")) }, says: []string{"state.json", "missing"}, is: ErrDirectory},
		"another key":        {cfg: func(c *Config) { _, c.Key, _ = ed25519.GenerateKey(nil) }, says: []string{"audit.pem"}, is: ErrDirectory},
		"another name":       {cfg: func(c *Config) { c.Origin = "example.com/other" }, says: []string{"example.com/other", "for good"}},
		"another key, empty": {damage: func(t *testing.T, dir string) { remove(t, dir) }, cfg: func(c *Config) { _, c.Key, _ = ed25519.GenerateKey(nil) }, says: []string{"audit.pem"}, is: ErrFork},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, nil)
			s.fill(300)
			cfg := s.config("a1", filepath.Join(t.TempDir(), "auditor"))
			r := s.start(cfg)
			r.signedAll()
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			if tt.damage != nil {
				tt.damage(t, cfg.Dir)
			}
			if tt.cfg != nil {
				tt.cfg(&cfg)
			}
			s.append(0, 1)
			err := s.start(cfg).wait()
			if err == nil || tt.is != nil && !errors.Is(err, tt.is) {
				t.Fatalf("%v, want %v", err, tt.is)
			}
			for _, want := range tt.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v\nwant %q in it", err, want)
				}
			}
			if got := signedNow(t, s); got.Size != 300 {
				t.Errorf("%d leaves are signed, want 300", got.Size)
			}
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// A directory of a stream that is gone, or shorter than it was.
func TestAnotherStream(t *testing.T) {
	s := newSite(t, nil)
	s.fill(300)
	cfg := s.config("a1", t.TempDir())
	r := s.start(cfg)
	r.signedAll()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	on := func(s *site) error {
		c := s.config("a1", cfg.Dir)
		return s.start(c).wait()
	}
	shorter := newSite(t, s.ring)
	shorter.fill(200)
	if err := on(shorter); !errors.Is(err, ErrFork) || !strings.Contains(err.Error(), "lost its end") {
		t.Errorf("a shorter stream: %v", err)
	}
	another := newSite(t, s.ring)
	another.n = 1000
	another.fill(300)
	if err := on(another); !errors.Is(err, ErrDirectory) || !strings.Contains(err.Error(), "another log") {
		t.Errorf("another stream: %v", err)
	}
	// The same stream under another server that has forgotten what was signed: the
	// directory knows, and the tree goes on from there.
	same := newSite(t, s.ring)
	same.fill(300)
	same.append(0, 7)
	r = same.start(same.config("a1", cfg.Dir))
	r.signedAll()
	if got := signedNow(t, same); got.Origin != r.vkeyName() || got.Size != 307 {
		t.Errorf("%+v", got)
	}
}

// A tree that was committed and never signed, ahead of the stream.
func TestNewerThanStream(t *testing.T) {
	s := newSite(t, nil)
	s.fill(300)
	cfg := s.config("a1", t.TempDir())
	cfg.Batch, cfg.Interval = 100, time.Hour // commits, and signs nothing
	r := s.start(cfg)
	s.until("200 leaves are committed", func() bool {
		st := r.Auditor.committed.Load()
		return st != nil && st.Size >= 200
	})
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	shorter := newSite(t, s.ring)
	shorter.fill(50)
	next := shorter.config("a1", cfg.Dir)
	if err := shorter.start(next).wait(); !errors.Is(err, ErrDirectory) || !strings.Contains(err.Error(), "newer than the stream") {
		t.Errorf("%v", err)
	}
	if got := signedNow(t, shorter); got != nil && got.Size != 0 {
		t.Errorf("%d leaves are signed", got.Size)
	}
}

func TestOneAtATime(t *testing.T) {
	s := newSite(t, nil)
	s.fill(1)
	cfg := s.config("a1", t.TempDir())
	s.start(cfg).signedAll()
	if err := s.start(cfg).wait(); !errors.Is(err, ErrDirectory) || !strings.Contains(err.Error(), "another auditor") {
		t.Errorf("a second one: %v", err)
	}
}

func TestConfig(t *testing.T) {
	s := newSite(t, nil)
	for name, f := range map[string]func(*Config){
		"Name":     func(c *Config) { c.Name = "a.b" },
		"Dir":      func(c *Config) { c.Dir = "" },
		"Conn":     func(c *Config) { c.Conn = nil },
		"Key":      func(c *Config) { c.Key = nil },
		"Interval": func(c *Config) { c.Interval = -time.Second },
		"Hold":     func(c *Config) { c.Hold = "maybe" },
		"policy":   func(c *Config) { c.Policy = []byte("quorum w1\n") },
	} {
		cfg := s.config("a1", t.TempDir())
		f(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func (r *replica) vkeyName() string { return r.verifier.Name() }
