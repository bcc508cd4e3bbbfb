package events

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// Names of streams and fixed subjects. The log and the work stream live in NATS
// accounts of their own; everything else, and the subjects through which work is
// queued and taken, lives in the account that gateways, workers and people
// connect to.
const (
	LogStream  = "PDGATE"
	LogPrefix  = "pdgate.log."
	LogOps     = "pdgate.log.ops"
	LogAll     = "pdgate.log.>"
	WorkStream = "PDGATE_WORK"
	WorkAll    = "pdgate.work.>"
	WorkDomain = "work" // JetStream domain under which lifecycle sees the work stream
	NotifyAll  = "pdgate.notify.>"

	AuditStream = "PDGATE_AUDIT"
	AuditSigned = "pdgate.audit.signed" // the last signed tree, written under a compare-and-swap
	AuditDomain = "audit"               // JetStream domain under which lifecycle sees the audit stream
	ReceiptAll  = "pdgate.audit.receipt.*.*"

	DisclosureStream = "PDGATE_DISCLOSURES"
	DisclosureAll    = "pdgate.disclosed.>"
	DisclosureDomain = "disclosures" // JetStream domain under which lifecycle makes the stream

	commandPrefix = "pdgate.v1."
	opsToken      = "ops"
	anyToken      = "any"
	queryToken    = "query"
	beatToken     = "heartbeat"
)

// OpsPartition stands for pdgate.log.ops where a partition number is asked for.
const OpsPartition = -1

// LogSubject is where a partition's envelopes are stored.
func LogSubject(partition int) string {
	if partition == OpsPartition {
		return LogOps
	}
	return LogPrefix + strconv.Itoa(partition)
}

// ParseLogSubject reverses LogSubject.
func ParseLogSubject(subject string) (partition int, err error) {
	s, ok := strings.CutPrefix(subject, LogPrefix)
	return parsePartition(s, ok, subject)
}

func partitionToken(p int) string {
	if p == OpsPartition {
		return opsToken
	}
	return strconv.Itoa(p)
}

func parsePartition(s string, ok bool, subject string) (int, error) {
	if s == opsToken && ok {
		return OpsPartition, nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if !ok || err != nil || strconv.FormatUint(n, 10) != s {
		return 0, fmt.Errorf("subject %q: want a partition number or %q", subject, opsToken)
	}
	return int(n), nil
}

// CommandSubject addresses a command to the preferred replica of its partition.
func CommandSubject(role Role, principal string, c CommandType, partition int) string {
	return commandPrefix + string(role) + "." + principal + "." + string(c) + "." + partitionToken(partition)
}

// CommandSubjectAny addresses a command to every replica: for when the preferred
// one is silent. The log makes one answer count.
func CommandSubjectAny(role Role, principal string, c CommandType, partition int) string {
	return commandPrefix + string(role) + "." + principal + "." + string(c) + "." + anyToken + "." + partitionToken(partition)
}

// ReceiptSubject addresses a request for a receipt's proof to any auditor.
func ReceiptSubject(role Role, principal string) string {
	return "pdgate.audit.receipt." + string(role) + "." + principal
}

// QuerySubject addresses a query (get, history, list, workers, info) to any replica.
func QuerySubject(role Role, principal, query string) string {
	return commandPrefix + string(role) + "." + principal + "." + queryToken + "." + query
}

// HeartbeatSubject carries a worker's signs of life.
func HeartbeatSubject(role Role, principal string) string {
	return commandPrefix + string(role) + "." + principal + "." + beatToken
}

// Address is what a subject under pdgate.v1 says.
type Address struct {
	Role      Role
	Principal string
	Verb      string // a command, a query's name, or "heartbeat"
	Query     bool
	Any       bool // sent to every replica
	Partition int  // commands only
}

// ParseAddress reads a subject under pdgate.v1.
func ParseAddress(subject string) (Address, error) {
	bad := func() (Address, error) { return Address{}, fmt.Errorf("subject %q: not a pdgate.v1 subject", subject) }
	rest, ok := strings.CutPrefix(subject, commandPrefix)
	t := strings.Split(rest, ".")
	if !ok || len(t) < 3 || !ValidName(t[1]) {
		return bad()
	}
	a := Address{Role: Role(t[0]), Principal: t[1], Verb: t[2]}
	var err error
	switch {
	case len(t) == 3 && t[2] == beatToken:
		return a, nil
	case len(t) == 4 && t[2] == queryToken:
		a.Verb, a.Query = t[3], true
		return a, nil
	case len(t) == 4:
		a.Partition, err = parsePartition(t[3], true, subject)
	case len(t) == 5 && t[3] == anyToken:
		a.Any = true
		a.Partition, err = parsePartition(t[4], true, subject)
	default:
		return bad()
	}
	return a, err
}

// Token makes a model's name a subject token: NATS splits at '.', which model
// names hold ("llama-3.1"), and no valid name holds '~'.
func Token(model string) string { return strings.ReplaceAll(model, ".", "~") }

// ValidModel says whether s can name a model: as ValidName, with '.' inside.
func ValidModel(s string) bool {
	return !strings.HasPrefix(s, ".") && !strings.HasSuffix(s, ".") && !strings.Contains(s, "..") && ValidName(strings.ReplaceAll(s, ".", "-"))
}

// NotifySubject carries the events of a model's requests in one partition after
// they are durable, see [Notice].
func NotifySubject(model string, partition int) string {
	return "pdgate.notify." + Token(model) + "." + partitionToken(partition)
}

// WorkSubject is the queue of a model's work for one role.
func WorkSubject(model string, role Role) string {
	return "pdgate.work." + Token(model) + "." + string(role)
}

// WorkConsumer names the durable consumer of that queue. Consumer names allow
// less than subjects do, so the model is hashed.
func WorkConsumer(model string, role Role) string {
	h := sha256.Sum256([]byte(model))
	return string(role) + "-" + hex.EncodeToString(h[:6])
}

// PromptSubject is where a worker asks the gateway for a request's prompt.
func PromptSubject(gateway string, role Role, worker, requestID string) string {
	return "pdgate.prompt." + gateway + "." + string(role) + "." + worker + "." + requestID
}

// OutputSubject carries a request's output from its decode worker to its gateway.
func OutputSubject(gateway, worker, requestID string) string {
	return "pdgate.output." + gateway + "." + worker + "." + requestID
}

// DisclosureSubject is where the sealed personal fields of a request lie; "*" stands
// for any tenant, ">" in the request's place for all of them.
func DisclosureSubject(tenant, requestID string) string {
	return "pdgate.disclosed." + tenant + "." + requestID
}

// ReplicaSubject carries lifecycle replicas' heartbeats among themselves.
func ReplicaSubject(replica string) string { return "pdgate.replica." + replica }

// Allowed says which commands a role may send. The embedded server's user
// permissions and the service's own check derive from this one table.
func (r Role) Allowed() []CommandType {
	switch r {
	case RoleGateway:
		return []CommandType{CmdAdmit, CmdCancel, CmdFail}
	case RolePrefill:
		return []CommandType{CmdReject, CmdPrefilled, CmdFail, CmdReleased, CmdRegister, CmdLeave}
	case RoleDecode:
		return []CommandType{CmdGrant, CmdTransferred, CmdDecoded, CmdFail, CmdReleased, CmdRegister, CmdLeave}
	case RoleOperator:
		return []CommandType{CmdCancel, CmdQuarantine, CmdRestore, CmdErase, CmdNotify}
	case RoleCanary:
		return []CommandType{CmdQuarantine, CmdCanary}
	case RoleAuditor:
		return []CommandType{CmdAudit}
	}
	return nil
}

// May says whether the role may send the command.
func (r Role) May(c CommandType) bool {
	for _, a := range r.Allowed() {
		if a == c {
			return true
		}
	}
	return false
}
