package statemachine

import (
	"slices"

	"github.com/pdgate/pdgate/events"
)

// DenialRow is one reason for which a command is not carried out. Command ""
// stands for every command.
type DenialRow struct {
	Command events.CommandType
	Code    events.Code
	Doc     string
}

var denials = slices.Concat(
	[]DenialRow{
		{"", events.CodeForbidden, "the role may not send the command"},
		{"", events.CodeMalformed, "the payload is missing, or is another command's"},
		{"", events.CodeUnknownRequest, "nothing is recorded of the request"},
		{"", events.CodeIllegalState, "the table has no such transition, or the history is illegal"},
		{"", events.CodeInternal, "the aggregate contradicts itself"},

		{events.CmdAdmit, events.CodeMalformed, "the id is no UUIDv7, a name is none, or a number is negative"},
		{events.CmdAdmit, events.CodeStaleRequestID, "the id's time is too old, or ahead of the clock"},
		{events.CmdAdmit, events.CodeTenantKey, "the digests are under another key of the tenant than the service holds"},
	},
	fromWorker(events.CmdReject),
	fromWorker(events.CmdPrefilled),
	[]DenialRow{
		{events.CmdPrefilled, events.CodeTokenCountMismatch, "prompt_tokens differs from admitted, or kv_bytes from the pages"},
		{events.CmdPrefilled, events.CodeTenantMismatch, "the pages are another tenant's"},
		{events.CmdPrefilled, events.CodeIncompatible, "layout or page_tokens differs from the registration"},
		{events.CmdPrefilled, events.CodePageGeneration, "the pages do not share one generation"},
		{events.CmdPrefilled, events.CodeReservation, "the pages do not hold the prompt, or lie outside the pool"},
		{events.CmdPrefilled, events.CodeDigestMismatch, "the KV has no digest"},
		{events.CmdPrefilled, events.CodeLeaseOver, "the lease is not above 0"},
		{events.CmdPrefilled, events.CodeMalformed, "the page list is empty or names a page twice, or the lease is above the limit"},
		{events.CmdPrefilled, events.CodeDeadline, "the request's deadline is over"},
	},
	fromWorker(events.CmdGrant),
	[]DenialRow{
		{events.CmdGrant, events.CodeGrantEpoch, "grant_epoch is not last + 1, or is above 32"},
		{events.CmdGrant, events.CodeLeaseOver, "the KV's lease is over"},
		{events.CmdGrant, events.CodePageOwner, "the owner has released the KV"},
		{events.CmdGrant, events.CodeIncompatible, "the page layouts differ"},
		{events.CmdGrant, events.CodeReservation, "the reservation does not hold prompt plus max_tokens, or lies outside the pool"},
		{events.CmdGrant, events.CodePageGeneration, "the pages do not share one generation"},
		{events.CmdGrant, events.CodeMalformed, "the page list is empty or names a page twice"},
	},
	fromWorker(events.CmdTransferred),
	[]DenialRow{
		{events.CmdTransferred, events.CodeGrantUsed, "the grant was used"},
		{events.CmdTransferred, events.CodeGrantEpoch, "grant_epoch is not the current one"},
		{events.CmdTransferred, events.CodePageOwner, "the KV is another request's, or the reserved pages were released"},
		{events.CmdTransferred, events.CodeDigestMismatch, "digest or bytes differ from prefilled"},
		{events.CmdTransferred, events.CodeReferenceMismatch, "the engine's reference is not the recorded one"},
		{events.CmdTransferred, events.CodeLeaseOver, "the lease was over at the end of the copy"},
		{events.CmdTransferred, events.CodeMalformed, "duration_us is negative"},
	},
	fromWorker(events.CmdDecoded),
	[]DenialRow{
		{events.CmdDecoded, events.CodePageOwner, "the worker has released the KV"},
		{events.CmdDecoded, events.CodeTokenCountMismatch, "prompt_tokens differs from admitted, or completion_tokens is out of range"},
		{events.CmdDecoded, events.CodeFinishReason, "the finish reason is not a real one"},
	},
	fromWorker(events.CmdFail),
	[]DenialRow{
		{events.CmdFail, events.CodeForbidden, "another gateway holds the request"},
		{events.CmdCancel, events.CodeForbidden, "another gateway holds the request"},
		{events.CmdCancel, events.CodeMalformed, "the reason is not a code"},
		{events.CmdReleased, events.CodeWrongWorker, "the pages are another worker's, or held in another role"},
		{events.CmdReleased, events.CodePageOwner, "the worker holds no such pages of the request"},
		{events.CmdReleased, events.CodeWorkerEpoch, "the pages are of another life of the worker"},
		{events.CmdReleased, events.CodePageGeneration, "the allocation is of another generation"},

		{events.CmdRegister, events.CodeMalformed, "the content of the registration is wrong"},
		{events.CmdRegister, events.CodeForbidden, "a worker registers itself only"},
		{events.CmdRegister, events.CodeWrongWorker, "the name is taken by a worker of another role"},
		{events.CmdRegister, events.CodeWorkerEpoch, "the epoch is not above the last one, or is a time ahead of the clock"},
		{events.CmdLeave, events.CodeForbidden, "a worker takes leave for itself only"},
		{events.CmdLeave, events.CodeWorkerUnknown, "the worker is not registered"},
		{events.CmdLeave, events.CodeWrongWorker, "the worker is registered in another role"},
		{events.CmdLeave, events.CodeWorkerEpoch, "the worker lives under another epoch"},
		{events.CmdQuarantine, events.CodeMalformed, "the subject is not a model's name"},
		{events.CmdRestore, events.CodeIllegalState, "the model is not quarantined"},
		{events.CmdErase, events.CodeMalformed, "the subject is not a tenant's name"},
		{events.CmdErase, events.CodeIllegalState, "the key is erased already"},
		{events.CmdNotify, events.CodeMalformed, "the tenant is not a name, or the content no SHA-256"},
	},
)

// fromWorker makes the rows of a command that only a registered worker may send.
func fromWorker(c events.CommandType) []DenialRow {
	wrong := "the sender is registered in another role or for another model"
	switch c {
	case events.CmdTransferred:
		wrong += ", or the grant is another worker's"
	case events.CmdDecoded, events.CmdFail:
		wrong += ", or another worker holds the request"
	}
	unknown, epoch := "the sender is not registered", "the sender is registered under another epoch"
	switch c {
	case events.CmdGrant:
		unknown += ", or the KV's owner is not"
		epoch += ", or the KV's owner restarted"
	case events.CmdTransferred, events.CmdDecoded:
		epoch += ", or the request is with its life before"
	}
	return []DenialRow{
		{c, events.CodeWorkerUnknown, unknown},
		{c, events.CodeWrongWorker, wrong},
		{c, events.CodeWorkerEpoch, epoch},
	}
}

// Denials lists every reason for which a command is denied.
func Denials() []DenialRow { return slices.Clone(denials) }

// RejectionRow is one reason for which an admission is rejected. The first that
// applies is the one the client gets.
type RejectionRow struct {
	Code events.Code
	Doc  string
}

var rejections = []RejectionRow{
	{events.CodeInvalidRequest, "prompt_tokens is below 1, or max_tokens negative"},
	{events.CodeTenantErased, "the tenant was erased, and its key is none that was made since"},
	{events.CodeModelNotFound, "no worker is registered for the model"},
	{events.CodeModelQuarantined, "the model is quarantined"},
	{events.CodeNoWorker, "no prefill or no decode worker of the model is alive"},
	{events.CodeContextLength, "prompt plus max_tokens is above the context window, the prompt above what every live prefill worker takes, or the sum above every live decode pool"},
	{events.CodeOverloaded, "too many requests of the model wait for prefill"},
	{events.CodeTenantConcurrency, "the tenant has as many open requests as it may"},
}

// Rejections lists every reason for which an admission is rejected, in the order
// in which they are looked at.
func Rejections() []RejectionRow { return slices.Clone(rejections) }
