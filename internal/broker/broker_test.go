package broker

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

var testNames = keyring.Names{Gateways: []string{"gw1", "gw2"}, Prefill: []string{"p1", "p2"}, Decode: []string{"d1", "d2"}}

func openRing(t *testing.T) *keyring.Ring {
	t.Helper()
	ring, err := keyring.Open(filepath.Join(t.TempDir(), "keys"), testNames)
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

func startBroker(t *testing.T) (*Broker, *keyring.Ring) {
	t.Helper()
	ring := openRing(t)
	b, err := Start(Config{StoreDir: t.TempDir(), Ring: ring, Models: []string{"ref"}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	return b, ring
}

func connect(t *testing.T, b *Broker, ring *keyring.Ring, u keyring.User) *nats.Conn {
	t.Helper()
	user, err := ring.Option(u)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect("", user, b.InProcess(), nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {}))
	if err != nil {
		t.Fatalf("connect %s: %v", u, err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func TestEveryUserConnects(t *testing.T) {
	b, ring := startBroker(t)
	for _, u := range testNames.Users() {
		connect(t, b, ring, u)
	}
	if url := b.ClientURL(); url != "" {
		t.Errorf("port 0 listens on %s", url)
	}
}

// TestRestart keeps the log over a restart on the same directory.
func TestRestart(t *testing.T) {
	cfg := Config{StoreDir: t.TempDir(), Ring: openRing(t), Logger: slog.New(slog.DiscardHandler)}
	for i := range 3 {
		b, err := Start(cfg)
		if err != nil {
			t.Fatal(err)
		}
		nc := connect(t, b, cfg.Ring, keyring.LifecycleLog)
		lj, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if i == 0 {
			_, err = lj.CreateStream(ctx, jetstream.StreamConfig{Name: events.LogStream, Subjects: []string{events.LogAll}})
			if err != nil {
				t.Fatal(err)
			}
		}
		ack, err := lj.Publish(ctx, events.LogSubject(0), []byte("x"))
		cancel()
		if err != nil || ack.Sequence != uint64(i+1) {
			t.Fatalf("start %d: append: %v %v", i, ack, err)
		}
		nc.Close()
		b.Shutdown()
		b.Shutdown()
	}
}

func TestSecondOnSameDirectory(t *testing.T) {
	cfg := Config{StoreDir: t.TempDir(), Ring: openRing(t), Logger: slog.New(slog.DiscardHandler)}
	b, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Start(cfg); !errors.Is(err, ErrStoreInUse) || !strings.Contains(err.Error(), cfg.StoreDir) {
		t.Errorf("second start: %v", err)
	}
	b.Shutdown()
	// The lock ends with the holder.
	b, err = Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	b.Shutdown()
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	cfg := Config{StoreDir: t.TempDir(), Port: port, Ring: openRing(t), Logger: slog.New(slog.DiscardHandler)}
	if _, err := Start(cfg); !errors.Is(err, ErrAddressInUse) || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("error %v", err)
	}
	// A start that failed has let go of the directory.
	cfg.Port = -1
	b, err := Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Shutdown()
	if !strings.HasPrefix(b.ClientURL(), "nats://127.0.0.1:") {
		t.Errorf("url %q", b.ClientURL())
	}
}

func TestStoreNotUsable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ring := openRing(t)
	_, err := Start(Config{StoreDir: file, Ring: ring, Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "store directory") {
		t.Errorf("a file as directory: %v", err)
	}
	if os.Geteuid() != 0 {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		_, err = Start(Config{StoreDir: dir, Ring: ring, Logger: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), "not writable") {
			t.Errorf("read-only directory: %v", err)
		}
	}
}

// TestFullDisk asks for more space than any disk has.
func TestFullDisk(t *testing.T) {
	old := minFree
	t.Cleanup(func() { minFree = old })
	minFree = 1 << 62
	cfg := Config{StoreDir: t.TempDir(), Ring: openRing(t), Logger: slog.New(slog.DiscardHandler)}
	if _, err := Start(cfg); err == nil || !strings.Contains(err.Error(), "MB free, the log needs at least") {
		t.Errorf("error %v", err)
	}
	minFree = old
	b, err := Start(cfg) // the failed start has let go of the lock
	if err != nil {
		t.Fatal(err)
	}
	b.Shutdown()
}

func TestConfig(t *testing.T) {
	ring := openRing(t)
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{Ring: ring}, "StoreDir"},
		{Config{StoreDir: "x"}, "Ring"},
		{Config{StoreDir: "x", Ring: ring, Port: 65536}, "port"},
		{Config{StoreDir: "x", Ring: ring, Durability: "maybe"}, "durability"},
		{Config{StoreDir: "x", Ring: ring, Models: []string{"a.>"}}, "model"},
	} {
		if _, err := Start(tt.cfg); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v, want %q in it", tt.cfg, err, tt.want)
		}
	}
}

func TestDurability(t *testing.T) {
	ring := openRing(t)
	for durability, want := range map[Durability]bool{"": true, FsyncAlways: true, FsyncInterval: false} {
		text, err := Config{StoreDir: t.TempDir(), Ring: ring, Durability: durability}.Text()
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(text, "sync_interval: always"); got != want {
			t.Errorf("durability %q: sync_interval always is %v", durability, got)
		}
		b, err := Start(Config{StoreDir: t.TempDir(), Ring: ring, Durability: durability, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if got := b.srv.JetStreamConfig().SyncAlways; got != want {
			t.Errorf("durability %q: the server's SyncAlways is %v", durability, got)
		}
		b.Shutdown()
	}
}

// TestTextHoldsNoSecret: the configuration may be shown and copied.
func TestTextHoldsNoSecret(t *testing.T) {
	ring := openRing(t)
	text, err := Config{StoreDir: t.TempDir(), Ring: ring}.Text()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range testNames.Users() {
		seed, err := os.ReadFile(ring.Path(u))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text, string(bytes.TrimSpace(seed))) {
			t.Errorf("the seed of %s is in the configuration", u)
		}
		if pub, _ := ring.PublicKey(u); !strings.Contains(text, pub) {
			t.Errorf("%s is not in the configuration", u)
		}
	}
}

// An IPv6 address has colons of its own.
func TestListenIPv6(t *testing.T) {
	l, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 loopback here")
	}
	l.Close()
	b, err := Start(Config{StoreDir: t.TempDir(), Host: "::1", Port: -1, Ring: openRing(t), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	if !strings.HasPrefix(b.ClientURL(), "nats://[::1]:") {
		t.Errorf("clients connect to %q", b.ClientURL())
	}
}
