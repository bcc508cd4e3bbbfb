package events

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEnvelopeMAC(t *testing.T) {
	key := []byte("0123456789abcdef0123456789abcdef")
	lines := []byte("{\"a\":1}\n{\"b\":2}\n")
	sealed := func() *Envelope {
		return &Envelope{Partition: 3, Expected: 1206, Lines: bytes.Clone(lines), MAC: MAC(key, 3, 1206, lines)}
	}
	if err := sealed().Verify(key); err != nil {
		t.Fatal(err)
	}
	for i := range len(lines) * 8 {
		e := sealed()
		e.Lines[i/8] ^= 1 << (i % 8)
		if e.Verify(key) != ErrMAC {
			t.Fatalf("bit %d of the lines flipped: verifies", i)
		}
	}
	mac, _ := base64.RawURLEncoding.DecodeString(sealed().MAC)
	for i := range len(mac) * 8 {
		e, m := sealed(), bytes.Clone(mac)
		m[i/8] ^= 1 << (i % 8)
		if e.MAC = base64.RawURLEncoding.EncodeToString(m); e.Verify(key) != ErrMAC {
			t.Fatalf("bit %d of the MAC flipped: verifies", i)
		}
	}
	for i := range len(key) * 8 {
		k := bytes.Clone(key)
		if k[i/8] ^= 1 << (i % 8); sealed().Verify(k) != ErrMAC {
			t.Fatalf("bit %d of the key flipped: verifies", i)
		}
	}
	for name, change := range map[string]func(*Envelope){
		"another partition": func(e *Envelope) { e.Partition = 4 },
		"the ops subject":   func(e *Envelope) { e.Partition = OpsPartition },
		"another place":     func(e *Envelope) { e.Expected = 1207 },
		"no MAC":            func(e *Envelope) { e.MAC = "" },
		"a longer MAC":      func(e *Envelope) { e.MAC += "A" },
		"a line less":       func(e *Envelope) { e.Lines = e.Lines[:8] },
	} {
		e := sealed()
		change(e)
		if e.Verify(key) != ErrMAC {
			t.Errorf("%s: verifies", name)
		}
	}
}

func testKey(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{seed}, ed25519.SeedSize))
}

func TestGrant(t *testing.T) {
	private := testKey(1)
	trusted := private.Public().(ed25519.PublicKey)
	other := testKey(2).Public().(ed25519.PublicKey)
	want := sampleGrant()
	s, err := SignGrant(private, want)
	if err != nil {
		t.Fatal(err)
	}
	for _, keys := range [][]ed25519.PublicKey{{trusted}, {other, trusted}, {nil, trusted}} {
		got, err := s.Open(keys...)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	for _, keys := range [][]ed25519.PublicKey{nil, {other}, {trusted[:31]}} {
		if _, err := s.Open(keys...); err != ErrGrantSignature {
			t.Errorf("keys %v: %v", keys, err)
		}
	}
	again, err := SignGrant(private, want)
	if err != nil || !bytes.Equal(again.Signature, s.Signature) || !bytes.Equal(again.Grant, s.Grant) {
		t.Error("a repeated command gets another grant")
	}
	// It crosses the wire in an answer without a change to what was signed.
	wire, err := AppendAnswer(nil, &Answer{Type: TypeTransferGranted, Grant: s})
	if err != nil {
		t.Fatal(err)
	}
	a, err := DecodeAnswer(wire)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Grant.Open(trusted); err != nil {
		t.Error(err)
	}
	// encoding/json, which other readers use, carries it as well.
	std, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := AppendSignedGrant(nil, s)
	if err != nil || !bytes.Equal(std, ours) {
		t.Errorf("encoding/json: %s\nours:          %s, %v", std, ours, err)
	}
}

// Every bit of the signature, and one bit of every byte of the grant.
func TestGrantFlipped(t *testing.T) {
	private := testKey(1)
	trusted := private.Public().(ed25519.PublicKey)
	s, err := SignGrant(private, sampleGrant())
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range len(s.Grant) {
		g := &SignedGrant{Grant: bytes.Clone(s.Grant), Signature: s.Signature}
		g.Grant[i] ^= 1 << r.IntN(8)
		if _, err := g.Open(trusted); err != ErrGrantSignature {
			t.Fatalf("seed %d: byte %d flipped: %v", seed, i, err)
		}
	}
	for i := range len(s.Signature) * 8 {
		g := &SignedGrant{Grant: s.Grant, Signature: bytes.Clone(s.Signature)}
		g.Signature[i/8] ^= 1 << (i % 8)
		if _, err := g.Open(trusted); err != ErrGrantSignature {
			t.Fatalf("bit %d of the signature flipped: %v", i, err)
		}
	}
	// What is signed is the grant in its context: a key that also signs other
	// things does not make grants of them.
	bare := &SignedGrant{Grant: s.Grant, Signature: ed25519.Sign(private, s.Grant)}
	if _, err := bare.Open(trusted); err != ErrGrantSignature {
		t.Errorf("a signature without context: %v", err)
	}
	// A signed grant in another form than the canonical one is refused: two
	// readers could read it in two ways.
	loose := append([]byte(`{"worker":"d2",`), s.Grant[1:]...)
	signed := &SignedGrant{Grant: loose, Signature: ed25519.Sign(private, append([]byte(grantContext), loose...))}
	var f *FieldError
	if _, err := signed.Open(trusted); !errors.As(err, &f) {
		t.Errorf("a doubled member that is signed: %v", err)
	}
}

func TestDigests(t *testing.T) {
	key := RequestKey([]byte("secret"), requestID)
	want := Digest(key, KindPrompt, []byte("hello world"))
	if !isDigest(want) {
		t.Errorf("%s is not of its own form", want)
	}
	d := NewDigester(key, KindPrompt)
	for _, piece := range []string{"hel", "", "lo wor", "ld"} {
		if _, err := d.Write([]byte(piece)); err != nil {
			t.Fatal(err)
		}
	}
	if first, second := d.String(), d.String(); first != want || second != want { // reading does not end it
		t.Error("pieces give another digest")
	}
	for name, other := range map[string]string{
		"another key":     Digest(RequestKey([]byte("secret"), groupID), KindPrompt, []byte("hello world")),
		"another secret":  Digest(RequestKey([]byte("Secret"), requestID), KindPrompt, []byte("hello world")),
		"another kind":    Digest(key, KindOutput, []byte("hello world")),
		"another content": Digest(key, KindPrompt, []byte("hello worle")),
		"moved boundary":  Digest(key, KindPrompt+"\x00h", []byte("ello world")),
	} {
		if other == want {
			t.Errorf("%s gives the same digest", name)
		}
	}
	if KVKey(key) == KVKey(RequestKey([]byte("secret"), groupID)) {
		t.Error("two requests have one KV key")
	}
	// Fixed vectors: stored digests must stay checkable.
	golden(t, "digest", []byte(`{"prompt":"`+want+`","hash":"`+Hash([]byte("line"))+`"}`))
}

func TestSplit(t *testing.T) {
	collect := func(lines string) (got []string, err error) {
		err = Split([]byte(lines), func(i int, e []byte) error {
			if i != len(got) {
				t.Errorf("line %d comes as %d", len(got), i)
			}
			got = append(got, string(e))
			return nil
		})
		return got, err
	}
	got, err := collect("a\n\nb\n")
	if err != nil || cmp.Diff([]string{"a", "", "b"}, got) != "" {
		t.Errorf("%q, %v", got, err)
	}
	for _, bad := range []string{"", "a", "a\nb"} {
		if _, err := collect(bad); err == nil {
			t.Errorf("%q splits", bad)
		}
	}
	stop := errors.New("stop")
	calls := 0
	err = Split([]byte("a\nb\nc\n"), func(i int, _ []byte) error {
		if calls++; i == 1 {
			return stop
		}
		return nil
	})
	if !errors.Is(err, stop) || calls != 2 || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("%d calls, %v", calls, err)
	}
}

func TestRequestTime(t *testing.T) {
	got, err := RequestTime(requestID)
	if err != nil || !got.Equal(time.UnixMilli(0x01890a5dac96)) {
		t.Errorf("%v, %v", got, err)
	}
	for i := range requestID {
		for _, c := range "gA-7. " {
			bad := requestID[:i] + string(c) + requestID[i+1:]
			hex := i != 8 && i != 13 && i != 18 && i != 23
			if bad == requestID || hex && c == '7' && i != 19 {
				continue
			}
			if _, err := RequestTime(bad); err != ErrRequestID {
				t.Errorf("%s: %v", bad, err)
			}
		}
	}
	for _, bad := range []string{"", requestID[:35], requestID + "0", strings.ReplaceAll(requestID, "-", "")} {
		if _, err := RequestTime(bad); err != ErrRequestID {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestPositions(t *testing.T) {
	for _, p := range []Position{{}, {1, 0}, {1207, 4}, {1<<64 - 1, 1<<31 - 1}} {
		got, err := ParsePosition(p.String())
		if err != nil || got != p {
			t.Errorf("%v: %v, %v", p, got, err)
		}
	}
	for _, bad := range []string{".", "1", "1.", ".1", "01.1", "1.01", "1.-1", "+1.1", "1.1.1", "0.1", "1.2147483648", "18446744073709551616.0", " 1.1"} {
		if got, err := ParsePosition(bad); err == nil {
			t.Errorf("%q parses as %v", bad, got)
		}
	}
}

// The spread is part of the stored layout: another hash would split histories.
func TestPartitionOf(t *testing.T) {
	if got := [3]int{PartitionOf(requestID, 8), PartitionOf(groupID, 8), PartitionOf(requestID, 1)}; got != [3]int{3, 0, 0} {
		t.Errorf("partitions moved: %v", got)
	}
	counts := make([]int, 8)
	r := rand.New(rand.NewPCG(1, 2))
	for range 8000 {
		var raw [16]byte
		for i := range raw {
			raw[i] = byte(r.Uint32())
		}
		counts[PartitionOf(string(raw[:]), 8)]++
	}
	for p, n := range counts {
		if n < 800 || n > 1200 {
			t.Errorf("partition %d gets %d of 8000", p, n)
		}
	}
}
