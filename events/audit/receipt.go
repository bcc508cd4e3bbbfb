package audit

import (
	"errors"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// Receipt is what a client is given for an event: where it stands, and its hash.
type Receipt struct {
	Position events.Position
	Hash     string // events.Hash of the line
}

// ErrReceipt is what every malformed receipt is.
var ErrReceipt = errors.New("receipt: want SEQ.LINE;HASH")

// String is the receipt as the header Pdgate-Receipt carries it.
func (r Receipt) String() string { return r.Position.String() + ";" + r.Hash }

// ParseReceipt reverses [Receipt.String].
func ParseReceipt(s string) (Receipt, error) {
	pos, hash, ok := strings.Cut(s, ";")
	p, err := events.ParsePosition(pos)
	if !ok || err != nil || p.IsZero() || !validHash(hash) {
		return Receipt{}, ErrReceipt
	}
	return Receipt{Position: p, Hash: hash}, nil
}
