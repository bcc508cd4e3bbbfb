package process

import (
	"log/slog"
	"net"
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
