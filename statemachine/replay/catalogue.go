package replay

import (
	"slices"

	"github.com/pdgate/pdgate/statemachine"
)

// Severity is the exit code that something asks for; the highest wins.
type Severity int

// Severities.
const (
	Clean      Severity = 0
	Violated   Severity = 1 // a rule is broken, or a comparison differs
	Unreadable Severity = 2 // of a whole input, or a wrong command line
	Incomplete Severity = 3 // something is missing, or could not be judged
	Broken     Severity = 4 // the input is not what was written
)

// Kinds that the checker does not know: they are about what pages hold, and about
// inputs.
const (
	KindStalePages  statemachine.Kind = "stale-pages-read"
	KindUnknownRead statemachine.Kind = "unwritten-pages-read"
	KindClockSkew   statemachine.Kind = "clock-skew"
	KindLogHole     statemachine.Kind = "log-hole"
	KindForeign     statemachine.Kind = "log-foreign"
	KindLegs        statemachine.Kind = "leg-missing"
	KindRoomTwice   statemachine.Kind = "room-used-twice"
)

// Finding is what there is to know of one kind of violation.
type Finding struct {
	ID          statemachine.Kind
	Rule        string
	Title       string
	Explanation string
	Severity    Severity
	// Exposes says that an output after such a violation may hold what others wrote.
	Exposes bool
}

// Rules of what only replay finds.
const (
	RuleEvidence = "E" // the input itself
)

var own = []Finding{
	{KindStalePages, statemachine.RulePages, "an output was made from another request's pages", "Decode read pages that its own transfer did not write. What stood in them is what the request named as owner had left there: its prompt, in the form of KV. This is the exposure itself.", Violated, true},
	{KindUnknownRead, statemachine.RulePages, "an output was made from pages that nobody wrote", "Decode read pages that its own transfer did not write, and the input does not show who wrote them last.", Violated, true},
	{KindClockSkew, RuleEvidence, "clocks differ", "An event carries an earlier time than the one before it in its history, by more than the bound. Order is the log's; leases and deadlines that were judged by such a clock are in doubt.", Violated, false},
	{KindLogHole, RuleEvidence, "the log itself marks a gap", "The auditor found no messages for a range of sequences and wrote a marker. What stood there is unknown.", Incomplete, false},
	{KindForeign, RuleEvidence, "a message that the log's writers did not write", "Somebody without the log key published into the stream. Its lines count for nothing.", Violated, false},
	{KindLegs, RuleEvidence, "only one leg of a request is there", "Engine logs show decode without prefill, or prefill without decode. Either the input lacks the other node's log, or the leg was never run.", Incomplete, false},
	{KindRoomTwice, statemachine.RuleDecision, "a transfer reference was used twice", "Two attempts share one bootstrap room, or one request id: either may have got the other's KV.", Violated, true},
}

// exposing are the checker's kinds after which an output may hold what others
// wrote.
var exposing = []statemachine.Kind{
	statemachine.KindTransferRejected, statemachine.KindDecodeRejected, statemachine.KindTransferLost, statemachine.KindDecodeLost,
	statemachine.KindGrantOwner, statemachine.KindGrantReleased, statemachine.KindTransferWorker, statemachine.KindKVDiffers,
	statemachine.KindTransferReleased, statemachine.KindReadPastLease, statemachine.KindDecodeWorker, statemachine.KindDecodeReleased,
	statemachine.KindPageTaken, statemachine.KindPageGeneration, statemachine.KindTransferUnfilled, statemachine.KindDecodeUnfilled, statemachine.KindDecodeUnmoved,
	statemachine.KindGrantUsed, statemachine.KindPrefillTokens, statemachine.KindDecodeTokens, statemachine.KindTransferGrant,
	statemachine.KindTenant, statemachine.KindClientUnearned, statemachine.KindClientOutput,
}

// broken are the checker's kinds that say that the input is not what was written.
var broken = []statemachine.Kind{
	statemachine.KindLogMAC, statemachine.KindLogGap, statemachine.KindLogDuplicate, statemachine.KindLogUnreadable, statemachine.KindTenantGap,
	statemachine.KindTenantHash, statemachine.KindOutside, statemachine.KindHistoryGap, statemachine.KindHeadless, statemachine.KindPartition,
}

var catalogue = func() (all []Finding) {
	for _, k := range statemachine.Kinds() {
		f := Finding{k.Kind, k.Rule, k.Title, k.Why, Violated, slices.Contains(exposing, k.Kind)}
		if slices.Contains(broken, k.Kind) {
			f.Severity = Broken
		}
		all = append(all, f)
	}
	return append(all, own...)
}()

// Catalogue lists every violation that a replay can report.
func Catalogue() []Finding { return append([]Finding(nil), catalogue...) }

var byID = func() map[statemachine.Kind]*Finding {
	m := map[statemachine.Kind]*Finding{}
	for i := range catalogue {
		m[catalogue[i].ID] = &catalogue[i]
	}
	return m
}()

// Explain is the finding of an id.
func Explain(id statemachine.Kind) (Finding, bool) {
	f, ok := byID[id]
	if !ok {
		return Finding{}, false
	}
	return *f, true
}
