package events

import (
	"maps"
	"slices"
)

var allTypes = []Type{
	TypeAdmitted, TypeRejected, TypePrefilled, TypeTransferGranted, TypeTransferred, TypeDecoded,
	TypeFailed, TypeCancelled, TypeReleased, TypeDenied,
	TypeWorkerJoined, TypeWorkerLeft, TypeModelQuarantined, TypeModelRestored, TypeTenantErased, TypeTenantNotified, TypeCanaryRan, TypeAuditRead, TypeLogTrimmed,
}

var allStates = []State{New, Admitted, Rejected, Prefilled, Transferred, Decoded, Failed, Cancelled}

var allRoles = []Role{RoleGateway, RolePrefill, RoleDecode, RoleOperator, RoleCanary, RoleAuditor, RoleLifecycle}

var allCommandTypes = []CommandType{
	CmdAdmit, CmdReject, CmdPrefilled, CmdGrant, CmdTransferred, CmdDecoded, CmdFail, CmdCancel, CmdReleased,
	CmdRegister, CmdLeave, CmdQuarantine, CmdRestore, CmdErase, CmdNotify, CmdCanary, CmdAudit, CmdTrim,
}

var allFinishReasons = []FinishReason{FinishStop, FinishLength}

// Words by their wire form. Reading looks them up with the bytes at hand, so
// that a word costs no allocation.
var (
	types         = index(allTypes)
	states        = index(allStates)
	roles         = index(allRoles)
	commandTypes  = index(allCommandTypes)
	finishReasons = index(allFinishReasons)
	codes         = index(AllCodes())
)

func index[T ~string](all []T) map[string]T {
	m := make(map[string]T, len(all))
	for _, w := range all {
		m[string(w)] = w
	}
	return m
}

// AllTypes lists the newest version of every event type.
func AllTypes() []Type { return slices.Clone(allTypes) }

// AllStates lists every state, [New] first.
func AllStates() []State { return slices.Clone(allStates) }

// AllRoles lists every role.
func AllRoles() []Role { return slices.Clone(allRoles) }

// AllCommandTypes lists every command.
func AllCommandTypes() []CommandType { return slices.Clone(allCommandTypes) }

// AllFinishReasons lists every real finish reason.
func AllFinishReasons() []FinishReason { return slices.Clone(allFinishReasons) }

// AllCodes lists every code in the order of the alphabet.
func AllCodes() []Code { return slices.Sorted(maps.Keys(codeStatus)) }

// Known says whether t is the newest version of an event type.
func (t Type) Known() bool { _, ok := types[string(t)]; return ok }

// Known says whether s is a state.
func (s State) Known() bool { _, ok := states[string(s)]; return ok }

// Known says whether r is a role.
func (r Role) Known() bool { _, ok := roles[string(r)]; return ok }

// Known says whether c is a command.
func (c CommandType) Known() bool { _, ok := commandTypes[string(c)]; return ok }

// Known says whether r is a finish reason that can be recorded: the same as
// [FinishReason.Real].
func (r FinishReason) Known() bool { return r.Real() }
