package keyring

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/pdgate/pdgate/events"
)

// Ring is a directory of keys. It is safe for concurrent use.
type Ring struct {
	dir    string
	names  Names
	create bool

	mu    sync.Mutex
	cache map[string][]byte // file name to checked content
}

// Open opens dir for an installation with these principals, and creates the
// directory and every key that is missing.
func Open(dir string, names Names) (*Ring, error) {
	if err := names.validate(); err != nil {
		return nil, err
	}
	r := &Ring{dir: dir, names: names, create: true, cache: map[string][]byte{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create key directory: %w", err)
	}
	if err := r.checkDir(); err != nil {
		return nil, err
	}
	for _, u := range names.Users() {
		if _, err := r.seed(u); err != nil {
			return nil, err
		}
	}
	if _, err := r.LogKey(); err != nil {
		return nil, err
	}
	if _, err := r.DigestSecret(); err != nil {
		return nil, err
	}
	if _, err := r.GrantKey(); err != nil {
		return nil, err
	}
	if _, err := r.AuditKey(); err != nil {
		return nil, err
	}
	if _, err := r.AuditReaders(); err != nil {
		return nil, err
	}
	for role, list := range map[events.Role][]string{events.RolePrefill: names.Prefill, events.RoleDecode: names.Decode} {
		for _, name := range list {
			if _, err := r.Identity(role, name); err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// Load opens dir as it is. Keys are read when they are asked for; one that is
// missing is an error then.
func Load(dir string) (*Ring, error) {
	r := &Ring{dir: dir, cache: map[string][]byte{}}
	if err := r.checkDir(); err != nil {
		return nil, err
	}
	return r, nil
}

// Dir is the directory.
func (r *Ring) Dir() string { return r.dir }

// Names lists the principals that Open was told; Load knows none.
func (r *Ring) Names() Names { return r.names }

// Path is the file of a user's seed, for messages that tell people what to pass
// to other NATS tools.
func (r *Ring) Path(u User) string { return filepath.Join(r.dir, string(u)+".nk") }

// CAFile is the certificate that signs those of the NATS servers, where they have
// TLS.
const CAFile = "ca.pem"

// CA is the path of [CAFile]; "" where the ring has none.
func (r *Ring) CA() string {
	path := filepath.Join(r.dir, CAFile)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// Option makes a NATS connection one of u: it signs the server's nonce, and
// listens for answers under u's own inbox prefix.
func (r *Ring) Option(u User) (nats.Option, error) {
	kp, err := r.seed(u)
	if err != nil {
		return nil, err
	}
	pub, err := kp.PublicKey()
	if err != nil {
		return nil, fmt.Errorf("public key of %s: %w", u, err)
	}
	return func(o *nats.Options) error {
		o.Nkey, o.SignatureCB = pub, kp.Sign
		o.Name = string(u)
		o.InboxPrefix = u.InboxPrefix()
		return nil
	}, nil
}

// PublicKey is u's public nkey, as a server's configuration names it.
func (r *Ring) PublicKey(u User) (string, error) {
	kp, err := r.seed(u)
	if err != nil {
		return "", err
	}
	return kp.PublicKey()
}

// LogKey authenticates envelopes of the log.
func (r *Ring) LogKey() ([]byte, error) { return r.secret("log-mac.key") }

// DigestSecret is what request digest keys are derived from.
func (r *Ring) DigestSecret() ([]byte, error) { return r.secret("digest-secret.key") }

// GrantKey signs grants.
func (r *Ring) GrantKey() (ed25519.PrivateKey, error) {
	key, err := r.ed25519("grant.pem")
	if err != nil || !r.create {
		return key, err
	}
	return key, r.writePublic("grant.pub.pem", "grant.pem", key.Public().(ed25519.PublicKey))
}

// GrantPublicKey is what grants are checked with.
func (r *Ring) GrantPublicKey() (ed25519.PublicKey, error) {
	return r.readPublic("grant.pub.pem")
}

// AuditKey signs the tree of the log. Whoever holds it can sign another history:
// it belongs on the auditor's machines alone.
func (r *Ring) AuditKey() (ed25519.PrivateKey, error) {
	key, err := r.ed25519("audit.pem")
	if err != nil || !r.create {
		return key, err
	}
	return key, r.writePublic("audit.pub.pem", "audit.pem", key.Public().(ed25519.PublicKey))
}

// AuditPublicKey is what the tree's signature is checked with; fs.ErrNotExist:
// this part was not given the file.
func (r *Ring) AuditPublicKey() (ed25519.PublicKey, error) { return r.readPublic("audit.pub.pem") }

// Identity is a worker's key on the data plane.
func (r *Ring) Identity(role events.Role, name string) (ed25519.PrivateKey, error) {
	return r.ed25519(string(Worker(role, name)) + ".pem")
}

func (r *Ring) checkDir() error {
	fi, err := os.Stat(r.dir)
	switch {
	case err != nil:
		return fmt.Errorf("key directory: %w", err)
	case !fi.IsDir():
		return fmt.Errorf("key directory %s: it is a file", r.dir)
	case fi.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("key directory %s: others may enter it (mode %04o); run: chmod 700 %s", r.dir, fi.Mode().Perm(), r.dir)
	}
	return nil
}

func (r *Ring) seed(u User) (nkeys.KeyPair, error) {
	name := string(u) + ".nk"
	b, err := r.file(name, func() ([]byte, error) {
		kp, err := nkeys.CreateUser()
		if err != nil {
			return nil, err
		}
		seed, err := kp.Seed()
		return append(seed, '\n'), err
	})
	if err != nil {
		return nil, err
	}
	kp, err := nkeys.FromSeed(trim(b))
	if err == nil {
		var pub string
		if pub, err = kp.PublicKey(); err == nil && !nkeys.IsValidPublicUserKey(pub) {
			err = errors.New("it is not a user's key")
		}
	}
	if err != nil {
		return nil, r.corrupt(name, "the seed of a NATS user (SU…)", err)
	}
	return kp, nil
}

func (r *Ring) secret(name string) ([]byte, error) {
	b, err := r.file(name, func() ([]byte, error) {
		key := make([]byte, 32)
		rand.Read(key)
		return append(hex.AppendEncode(nil, key), '\n'), nil
	})
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(string(trim(b)))
	if err == nil && len(key) != 32 {
		err = fmt.Errorf("it has %d bytes", len(key))
	}
	if err != nil {
		// An error of hex names the bad character, which is part of the key.
		return nil, r.corrupt(name, "32 bytes in hex", nil)
	}
	return key, nil
}

// file reads a key file, or creates it when the ring may. The content comes to
// life under a temporary name and gets its own by a hard link, which fails when
// the name is taken: a crash leaves no half key, and two processes that start at
// once end up with one key.
func (r *Ring) file(name string, make func() ([]byte, error)) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b, ok := r.cache[name]; ok {
		return b, nil
	}
	path := filepath.Join(r.dir, name)
	b, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		if !r.create {
			return nil, fmt.Errorf("key %s is missing: copy it from the key directory of the machine that runs `pdgate nats` or `pdgate up`", path)
		}
		if b, err = make(); err != nil {
			return nil, fmt.Errorf("make key %s: %w", path, err)
		}
		if err = WriteOnce(path, b, 0o600); errors.Is(err, fs.ErrExist) {
			b, err = readPrivate(path)
		}
	}
	if err != nil {
		return nil, err
	}
	r.cache[name] = b
	return b, nil
}

func (r *Ring) corrupt(name, want string, err error) error {
	path := filepath.Join(r.dir, name)
	if err != nil {
		return fmt.Errorf("key %s is damaged: want %s: %w; restore it from a backup (a fresh key is made only where no file is)", path, want, err)
	}
	return fmt.Errorf("key %s is damaged: want %s; restore it from a backup (a fresh key is made only where no file is)", path, want)
}
