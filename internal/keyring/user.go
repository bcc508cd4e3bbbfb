package keyring

import (
	"fmt"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// User is a NATS user: the name of its key file without the ".nk".
type User string

// Users that every installation has once.
const (
	LifecycleLog  User = "lifecycle-log"  // appends to and reads the log
	LifecycleBus  User = "lifecycle-bus"  // answers commands; has no right on the log
	LifecycleTrim User = "lifecycle-trim" // takes the beginning off the log, and has no other right
	Operator      User = "operator"       // people: queries, cancel, quarantine
	Canary        User = "canary"         // probes: records its runs, and quarantines
	Auditor       User = "auditor"        // reads the log
	AuditorBus    User = "auditor-bus"    // records who reads the audit log; has no right on either
	Eraser        User = "eraser"         // reads and purges disclosures
	Admin         User = "admin"          // every right in the log's account: the only one that can change or delete the stream
)

// Gateway is the user of a gateway.
func Gateway(name string) User { return User("gateway-" + name) }

// Worker is the user of a worker with role prefill or decode.
func Worker(role events.Role, name string) User { return User(string(role) + "-" + name) }

// Role is the role that the user's permissions pin. Lifecycle's three users,
// eraser and admin have none on the command subjects.
func (u User) Role() events.Role {
	switch u {
	case LifecycleLog, LifecycleBus, LifecycleTrim, Eraser, Admin:
		return events.RoleLifecycle
	case Operator:
		return events.RoleOperator
	case Canary:
		return events.RoleCanary
	case Auditor, AuditorBus:
		return events.RoleAuditor
	}
	role, _, _ := strings.Cut(string(u), "-")
	return events.Role(role)
}

// Principal is the name that the user speaks under.
func (u User) Principal() string {
	switch u {
	case LifecycleLog, LifecycleBus, LifecycleTrim, Operator, Canary, Auditor, Eraser, Admin:
		return string(u)
	case AuditorBus:
		return string(Auditor)
	}
	_, name, _ := strings.Cut(string(u), "-")
	return name
}

// InboxPrefix is where the user receives answers, and the only inbox it may
// listen on: "_INBOX.<role>-<principal>".
func (u User) InboxPrefix() string {
	switch u {
	case LifecycleLog, LifecycleBus, LifecycleTrim, Eraser, Admin:
		return "_INBOX." + string(u)
	}
	return "_INBOX." + string(u.Role()) + "-" + u.Principal()
}

// Names lists the principals of an installation. A name is 1 to 64 letters,
// digits, '-' and '_': it becomes a file name and a subject token.
type Names struct {
	Gateways, Prefill, Decode []string
}

// Users lists every user of the installation.
func (n Names) Users() []User {
	users := []User{LifecycleLog, LifecycleBus, LifecycleTrim, Operator, Canary, Auditor, AuditorBus, Eraser, Admin}
	for _, g := range n.Gateways {
		users = append(users, Gateway(g))
	}
	for _, w := range n.Prefill {
		users = append(users, Worker(events.RolePrefill, w))
	}
	for _, w := range n.Decode {
		users = append(users, Worker(events.RoleDecode, w))
	}
	return users
}

// validate also refuses a name given twice: two processes under one name would
// answer each other's mail.
func (n Names) validate() error {
	for _, l := range []struct {
		kind  string
		names []string
	}{{"gateway", n.Gateways}, {"prefill worker", n.Prefill}, {"decode worker", n.Decode}} {
		seen := map[string]bool{}
		for _, name := range l.names {
			if !events.ValidName(name) || strings.ContainsAny(name, "/:") {
				return fmt.Errorf("%s name %q: want 1 to 64 letters, digits, '-' and '_'", l.kind, name)
			}
			if seen[name] {
				return fmt.Errorf("%s name %q is given twice", l.kind, name)
			}
			seen[name] = true
		}
	}
	return nil
}
