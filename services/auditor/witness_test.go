package auditor

import (
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/binary"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"crypto/sha256"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/pdgate/pdgate/events/audit"
)

// fakeWitness keeps C2SP tlog-witness as far as the client can see.
type fakeWitness struct {
	key  ed25519.PrivateKey
	name string

	mu    sync.Mutex
	seen  tlog.Tree
	first []string // first line of each request
	stall chan struct{}
	code  int // answered in place of a cosignature; 0: none
}

func (f *fakeWitness) vkey() string {
	key := append([]byte{4}, f.key.Public().(ed25519.PublicKey)...)
	sum := sha256.Sum256(append([]byte(f.name+"\n"), key...))
	return fmt.Sprintf("%s+%08x+%s", f.name, binary.BigEndian.Uint32(sum[:]), base64.StdEncoding.EncodeToString(key))
}

func (f *fakeWitness) cosign(text string) string {
	now := uint64(time.Now().Unix())
	key, _ := strconv.ParseUint(strings.Split(f.vkey(), "+")[1], 16, 32)
	b := binary.BigEndian.AppendUint32(nil, uint32(key))
	b = binary.BigEndian.AppendUint64(b, now)
	b = append(b, ed25519.Sign(f.key, fmt.Appendf(nil, "cosignature/v1\ntime %d\n%s", now, text))...)
	return "— " + f.name + " " + base64.StdEncoding.EncodeToString(b) + "\n"
}

func (f *fakeWitness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	if f.stall != nil {
		select {
		case <-f.stall:
		case <-r.Context().Done():
			return
		}
	}
	head, signed, _ := strings.Cut(string(b), "\n\n")
	lines := strings.Split(head, "\n")
	text, _, _ := strings.Cut(signed, "\n\n")
	c, err := audit.ParseCheckpoint(text + "\n")
	f.mu.Lock()
	defer f.mu.Unlock()
	f.first = append(f.first, lines[0])
	switch {
	case r.URL.Path != "/add-checkpoint" || err != nil:
		w.WriteHeader(http.StatusBadRequest)
		return
	case f.code != 0:
		w.WriteHeader(f.code)
		return
	case lines[0] != fmt.Sprintf("old %d", f.seen.N):
		w.WriteHeader(http.StatusConflict)
		fmt.Fprintf(w, "%d\n", f.seen.N)
		return
	}
	var proof tlog.TreeProof
	for _, l := range lines[1:] {
		h, err := tlog.ParseHash(l)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		proof = append(proof, h)
	}
	if f.seen.N > 0 && tlog.CheckTree(proof, c.Tree.N, c.Tree.Hash, f.seen.N, f.seen.Hash) != nil {
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	}
	f.seen = c.Tree
	io.WriteString(w, f.cosign(text+"\n"))
}

func newWitness(t *testing.T, name string) (*fakeWitness, string) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeWitness{key: key, name: name}
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	return f, srv.URL
}

// A quorum of witnesses makes the cosigned checkpoint; the others delay nothing.
func TestWitness(t *testing.T) {
	s := newSite(t, nil)
	s.fill(300)
	w1, url1 := newWitness(t, "w.example/1")
	w2, url2 := newWitness(t, "w.example/2")
	dead, url3 := newWitness(t, "w.example/3")
	dead.stall = make(chan struct{})
	t.Cleanup(func() { close(dead.stall) })
	w2.seen = tlog.Tree{N: 100, Hash: head(s.leaves[:100]).Hash} // it knows an earlier tree
	cfg := s.config("a1", t.TempDir())
	cfg.Policy = fmt.Appendf(nil, "witness w1 %s %s\nwitness w2 %s %s/\nwitness w3 %s %s\ngroup g 2 w1 w2 w3\nquorum g\n", w1.vkey(), url1, w2.vkey(), url2, dead.vkey(), url3)
	r := s.start(cfg)
	r.signedAll()
	cosigned := func() *audit.SignedCheckpoint {
		want := head(s.leaves)
		s.until("the checkpoint is cosigned", func() bool {
			c := r.Auditor.cosigned.Load()
			return c != nil && c.Tree == want
		})
		_, b := get(t, r.url+"/checkpoint.cosigned", "")
		p, err := audit.ParsePolicy(cfg.Policy)
		if err != nil {
			t.Fatal(err)
		}
		p.Log = r.verifier
		c, err := audit.OpenCheckpoint([]byte(b), p)
		if err != nil || c.QuorumErr != nil || len(c.Witnesses) != 2 {
			t.Fatalf("cosigned checkpoint: %+v, %v", c, err)
		}
		return c
	}
	cosigned()
	s.fill(100)
	r.signedAll()
	cosigned()
	// A receipt carries the cosignatures, where they are new enough.
	if c := s.receipts(r, int64(len(s.leaves)-1)); c.Tree != head(s.leaves) {
		t.Errorf("receipt's tree %v", c.Tree)
	}
	w2.mu.Lock()
	// It names the size that it knows, and is asked from there ever after.
	if got := w2.first; len(got) < 3 || got[0] != "old 0" || got[1] != "old 100" || slices.Contains(got[2:], "old 0") {
		t.Errorf("the second witness was asked %q", got)
	}
	w2.mu.Unlock()
	// The cosigned checkpoint outlives the process.
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r = s.start(cfg)
	r.signedAll()
	cosigned()
}

// A witness that refuses is an alarm, and stops neither signing nor the others.
func TestWitnessRefuses(t *testing.T) {
	s := newSite(t, nil)
	s.fill(10)
	w, url := newWitness(t, "w.example/1")
	w.code = http.StatusUnprocessableEntity
	cfg := s.config("a1", t.TempDir())
	cfg.Policy = fmt.Appendf(nil, "witness w1 %s %s\nquorum w1\n", w.vkey(), url)
	r := s.start(cfg)
	r.signedAll()
	s.until("it was asked", func() bool { w.mu.Lock(); defer w.mu.Unlock(); return len(w.first) > 0 })
	s.fill(10)
	r.signedAll()
	if code, _ := get(t, r.url+"/checkpoint.cosigned", ""); code != 404 {
		t.Errorf("cosigned checkpoint: %d", code)
	}
}

// Somebody else's signature, or one of another tree, is not kept.
func TestCosignature(t *testing.T) {
	w, _ := newWitness(t, "w.example/1")
	liar, _ := newWitness(t, "w.example/1")
	key, err := audit.NewWitness(w.vkey())
	if err != nil {
		t.Fatal(err)
	}
	skey, vkey, err := note.GenerateKey(nil, "example.com/log")
	if err != nil {
		t.Fatal(err)
	}
	log, err := note.NewVerifier(vkey)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := note.NewSigner(skey)
	if err != nil {
		t.Fatal(err)
	}
	c := audit.Checkpoint{Origin: "example.com/log", Tree: tlog.Tree{N: 1, Hash: tlog.Hash{1}}, CompleteUntil: 1}
	signed, err := audit.SignCheckpoint(&c, signer)
	if err != nil {
		t.Fatal(err)
	}
	other := c
	other.Tree.N = 2
	for name, tt := range map[string]struct {
		answer string
		good   bool
	}{
		"its own":      {w.cosign(c.Text()), true},
		"and more":     {"— somebody AAAAAAAA\n" + w.cosign(c.Text()), true},
		"another tree": {w.cosign(other.Text()), false},
		"another key":  {liar.cosign(c.Text()), false},
		"none":         {"", false},
		"garbage":      {"<html>\n", false},
	} {
		line, err := cosignature(signed, []byte(tt.answer), log, key)
		if (err == nil) != tt.good || tt.good && line != w.cosign(c.Text()) && !strings.HasPrefix(line, "— w.example/1 ") {
			t.Errorf("%s: %q, %v", name, line, err)
		}
	}
}

// litewitness is torchwood's witness, the real program: it cosigns our checkpoints
// and refuses a history that was rewritten.
func TestLitewitness(t *testing.T) {
	if testing.Short() {
		t.Skip("builds torchwood's litewitness and witnessctl")
	}
	dir := t.TempDir()
	for _, program := range []string{"litewitness", "witnessctl"} {
		cmd := exec.CommandContext(t.Context(), "go", "install", "filippo.io/torchwood/cmd/"+program+"@v0.9.0")
		cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS=", "CGO_ENABLED=0")
		cmd.Dir = dir // outside of this module
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go install %s: %v: %.300s", program, err, out)
		}
	}
	pub, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	socket := sshAgent(t, key)
	sshKey, err := ssh.NewPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()

	s := newSite(t, nil)
	s.fill(300)
	fake := &fakeWitness{key: key, name: "w.example/lite"}
	cfg := s.config("a1", t.TempDir())
	cfg.Policy = fmt.Appendf(nil, "witness w1 %s http://%s\nquorum w1\n", fake.vkey(), address)
	r := s.start(cfg)
	r.signedAll()

	db := filepath.Join(dir, "witness.db")
	ctl := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), filepath.Join(dir, "witnessctl"), args...).CombinedOutput(); err != nil {
			t.Fatalf("witnessctl %v: %v: %s", args, err, out)
		}
	}
	origin := r.verifier.Name()
	ctl("add-log", "-db", db, "-origin", origin)
	ctl("add-key", "-db", db, "-origin", origin, "-key", r.vkey)
	ctx, cancel := context.WithCancel(t.Context())
	run := exec.CommandContext(ctx, filepath.Join(dir, "litewitness"), "-db", db, "-name", fake.name, "-ssh-agent", socket, "-listen", address, "-key", ssh.FingerprintSHA256(sshKey))
	var out strings.Builder
	run.Stderr = &out
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = run.Wait()
		if t.Failed() {
			t.Logf("litewitness: %s", out.String())
		}
	})
	for range 2 {
		s.fill(200)
		r.signedAll()
		want := head(s.leaves)
		s.until("litewitness cosigned", func() bool {
			c := r.Auditor.cosigned.Load()
			return c != nil && c.Tree == want
		})
	}

	// Another history under the same key and name.
	forged := audit.Checkpoint{Origin: origin, Tree: tlog.Tree{N: 5000, Hash: tlog.Hash{1}}, CompleteUntil: 5000}
	signed, err := audit.SignCheckpoint(&forged, r.signer)
	if err != nil {
		t.Fatal(err)
	}
	body := fmt.Sprintf("old %d\n%s\n\n%s", len(s.leaves), tlog.Hash{2}, signed)
	resp, err := client.Post("http://"+address+"/add-checkpoint", "", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusUnprocessableEntity {
		t.Errorf("a rewritten history: %d, want 422", resp.StatusCode)
	}
}

// sshAgent serves key as litewitness wants it.
func sshAgent(t *testing.T, key ed25519.PrivateKey) string {
	t.Helper()
	ring := agent.NewKeyring()
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	raw, err := ssh.ParseRawPrivateKey(pem.EncodeToMemory(block))
	if err != nil {
		t.Fatal(err)
	}
	if err := ring.Add(agent.AddedKey{PrivateKey: raw}); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "agent") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				_ = agent.ServeAgent(ring, c) // ends with the connection
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		conns.Wait()
		os.RemoveAll(dir)
	})
	return socket
}
