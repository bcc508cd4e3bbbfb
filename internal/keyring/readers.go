package keyring

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pdgate/pdgate/events"
)

const (
	readersFile = "audit-readers"
	tokenFile   = "audit-token"

	// firstReader is who holds the token that Open makes.
	firstReader = "local"
)

// Reader is one who may read entries and receipts from the auditor.
type Reader struct {
	Name  string
	Token [32]byte // SHA-256 of the token
}

// AuditReaders reads the list. A ring that was loaded and has no such file has no
// readers; one that may create writes a list with one reader, and its token.
func (r *Ring) AuditReaders() ([]Reader, error) {
	path := filepath.Join(r.dir, readersFile)
	b, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		if !r.create {
			return nil, nil
		}
		if err := r.firstReader(path); err != nil {
			return nil, err
		}
		b, err = readPrivate(path)
	}
	if err != nil {
		return nil, err
	}
	return parseReaders(path, b)
}

// firstReader writes the token before the list: a crash between the two leaves a
// token that opens nothing yet.
func (r *Ring) firstReader(path string) error {
	token, err := r.file(tokenFile, func() ([]byte, error) {
		key := make([]byte, 32)
		rand.Read(key)
		return append(base64.RawURLEncoding.AppendEncode(nil, key), '\n'), nil
	})
	if err != nil {
		return err
	}
	list := "# NAME SHA-256-OF-TOKEN; printf %s \"$TOKEN\" | sha256sum\n" + firstReader + " " + hexSum(trim(token)) + "\n"
	if err := WriteOnce(path, []byte(list), 0o600); !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// parseReaders names lines, never what stands on them: somebody may have put a
// token where its digest belongs.
func parseReaders(path string, b []byte) ([]Reader, error) {
	var list []Reader
	names := map[string]bool{}
	for i, line := range bytes.Split(b, []byte("\n")) {
		f := strings.Fields(string(line))
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		bad := func(what string) error { return fmt.Errorf("key %s: line %d: %s", path, i+1, what) }
		if len(f) != 2 || !events.ValidName(f[0]) {
			return nil, bad("want a name and the SHA-256 of its token")
		}
		sum, err := hex.DecodeString(f[1])
		if err != nil || len(sum) != sha256.Size {
			return nil, bad("want the SHA-256 of the token, 64 hex digits")
		}
		if names[f[0]] {
			return nil, bad("the name stands twice")
		}
		names[f[0]] = true
		list = append(list, Reader{Name: f[0], Token: [32]byte(sum)})
	}
	return list, nil
}
