package keyring

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// Keys of tenants lie in a directory of their own below the ring's.
const (
	tenantDir     = "tenants"
	tenantSuffix  = ".key"
	erasingSuffix = ".erasing"
)

// ErrErasing means that an erasure of the tenant was begun and did not end.
var ErrErasing = errors.New("an erasure of the tenant is not finished")

// tenantPath is a file of a tenant. A name may hold '/', and none holds '~'.
func (r *Ring) tenantPath(tenant, suffix string) string {
	return filepath.Join(r.dir, tenantDir, strings.ReplaceAll(tenant, "/", "~")+suffix)
}

// TenantKeyPath is the file of a tenant's key, for messages to people.
func (r *Ring) TenantKeyPath(tenant string) string { return r.tenantPath(tenant, tenantSuffix) }

// NewTenantKey makes a tenant's key. One that is there stays, and the error is
// fs.ErrExist; while the last one is being erased there is none to be had.
func (r *Ring) NewTenantKey(tenant string) (events.DigestKey, error) {
	if !events.ValidName(tenant) {
		return events.DigestKey{}, fmt.Errorf("tenant %q: want 1 to 64 letters, digits, '-', '_', ':' or '/'", tenant)
	}
	if err := r.makeTenantDir(); err != nil {
		return events.DigestKey{}, err
	}
	if _, err := r.Erasing(tenant); !errors.Is(err, fs.ErrNotExist) {
		return events.DigestKey{}, errors.Join(err, ErrErasing)
	}
	key := make([]byte, 32)
	rand.Read(key)
	if err := WriteOnce(r.TenantKeyPath(tenant), append(hex.AppendEncode(nil, key), '\n'), 0o600); err != nil {
		return events.DigestKey{}, err
	}
	return events.NewTenantKey(key), nil
}

func (r *Ring) makeTenantDir() error {
	if err := os.MkdirAll(filepath.Join(r.dir, tenantDir), 0o700); err != nil {
		return fmt.Errorf("create directory of tenants' keys: %w", err)
	}
	return nil
}

// TenantKey reads a tenant's key; fs.ErrNotExist where the tenant has none here.
func (r *Ring) TenantKey(tenant string) (events.DigestKey, error) {
	name := filepath.Join(tenantDir, filepath.Base(r.TenantKeyPath(tenant)))
	b, err := readPrivate(r.TenantKeyPath(tenant))
	if err != nil {
		return events.DigestKey{}, err
	}
	key, err := hex.DecodeString(string(trim(b)))
	if err != nil || len(key) != 32 {
		return events.DigestKey{}, r.corrupt(name, "32 bytes in hex", nil)
	}
	return events.NewTenantKey(key), nil
}

// An erasure is begun by a file that names the key, and ended by taking that file
// away: a crash in between leaves it, and with it what is to be done.

// Erasing is the fingerprint of the tenant's key whose erasure was begun;
// fs.ErrNotExist where none was.
func (r *Ring) Erasing(tenant string) (fingerprint string, err error) {
	b, err := readPrivate(r.tenantPath(tenant, erasingSuffix))
	return string(trim(b)), err
}

// BeginErase notes that the tenant's key is to be destroyed.
func (r *Ring) BeginErase(tenant, fingerprint string) error {
	if err := r.makeTenantDir(); err != nil {
		return err
	}
	return WriteOnce(r.tenantPath(tenant, erasingSuffix), []byte(fingerprint+"\n"), 0o600)
}

// DestroyTenantKey overwrites and removes the key file, if it holds the key, or
// what an earlier try left of it. Another key that was made since stays.
func (r *Ring) DestroyTenantKey(tenant, fingerprint string) error {
	key, err := r.TenantKey(tenant)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && key.Fingerprint != fingerprint:
		return fmt.Errorf("key %s: it holds key %s, not %s: it stays", r.TenantKeyPath(tenant), key.Fingerprint, fingerprint)
	}
	return destroy(r.TenantKeyPath(tenant))
}

// destroy writes zeros over a file before it removes it. Whether the disk keeps an
// older copy of the blocks is the disk's affair.
func destroy(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("destroy key: %w", err)
	}
	fi, err := f.Stat()
	if err == nil {
		_, err = f.WriteAt(make([]byte, fi.Size()), 0)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("destroy key %s: %w", path, err)
	}
	return removeDurably(path)
}

// EndErase takes the note away: everything is done.
func (r *Ring) EndErase(tenant string) error {
	err := removeDurably(r.tenantPath(tenant, erasingSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func removeDurably(path string) error {
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove key file: %w", err)
	}
	return syncDir(filepath.Dir(path))
}
