package broker

import (
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// Durability says when JetStream calls fsync.
type Durability string

const (
	// FsyncAlways: an acknowledged event is on disk. The default.
	FsyncAlways Durability = "fsync"
	// FsyncInterval: on disk within two minutes. A power cut loses what was
	// acknowledged since; a killed process does not.
	FsyncInterval Durability = "interval"
)

// Config describes the server.
type Config struct {
	StoreDir   string        // JetStream's files; created when missing
	Host       string        // empty: 127.0.0.1
	Port       int           // 0: in-process connections only; -1: a free port
	Durability Durability    // empty: FsyncAlways
	Models     []string      // whose work queues workers may read; nil: all of them, of both roles
	Ring       *keyring.Ring // opened, not loaded: it knows the names
	Logger     *slog.Logger  // nil: slog.Default()
}

func (c Config) withDefaults() (Config, error) {
	if c.Host == "" {
		c.Host = "127.0.0.1"
	}
	if c.Durability == "" {
		c.Durability = FsyncAlways
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	switch {
	case c.StoreDir == "":
		return c, fmt.Errorf("broker: StoreDir is empty")
	case c.Ring == nil:
		return c, fmt.Errorf("broker: Ring is nil")
	case c.Port < -1 || c.Port > 65535:
		return c, fmt.Errorf("broker: port %d is out of range", c.Port)
	case c.Durability != FsyncAlways && c.Durability != FsyncInterval:
		return c, fmt.Errorf("broker: durability %q is neither %q nor %q", c.Durability, FsyncAlways, FsyncInterval)
	}
	for _, m := range c.Models {
		if !events.ValidModel(m) {
			return c, fmt.Errorf("broker: model name %q is not valid", m)
		}
	}
	return c, nil
}

// Text is the server's configuration in NATS's own form, with public keys only.
// A server that others run takes the part from "accounts" on as it is.
func (c Config) Text() (string, error) {
	c, err := c.withDefaults()
	if err != nil {
		return "", err
	}
	var b strings.Builder
	store, err := filepath.Abs(c.StoreDir)
	if err != nil {
		return "", fmt.Errorf("store directory: %w", err)
	}
	fmt.Fprintf(&b, "listen: %s\n", quote(net.JoinHostPort(c.Host, strconv.Itoa(c.Port))))
	b.WriteString("jetstream {\n  store_dir: " + quote(store) + "\n  max_memory_store: 256MB\n")
	if c.Durability == FsyncAlways {
		b.WriteString("  sync_interval: always\n")
	}
	b.WriteString("}\naccounts {\n")
	for _, a := range []struct {
		name account
		head string
	}{
		{accountLog, "jetstream: enabled\n    exports: [\n" + lines(logReads, func(s string) string {
			response := ""
			if strings.Contains(s, ".MSG.NEXT.") || strings.Contains(s, ".DIRECT.GET.") {
				response = ", response_type: stream" // a batch has many answers
			}
			return fmt.Sprintf("{ service: %s, accounts: [AUDIT]%s }", quote(s), response)
		}) + "    ]\n"},
		{accountBus, "jetstream: enabled\n"},
		{accountAudit, "imports: [\n" + lines(logReads, func(s string) string {
			return fmt.Sprintf("{ service: { account: LOG, subject: %s }, to: %s }", quote(s), quote(auditSubject(s)))
		}) + "    ]\n"},
	} {
		fmt.Fprintf(&b, "  %s {\n    %s    users: [\n", a.name, a.head)
		for _, u := range c.Ring.Names().Users() {
			r, err := userRights(u, c.Ring.Names(), c.Models)
			if err != nil {
				return "", err
			}
			if r.account != a.name {
				continue
			}
			key, err := c.Ring.PublicKey(u)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&b, "      { nkey: %s, permissions: {  # %s\n          publish: [%s]\n          subscribe: [%s] } }\n",
				key, u, list(r.publish), list(r.subscribe))
		}
		b.WriteString("    ]\n  }\n")
	}
	b.WriteString("}\n")
	return b.String(), nil
}

func quote(s string) string { return strconv.Quote(s) }

func list(s []string) string {
	q := make([]string, len(s))
	for i, v := range s {
		q[i] = quote(v)
	}
	return strings.Join(q, ", ")
}

func lines(s []string, f func(string) string) string {
	var b strings.Builder
	for _, v := range s {
		b.WriteString("      " + f(v) + "\n")
	}
	return b.String()
}
