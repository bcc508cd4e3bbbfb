package statemachine

// Kind names one way in which a log can break a rule. Kinds are frozen words:
// reports, tickets and filters hold them.
type Kind string

// Kinds that the checker finds.
const (
	KindLogMAC         Kind = "log-mac"
	KindLogGap         Kind = "log-gap"
	KindLogDuplicate   Kind = "log-duplicate"
	KindLogUnreadable  Kind = "log-unreadable"
	KindTenantGap      Kind = "tenant-chain-gap"
	KindTenantHash     Kind = "tenant-chain-hash"
	KindOutside        Kind = "event-outside-history"
	KindHistoryGap     Kind = "history-gap"
	KindHeadless       Kind = "history-headless"
	KindPartition      Kind = "wrong-partition"
	KindCommandTwice   Kind = "command-twice"
	KindAnswerUnlogged Kind = "answer-unlogged"
	KindAnswerDiffers  Kind = "answer-differs"

	KindGrantRejected    Kind = "grant-after-rejection"
	KindTransferRejected Kind = "transfer-after-rejection"
	KindDecodeRejected   Kind = "decode-after-rejection"
	KindGrantLost        Kind = "grant-after-failure"
	KindTransferLost     Kind = "transfer-after-failure"
	KindDecodeLost       Kind = "decode-after-failure"

	KindAfterEnd Kind = "event-after-end"
	KindReborn   Kind = "request-reborn"

	KindGrantOwner       Kind = "grant-wrong-owner"
	KindGrantReleased    Kind = "grant-released-pages"
	KindTransferWorker   Kind = "transfer-wrong-worker"
	KindKVDiffers        Kind = "kv-differs"
	KindTransferReleased Kind = "transfer-into-released-pages"
	KindReadPastLease    Kind = "read-past-lease"
	KindDecodeWorker     Kind = "decode-wrong-worker"
	KindDecodeReleased   Kind = "decode-from-released-pages"
	KindFreedUndrained   Kind = "freed-undrained"
	KindFreedUnscrubbed  Kind = "freed-unscrubbed"
	KindPageTaken        Kind = "page-held-by-another"
	KindPageGeneration   Kind = "page-generation"
	KindReleaseUnheld    Kind = "release-unheld"

	KindClientUnearned  Kind = "client-success-unearned"
	KindClientUndecoded Kind = "client-output-undecoded"
	KindClientOutput    Kind = "client-output-differs"

	KindLate      Kind = "ended-late"
	KindUnended   Kind = "never-ended"
	KindPagesKept Kind = "pages-kept"

	KindTransition       Kind = "illegal-transition"
	KindTransferUnfilled Kind = "transfer-without-prefill"
	KindDecodeUnfilled   Kind = "decode-without-prefill"
	KindDecodeUnmoved    Kind = "decode-without-transfer"
	KindGrantUsed        Kind = "grant-used-twice"
	KindHistory          Kind = "illegal-history"
	KindOps              Kind = "illegal-operation"
	KindTenant           Kind = "tenant-differs"
	KindRequestID        Kind = "request-id-malformed"
	KindAdmitted         Kind = "admitted-against-facts"
	KindDeadlines        Kind = "deadlines-out-of-order"
	KindErrorStatus      Kind = "success-status-on-error"
	KindRejectedUnknown  Kind = "rejected-unadmitted"
	KindRejectedNoFacts  Kind = "rejected-without-facts"
	KindRejected         Kind = "rejected-against-facts"
	KindPrefillTokens    Kind = "token-count-prefill"
	KindDecodeTokens     Kind = "token-count-decode"
	KindPagesBelow       Kind = "pages-below-prompt"
	KindReference        Kind = "reference-missing"
	KindLease            Kind = "lease-malformed"
	KindGrantEpoch       Kind = "grant-epoch"
	KindGrantPastLease   Kind = "grant-past-lease"
	KindReservation      Kind = "reservation-too-small"
	KindTransferGrant    Kind = "transfer-by-other-grant"
	KindOutputEnd        Kind = "output-ended-improperly"
	KindDenial           Kind = "denial-unjust"
	KindDenialOutside    Kind = "denial-outside-history"
)

// KindInfo is what there is to know of a kind.
type KindInfo struct {
	Kind  Kind
	Rule  string
	Title string
	Why   string // what it means, and what to look at
}

var kinds = []KindInfo{
	{KindLogMAC, RuleLog, "an envelope's MAC is wrong", "No holder of the log key wrote this message, or it was moved or changed. Its events are left out. Whoever may publish to pdgate.log directly can do this: check the broker's permissions."},
	{KindLogGap, RuleLog, "messages are missing, or out of order", "An envelope names another predecessor than the one before it, or the log itself marks a gap. What stood there is unknown, and nothing can be called clean that spans it."},
	{KindLogDuplicate, RuleLog, "a message or an event stands twice", "The same envelope or the same event id came twice: a file was concatenated twice, or a broken writer repeated itself."},
	{KindLogUnreadable, RuleLog, "an envelope cannot be read", "Its lines are no canonical events. The rest of the envelope is not judged."},
	{KindTenantGap, RuleLog, "a tenant's chain has a hole", "tenantseq is dense per tenant and partition. A missing number is a missing event of that tenant, whoever took it away."},
	{KindTenantHash, RuleLog, "a tenant's chain does not fit", "tenantprev is the SHA-256 of the tenant's event before. Another hash means that one of the two was altered after it was written."},
	{KindOutside, RuleLog, "an event stands outside of any history", "Only denials and audit reads carry no number. Anything else without one was not written by the state machine."},
	{KindHistoryGap, RuleLog, "a request's history has a hole", "Each event names its number and the position of the one before. What follows a hole cannot be judged, and is not."},
	{KindHeadless, RuleLog, "a request's history has no beginning", "The first event that the input has of the request is not its first one: the input begins midway, or its head was cut off."},
	{KindPartition, RuleLog, "a request lies in the wrong partition", "A request's partition is a hash of its id and never changes."},
	{KindCommandTwice, RuleLog, "a command was carried out twice", "Commands are idempotent by content: a repeated one gets the recorded answer, never a second event."},
	{KindAnswerUnlogged, RuleLog, "an answer has no event", "Somebody was given an answer for an event that is not in the log: an acknowledged event was lost."},
	{KindAnswerDiffers, RuleLog, "an answer differs from the log", "What a principal was told is not what was recorded."},

	{KindGrantRejected, RuleOutput, "a grant after a rejection", "The request was rejected, and decode was still given the right to pull its KV. This is the incident's first step: a queue that asks \"finished?\" and never \"rejected?\"."},
	{KindTransferRejected, RuleOutput, "a transfer after a rejection", "KV moved for a request that was rejected. What arrived belongs to a placeholder, or to nobody."},
	{KindDecodeRejected, RuleOutput, "an output after a rejection", "Decode answered a request that was rejected. Whatever it read was not this request's prompt."},
	{KindGrantLost, RuleOutput, "a grant after a failure or a cancellation", "The request had failed or was cancelled, and decode was still given the right to pull its KV."},
	{KindTransferLost, RuleOutput, "a transfer after a failure or a cancellation", "KV moved for a request whose pages may have been given away already."},
	{KindDecodeLost, RuleOutput, "an output after a failure or a cancellation", "Decode answered a request that had ended. A failed load that is recomputed, or an abort that is reported as a proper end, shows like this."},

	{KindAfterEnd, RuleFinal, "an event after the final state", "rejected, decoded, failed and cancelled are final; only released pages and denials may follow."},
	{KindReborn, RuleFinal, "a request begins again", "The request id is older than what is remembered: the request ended, was forgotten, and was taken for a new one."},

	{KindGrantOwner, RulePages, "a grant names another owner", "The grant points at pages of another worker, or of another life of it, than those that prefill filled."},
	{KindGrantReleased, RulePages, "a grant for pages that were released", "The owner had already given the pages back. Whoever has them by then is read instead."},
	{KindTransferWorker, RulePages, "another worker has the KV", "Another decode worker than the granted one reported the KV."},
	{KindKVDiffers, RulePages, "what arrived is not what was prefilled", "Digest or byte count of the KV differ between the two legs: some of decode's pages hold what somebody else left there."},
	{KindTransferReleased, RulePages, "KV arrived in pages that were released", "Decode's pages were given back before the copy ended: the copy may have overwritten the next owner's."},
	{KindReadPastLease, RulePages, "pages were read past their lease", "The owner may free the pages when the lease is over. A copy that ends later may hold the next owner's bytes. vLLM logs it at prefill and the client still gets 200."},
	{KindDecodeWorker, RulePages, "another worker made the output", "The output comes from a worker that does not have the request's KV."},
	{KindDecodeReleased, RulePages, "an output from pages that were released", "Decode went on with pages that it had given back."},
	{KindFreedUndrained, RulePages, "pages were freed with a copy in flight", "The next owner's pages may be overwritten, or read, by the copy that goes on."},
	{KindFreedUnscrubbed, RulePages, "pages were freed without a scrub", "The bytes stay legal KV. Whoever gets the page and reads it before writing it reads the previous owner's prompt."},
	{KindPageTaken, RulePages, "a page belongs to two requests", "An allocation overlaps one that has not been given back."},
	{KindPageGeneration, RulePages, "a page's generation did not grow", "Generations are never reused within a boot epoch. With an old one, a stale reference passes for a current one."},
	{KindReleaseUnheld, RulePages, "pages were released that nobody held", "A worker gave back pages that the log does not say it had."},

	{KindClientUnearned, RuleClient, "a client got a success that it must not get", "HTTP 200 for a request whose KV was never transferred."},
	{KindClientUndecoded, RuleClient, "a client got an output that was never decoded", "A whole body was delivered without a decoded event behind it."},
	{KindClientOutput, RuleClient, "a client got another output", "The digest of what the client got is not that of what was recorded."},

	{KindLate, RuleLive, "a request ended late", "It ended after its deadline and the allowed slack."},
	{KindUnended, RuleLive, "a request never ended", "It is open after its deadline: a hand-off hangs, or its end was cut from the log."},
	{KindPagesKept, RuleLive, "pages were never given back", "A worker holds pages of a request after its deadline: a leak."},

	{KindTransition, RuleDecision, "an illegal transition", "The table does not allow the event in the request's state (docs/states.md)."},
	{KindTransferUnfilled, RuleDecision, "a hand-off without prefill", "A grant or a transfer for a request of which no prefill is recorded: prefill was skipped, or its failure was swallowed."},
	{KindDecodeUnfilled, RuleDecision, "an output without prefill", "Decode answered a request that was never prefilled."},
	{KindDecodeUnmoved, RuleDecision, "an output without a transfer", "Decode answered before the KV had arrived."},
	{KindGrantUsed, RuleDecision, "a grant was used twice", "A second transfer of the same request. By then the owner may have given the pages to somebody else."},
	{KindHistory, RuleDecision, "an event contradicts its history", "The event names a state or pages that are not the request's."},
	{KindOps, RuleDecision, "an illegal operation", "An event on pdgate.log.ops does not fit its worker's or model's history."},
	{KindTenant, RuleDecision, "an event of another tenant", "The tenant of a request never changes."},
	{KindRequestID, RuleDecision, "a request id is malformed", "Request ids are UUIDv7, minted by the gateway."},
	{KindAdmitted, RuleDecision, "admitted against its own facts", "The event records the limits it was decided on, and by those the request does not fit: the admission limit was off."},
	{KindDeadlines, RuleDecision, "deadlines are out of order", "A state's deadline lies behind the request's, or before its admission."},
	{KindErrorStatus, RuleDecision, "a success status on an error", "A rejection or a failure carries an HTTP status below 400: its client sees a 200."},
	{KindRejectedUnknown, RuleDecision, "an engine rejected what was not admitted", "Only an admitted request reaches an engine."},
	{KindRejectedNoFacts, RuleDecision, "a rejection without facts", "A rejection at admission records what it was decided on."},
	{KindRejected, RuleDecision, "rejected against its own facts", "By the limits in the event the request fits."},
	{KindPrefillTokens, RuleDecision, "prefill counted other tokens than were admitted", "The two legs did not work on the same prompt. One token where many were admitted is the placeholder of an engine that rejected inside."},
	{KindDecodeTokens, RuleDecision, "decode counted other tokens than were admitted", "The two legs did not work on the same prompt."},
	{KindPagesBelow, RuleDecision, "the pages do not hold the prompt", "Prefill reports fewer pages than the prompt needs."},
	{KindReference, RuleDecision, "prefilled without the engine's reference", "An engine that keeps the KV itself names it by a reference; without one, decode has nothing to read, and computes from whatever it finds."},
	{KindLease, RuleDecision, "a lease is out of order", "It is over when it begins, or ends after the request's deadline."},
	{KindGrantEpoch, RuleDecision, "a grant's epoch is not the next one", "Grant epochs are 1, 2, … per request."},
	{KindGrantPastLease, RuleDecision, "a grant past the lease", "The pull was allowed when the owner could already have freed the pages."},
	{KindReservation, RuleDecision, "a reservation is too small", "Decode reserved fewer tokens than prompt plus max_tokens."},
	{KindTransferGrant, RuleDecision, "a transfer by another grant", "The transfer names a grant that is not the current one."},
	{KindOutputEnd, RuleDecision, "an output did not end properly", "The finish reason is no end, or more tokens came than were asked for."},
	{KindDenial, RuleDecision, "an unjust denial", "The table does not support the reason that the denial gives."},
	{KindDenialOutside, RuleDecision, "a denial outside of its request's history", "The request was open, and the denial does not stand in its history."},
}

// Kinds lists what the checker can find.
func Kinds() []KindInfo { return append([]KindInfo(nil), kinds...) }

var kindRule = func() map[Kind]string {
	m := make(map[Kind]string, len(kinds))
	for _, k := range kinds {
		m[k.Kind] = k.Rule
	}
	return m
}()

// breach is what is wrong with one event.
type breach struct {
	kind      Kind
	what      string
	want, got string
}

func broke(kind Kind, what string) breach { return breach{kind: kind, what: what} }

func (b breach) are(want, got string) breach {
	b.want, b.got = want, got
	return b
}
