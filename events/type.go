package events

// Type names an event and its version. Only additive changes keep a version.
type Type string

// Events of a request, on pdgate.log.<partition>.
const (
	TypeAdmitted        Type = "request.admitted.v1"
	TypeRejected        Type = "request.rejected.v1"
	TypePrefilled       Type = "request.prefilled.v1"
	TypeTransferGranted Type = "request.transfer_granted.v1"
	TypeTransferred     Type = "request.transferred.v1"
	TypeDecoded         Type = "request.decoded.v1"
	TypeFailed          Type = "request.failed.v1"
	TypeCancelled       Type = "request.cancelled.v1"
	TypeReleased        Type = "request.released.v1" // a worker's pages are back on its free list
	TypeDenied          Type = "command.denied.v1"   // a command met a state, or facts, in which it is not legal
)

// Events of operations, on pdgate.log.ops.
const (
	TypeWorkerJoined     Type = "worker.joined.v1"
	TypeWorkerLeft       Type = "worker.left.v1" // by its own word, or because its heartbeats ended
	TypeModelQuarantined Type = "model.quarantined.v1"
	TypeModelRestored    Type = "model.restored.v1"
	TypeTenantErased     Type = "tenant.erased.v1"   // the tenant's key is destroyed, here and by whoever holds a copy
	TypeTenantNotified   Type = "tenant.notified.v1" // a tenant was told of an incident
	TypeCanaryRan        Type = "canary.ran.v1"      // outside of any history
	TypeAuditRead        Type = "audit.read.v1"      // somebody read the audit log; outside of any history
	TypeLogTrimmed       Type = "log.trimmed.v1"     // what is below a sequence leaves the live stream
)

// What becomes of a model's open requests when it is quarantined.
const (
	RunningDrain  = "drain"  // they go on to their ends
	RunningCancel = "cancel" // they are cancelled, with code model_quarantined
)

// Verdicts of a canary's run.
const (
	CanaryClean        = "clean"
	CanaryWrong        = "wrong"        // an answer was not the known one
	CanaryForeign      = "foreign"      // an answer held another probe's sentinel
	CanaryInconclusive = "inconclusive" // nothing was wrong, and not every probe got an answer
)

// Kinds of reads of the audit log.
const (
	ReadExport  = "export"  // a bundle
	ReadReceipt = "receipt" // proofs of events by their receipts
	ReadEntries = "entries" // leaves
)

// State is where a request stands. States are final, or have a deadline.
type State string

const (
	New         State = "new"         // nothing recorded
	Admitted    State = "admitted"    // waits for, or is in, prefill
	Rejected    State = "rejected"    // final: refused before any KV existed
	Prefilled   State = "prefilled"   // its KV lies in the prefill worker's pages, under a lease
	Transferred State = "transferred" // its KV lies, verified, in the decode worker's pages
	Decoded     State = "decoded"     // final: output complete
	Failed      State = "failed"      // final
	Cancelled   State = "cancelled"   // final
)

// Final says whether no event may change the state.
func (s State) Final() bool {
	return s == Rejected || s == Decoded || s == Failed || s == Cancelled
}

// Role is what a principal may do; the NATS user's permissions pin it.
type Role string

const (
	RoleGateway   Role = "gateway"
	RolePrefill   Role = "prefill"
	RoleDecode    Role = "decode"
	RoleOperator  Role = "operator"  // people: cancel, quarantine, look
	RoleCanary    Role = "canary"    // probes the gateway; records its runs, and quarantines
	RoleAuditor   Role = "auditor"   // reads
	RoleLifecycle Role = "lifecycle" // the service itself: deadlines, lost workers
)
