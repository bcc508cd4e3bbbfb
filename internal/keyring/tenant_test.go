package keyring

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/events"
)

func tenantRing(t *testing.T) *Ring {
	t.Helper()
	r, err := Open(filepath.Join(t.TempDir(), "keys"), testNames)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTenantKey(t *testing.T) {
	r := tenantRing(t)
	if _, err := r.TenantKey("acme"); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("no key: %v", err)
	}
	made, err := r.NewTenantKey("acme")
	if err != nil {
		t.Fatal(err)
	}
	if len(made.Secret) != 32 || made.Fingerprint != events.KeyFingerprint(made.Secret) {
		t.Errorf("%d bytes, fingerprint %s", len(made.Secret), made.Fingerprint)
	}
	if _, err := r.NewTenantKey("acme"); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second key: %v", err)
	}
	if got, err := r.TenantKey("acme"); err != nil || !bytes.Equal(got.Secret, made.Secret) {
		t.Errorf("read: %v, %v", got.Fingerprint, err)
	}
	for path, want := range map[string]fs.FileMode{r.TenantKeyPath("acme"): 0o600, filepath.Dir(r.TenantKeyPath("acme")): fs.ModeDir | 0o700} {
		if fi, err := os.Stat(path); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v %v, want %v", path, fi.Mode(), err, want)
		}
	}
	// A name with a slash stays in the directory, and stays another's.
	if _, err := r.NewTenantKey("team/acme"); err != nil {
		t.Fatal(err)
	}
	if got := filepath.Base(r.TenantKeyPath("team/acme")); got != "team~acme.key" {
		t.Errorf("file %s", got)
	}
	for _, bad := range []string{"", "..", "a.b", "a~b", "a b"} {
		if _, err := r.NewTenantKey(bad); err == nil || errors.Is(err, fs.ErrExist) {
			t.Errorf("name %q: %v", bad, err)
		}
	}
	if err := os.Chmod(r.TenantKeyPath("acme"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := r.TenantKey("acme"); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("others may read it: %v", err)
	}
}

// TestDestroyTenantKey interrupts an erasure at each of its steps: what is left
// says what is to be done, and doing all of it again ends it.
func TestDestroyTenantKey(t *testing.T) {
	for name, before := range map[string]func(t *testing.T, r *Ring){
		"whole":            func(*testing.T, *Ring) {},
		"half overwritten": func(t *testing.T, r *Ring) { overwrite(t, r.TenantKeyPath("acme"), 30) },
		"all overwritten":  func(t *testing.T, r *Ring) { overwrite(t, r.TenantKeyPath("acme"), 65) },
		"removed": func(t *testing.T, r *Ring) {
			if err := os.Remove(r.TenantKeyPath("acme")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := tenantRing(t)
			key, err := r.NewTenantKey("acme")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Erasing("acme"); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("nothing is begun: %v", err)
			}
			if err := r.BeginErase("acme", key.Fingerprint); err != nil {
				t.Fatal(err)
			}
			before(t, r)
			if got, err := r.Erasing("acme"); err != nil || got != key.Fingerprint {
				t.Fatalf("begun: %q %v", got, err)
			}
			if _, err := r.NewTenantKey("acme"); !errors.Is(err, ErrErasing) {
				t.Errorf("a key while one is erased: %v", err)
			}
			for range 2 {
				if err := r.DestroyTenantKey("acme", key.Fingerprint); err != nil {
					t.Fatal(err)
				}
				if err := r.EndErase("acme"); err != nil {
					t.Fatal(err)
				}
			}
			if list, err := os.ReadDir(filepath.Dir(r.TenantKeyPath("acme"))); err != nil || len(list) != 0 {
				t.Errorf("left: %v %v", list, err)
			}
			// A key that is made afterwards is another one, and none of the old one's steps touches it.
			fresh, err := r.NewTenantKey("acme")
			if err != nil || fresh.Fingerprint == key.Fingerprint {
				t.Fatalf("%s, %v", fresh.Fingerprint, err)
			}
			if err := r.DestroyTenantKey("acme", key.Fingerprint); err == nil {
				t.Error("another key was destroyed")
			}
			if got, err := r.TenantKey("acme"); err != nil || got.Fingerprint != fresh.Fingerprint {
				t.Errorf("%s, %v", got.Fingerprint, err)
			}
		})
	}
}

func overwrite(t *testing.T, path string, n int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteAt(make([]byte, n), 0)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

// The keys in memory are those of the files, as they come and go.
func TestTenantKeysFollowFiles(t *testing.T) {
	r := tenantRing(t)
	logged := &bytes.Buffer{}
	keys, err := r.TenantKeys(slog.New(slog.NewTextHandler(logged, nil)))
	if err != nil {
		t.Fatal(err)
	}
	look := func() { keys.mu.Lock(); keys.scan(); keys.mu.Unlock() }
	want := func(when, fingerprint string) {
		t.Helper()
		if got, ok := keys.Key("acme"); got.Fingerprint != fingerprint || ok != (fingerprint != "") {
			t.Errorf("%s: %q %v, want %q", when, got.Fingerprint, ok, fingerprint)
		}
	}
	want("no directory", "")
	first, err := r.NewTenantKey("acme")
	if err != nil {
		t.Fatal(err)
	}
	want("not looked yet", "")
	look()
	want("made", first.Fingerprint)
	if allocs := testing.AllocsPerRun(100, func() { keys.Key("acme") }); allocs != 0 {
		t.Errorf("a look-up takes %v allocations", allocs)
	}
	// A refresh that comes right after another one does nothing.
	if err := os.Remove(r.TenantKeyPath("acme")); err != nil {
		t.Fatal(err)
	}
	keys.Refresh()
	want("a moment later", first.Fingerprint)
	look()
	want("removed", "")

	second, err := r.NewTenantKey("acme")
	if err != nil {
		t.Fatal(err)
	}
	look()
	want("made anew", second.Fingerprint)
	// In the middle of its destruction the key is what it was.
	overwrite(t, r.TenantKeyPath("acme"), 65)
	look()
	look()
	want("overwritten", second.Fingerprint)
	if n := strings.Count(logged.String(), "is damaged"); n != 1 {
		t.Errorf("said %d times:\n%s", n, logged)
	}
	keys.Forget("acme", second.Fingerprint)
	want("forgotten", "")
	if err := os.Remove(r.TenantKeyPath("acme")); err != nil {
		t.Fatal(err)
	}

	// A forgotten key is not read again while its file is there.
	third, err := r.NewTenantKey("acme")
	if err != nil {
		t.Fatal(err)
	}
	look()
	keys.Forget("acme", first.Fingerprint)
	want("another was forgotten", third.Fingerprint)
	keys.Forget("acme", third.Fingerprint)
	look()
	want("forgotten, and the file is there", "")
}

// A tenant whose key cannot be read is never one without a key.
func TestUnreadableTenantKey(t *testing.T) {
	r := tenantRing(t)
	keys, err := r.TenantKeys(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.NewTenantKey("acme"); err != nil {
		t.Fatal(err)
	}
	overwrite(t, r.TenantKeyPath("acme"), 10)
	keys.mu.Lock()
	keys.scan()
	keys.mu.Unlock()
	if got, ok := keys.Key("acme"); !ok || got.Fingerprint != Unreadable || len(got.Secret) != 0 {
		t.Errorf("%q %v", got.Fingerprint, ok)
	}
	if _, err := r.TenantKeys(slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "acme.key is damaged") {
		t.Errorf("a start: %v", err)
	}
}
