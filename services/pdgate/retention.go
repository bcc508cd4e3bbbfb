package main

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/pflag"
	"golang.org/x/mod/sumdb/note"

	"github.com/pdgate/pdgate/events"
	auditlog "github.com/pdgate/pdgate/events/audit"
	"github.com/pdgate/pdgate/events/journal"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/services/auditor"
	"github.com/pdgate/pdgate/services/lifecycle"
)

// retention is what may leave the live log.
type retention struct {
	age       time.Duration
	bytes     int64
	unaudited bool
}

// leastRetention is longer than any request lasts, and than a replica is away for a
// restart: below it, what people and replicas still ask for would be gone. Tests
// change it.
var leastRetention = time.Hour

// pace is how often snapshots are written and the log is trimmed, and for how many
// messages; zero: lifecycle's own. Tests change it.
var pace struct {
	snapshots, trims time.Duration
	least            uint64
}

const leastRetentionBytes = 64 << 20

func (r *retention) add(f *pflag.FlagSet) {
	f.DurationVar(&r.age, "retention", 0, "how long the live log keeps what the audit log has (0s: for ever; at least 1h)")
	f.Int64Var(&r.bytes, "retention-bytes", 0, "bytes of the live log above which its oldest part may leave, if the audit log has it (0: no limit)")
	f.BoolVar(&r.unaudited, "retain-without-audit", false, "let the log leave although no auditor keeps it: what leaves is lost")
}

func (r *retention) check() error {
	switch {
	case r.age < 0 || r.age > 0 && r.age < leastRetention:
		return fmt.Errorf("retention %v: want 0s, which keeps all, or at least %v: requests, replicas that start, and people still read what is younger", r.age, leastRetention)
	case r.bytes < 0 || r.bytes > 0 && r.bytes < leastRetentionBytes:
		return fmt.Errorf("retention-bytes %d: want 0, which keeps all, or at least %d", r.bytes, leastRetentionBytes)
	case r.unaudited && r.age == 0 && r.bytes == 0:
		return errors.New("retain-without-audit: want --retention or --retention-bytes with it: without them nothing leaves")
	}
	return nil
}

// open is what a lifecycle replica trims with; end closes its connection. log is
// that of the user lifecycle-log.
func (r *retention) open(ctx context.Context, log *nats.Conn, dial dial, ring *keyring.Ring) (keep lifecycle.Retention, end func(), err error) {
	if r.age == 0 && r.bytes == 0 {
		return keep, func() {}, nil
	}
	nc, err := dial(ctx, keyring.LifecycleTrim)
	if err != nil {
		return keep, nil, fmt.Errorf("retention: %w: only this user may take anything off the log; without its key, leave --retention out", err)
	}
	trim, err := journal.OpenTrimmer(ctx, nc, broker.AuditDomain)
	if err != nil {
		nc.Close()
		return keep, nil, fmt.Errorf("retention: %w", err)
	}
	key, err := ring.AuditPublicKey()
	if errors.Is(err, fs.ErrNotExist) {
		key, err = nil, nil // the account's permissions vouch for the message
	}
	if err != nil {
		nc.Close()
		return keep, nil, err
	}
	return lifecycle.Retention{
		Age: r.age, Bytes: r.bytes, Unaudited: r.unaudited, Every: pace.trims, Least: pace.least, Trimmer: trim,
		Signed: func(ctx context.Context) (*lifecycle.SignedTree, error) { return signedTree(ctx, log, key) },
	}, nc.Close, nil
}

// Error codes of JetStream's API.
const (
	codeNoMessage = 10037
	codeNoStream  = 10059
)

// signedTree reads the last signed tree; nil: there is none. With a key, the
// signature on it is checked, and what the message says is what was signed.
func signedTree(ctx context.Context, nc *nats.Conn, key ed25519.PublicKey) (*lifecycle.SignedTree, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	m, err := nc.RequestWithContext(ctx, "$JS."+events.AuditDomain+".API.STREAM.MSG.GET."+events.AuditStream, []byte(`{"last_by_subj":"`+events.AuditSigned+`"}`))
	if err != nil {
		return nil, err
	}
	var a struct {
		Message struct {
			Data []byte `json:"data"`
		} `json:"message"`
		Error struct {
			Code        int    `json:"err_code"`
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return nil, fmt.Errorf("the server's answer is not understood: %w", err)
	}
	switch a.Error.Code {
	case 0:
	case codeNoMessage, codeNoStream:
		return nil, nil
	default:
		return nil, fmt.Errorf("%s (JetStream error %d)", a.Error.Description, a.Error.Code)
	}
	s, err := auditor.DecodeSigned(a.Message.Data)
	if err != nil {
		return nil, err
	}
	t := &lifecycle.SignedTree{Origin: s.Origin, Size: s.Size, CompleteUntil: s.CompleteUntil, LegalHold: s.LegalHold}
	if s.Size == 0 {
		return t, nil
	}
	c, err := openSigned(s, key)
	if err != nil {
		return nil, fmt.Errorf("the last signed tree in %s: %w", events.AuditStream, err)
	}
	if c.Origin != s.Origin || c.Tree.N != s.Size || c.CompleteUntil != s.CompleteUntil {
		return nil, fmt.Errorf("the last signed tree in %s does not say what its checkpoint says", events.AuditStream)
	}
	t.Root = c.Tree.Hash.String()
	return t, nil
}

// openSigned reads the checkpoint of a signed tree.
func openSigned(s *auditor.Signed, key ed25519.PublicKey) (*auditlog.Checkpoint, error) {
	if key == nil {
		text, _, _ := strings.Cut(s.Checkpoint, "\n\n")
		return auditlog.ParseCheckpoint(text + "\n")
	}
	vkey, err := note.NewEd25519VerifierKey(s.Origin, key)
	if err != nil {
		return nil, err
	}
	v, err := note.NewVerifier(vkey)
	if err != nil {
		return nil, err
	}
	c, err := auditlog.OpenCheckpoint([]byte(s.Checkpoint), auditlog.KeyPolicy(v))
	if err != nil {
		return nil, fmt.Errorf("%w: is audit.pub.pem the key that the auditor signs with?", err)
	}
	return &c.Checkpoint, nil
}
