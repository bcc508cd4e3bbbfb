package keyring

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAuditReaders(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	r, err := Open(dir, testNames)
	if err != nil {
		t.Fatal(err)
	}
	token, err := os.ReadFile(filepath.Join(dir, tokenFile))
	if err != nil {
		t.Fatal(err)
	}
	list, err := r.AuditReaders()
	if err != nil || len(list) != 1 || list[0].Token != sha256.Sum256(trim(token)) {
		t.Fatalf("readers %v, %v: want the one whose token was made", list, err)
	}
	// A loaded ring reads what stands there, and nothing where nothing stands.
	l, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if list, err := l.AuditReaders(); err != nil || len(list) != 1 {
		t.Errorf("loaded: %v, %v", list, err)
	}
	path := filepath.Join(dir, readersFile)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if list, err := l.AuditReaders(); err != nil || len(list) != 0 {
		t.Errorf("without the file: %v, %v", list, err)
	}

	sum := strings.Repeat("ab", 32)
	for text, want := range map[string]string{
		"a " + sum + "\na " + sum + "\n":      "line 2: the name stands twice",
		"a secret-token\n":                    "line 1: want the SHA-256 of the token",
		"# who\n\na\n":                        "line 3: want a name",
		"a/.. " + sum + "\nb." + sum + " x\n": "line 1: want a name",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := l.AuditReaders()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret-token") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := l.AuditReaders(); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a list that others may read: %v", err)
	}
}
