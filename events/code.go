package events

// Code names why something was refused, denied or failed. Codes are frozen
// wire strings. [Code.HTTPStatus] is the one table that maps them to HTTP; NATS
// replies carry the same number in Nats-Service-Error-Code.
type Code string

// Refusals of a request, before any KV existed.
const (
	CodeContextLength     Code = "context_length_exceeded"
	CodeInvalidRequest    Code = "invalid_request"
	CodeModelNotFound     Code = "model_not_found"
	CodeModelQuarantined  Code = "model_quarantined"
	CodeInvalidAPIKey     Code = "invalid_api_key"
	CodeRateLimit         Code = "rate_limit_exceeded"
	CodeTenantConcurrency Code = "tenant_concurrency_exceeded"
	CodeOverloaded        Code = "overloaded"      // queues or pools are full: retry later
	CodeNoWorker          Code = "no_live_worker"  // no node serves this model now
	CodeEngineRefused     Code = "engine_refused"  // the engine said no, for a reason of its own
	CodeForbidden         Code = "forbidden"       // the principal's role may not do this
	CodeTenantErased      Code = "tenant_erased"   // the tenant's key was destroyed, and no other was made
	CodeForbiddenField    Code = "forbidden_field" // a client sent an engine-internal field
	CodeNotFound          Code = "not_found"
)

// Denials: a command met a state, or facts, in which it is not legal.
const (
	CodeIllegalState       Code = "illegal_state"
	CodeUnknownRequest     Code = "unknown_request"
	CodeStaleRequestID     Code = "stale_request_id" // the UUIDv7 is too old, or ahead of the clock
	CodeTokenCountMismatch Code = "token_count_mismatch"
	CodeDigestMismatch     Code = "kv_digest_mismatch"
	CodeReferenceMismatch  Code = "reference_mismatch"
	CodeLeaseOver          Code = "lease_over"
	CodeGrantEpoch         Code = "grant_epoch" // not last + 1, or not the current one
	CodeGrantUsed          Code = "grant_used"
	CodeWrongWorker        Code = "wrong_worker" // another worker holds the request
	CodeWorkerEpoch        Code = "worker_epoch" // the worker restarted since
	CodeWorkerUnknown      Code = "worker_unknown"
	CodeIncompatible       Code = "incompatible_workers" // page layouts differ
	CodeReservation        Code = "reservation_too_small"
	CodePageGeneration     Code = "page_generation"
	CodePageOwner          Code = "page_owner"
	CodeTenantMismatch     Code = "tenant_mismatch"
	CodeTenantKey          Code = "tenant_key_mismatch" // gateway and lifecycle hold different keys of the tenant
	CodeFinishReason       Code = "finish_reason"
	CodeGrantSignature     Code = "grant_signature"
	CodeMalformed          Code = "malformed"
	CodeBackpressure       Code = "backpressure" // the log is behind: retry later
	CodeUnavailable        Code = "unavailable"  // the log cannot be written now
)

// Failures after admission.
const (
	CodeDeadline          Code = "deadline_exceeded"
	CodePrefillFailed     Code = "prefill_failed"
	CodeTransferFailed    Code = "transfer_failed"
	CodeDecodeFailed      Code = "decode_failed"
	CodePoison            Code = "kv_poisoned"
	CodeWorkerLost        Code = "worker_lost"
	CodePromptUnavailable Code = "prompt_unavailable" // the gateway that holds the prompt is gone
	CodeClientGone        Code = "client_gone"
	CodeCancelled         Code = "cancelled"
	CodeOutputLost        Code = "output_lost" // output pieces went missing between decode and gateway
	CodeInternal          Code = "internal"
)

var codeStatus = map[Code]int{
	CodeContextLength: 400, CodeInvalidRequest: 400, CodeForbiddenField: 400, CodeMalformed: 400,
	CodeInvalidAPIKey: 401, CodeForbidden: 403, CodeTenantErased: 403, CodeModelNotFound: 404, CodeNotFound: 404,
	CodeUnknownRequest: 404, CodeRateLimit: 429, CodeTenantConcurrency: 429,
	CodeModelQuarantined: 503, CodeOverloaded: 503, CodeNoWorker: 503, CodeBackpressure: 503,
	CodeUnavailable: 503, CodeTenantKey: 503, CodeEngineRefused: 400,

	CodeIllegalState: 409, CodeStaleRequestID: 409, CodeTokenCountMismatch: 409,
	CodeDigestMismatch: 409, CodeReferenceMismatch: 409, CodeLeaseOver: 409, CodeGrantEpoch: 409,
	CodeGrantUsed: 409, CodeWrongWorker: 409, CodeWorkerEpoch: 409, CodeWorkerUnknown: 409,
	CodeIncompatible: 409, CodeReservation: 409, CodePageGeneration: 409, CodePageOwner: 409,
	CodeTenantMismatch: 409, CodeFinishReason: 409, CodeGrantSignature: 409,

	CodeDeadline: 504, CodePrefillFailed: 502, CodeTransferFailed: 502, CodeDecodeFailed: 502,
	CodePoison: 502, CodeWorkerLost: 502, CodePromptUnavailable: 502, CodeOutputLost: 502,
	CodeClientGone: 499, CodeCancelled: 499, CodeInternal: 500,
}

// HTTPStatus is the code's HTTP status; 500 for a code this build does not know.
func (c Code) HTTPStatus() int {
	if s, ok := codeStatus[c]; ok {
		return s
	}
	return 500
}

// Known says whether the code is in the table.
func (c Code) Known() bool { _, ok := codeStatus[c]; return ok }
