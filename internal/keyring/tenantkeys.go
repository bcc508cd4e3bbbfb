package keyring

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pdgate/pdgate/events"
)

// How often the key files are looked at.
const (
	scanEvery = 2 * time.Second
	scanAtOf  = 200 * time.Millisecond // least time between two looks that somebody asks for
)

// Unreadable is the fingerprint of a key whose file is there and cannot be read.
// It is no key: under the cluster's secret in its place a tenant would have
// digests that cannot be erased.
const Unreadable = "unreadable"

// TenantKeys are the tenants' keys of a directory, kept in memory as the files
// come and go. Looking one up reads no file.
type TenantKeys struct {
	ring *Ring
	log  *slog.Logger
	keys atomic.Pointer[map[string]tenantKey] // by tenant; replaced whole

	mu        sync.Mutex
	scanned   time.Time         // guarded by mu
	forgotten map[string]bool   // fingerprints of erased keys; guarded by mu
	failed    map[string]string // what was said of a file that cannot be read, by its name; guarded by mu
}

type tenantKey struct {
	events.DigestKey
	mod  time.Time
	size int64
}

// TenantKeys opens the directory of tenants' keys. A file that cannot be read is an
// error here, and later on a line in the log.
func (r *Ring) TenantKeys(log *slog.Logger) (*TenantKeys, error) {
	t := &TenantKeys{ring: r, log: log, forgotten: map[string]bool{}, failed: map[string]string{}}
	t.keys.Store(&map[string]tenantKey{})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.scan()
	for _, why := range t.failed {
		return nil, errors.New(why)
	}
	return t, nil
}

// Key is the tenant's key as it stands.
func (t *TenantKeys) Key(tenant string) (events.DigestKey, bool) {
	k, ok := (*t.keys.Load())[tenant]
	return k.DigestKey, ok
}

// Refresh looks at the files now, unless somebody has just done so.
func (t *TenantKeys) Refresh() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Since(t.scanned) >= scanAtOf {
		t.scan()
	}
}

// Forget drops a key that was erased. Its file may still be there, and is not read
// again.
func (t *TenantKeys) Forget(tenant, fingerprint string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if fingerprint == "" || t.forgotten[fingerprint] {
		return
	}
	t.forgotten[fingerprint] = true
	if k, ok := (*t.keys.Load())[tenant]; ok && k.Fingerprint == fingerprint {
		t.scan()
	}
}

// Run follows the files until ctx ends.
func (t *TenantKeys) Run(ctx context.Context) error {
	tick := time.NewTicker(scanEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			t.Refresh()
		}
	}
}

// scan reads the files that changed. t.mu is held.
func (t *TenantKeys) scan() {
	t.scanned = time.Now()
	dir := filepath.Join(t.ring.dir, tenantDir)
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.complain(dir, fmt.Errorf("tenants' keys: %w", err))
		return // what is known stays
	}
	delete(t.failed, dir)
	old, all := *t.keys.Load(), map[string]tenantKey{}
	changed := false
	for _, e := range list {
		name, ok := strings.CutSuffix(e.Name(), tenantSuffix)
		tenant := strings.ReplaceAll(name, "~", "/")
		if !ok || !events.ValidName(tenant) {
			continue
		}
		fi, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // it went since
		}
		k, had := old[tenant]
		if err != nil || !had || k.Fingerprint == Unreadable || !k.mod.Equal(fi.ModTime()) || k.size != fi.Size() {
			if k, err = t.read(tenant, fi, k, had); errors.Is(err, fs.ErrNotExist) {
				continue
			}
			changed = true
		}
		if !t.forgotten[k.Fingerprint] {
			all[tenant] = k
		}
	}
	if changed || len(all) != len(old) {
		t.keys.Store(&all)
	}
}

// read reads one file. A key that is known stays while its file cannot be read: it
// may be in the middle of its destruction, and then the file is about to go.
func (t *TenantKeys) read(tenant string, fi fs.FileInfo, old tenantKey, had bool) (tenantKey, error) {
	path := t.ring.TenantKeyPath(tenant)
	key, err := t.ring.TenantKey(tenant)
	if errors.Is(err, fs.ErrNotExist) {
		return tenantKey{}, err
	}
	if err != nil {
		t.complain(path, err)
		if had {
			return old, nil
		}
		return tenantKey{DigestKey: events.DigestKey{Fingerprint: Unreadable}}, nil
	}
	delete(t.failed, path)
	k := tenantKey{DigestKey: key}
	if fi != nil {
		k.mod, k.size = fi.ModTime(), fi.Size()
	}
	return k, nil
}

// complain logs what is wrong with a file, once.
func (t *TenantKeys) complain(path string, err error) {
	if t.failed[path] == err.Error() {
		return
	}
	t.failed[path] = err.Error()
	t.log.Error("a tenant's key cannot be read", "err", err)
}
