package statemachine

import (
	"slices"

	"github.com/pdgate/pdgate/events"
)

// Row is one legal transition. A row whose states are equal is a self-loop: the
// event is recorded and the state stays.
type Row struct {
	Event    events.Type
	From, To events.State
	Doc      string
}

var table = slices.Concat(
	[]Row{
		{events.TypeAdmitted, events.New, events.Admitted, "the prompt fits and somebody can serve it"},
		{events.TypeRejected, events.New, events.Rejected, "refused at admission"},
		{events.TypeRejected, events.Admitted, events.Rejected, "the engine refused before any KV existed"},
		{events.TypePrefilled, events.Admitted, events.Prefilled, "the KV is complete in the prefill worker's pages"},
		{events.TypeTransferGranted, events.Prefilled, events.Prefilled, "one pull of the KV is allowed"},
		{events.TypeTransferred, events.Prefilled, events.Transferred, "the KV arrived whole at the decode worker"},
		{events.TypeDecoded, events.Transferred, events.Decoded, "the output is complete"},
	},
	rows(events.TypeFailed, events.Failed, "an error ended the request",
		events.Admitted, events.Prefilled, events.Transferred),
	rows(events.TypeCancelled, events.Cancelled, "nobody wants the request any more",
		events.Admitted, events.Prefilled, events.Transferred),
	rows(events.TypeReleased, "", "a worker's pages are free again",
		events.Prefilled, events.Transferred, events.Rejected, events.Decoded, events.Failed, events.Cancelled),
	rows(events.TypeDenied, "", "a command was refused where it stood", states...),
)

var states = []events.State{
	events.New, events.Admitted, events.Rejected, events.Prefilled,
	events.Transferred, events.Decoded, events.Failed, events.Cancelled,
}

// rows makes one row for each state; to "" is a self-loop.
func rows(t events.Type, to events.State, doc string, from ...events.State) []Row {
	all := make([]Row, len(from))
	for i, s := range from {
		all[i] = Row{t, s, to, doc}
		if to == "" {
			all[i].To = s
		}
	}
	return all
}

// Table lists every legal transition.
func Table() []Row { return slices.Clone(table) }

// States lists every state.
func States() []events.State { return slices.Clone(states) }

// compiled is the table as a look-up. Fold uses it; a test proves that looplab
// says the same over every pair.
var compiled = compile(table)

// buckets holds rows by a spread of their words: every event of a log is looked
// up several times.
type buckets [64][]Row

func bucket(from events.State, t events.Type) int {
	if len(from) < 2 || len(t) < 10 {
		return 0
	}
	return int(from[0]*7+from[1]*3+t[8]*5+t[9]+byte(len(t))) % len(buckets{})
}

func compile(rows []Row) *buckets {
	var all buckets
	for _, r := range rows {
		i := bucket(r.From, r.Event)
		all[i] = append(all[i], r)
	}
	return &all
}

// Next is the state that the event leads to, and whether the event is legal in
// the state at all.
func Next(from events.State, t events.Type) (to events.State, legal bool) {
	all := compiled[bucket(from, t)]
	for i := range all {
		if r := &all[i]; r.Event == t && r.From == from {
			return r.To, true
		}
	}
	return "", false
}

// CommandRow says who may send a command and which events it may become. The
// first is the one it asks for.
type CommandRow struct {
	Command events.CommandType
	Roles   []events.Role
	Events  []events.Type
	Doc     string
}

const denied = events.TypeDenied

var commands = []CommandRow{
	{events.CmdAdmit, roles(events.RoleGateway), types(events.TypeAdmitted, events.TypeRejected, denied), "open a lifecycle"},
	{events.CmdReject, roles(events.RolePrefill), types(events.TypeRejected, denied), "the engine refused the prompt"},
	{events.CmdPrefilled, roles(events.RolePrefill), types(events.TypePrefilled, denied), "the KV is complete"},
	{events.CmdGrant, roles(events.RoleDecode), types(events.TypeTransferGranted, denied), "ask for the right to pull"},
	{events.CmdTransferred, roles(events.RoleDecode), types(events.TypeTransferred, denied), "the KV arrived"},
	{events.CmdDecoded, roles(events.RoleDecode), types(events.TypeDecoded, denied), "the output is complete"},
	{events.CmdFail, roles(events.RoleGateway, events.RolePrefill, events.RoleDecode, events.RoleLifecycle), types(events.TypeFailed, denied), "end the request with an error"},
	{events.CmdCancel, roles(events.RoleGateway, events.RoleOperator, events.RoleLifecycle), types(events.TypeCancelled, denied), "end a request that nobody wants"},
	{events.CmdReleased, roles(events.RolePrefill, events.RoleDecode, events.RoleLifecycle), types(events.TypeReleased, denied), "pages are free again"},
	{events.CmdRegister, roles(events.RolePrefill, events.RoleDecode), types(events.TypeWorkerJoined, denied), "announce one life of a worker"},
	{events.CmdLeave, roles(events.RolePrefill, events.RoleDecode, events.RoleLifecycle), types(events.TypeWorkerLeft, denied), "end one life of a worker"},
	{events.CmdQuarantine, roles(events.RoleOperator, events.RoleCanary, events.RoleLifecycle), types(events.TypeModelQuarantined, denied), "stop admissions of a model"},
	{events.CmdRestore, roles(events.RoleOperator), types(events.TypeModelRestored, denied), "allow admissions again"},
	{events.CmdErase, roles(events.RoleOperator), types(events.TypeTenantErased, denied), "give up a tenant's key, and with it what its digests stand for"},
	{events.CmdCanary, roles(events.RoleCanary), types(events.TypeCanaryRan, denied), "record a run of the canary"},
	{events.CmdNotify, roles(events.RoleOperator), types(events.TypeTenantNotified, denied), "record that a tenant was told"},
	{events.CmdAudit, roles(events.RoleAuditor), types(events.TypeAuditRead, denied), "record a read of the audit log"},
	{events.CmdTrim, roles(events.RoleLifecycle), types(events.TypeLogTrimmed, denied), "let the beginning of the log leave the live stream"},
}

func roles(r ...events.Role) []events.Role { return r }
func types(t ...events.Type) []events.Type { return t }

// Commands lists every command.
func Commands() []CommandRow { return slices.Clone(commands) }

var commandRows = func() map[events.CommandType]*CommandRow {
	m := map[events.CommandType]*CommandRow{}
	for i := range commands {
		m[commands[i].Command] = &commands[i]
	}
	return m
}()

// ForOps says whether the command belongs on pdgate.log.ops.
func (r *CommandRow) ForOps() bool {
	switch r.Command {
	case events.CmdRegister, events.CmdLeave, events.CmdQuarantine, events.CmdRestore, events.CmdErase, events.CmdNotify, events.CmdCanary, events.CmdAudit, events.CmdTrim:
		return true
	}
	return false
}
