package audit

import (
	"crypto/sha256"
	"encoding/base64"

	"golang.org/x/mod/sumdb/tlog"
)

// validHash says whether s is in the form of events.Hash.
func validHash(s string) bool {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	return err == nil && len(b) == sha256.Size && len(s) == base64.RawURLEncoding.EncodedLen(sha256.Size)
}

// parseHash reads a hash in standard base64, in its one spelling.
func parseHash(s string) (h tlog.Hash, ok bool) {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != tlog.HashSize {
		return h, false
	}
	h = tlog.Hash(b)
	return h, h.String() == s
}

// emptyRoot is the root of the tree without leaves.
var emptyRoot = tlog.Hash(sha256.Sum256(nil))
