package audit

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"filippo.io/torchwood"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// install builds somebody else's program at its version, outside of this module.
func install(t *testing.T, pkg string) string {
	t.Helper()
	if testing.Short() {
		t.Skipf("-short: %s is not built", pkg)
	}
	dir := t.TempDir()
	cmd := exec.Command("go", "install", pkg)
	cmd.Dir = dir // outside of any module
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go install %s: %v\n%s", pkg, err, out)
	}
	name, _, _ := strings.Cut(filepath.Base(pkg), "@")
	return filepath.Join(dir, name)
}

// onDisk writes the log's directory as a reader finds it.
func (l *testLog) onDisk(checkpoint []byte) string {
	l.t.Helper()
	dir := l.t.TempDir()
	if err := os.CopyFS(dir, l.mem.fs); err != nil {
		l.t.Fatal(err)
	}
	l.write(dir, "checkpoint", checkpoint)
	l.write(dir, "log.vkey", []byte(l.vkey))
	return dir
}

func (l *testLog) write(dir, name string, b []byte) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// Tessera's fsck builds the tree again from the leaves, and compares every tile.
func TestTesseraAcceptsTheTiles(t *testing.T) {
	fsck := install(t, "github.com/transparency-dev/tessera/cmd/fsck@v1.0.4")
	l := newTestLog(t, "log")
	l.fill(66_000) // three levels, whole and partial tiles in each
	checkpoint := l.sign()
	check := func() (string, bool) {
		dir := l.onDisk(checkpoint)
		// It exits 0 on some mismatches and hangs on others: its word counts.
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		out, _ := exec.CommandContext(ctx, fsck, "-storage_url=file://"+dir, "-public_key="+filepath.Join(dir, "log.vkey"), "-ui=false", "-N=4").CombinedOutput()
		return string(out), bytes.Contains(out, []byte("Successfully fsck'd"))
	}
	if out, ok := check(); !ok {
		t.Fatalf("fsck: %s", out)
	}
	tile := l.mem.fs["tile/0/017"]
	tile.Data[99] ^= 1
	if out, ok := check(); ok {
		t.Errorf("fsck took a tile with a flipped bit: %s", out)
	}
}

// torchwood's spicy reads a proof without its first line.
func TestSpicyAcceptsAProof(t *testing.T) {
	spicy := install(t, "filippo.io/torchwood/cmd/spicy@v0.9.0")
	l := newTestLog(t, "log")
	l.fill(700)
	checkpoint := l.sign()
	p, err := ProveLeaf(l.tree.Head(), 321, l.tiles().Hashes(l.tree.Head()), checkpoint)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	l.write(dir, "event", l.leaves[321])
	l.write(dir, "event.spicy", bytes.TrimPrefix(p.Text(), []byte(proofHeader+"\n")))
	verify := func() error {
		return exec.Command(spicy, "-verify", l.vkey, filepath.Join(dir, "event")).Run()
	}
	if err := verify(); err != nil {
		t.Errorf("spicy: %v", err)
	}
	l.write(dir, "event", l.leaves[322])
	if verify() == nil {
		t.Error("spicy took another leaf")
	}
}

// torchwood's library and this package read each other's checkpoints, cosignatures,
// policies and proofs.
func TestTorchwoodAgrees(t *testing.T) {
	l := newTestLog(t, "log")
	l.fill(300)
	checkpoint := l.sign()
	w, err := torchwood.NewCosignatureSigner("w.example", ed25519.NewKeyFromSeed(seed("w")))
	if err != nil {
		t.Fatal(err)
	}
	n, err := note.Open(checkpoint, l.policy())
	if err != nil {
		t.Fatal(err)
	}
	signed, err := note.Sign(n, w)
	if err != nil {
		t.Fatal(err)
	}
	text := []byte("log " + l.vkey + "\nwitness w " + w.Verifier().String() + " https://w.example/\n# a comment\ngroup g any w\nquorum g\n")
	ours, err := ParsePolicy(text)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := torchwood.ParsePolicy(text)
	if err != nil {
		t.Fatal(err)
	}
	c, err := OpenCheckpoint(signed, ours)
	if err != nil || c.QuorumErr != nil || len(c.Witnesses) != 1 || c.Witnesses[0].Name != "w.example" || c.Witnesses[0].Time == 0 {
		t.Errorf("torchwood's cosignature: %+v, %v", c, err)
	}
	if got, _, err := torchwood.VerifyCheckpoint(signed, theirs); err != nil || got.String() != c.Text() {
		t.Errorf("torchwood reads the checkpoint as %+v, %v", got, err)
	}
	if _, _, err := torchwood.VerifyCheckpoint(checkpoint, theirs); err == nil {
		t.Error("torchwood took a checkpoint without its witness")
	}
	p, err := ProveLeaf(l.tree.Head(), 5, l.tiles().Hashes(l.tree.Head()), signed)
	if err != nil {
		t.Fatal(err)
	}
	p.Extra = l.leaves[5]
	if err := torchwood.VerifyProof(theirs, tlog.RecordHash(l.leaves[5]), p.Text()); err != nil {
		t.Errorf("torchwood on the proof: %v", err)
	}
	if got := torchwood.FormatProofWithExtraData(5, p.Extra, p.Path, signed); !bytes.Equal(got, p.Text()) {
		t.Error("torchwood writes the proof in other bytes")
	}
	for path := range l.mem.fs {
		tile, err := torchwood.ParseTilePath(path)
		if err != nil || TilePath(tile) != path {
			t.Errorf("%s: %v", path, err)
		}
	}
}
