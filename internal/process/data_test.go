package process

import (
	"bytes"
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
)

// upArgs is a command line of `pdgate up` on free ports.
func upArgs(data string, args ...string) []string {
	return append([]string{"up", "--data", data, "--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0",
		"--context", "4096", "--pool-tokens", "32768", "--decode-pool-tokens", "32768", "--log-level", "warn"}, args...)
}

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

// ask sends requests that must be answered, and returns their ids.
func (u *up) ask(t *testing.T, n int) (ids []string) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	r := rand.New(rand.NewPCG(uint64(len(u.data)), 7))
	for range n {
		var o outcome
		prompt, most := question(r)
		if err := o.ask(client, u.url, prompt, most); err != nil || o.status != http.StatusOK {
			t.Fatalf("HTTP %d %s: %v", o.status, o.code, err)
		}
		ids = append(ids, o.id)
	}
	return ids
}

// lists waits until all requests are listed, and looks at one of them as people
// do.
func (u *up) lists(t *testing.T, ids []string) {
	t.Helper()
	nc := connect(t, u.nats, u.ring, keyring.Operator)
	defer nc.Close()
	op := operator(t, nc)
	await(t, "the earlier requests are listed", patience, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		v, err := op.List(ctx, events.ListQuery{State: events.Decoded, Limit: events.MaxListLimit})
		if err != nil {
			return false
		}
		listed := map[string]bool{}
		for _, r := range v.Requests {
			listed[r.RequestID] = true
		}
		for _, id := range ids {
			if !listed[id] {
				return false
			}
		}
		return true
	})
	for _, args := range [][]string{{"list", "--all"}, {"history", ids[0]}} {
		p := run(t, nil, append([]string{"request", "--data", u.data}, args...)...)
		if p.code() != 0 || !strings.Contains(p.stdout.String(), "decoded") {
			t.Errorf("request %v: exit code %d: %s%s", args, p.code(), p.stdout.String(), p.stderr.String())
		}
	}
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

// TestPorts: a port that is taken is named with its flag, and the data directory
// is as good as before.
func TestPorts(t *testing.T) {
	data, ids := filled(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().String()
	refused(t, 1, `nats: listen on `+taken+`: address already in use: .*--nats-listen`, nil, upArgs(data, "--nats-listen", taken)...)
	refused(t, 1, `http: listen on `+taken+`: address already in use: .*--listen`, nil, upArgs(data, "--listen", taken)...)
	refused(t, 1, `cannot assign requested address`, nil, upArgs(data, "--nats-listen", "192.0.2.1:4222")...)
	refused(t, 1, `cannot assign requested address.*--listen`, nil, upArgs(data, "--listen", "192.0.2.1:8080")...)
	u := startUp(t, data)
	refused(t, 1, `store directory is in use by another process: .*--data`, nil, upArgs(data)...)
	u.lists(t, append(ids, u.ask(t, 1)...))
	u.stop(t)
}

// TestDataNotWritable runs as a user who may not write the data directory.
func TestDataNotWritable(t *testing.T) {
	data, ids := filled(t)
	plain := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(t, 1, `mkdir .*file: not a directory`, nil, upArgs(filepath.Join(plain, "data"))...)
	for dir, want := range map[string]string{
		"keys":                `keys`,
		"jetstream":           `store directory is not writable: .*permission denied`,
		"run":                 `run.*permission denied`,
		"lifecycle":           `lifecycle|unable to open database file`,
		"jetstream/jetstream": `storage directory is not writable \(store directory .*jetstream\)`,
	} {
		t.Run(strings.ReplaceAll(dir, "/", "|"), func(t *testing.T) {
			d := copyOf(t, data)
			become := own(t, d, dir)
			p := startWith(t, become, nil, "up", append([]string{pdgate(t)}, upArgs(d)...)...)
			if _, err := p.ended(patience); err != nil {
				t.Fatal(err)
			}
			line := last(p.stderr.String(), 1)
			if p.code() != 1 || !strings.HasPrefix(line, "pdgate: ") || !matches(t, want, line) {
				t.Errorf("exit code %d, want a line that matches %q: %s", p.code(), want, p.stderr.String())
			}
		})
	}
	u := startUp(t, data)
	u.lists(t, ids)
	u.stop(t)
}

// own gives a tree, but for one directory in it, to a user without rights, and
// says how to run as that user.
func own(t *testing.T, root, but string) func(*exec.Cmd) {
	t.Helper()
	locked := filepath.Join(root, but)
	if os.Geteuid() != 0 {
		for _, f := range []string{locked, filepath.Join(locked, "lock")} {
			if err := os.Chmod(f, 0o500); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { os.Chmod(locked, 0o700) })
		return nil
	}
	const nobody = 65534
	err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
		if err != nil || strings.HasPrefix(path, locked) {
			return err
		}
		return os.Chown(path, nobody, nobody)
	})
	if err == nil {
		err = os.Chmod(locked, 0o755)
	}
	if err == nil {
		err = os.Chmod(bin.dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(root); len(dir) > len(os.TempDir()); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return func(cmd *exec.Cmd) {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
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

// try sends one request and returns the status of the answer; 0 if none came.
func (u *up) try() int {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	var o outcome
	prompt, most := question(rand.New(rand.NewPCG(1, 2)))
	_ = o.ask(client, u.url, prompt, most) // the status says it
	return o.status
}

func awaitReady(t *testing.T, url string) {
	t.Helper()
	await(t, "ready", patience, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return get(ctx, url+"/ready") == http.StatusOK
	})
}

// TestWeakStream: a log that was made by other hands, and would lose events, is
// refused in one line.
func TestWeakStream(t *testing.T) {
	dir := t.TempDir()
	ring, err := keyring.Open(filepath.Join(dir, "keys"), keyring.Names{Gateways: []string{"gw1"}, Prefill: []string{"p1"}, Decode: []string{"d1"}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := broker.Start(broker.Config{StoreDir: filepath.Join(dir, "jetstream"), Port: -1, Ring: ring, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Shutdown()
	js, err := jetstream.New(connect(t, b.ClientURL(), ring, keyring.Admin))
	if err != nil {
		t.Fatal(err)
	}
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: events.LogStream, Subjects: []string{events.LogAll}, Storage: jetstream.FileStorage, Retention: jetstream.LimitsPolicy,
		MaxAge: time.Hour, AllowDirect: true, DenyDelete: true, DenyPurge: true, Discard: jetstream.DiscardNew,
		Metadata: map[string]string{"pdgate_partitions": "8"},
	})
	if err != nil {
		t.Fatal(err)
	}
	refused(t, 1, `stream PDGATE is weaker than asked for: max age is 1h0m0s, want none \(nats stream edit PDGATE --max-age -1\)`, nil,
		"lifecycle", "--data", filepath.Join(dir, "lc1"), "--keys", ring.Dir(), "--nats-url", b.ClientURL())
}

// TestNoJetStream: NATS without JetStream is refused in one line. (F28)
func TestNoJetStream(t *testing.T) {
	dir := t.TempDir()
	ring, err := keyring.Open(filepath.Join(dir, "keys"), keyring.Names{})
	if err != nil {
		t.Fatal(err)
	}
	var users []*server.NkeyUser
	account := server.NewAccount("LOG")
	for _, u := range []keyring.User{keyring.LifecycleLog, keyring.LifecycleBus} {
		key, err := ring.PublicKey(u)
		if err != nil {
			t.Fatal(err)
		}
		users = append(users, &server.NkeyUser{Nkey: key, Account: account})
	}
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoLog: true, NoSigs: true, Nkeys: users, Accounts: []*server.Account{account}})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	defer func() { srv.Shutdown(); srv.WaitForShutdown() }()
	if !srv.ReadyForConnections(patience) {
		t.Fatal("nats is not ready")
	}
	refused(t, 1, `has no JetStream: add .*sync_interval: always.* restart it|JetStream is off for this account`, nil,
		"lifecycle", "--data", filepath.Join(dir, "lc1"), "--keys", ring.Dir(), "--nats-url", srv.ClientURL())
}

// TestForeignServer: a server with other keys is named with the user and the key
// file.
func TestForeignServer(t *testing.T) {
	u := startUp(t, t.TempDir())
	other, err := keyring.Open(filepath.Join(t.TempDir(), "keys"), keyring.Names{Gateways: []string{"gw1"}, Prefill: []string{"p1"}, Decode: []string{"d1"}})
	if err != nil {
		t.Fatal(err)
	}
	writeTenants(t, filepath.Join(other.Dir(), "tenants.yaml"))
	for _, args := range [][]string{
		{"lifecycle"},
		{"gateway", "--listen", "127.0.0.1:0", "--tenants", filepath.Join(other.Dir(), "tenants.yaml")},
		{"worker", "--role", "prefill", "--pool-tokens", "4096"},
		{"request", "list"},
	} {
		refused(t, 1, `does not know user .* with the key in .*\.nk: is the server started with the same key directory\?`, nil,
			append(args, "--data", t.TempDir(), "--keys", other.Dir(), "--nats-url", u.nats)...)
	}
	refused(t, 1, `connect to nats at nats://127.0.0.1:1 as operator`, nil, "request", "list", "--data", u.data, "--nats-url", "nats://127.0.0.1:1")
	u.stop(t)
}
