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

	// The rest is for a configuration that is written for a server elsewhere.
	Name    string   // of the server; a cluster wants one
	Monitor string   // HOST:PORT of the server's health and statistics; empty: none
	TLS     *TLS     // for clients; nil: none
	Cluster *Cluster // nil: the server is alone
}

// TLS names files on the server's machine.
type TLS struct {
	Cert, Key string
	CA        string // signs the other servers' certificates
}

// Cluster makes several servers one. Its routes are under the TLS of [Config],
// and each side proves itself.
type Cluster struct {
	Name   string
	Listen string   // HOST:PORT for the other servers
	Routes []string // HOST:PORT of all servers; the own one may be among them
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
	case c.Cluster != nil && (c.Name == "" || c.Cluster.Name == "" || c.Cluster.Listen == ""):
		return c, fmt.Errorf("broker: a server of a cluster wants a Name, and the cluster a Name and a Listen")
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
	b.WriteString("}\n")
	c.writePeers(&b)
	b.WriteString("accounts {\n")
	for _, a := range []struct {
		name account
		head string
	}{
		{accountLog, "jetstream: enabled\n" + exports(shared{logReads, []account{accountAudit}}, shared{logTrims, []account{accountTrim}}) +
			imports(taken{accountAudit, mapped(signedReads, signedSubject)})},
		{accountWork, "jetstream: enabled\n" + exports(shared{slices.Concat(workTakes, workKeeps, []string{events.WorkAll}), []account{accountBus}})},
		{accountBus, imports(
			taken{accountWork, mapped(workTakes, same)}, taken{accountWork, mapped(workKeeps, workSubject)}, taken{accountWork, mapped([]string{events.WorkAll}, same)},
			taken{accountAudit, mapped([]string{events.ReceiptAll}, same)},
			taken{accountDisclosed, mapped(disclosedKeeps, disclosedSubject)}, taken{accountDisclosed, mapped([]string{events.DisclosureAll}, same)})},
		{accountAudit, "jetstream: enabled\n" + exports(shared{signedReads, []account{accountLog, accountDisclosed}}, shared{[]string{events.ReceiptAll}, []account{accountBus}}) +
			imports(taken{accountLog, mapped(logReads, auditSubject)})},
		{accountDisclosed, "jetstream: enabled\n" + exports(shared{append(slices.Clone(disclosedKeeps), events.DisclosureAll), []account{accountBus}}) +
			imports(taken{accountAudit, mapped(signedReads, signedSubject)})},
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

// writePeers writes what a server of several has beside its accounts.
func (c Config) writePeers(b *strings.Builder) {
	if c.Name != "" {
		fmt.Fprintf(b, "server_name: %s\n", quote(c.Name))
	}
	if c.Monitor != "" {
		fmt.Fprintf(b, "http: %s\n", quote(c.Monitor))
	}
	files := func(more string) string {
		if c.TLS == nil {
			return ""
		}
		return fmt.Sprintf("tls { cert_file: %s, key_file: %s, ca_file: %s, timeout: 5%s }\n", quote(c.TLS.Cert), quote(c.TLS.Key), quote(c.TLS.CA), more)
	}
	b.WriteString(files(""))
	if c.Cluster == nil {
		return
	}
	routes := make([]string, len(c.Cluster.Routes))
	for i, r := range c.Cluster.Routes {
		routes[i] = "nats://" + r
	}
	fmt.Fprintf(b, "cluster {\n  name: %s\n  listen: %s\n  no_advertise: true\n  routes: [%s]\n  %s}\n",
		quote(c.Cluster.Name), quote(c.Cluster.Listen), list(routes), files(", verify: true"))
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

// shared are services of one account that others may import.
type shared struct {
	subjects []string
	to       []account
}

// exports is an account's list of services for others.
func exports(services ...shared) string {
	var b strings.Builder
	b.WriteString("    exports: [\n")
	for _, e := range services {
		var to []string
		for _, a := range e.to {
			to = append(to, string(a))
		}
		for _, s := range e.subjects {
			response := ""
			switch { // the batch of a pull or of a direct get has many answers
			case strings.Contains(s, ".MSG.NEXT."+events.WorkStream+"."):
				response = ", response_type: stream, response_threshold: " + quote(pullThreshold)
			case strings.Contains(s, ".MSG.NEXT."), strings.Contains(s, ".DIRECT.GET."):
				response = ", response_type: stream"
			}
			fmt.Fprintf(&b, "      { service: %s, accounts: [%s]%s }\n", quote(s), strings.Join(to, ", "), response)
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
