package natsclient

import (
	"context"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/internal/broker"
	"github.com/pdgate/pdgate/internal/keyring"
)

func openRing(t *testing.T) *keyring.Ring {
	t.Helper()
	ring, err := keyring.Open(filepath.Join(t.TempDir(), "keys"), keyring.Names{Gateways: []string{"gw1"}})
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// lineWriter hands each log line to a channel.
type lineWriter chan string

func (w lineWriter) Write(p []byte) (int, error) {
	select {
	case w <- string(p):
	default:
	}
	return len(p), nil
}

func TestForbiddenSubjectIsLogged(t *testing.T) {
	ring := openRing(t)
	b, err := broker.Start(broker.Config{StoreDir: t.TempDir(), Ring: ring, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Shutdown()
	lines := make(lineWriter, 16)
	nc, err := Connect(t.Context(), Config{InProcess: b.InProcess(), Ring: ring, User: keyring.Gateway("gw1"), Logger: slog.New(slog.NewJSONHandler(lines, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.Publish("pdgate.log.0", []byte("forged")); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	select {
	case line := <-lines:
		var m map[string]any
		if err := json.Unmarshal([]byte(line), &m); err != nil {
			t.Fatal(err)
		}
		if m["level"] != "ERROR" || m["nats_user"] != "gateway-gw1" || !strings.Contains(m["err"].(string), "pdgate.log.0") || !strings.Contains(m["msg"].(string), "forbids") {
			t.Errorf("line %s", line)
		}
		if strings.Contains(line, "forged") {
			t.Errorf("the payload is in the line: %s", line)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("no line")
	}
}

func TestConnectErrors(t *testing.T) {
	ring := openRing(t)
	b, err := broker.Start(broker.Config{StoreDir: t.TempDir(), Port: -1, Ring: ring, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Shutdown()
	_, err = Connect(t.Context(), Config{URL: b.ClientURL(), Ring: openRing(t), User: keyring.Operator, Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "operator.nk") {
		t.Errorf("foreign key: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Connect(ctx, Config{URL: "nats://127.0.0.1:1", Ring: ring, User: keyring.Operator, Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "nats://127.0.0.1:1") {
		t.Errorf("nobody there: %v", err)
	}
}
