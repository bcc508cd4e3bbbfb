package broker

import (
	"fmt"
	"strings"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/internal/keyring"
)

// account names a NATS account.
type account string

const (
	accountLog       account = "LOG"
	accountWork      account = "WORK"
	accountBus       account = "BUS"
	accountAudit     account = "AUDIT"
	accountDisclosed account = "DISCLOSURES"
	accountTrim      account = "TRIM"
)

// rights is what one user may do. An empty list means nothing at all, never
// everything.
type rights struct {
	account   account
	publish   []string
	subscribe []string
}

const js = "$JS.API."

// logReads is the read half of JetStream's API on the log: what the auditor's
// account imports. Creating a consumer is reading: its deliver subject cannot
// lie in the stream that it reads, and LOG has no other. Deleting one is not,
// since it might be lifecycle's.
var logReads = []string{
	js + "STREAM.INFO." + events.LogStream,
	js + "STREAM.MSG.GET." + events.LogStream,
	js + "DIRECT.GET." + events.LogStream,
	js + "DIRECT.GET." + events.LogStream + ".>",
	js + "CONSUMER.CREATE." + events.LogStream,
	js + "CONSUMER.CREATE." + events.LogStream + ".>",
	js + "CONSUMER.INFO." + events.LogStream + ".*",
	js + "CONSUMER.MSG.NEXT." + events.LogStream + ".*",
}

// logTrims takes the beginning off the log: what TRIM imports. It is an account of
// its own for the same reason as AUDIT: inside LOG the answer to a purge could be
// sent into the log itself.
var logTrims = []string{js + "STREAM.INFO." + events.LogStream, js + "STREAM.PURGE." + events.LogStream}

// AuditDomain is the JetStream domain under which the accounts AUDIT and TRIM see the
// log: jetstream.NewWithDomain, or `nats --js-domain`. The subjects need a name
// of their own, because every account without JetStream answers the plain ones
// with an error.
const AuditDomain = "log"

func auditSubject(s string) string { return inDomain(AuditDomain, s) }

// signedReads lets lifecycle read the last signed tree, which says how much of
// the log the tiles hold for good, and the eraser whether a legal hold is on.
var signedReads = []string{js + "STREAM.MSG.GET." + events.AuditStream}

// signedSubject is where both find a subject of signedReads.
func signedSubject(s string) string { return inDomain(events.AuditDomain, s) }

// workTakes is what workers use of the work stream: they ask for messages and
// acknowledge them. One export for all consumers: the server lets no message
// through an export that it came out of, so an answer to a pull is never taken
// for another pull.
var workTakes = []string{
	js + "CONSUMER.MSG.NEXT." + events.WorkStream + ".*",
	"$JS.ACK." + events.WorkStream + ".>",
}

// workKeeps is what lifecycle uses of JetStream's API to keep the work stream: it
// makes what is missing and counts what waits. Any user of BUS can have the
// server send something to these subjects, so there is nothing here that takes
// away: no PURGE, DELETE or UPDATE of the stream, no DELETE of a consumer.
var workKeeps = []string{
	js + "STREAM.INFO." + events.WorkStream,
	js + "STREAM.CREATE." + events.WorkStream,
	js + "CONSUMER.CREATE." + events.WorkStream + ".>",
	js + "CONSUMER.INFO." + events.WorkStream + ".*",
}

// workSubject is where lifecycle finds a subject of workKeeps.
func workSubject(s string) string { return inDomain(events.WorkDomain, s) }

// disclosedKeeps is what lifecycle uses of JetStream's API to make the stream of
// disclosures. As with workKeeps, any user of BUS can have the server send
// something there: there is nothing here that reads or takes away.
var disclosedKeeps = []string{
	js + "STREAM.INFO." + events.DisclosureStream,
	js + "STREAM.CREATE." + events.DisclosureStream,
}

// disclosedSubject is where lifecycle finds a subject of disclosedKeeps.
func disclosedSubject(s string) string { return inDomain(events.DisclosureDomain, s) }

func inDomain(domain, s string) string {
	return "$JS." + domain + ".API." + strings.TrimPrefix(s, js)
}

// userRights is the whole table. models limits workers to the queues of these
// models; nil lets a worker read every queue, of both roles.
func userRights(u keyring.User, names keyring.Names, models []string) (rights, error) {
	inbox, name := u.InboxPrefix()+".>", u.Principal()
	switch u {
	case keyring.LifecycleLog:
		return rights{accountLog, append([]string{
			events.LogAll,
			js + "INFO",
			// Never UPDATE, DELETE, PURGE or MSG.DELETE: an update to a short MaxAge
			// empties a stream that denies deletes and purges.
			js + "STREAM.CREATE." + events.LogStream,
			js + "CONSUMER.DURABLE.CREATE." + events.LogStream + ".*",
			js + "CONSUMER.DELETE." + events.LogStream + ".*",
			"$JS.ACK." + events.LogStream + ".>",
			"$JS.FC." + events.LogStream + ".>",
			signedSubject(signedReads[0]),
		}, logReads...), []string{inbox}}, nil

	case keyring.LifecycleTrim:
		// A purge may take the whole stream: there is no right to a part of it. So
		// this user does nothing else, and lifecycle uses it for nothing else.
		var pub []string
		for _, s := range logTrims {
			pub = append(pub, auditSubject(s))
		}
		return rights{accountTrim, pub, []string{inbox}}, nil

	case keyring.Admin:
		return rights{accountLog, []string{">"}, []string{">"}}, nil

	case keyring.Auditor:
		pub := []string{
			// Its own stream, and nothing that takes away from it: not even the signer
			// can make its last signature unread.
			js + "STREAM.CREATE." + events.AuditStream,
			js + "STREAM.INFO." + events.AuditStream,
			js + "STREAM.MSG.GET." + events.AuditStream,
			events.AuditSigned,
			// Answers: to BUS by way of the import, to its own tools, and to the
			// server's questions about the service.
			"_R_.>", inbox,
			events.ReceiptSubject(events.RoleAuditor, name), "$SRV.>",
		}
		for _, s := range logReads {
			pub = append(pub, auditSubject(s))
		}
		return rights{accountAudit, pub, []string{events.ReceiptAll, "$SRV.>", inbox}}, nil

	case keyring.LifecycleBus:
		// Not pdgate.v1.>: an answer is no command, wherever a reply subject points.
		pub := []string{"_INBOX.>", events.NotifyAll, events.WorkAll, "pdgate.replica.>"}
		for _, s := range workKeeps {
			pub = append(pub, workSubject(s))
		}
		for _, s := range disclosedKeeps {
			pub = append(pub, disclosedSubject(s))
		}
		return rights{accountBus, pub, []string{"pdgate.v1.>", "pdgate.replica.>", "$SRV.>", events.NotifyAll, inbox}}, nil

	case keyring.Eraser:
		// Reads and purges; it writes nothing, and cannot change or delete the stream.
		return rights{accountDisclosed, []string{
			js + "STREAM.INFO." + events.DisclosureStream,
			js + "STREAM.MSG.GET." + events.DisclosureStream,
			js + "STREAM.PURGE." + events.DisclosureStream,
			signedSubject(signedReads[0]),
		}, []string{inbox}}, nil

	case keyring.Operator:
		return rights{accountBus,
			append(commands(u), "$SRV.>"),
			[]string{events.NotifyAll, inbox}}, nil
	}

	switch role := u.Role(); role {
	case events.RoleAuditor, events.RoleCanary:
		return rights{accountBus, commands(u), []string{inbox}}, nil
	case events.RoleGateway:
		// A gateway answers workers who ask for prompts, and nobody else.
		pub := append(commands(u), events.ReceiptSubject(role, name), events.DisclosureAll)
		for _, w := range workers(names) {
			pub = append(pub, w.InboxPrefix()+".>")
		}
		return rights{accountBus, pub, []string{
			"pdgate.prompt." + name + ".>", "pdgate.output." + name + ".>", events.NotifyAll, inbox}}, nil

	case events.RolePrefill, events.RoleDecode:
		pub := append(commands(u),
			events.HeartbeatSubject(role, name),
			events.PromptSubject("*", role, name, "*"))
		if role == events.RoleDecode {
			pub = append(pub, events.OutputSubject("*", name, "*"))
		}
		consumers := []string{"*"}
		if models != nil {
			consumers = consumers[:0]
			for _, m := range models {
				consumers = append(consumers, events.WorkConsumer(m, role))
			}
		}
		for _, c := range consumers {
			pub = append(pub,
				js+"CONSUMER.MSG.NEXT."+events.WorkStream+"."+c,
				"$JS.ACK."+events.WorkStream+"."+c+".>")
		}
		return rights{accountBus, pub, []string{events.NotifyAll, inbox}}, nil
	}
	return rights{}, fmt.Errorf("user %q has no row in the permission table", u)
}

// commands is what events.Role allows, plus queries, all under the user's own
// name.
func commands(u keyring.User) []string {
	role, name := u.Role(), u.Principal()
	var s []string
	for _, c := range role.Allowed() {
		s = append(s, "pdgate.v1."+string(role)+"."+name+"."+string(c)+".>")
	}
	return append(s, events.QuerySubject(role, name, ">"))
}

func workers(names keyring.Names) []keyring.User {
	var users []keyring.User
	for _, w := range names.Prefill {
		users = append(users, keyring.Worker(events.RolePrefill, w))
	}
	for _, w := range names.Decode {
		users = append(users, keyring.Worker(events.RoleDecode, w))
	}
	return users
}
