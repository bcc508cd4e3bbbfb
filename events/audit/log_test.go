package audit

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events"
)

// memory is a tile writer, and the directory that it writes.
type memory struct{ fs fstest.MapFS }

func (m memory) WriteTile(t tlog.Tile, data []byte) error {
	m.fs[TilePath(t)] = &fstest.MapFile{Data: bytes.Clone(data)}
	return nil
}

// keys are fixed, so that golden files stay as they are.
func seed(name string) []byte {
	s := sha256.Sum256([]byte(name))
	return s[:]
}

// logKey is the signer and the verifier key of a log of that name.
func logKey(t testing.TB, origin, secret string) (note.Signer, string) {
	t.Helper()
	priv := ed25519.NewKeyFromSeed(seed(secret))
	vkey, err := note.NewEd25519VerifierKey(origin, priv.Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	hash := strings.Split(vkey, "+")[1]
	s, err := note.NewSigner("PRIVATE+KEY+" + origin + "+" + hash + "+" + base64.StdEncoding.EncodeToString(append([]byte{1}, seed(secret)...)))
	if err != nil {
		t.Fatal(err)
	}
	return s, vkey
}

// cosigner is a witness for tests.
type cosigner struct {
	name string
	hash uint32
	priv ed25519.PrivateKey
	vkey string
	time uint64
}

func newCosigner(name string) *cosigner {
	priv := ed25519.NewKeyFromSeed(seed(name))
	key := append([]byte{algCosignature}, priv.Public().(ed25519.PublicKey)...)
	sum := sha256.Sum256(append([]byte(name+"\n"), key...))
	hash := binary.BigEndian.Uint32(sum[:])
	return &cosigner{name, hash, priv, fmt.Sprintf("%s+%08x+%s", name, hash, base64.StdEncoding.EncodeToString(key)), 1767323045}
}

func (c *cosigner) Name() string    { return c.name }
func (c *cosigner) KeyHash() uint32 { return c.hash }
func (c *cosigner) Sign(msg []byte) ([]byte, error) {
	signed := fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", c.time, msg)
	return append(binary.BigEndian.AppendUint64(nil, c.time), ed25519.Sign(c.priv, signed)...), nil
}

const testOrigin = "example.com/log"

// testLog is a small log with two tenants over three partitions.
type testLog struct {
	t      testing.TB
	tree   *Tree
	mem    memory
	signer note.Signer
	vkey   string
	leaves [][]byte
	seq    uint64
	heads  map[string]map[int]Head
	wit    []*cosigner
}

func newTestLog(t testing.TB, secret string, wit ...*cosigner) *testLog {
	l := &testLog{t: t, mem: memory{fstest.MapFS{}}, heads: map[string]map[int]Head{}, wit: wit}
	l.tree = NewTree(l.mem)
	l.signer, l.vkey = logKey(t, testOrigin, secret)
	return l
}

func (l *testLog) append(leaf []byte) {
	l.t.Helper()
	if err := l.tree.Append(leaf); err != nil {
		l.t.Fatal(err)
	}
	l.leaves = append(l.leaves, bytes.Clone(leaf))
}

func (l *testLog) event(tenant string, partition int) {
	l.t.Helper()
	l.seq++
	at := time.Date(2026, 1, 2, 3, 4, int(l.seq/1000), int(l.seq%1000)*1000, time.UTC)
	id := fmt.Sprintf("01890a5d-ac96-774b-bcce-%012x", l.seq)
	e := &events.Event{ID: id + ".1", N: 1, Source: "/pdgate/lifecycle/lc1", Type: events.TypeFailed, Subject: id, Time: at, Tenant: tenant,
		Data: &events.RequestFailed{Error: *events.NewError(events.CodeInternal, "it broke"), From: events.Admitted, Stage: "prefill", Worker: "p1"}}
	if l.seq%3 == 0 {
		e.Type, e.Data = events.TypeReleased, &events.RequestReleased{Worker: "p1", Role: events.RolePrefill, Pages: 3, Reason: "done"}
	}
	if tenant != "" {
		if l.heads[tenant] == nil {
			l.heads[tenant] = map[int]Head{}
		}
		h := l.heads[tenant][partition]
		e.TenantSeq, e.TenantPrev = h.Seq+1, h.Hash
	}
	line, err := events.Append(nil, e)
	if err != nil {
		l.t.Fatal(err)
	}
	if tenant != "" {
		l.heads[tenant][partition] = Head{partition, e.TenantSeq, events.Hash(line)}
	}
	l.append(line)
}

// epoch appends the tenant's epoch leaves and returns the first one's index.
func (l *testLog) epoch(tenant string) int64 {
	l.t.Helper()
	at := l.tree.Size()
	var heads []Head
	for _, h := range l.heads[tenant] {
		heads = append(heads, h)
	}
	for _, e := range NewEpochs(events.Position{Seq: l.seq}, tenant, heads) {
		l.append(e.Append(nil))
	}
	return at
}

// fill appends n events of tenants acme and globex, and of none.
func (l *testLog) fill(n int) {
	l.t.Helper()
	for i := range n {
		switch {
		case i%7 == 6:
			l.event("", 0)
		case i%2 == 0:
			l.event("acme", i%3)
		default:
			l.event("globex", i%3)
		}
	}
}

// sign flushes the tree and signs it.
func (l *testLog) sign() []byte {
	l.t.Helper()
	if err := l.tree.Flush(); err != nil {
		l.t.Fatal(err)
	}
	signers := []note.Signer{l.signer}
	for _, w := range l.wit {
		signers = append(signers, w)
	}
	b, err := SignCheckpoint(&Checkpoint{Origin: testOrigin, Tree: l.tree.Head(), CompleteUntil: max(l.seq, 1)}, signers...)
	if err != nil {
		l.t.Fatal(err)
	}
	return b
}

func (l *testLog) tiles() Tiles { return Tiles{l.mem.fs} }

func (l *testLog) policy() *Policy {
	l.t.Helper()
	v, err := note.NewVerifier(l.vkey)
	if err != nil {
		l.t.Fatal(err)
	}
	return KeyPolicy(v)
}
