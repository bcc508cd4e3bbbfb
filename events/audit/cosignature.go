package audit

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
)

// algCosignature is the key type of C2SP tlog-cosignature/v1: Ed25519 over a time
// and a checkpoint.
const algCosignature = 4

// witness verifies cosignatures: eight bytes of Unix seconds, then a signature of
//
//	cosignature/v1
//	time <seconds>
//	<checkpoint>
type witness struct {
	name string
	hash uint32
	key  ed25519.PublicKey
}

// NewWitness reads a witness's verifier key, "<name>+<hash>+<key>".
func NewWitness(vkey string) (note.Verifier, error) {
	bad := errors.New("witness key: want <name>+<hash>+<base64 of 0x04 and an Ed25519 key>")
	name, rest, _ := strings.Cut(vkey, "+")
	hash16, key64, _ := strings.Cut(rest, "+")
	hash, err1 := strconv.ParseUint(hash16, 16, 32)
	key, err2 := base64.StdEncoding.Strict().DecodeString(key64)
	if err1 != nil || err2 != nil || len(hash16) != 8 || !validOrigin(name) || len(key) != 1+ed25519.PublicKeySize || key[0] != algCosignature {
		return nil, bad
	}
	sum := sha256.Sum256(append([]byte(name+"\n"), key...))
	if binary.BigEndian.Uint32(sum[:]) != uint32(hash) || strings.ToLower(hash16) != hash16 {
		return nil, fmt.Errorf("%w: the hash is another key's", bad)
	}
	return &witness{name: name, hash: uint32(hash), key: key[1:]}, nil
}

func (w *witness) Name() string    { return w.name }
func (w *witness) KeyHash() uint32 { return w.hash }

func (w *witness) Verify(msg, sig []byte) bool {
	if len(sig) != 8+ed25519.SignatureSize {
		return false
	}
	if _, err := ParseCheckpoint(string(msg)); err != nil {
		return false
	}
	signed := fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", binary.BigEndian.Uint64(sig), msg)
	return ed25519.Verify(w.key, signed, sig[8:])
}

// cosignatureTime is when the witness says that it signed.
func cosignatureTime(sig note.Signature) (int64, error) {
	b, err := base64.StdEncoding.DecodeString(sig.Base64)
	if err != nil || len(b) < 12 {
		return 0, ErrSignature
	}
	t := binary.BigEndian.Uint64(b[4:]) // after the key's hash
	if t > math.MaxInt64 {
		return 0, ErrSignature
	}
	return int64(t), nil
}
