package process

import (
	"bytes"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// filled makes a data directory with some requests in its log, and returns
// their ids.
func filled(t *testing.T) (data string, ids []string) {
	t.Helper()
	data = t.TempDir()
	u := startUp(t, data)
	ids = u.ask(t, 6)
	u.stop(t)
	return data, ids
}

// copyOf is a copy of a data directory. Sockets are left out.
func copyOf(t *testing.T, data string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	// CopyFS widens modes by design; keys must be private.
	err := filepath.WalkDir(data, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(data, path)
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		return os.Chmod(filepath.Join(to, rel), fi.Mode().Perm())
	})
	if err != nil {
		t.Fatal(err)
	}
	return to
}

// change rewrites a file below dir.
func change(t *testing.T, f func([]byte) []byte, path ...string) {
	t.Helper()
	p := filepath.Join(path...)
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, f(bytes.Clone(b)), 0o600); err != nil {
		t.Fatal(err)
	}
}

func flipped(b []byte) []byte { b[len(b)/2] ^= 0x55; return b }
func halved(b []byte) []byte  { return b[:len(b)/2] }

// flippedHex changes one digit for another one: the file is still what it claims
// to be, and says something else.
func flippedHex(b []byte) []byte {
	if b[10] == '0' {
		b[10] = '1'
	} else {
		b[10] = '0'
	}
	return b
}

const (
	logBlock = "jetstream/jetstream/LOG/streams/PDGATE/msgs/1.blk"
	logIndex = "jetstream/jetstream/LOG/streams/PDGATE/msgs/index.db"
	logMeta  = "jetstream/jetstream/LOG/streams/PDGATE/meta.inf"
	snapshot = "lifecycle/lifecycle.snapshot"
	readSide = "lifecycle/requests.db"
)

// TestDamage spoils files of the data directory one at a time. What holds the
// log or guards it ends the start with the file's name; what is made from the log
// is made again. With the file put back, everything is there.
func TestDamage(t *testing.T) {
	good, ids := filled(t)
	remove := func(t *testing.T, data, name string) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(data, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name  string
		spoil func(t *testing.T, data string)
		want  string // of the refusal; "": it starts, and lists what was there
	}{
		{"log key cut", func(t *testing.T, d string) { change(t, halved, d, "keys/log-mac.key") }, `log-mac.key is damaged: want 32 bytes in hex; restore it`},
		{"log key another", func(t *testing.T, d string) { change(t, flippedHex, d, "keys/log-mac.key") }, `log key \(log-mac.key\) is not the one .* restore the key`},
		{"digest secret cut", func(t *testing.T, d string) { change(t, halved, d, "keys/digest-secret.key") }, `digest-secret.key is damaged`},
		{"digest secret another", func(t *testing.T, d string) { change(t, flippedHex, d, "keys/digest-secret.key") }, `digest secret \(digest-secret.key\) is not the one .* restore the key`},
		{"grant key", func(t *testing.T, d string) { change(t, halved, d, "keys/grant.pem") }, `grant.pem is damaged`},
		{"grant key's public half", func(t *testing.T, d string) { change(t, halved, d, "keys/grant.pub.pem") }, `grant.pub.pem is damaged`},
		{"NATS user", func(t *testing.T, d string) { change(t, flipped, d, "keys/lifecycle-log.nk") }, `lifecycle-log.nk is damaged: want the seed of a NATS user`},
		{"key that others read", func(t *testing.T, d string) {
			if err := os.Chmod(filepath.Join(d, "keys/grant.pem"), 0o640); err != nil {
				t.Fatal(err)
			}
		}, `chmod 600 .*grant.pem`},
		{"tenants", func(t *testing.T, d string) { change(t, halved, d, "tenants.yaml") }, `tenants.yaml: .*line`},

		{"log block, and its index", func(t *testing.T, d string) { change(t, flipped, d, logBlock); remove(t, d, logIndex) }, `does not hold what .*lifecycle.snapshot proves was recorded at position \d+: .* restore the stream`},
		{"log block cut", func(t *testing.T, d string) { change(t, halved, d, logBlock) }, `does not hold what .*lifecycle.snapshot proves`},
		{"log block in the middle, nothing derived left", func(t *testing.T, d string) { change(t, flipped, d, logBlock); remove(t, d, "lifecycle") }, `messages \d+ to \d+ are missing from the log: .* restore the stream`},
		{"no log", func(t *testing.T, d string) { remove(t, d, "jetstream") }, `does not hold what .*lifecycle.snapshot proves`},

		{"log's settings", func(t *testing.T, d string) { change(t, flipped, d, logMeta) }, ""},
		{"log index", func(t *testing.T, d string) { remove(t, d, logIndex) }, ""},
		{"snapshot", func(t *testing.T, d string) { change(t, flipped, d, snapshot) }, ""},
		{"snapshot cut", func(t *testing.T, d string) { change(t, halved, d, snapshot) }, ""},
		{"read side", func(t *testing.T, d string) { change(t, flipped, d, readSide) }, ""},
		{"read side cut", func(t *testing.T, d string) { change(t, halved, d, readSide) }, ""},
		{"read side's head", func(t *testing.T, d string) {
			change(t, func(b []byte) []byte { copy(b, "not a database"); return b }, d, readSide)
		}, ""},
		{"nothing derived left", func(t *testing.T, d string) { remove(t, d, "lifecycle") }, ""},
		{"address of a killed life", func(t *testing.T, d string) {
			if err := os.WriteFile(filepath.Join(d, "run", "nats-url"), []byte("nats://127.0.0.1:1\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			remove(t, d, "run/gateway-url")
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			data := copyOf(t, good)
			tt.spoil(t, data)
			if tt.want == "" {
				u := startUp(t, data)
				u.lists(t, append(ids, u.ask(t, 1)...))
				u.stop(t)
				return
			}
			refused(t, 1, tt.want, nil, upArgs(data)...)
		})
	}
	u := startUp(t, good)
	u.lists(t, append(ids, u.ask(t, 1)...))
	u.stop(t)
}

// TestDiskFull takes away the space under a running up: it ends with a line that
// says so, and what was acknowledged is there after a start with space.
//
// Two ways: a limit on the size of files, which every kernel has, and a small
// file system of its own, where the kernel lets a user make one.
func TestDiskFull(t *testing.T) {
	t.Run("file size limit", func(t *testing.T) {
		data := t.TempDir()
		writeTenants(t, filepath.Join(data, "tenants.yaml"))
		script := `ulimit -f "$1"; shift; exec "$@"`
		u := &up{data: data, proc: start(t, nil, "up", append([]string{"/bin/sh", "-c", script, "sh", "200", pdgate(t)}, upArgs(data)...)...)}
		ids := u.fill(t)
		again := startUp(t, data)
		again.lists(t, append(ids, again.ask(t, 1)...))
		again.stop(t)
	})
	t.Run("file system", func(t *testing.T) {
		if out, err := exec.Command("unshare", "-rm", "true").CombinedOutput(); err != nil {
			t.Skipf("no file system of its own: unshare: %v %s", err, bytes.TrimSpace(out))
		}
		root := t.TempDir()
		data := filepath.Join(root, "disk", "data")
		// The mount is seen by this script and its children alone, and goes with them.
		script := `set -e
mkdir "$1/disk" "$1/out"
mount -t tmpfs -o size=80m tmpfs "$1/disk"
mkdir "$1/disk/data"
cp "$1/tenants.yaml" "$1/disk/data"
bin=$2; root=$1; shift 2
"$bin" "$@" & pid=$!
while [ ! -s "$root/disk/data/run/gateway-url" ]; do sleep 0.05; done
cp "$root/disk/data/run/gateway-url" "$root/out/url"
while [ ! -e "$root/fill" ]; do sleep 0.05; done
dd if=/dev/zero of="$root/disk/filler" bs=4k 2>/dev/null || :
touch "$root/out/full"
code=0; wait $pid || code=$?
echo "first exit $code"
code=0; "$bin" "$@" || code=$?
echo "full exit $code"
rm "$root/disk/filler"
cp -r "$root/disk/data" "$root/out/data"
`
		writeTenants(t, filepath.Join(root, "tenants.yaml"))
		p := start(t, nil, "up on a disk", append([]string{"unshare", "-rm", "sh", "-c", script, "sh", root, pdgate(t)}, upArgs(data, "--pool-tokens", "8192", "--decode-pool-tokens", "8192")...)...)
		u := &up{data: filepath.Join(root, "out"), proc: p}
		await(t, "up", patience, func() bool { u.url = read(root, "out", "url"); return u.url != "" })
		awaitReady(t, u.url)
		ids := u.ask(t, 3)
		if err := os.WriteFile(filepath.Join(root, "fill"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		await(t, "the disk is full", patience, func() bool { _, err := os.Stat(filepath.Join(root, "out", "full")); return err == nil })
		if status := u.try(); status == http.StatusOK {
			t.Error("HTTP 200 on a full disk")
		}
		if _, err := p.ended(patience); err != nil {
			t.Fatal(err)
		}
		out := p.stdout.String()
		for _, want := range []string{"first exit 1\n", "full exit 1\n"} {
			if !strings.Contains(out, want) {
				t.Errorf("%q is missing in:\n%s", want, out)
			}
		}
		lines := p.stderr.String()
		if !matches(t, `pdgate: nats: cannot store on stream .*no space left on device; what was acknowledged is safe: free disk space`, lines) {
			t.Errorf("no line of the running one says what is wrong:\n%s", last(lines, 10))
		}
		if !matches(t, `pdgate: store directory .*: the disk has 0 MB free, the log needs at least 64 MB`, last(lines, 1)) {
			t.Errorf("no line of the next start says what is wrong: %s", last(lines, 3))
		}
		again := startUp(t, filepath.Join(root, "out", "data"))
		again.lists(t, append(ids, again.ask(t, 1)...))
		again.stop(t)
	})
}

// fill sends requests until the log cannot grow, waits for the end, and returns
// those that were answered.
func (u *up) fill(t *testing.T) (ids []string) {
	t.Helper()
	await(t, "up", patience, func() bool { u.url = read(u.data, "run", "gateway-url"); return u.url != "" })
	awaitReady(t, u.url)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	r := rand.New(rand.NewPCG(1, 1))
	for len(ids) < 10_000 {
		var o outcome
		prompt, most := question(r)
		if err := o.ask(client, u.url, prompt, most); err != nil || o.status != http.StatusOK {
			break
		}
		ids = append(ids, o.id)
	}
	if _, err := u.ended(patience); err != nil {
		t.Fatal(err)
	}
	line := last(u.stderr.String(), 1)
	if u.code() != 1 || !matches(t, `^pdgate: nats: cannot store on stream .*file too large; what was acknowledged is safe: free disk space`, line) {
		t.Errorf("exit code %d after %d answers: %s", u.code(), len(ids), line)
	}
	if len(ids) == 0 {
		t.Fatal("nothing was answered before the disk was full")
	}
	return ids
}
