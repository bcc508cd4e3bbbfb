package main

import (
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
	"github.com/pdgate/pdgate/internal/natsclient"
	"github.com/pdgate/pdgate/internal/preflight"
)

func testRing(t *testing.T) *keyring.Ring {
	t.Helper()
	ring, err := keyring.Open(filepath.Join(t.TempDir(), "keys"), keyring.Names{Gateways: []string{"gw1"}, Prefill: []string{"p1"}, Decode: []string{"d1"}})
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// look is what preflight says of the log behind a NATS server.
func look(t *testing.T, url, keys string) []preflight.Finding {
	t.Helper()
	a := &app{stdout: io.Discard, stderr: io.Discard, log: slog.New(slog.DiscardHandler), data: t.TempDir()}
	f := &preflightFlags{remote: remote{url: url, keys: keys}}
	f.cfg.Timeout = patience
	return preflight.JudgeLog(a.lookAtLog(t.Context(), f))
}

func wantFinding(t *testing.T, all []preflight.Finding, level preflight.Level, words string) {
	t.Helper()
	if !slices.ContainsFunc(all, func(f preflight.Finding) bool { return f.Level == level && strings.Contains(f.Text, words) }) {
		t.Errorf("want %s %q, have %+v", level, words, all)
	}
}

// plainServer is a NATS server that others run.
func plainServer(t *testing.T, options *server.Options) *server.Server {
	t.Helper()
	options.Host, options.Port, options.NoLog, options.NoSigs = "127.0.0.1", -1, true, true
	s, err := server.NewServer(options)
	if err != nil {
		t.Fatal(err)
	}
	go s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
	return s
}

// TestPreflightOfTheLog goes from no server to a stream that is as it must be.
func TestPreflightOfTheLog(t *testing.T) {
	ring := testRing(t)
	wantFinding(t, look(t, "nats://127.0.0.1:9", ring.Dir()), preflight.Unknown, "cannot be looked at")
	wantFinding(t, look(t, "nats://127.0.0.1:9", t.TempDir()+"/none"), preflight.Unknown, "cannot be looked at")

	key, err := ring.PublicKey(keyring.Auditor)
	if err != nil {
		t.Fatal(err)
	}
	without := plainServer(t, &server.Options{Nkeys: []*server.NkeyUser{{Nkey: key}}})
	wantFinding(t, look(t, without.ClientURL(), ring.Dir()), preflight.Red, "no JetStream")

	b, err := broker.Start(broker.Config{StoreDir: t.TempDir(), Port: -1, Ring: ring, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Shutdown)
	wantFinding(t, look(t, b.ClientURL(), ring.Dir()), preflight.Red, "there is no stream PDGATE")
	nc, err := natsclient.Connect(t.Context(), natsclient.Config{URL: b.ClientURL(), Ring: ring, User: keyring.Admin})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	cfg := jetstream.StreamConfig{Name: events.LogStream, Subjects: []string{events.LogAll}, Discard: jetstream.DiscardNew, DenyDelete: true, DenyPurge: true, AllowDirect: true, MaxAge: time.Hour,
		Metadata: map[string]string{"pdgate_partitions": "8"}}
	if _, err := js.CreateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	weak := look(t, b.ClientURL(), ring.Dir())
	wantFinding(t, weak, preflight.Red, "max age is 1h0m0s")
	wantFinding(t, weak, preflight.Amber, "on 1 server")
	cfg.MaxAge = 0
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	for _, f := range look(t, b.ClientURL(), ring.Dir()) {
		if f.Level == preflight.Red {
			t.Errorf("a sound stream: %+v", f)
		}
	}
}

// TestPreflightReadsSync asks a real server's monitoring port.
func TestPreflightReadsSync(t *testing.T) {
	for _, always := range []bool{true, false} {
		s := plainServer(t, &server.Options{JetStream: true, StoreDir: t.TempDir(), SyncAlways: always, HTTPHost: "127.0.0.1", HTTPPort: -1})
		got := preflight.ReadSync(t.Context(), "http://"+s.MonitorAddr().String(), patience)
		if !got.Known || got.Always != always || !always && got.Interval <= 0 {
			t.Errorf("always %v: %+v", always, got)
		}
	}
	s := plainServer(t, &server.Options{HTTPHost: "127.0.0.1", HTTPPort: -1})
	if got := preflight.ReadSync(t.Context(), "http://"+s.MonitorAddr().String(), patience); got.Known || got.Problem == "" {
		t.Errorf("without JetStream: %+v", got)
	}
}
