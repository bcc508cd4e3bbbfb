package gpuworker

import (
	"context"
	"encoding/hex"
	"errors"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/gpuworker/kvpool"
)

// Causes that end a job's context.
var (
	errEnded    = errors.New("the request has ended, or is another worker's")
	errDeadline = errors.New("the request's deadline is over")
	errStopping = errors.New("the worker stops")
	errGone     = errors.New("the lifecycle has ended this life of the worker")
	errLost     = errors.New("the engine restarted, or is gone")
)

// phase is how far a job is.
type phase int

const (
	running phase = iota // in a loop's hands
	kept                 // prefill: finished KV that waits for its pull; ended as well: memory that an engine may hold still
	leaving              // its pages are on their way back
)

// job is one request at this worker. Fields below the line are guarded by
// Worker.mu.
type job struct {
	work   *events.Work
	key    []byte // of the request's digests
	cancel context.CancelCauseFunc

	item     Item // the latest delivery; nil once acknowledged
	phase    phase
	ended    bool // the request went on without us, or is over
	arrived  bool // … because its KV arrived at decode
	alloc    *kvpool.Allocation
	recorded bool          // the log may know the allocation: its release is reported
	lease    time.Time     // prefill: end of the KV's life
	until    time.Time     // external engines: it may hold memory for the request until then; zero: it does not
	asked    time.Time     // when the lifecycle was last asked about it
	reason   string        // of the release
	done     chan struct{} // closed when the job is off the books
}

// outcome says what becomes of a delivery.
type outcome struct {
	kind  outcomeKind
	delay time.Duration
	why   error // nil where all went well
}

type outcomeKind int

const (
	settled outcomeKind = iota // the request's part here is decided, or not ours: acknowledge
	again                      // nothing is decided: another delivery may do better
	keep                       // prefilled: acknowledge, and keep the pages for the pull
)

func done() outcome                          { return outcome{kind: settled} }
func dropped(why error) outcome              { return outcome{kind: settled, why: why} }
func retry(d time.Duration, e error) outcome { return outcome{kind: again, delay: d, why: e} }

// begin puts a delivery on the books. It is nil where there is nothing to do:
// the delivery repeats one that is in hand.
func (w *Worker) begin(item Item, cancel context.CancelCauseFunc) *job {
	work := item.Work()
	key, err := hex.DecodeString(work.DigestKey)
	if err != nil || len(key) == 0 || work.Role != w.cfg.Role || work.Model != w.cfg.Model ||
		work.PromptTokens < 1 || work.MaxTokens < 1 {
		w.log.Error("work that is not for this worker", "request_id", work.RequestID)
		w.settle(item.Ack())
		return nil
	}
	j := &job{work: work, key: key, cancel: cancel, item: item, asked: w.cfg.Clock(), done: make(chan struct{})}
	at := w.book(j)
	if at == nil {
		return j
	}
	switch *at {
	case kept: // the acknowledgement was lost
		w.settle(item.Ack())
	case leaving:
		w.settle(item.Nak(200 * time.Millisecond))
	}
	return nil
}

// book enters a job, unless its request has one: then it says how far that is.
// While that one runs, the later delivery is the one that counts for it: the
// earlier one's acknowledgement time ran out.
func (w *Worker) book(j *job) *phase {
	w.mu.Lock()
	defer w.mu.Unlock()
	have := w.jobs[j.work.RequestID]
	if have == nil {
		w.jobs[j.work.RequestID] = j
		return nil
	}
	at := have.phase
	switch {
	case at == running:
		have.item = j.item
	case have.ended: // it lingers: the work is not done
		at = leaving
	}
	return &at
}

// settle takes note of a lost acknowledgement. The queue delivers again, and
// the state machine answers a repeated report as it did the first.
func (w *Worker) settle(err error) {
	if err != nil {
		w.log.Warn("acknowledge work", "error", err)
	}
}

// Holds says whether events of the request are news for the worker.
func (w *Worker) Holds(requestID string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.jobs[requestID] != nil
}

// Notice tells the worker of a recorded event. Events of requests that it does
// not hold cost a map access. It does not block.
func (w *Worker) Notice(e *events.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	j := w.jobs[e.Subject]
	if j == nil {
		return
	}
	switch d := e.Data.(type) {
	case *events.RequestRejected, *events.RequestFailed, *events.RequestCancelled:
		w.end(j, false)
	case *events.RequestTransferred:
		w.passedOn(j, d.Worker, d.WorkerEpoch)
	case *events.RequestDecoded:
		w.fetched(j)
		w.passedOn(j, d.Worker, d.WorkerEpoch)
	}
}

// passedOn is the news that a decode worker has the KV. Callers hold mu.
func (w *Worker) passedOn(j *job, worker string, epoch uint64) {
	if w.cfg.Role == events.RolePrefill || worker != w.cfg.Name || epoch != w.epoch {
		w.end(j, w.cfg.Role == events.RolePrefill)
	}
}

// end stops what runs for a request at once, or begins to give back what is
// kept for it. Callers hold mu.
func (w *Worker) end(j *job, arrived bool) {
	if j.ended {
		return
	}
	j.ended, j.arrived = true, arrived
	switch j.phase {
	case running:
		j.cancel(errEnded)
	case kept:
		w.part(j, "done")
	}
}

// sawEnd says whether the request went on without this worker.
func (w *Worker) sawEnd(j *job) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return j.ended
}

// halted turns the end of a job's context into an outcome.
func (w *Worker) halted(ctx context.Context, err error) outcome {
	switch cause := context.Cause(ctx); {
	case errors.Is(cause, errStopping), errors.Is(cause, errGone), errors.Is(cause, errLost):
		return retry(0, cause)
	case cause != nil: // ended, or over by its deadline, which the lifecycle sees too
		return dropped(cause)
	}
	return retry(tryAgain, err)
}
