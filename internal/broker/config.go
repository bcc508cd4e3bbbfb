package broker

import (
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
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
		{accountLog, "jetstream: enabled\n" + exports(shared{accountAudit, logReads}, shared{accountTrim, logTrims}) +
			imports(taken{accountAudit, mapped(signedReads, signedSubject)})},
		{accountWork, "jetstream: enabled\n" + exports(shared{accountBus, slices.Concat(workTakes, workKeeps, []string{events.WorkAll})})},
		{accountBus, imports(
			taken{accountWork, mapped(workTakes, same)}, taken{accountWork, mapped(workKeeps, workSubject)}, taken{accountWork, mapped([]string{events.WorkAll}, same)},
			taken{accountAudit, mapped([]string{events.ReceiptAll}, same)})},
		{accountAudit, "jetstream: enabled\n" + exports(shared{accountLog, signedReads}, shared{accountBus, []string{events.ReceiptAll}}) +
			imports(taken{accountLog, mapped(logReads, auditSubject)})},
		{accountTrim, imports(taken{accountLog, mapped(logTrims, auditSubject)})},
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

// pullThreshold is how long the server keeps the way back for the answers to a
// worker's pull. Each pull leaves one behind until then, so it is short; it is
// above the 30 s for which NATS's own clients keep a pull open.
const pullThreshold = "40s"

// shared are services of one account that another one may import.
type shared struct {
	to       account
	subjects []string
}

// exports is an account's list of services for others.
func exports(services ...shared) string {
	var b strings.Builder
	b.WriteString("    exports: [\n")
	for _, e := range services {
		for _, s := range e.subjects {
			response := ""
			switch { // the batch of a pull or of a direct get has many answers
			case strings.Contains(s, ".MSG.NEXT."+events.WorkStream+"."):
				response = ", response_type: stream, response_threshold: " + quote(pullThreshold)
			case strings.Contains(s, ".MSG.NEXT."), strings.Contains(s, ".DIRECT.GET."):
				response = ", response_type: stream"
			}
			fmt.Fprintf(&b, "      { service: %s, accounts: [%s]%s }\n", quote(s), e.to, response)
		}
	}
	b.WriteString("    ]\n")
	return b.String()
}

// taken are services that an account imports: what mapped made.
type taken struct {
	from     account
	services [][2]string
}

// imports is an account's list of others' services.
func imports(accounts ...taken) string {
	var b strings.Builder
	b.WriteString("    imports: [\n")
	for _, t := range accounts {
		for _, s := range t.services {
			fmt.Fprintf(&b, "      { service: { account: %s, subject: %s }, to: %s }\n", t.from, quote(s[0]), quote(s[1]))
		}
	}
	b.WriteString("    ]\n")
	return b.String()
}

// mapped pairs each subject with its name in the account that imports it.
func mapped(subjects []string, name func(string) string) [][2]string {
	pairs := make([][2]string, len(subjects))
	for i, s := range subjects {
		pairs[i] = [2]string{s, name(s)}
	}
	return pairs
}

func same(s string) string { return s }
