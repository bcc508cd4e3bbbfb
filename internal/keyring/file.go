package keyring

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

func trim(b []byte) []byte { return bytes.TrimSpace(b) }

// maxFile bounds a key file: anything longer is not one.
const maxFile = 4096

// readPrivate reads a file that only its owner may read.
func readPrivate(path string) ([]byte, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	switch {
	case !fi.Mode().IsRegular():
		return nil, fmt.Errorf("key %s: it is not a regular file", path)
	case fi.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("key %s: others may read it (mode %04o); run: chmod 600 %s", path, fi.Mode().Perm(), path)
	case fi.Size() > maxFile:
		return nil, fmt.Errorf("key %s: %d bytes are too many for a key", path, fi.Size())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	return b, nil
}

// WriteOnce creates path with the content, durably and all at once. A file that
// is there already stays, and the error is fs.ErrExist.
func WriteOnce(path string, b []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return fmt.Errorf("create key: %w", err)
	}
	defer os.Remove(f.Name())
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err != nil {
		return fmt.Errorf("write key %s: %w", path, err)
	}
	if err := os.Link(f.Name(), path); err != nil {
		return fmt.Errorf("create key: %w", err)
	}
	return syncDir(dir)
}

// syncDir makes what came into a directory, or left it, last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	if err != nil {
		return fmt.Errorf("sync key directory: %w", err)
	}
	return nil
}

func (r *Ring) ed25519(name string) (ed25519.PrivateKey, error) {
	b, err := r.file(name, func() ([]byte, error) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		der, err := x509.MarshalPKCS8PrivateKey(key)
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), err
	})
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(b)
	if block != nil && block.Type == "PRIVATE KEY" {
		if key, err := x509.ParsePKCS8PrivateKey(block.Bytes); err == nil {
			if key, ok := key.(ed25519.PrivateKey); ok {
				return key, nil
			}
		}
	}
	return nil, r.corrupt(name, "an Ed25519 private key in PEM", nil)
}

// writePublic keeps the public half beside the private one. A public half that
// belongs to another key is refused: workers would trust the wrong signer.
func (r *Ring) writePublic(name, private string, key ed25519.PublicKey) error {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return fmt.Errorf("encode %s: %w", name, err)
	}
	path := filepath.Join(r.dir, name)
	if have, err := r.readPublic(name); err == nil && have.Equal(key) {
		return nil
	}
	err = WriteOnce(path, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o644)
	if !errors.Is(err, fs.ErrExist) {
		return err
	}
	have, err := r.readPublic(name)
	if err == nil && !have.Equal(key) {
		err = fmt.Errorf("key %s does not belong to %s; remove it, and the right one is written", path, private)
	}
	return err
}

func (r *Ring) readPublic(name string) (ed25519.PublicKey, error) {
	path := filepath.Join(r.dir, name)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	block, _ := pem.Decode(b)
	if block != nil && block.Type == "PUBLIC KEY" {
		if key, err := x509.ParsePKIXPublicKey(block.Bytes); err == nil {
			if key, ok := key.(ed25519.PublicKey); ok {
				return key, nil
			}
		}
	}
	return nil, r.corrupt(name, "an Ed25519 public key in PEM", nil)
}
