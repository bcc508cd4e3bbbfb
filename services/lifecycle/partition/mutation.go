package partition

import (
	"strconv"
	"time"

	"github.com/pdgate/pdgate/events"
)

// mutation takes one rule out of the loop. The simulation must see each of them:
// a rule that nothing notices is either not needed or not tested. Production has
// the zero value.
type mutation int

const (
	none            mutation = iota
	refusedIsNo              // a refusal is told to callers as "not applied"
	silenceIsNo              // so is a silence
	unknownIsNo              // so is a reply that says neither
	predict                  // fold own lines when they are sent, at the next sequence
	foldStale                // take a reply for an older attempt as the present one's
	keepAttempt              // the attempt outlives a move of applied
	resendUndecided          // send the same lines again instead of deciding again
	hintIsApplied            // take the refusal's hint for the tail
	anyPrev                  // fold a message whatever it names as the one before
	denyFromMemory           // answer a denial without appending it
	twoPerRequest            // two commands of one request in an envelope
	noJoin                   // a repeated command becomes a second waiter
	noRecorded               // do not look for a recorded answer
	settledStays             // leave an answered command in the queue
	foreignIgnored           // a foreign message does not move the tail
	noChain                  // do not tell the draft what it has decided
	sameDraft                // go on with the draft of an envelope that failed
	onlyOwnSettles           // only own lines answer waiters
	mutations
)

var mutationNames = [mutations]string{
	"none", "refused is no", "silence is no", "unknown is no", "predict", "fold stale", "keep attempt",
	"resend undecided", "hint is applied", "any prev", "deny from memory", "two per request", "no join",
	"no recorded", "settled stays", "foreign ignored", "no chain", "same draft", "only own settles",
}

func (m mutation) String() string { return mutationNames[m] }

// answerNotApplied tells the callers of an attempt that nothing was recorded.
func (l *Loop) answerNotApplied(a *attempt) {
	for _, e := range a.entries {
		for _, to := range l.queue.settle(e.event.Command) {
			l.port.Answer(to, nil, events.NewError(events.CodeBackpressure, "not applied"))
		}
	}
}

// answerFromMemory gives a denial that nobody recorded.
func (l *Loop) answerFromMemory(c *events.Command, key string, to any, now time.Time) bool {
	e := l.machine.Begin().Decide(c, key, now)
	d, ok := e.Data.(*events.CommandDenied)
	if ok {
		l.port.Answer(to, &events.Answer{Subject: e.Subject, State: d.State, Type: e.Type, ID: e.ID, Position: "1.0", Denied: &events.Denial{Code: d.Code, State: d.State}}, nil)
	}
	return ok
}

// resend sends the attempt's lines under the present tail.
func (l *Loop) resend(now time.Time) {
	a := *l.attempt
	l.token++
	a.token, a.id, a.deadline = l.token, l.prefix+strconv.FormatUint(l.token, 10), now.Add(l.cfg.Resend)
	l.attempt = &a
	if err := l.port.Publish(a.token, &events.Envelope{Partition: l.cfg.Partition, Expected: l.applied, ID: a.id, Lines: a.lines}); err != nil {
		l.unknown(err, now)
	}
}
