package statemachine

import (
	"time"

	"github.com/pdgate/pdgate/events"
)

// Request is one aggregate: what the log says of one request. Only [Fold]
// changes it.
type Request struct {
	ID    string
	State events.State
	N     int             // number of the last event
	Pos   events.Position // of the last event
	Hash  string          // of the last event

	Tenant       string
	Model        string
	Gateway      string
	Traceparent  string
	PromptTokens int
	MaxTokens    int
	PromptDigest string
	AdmittedAt   time.Time
	UpdatedAt    time.Time
	Deadline     time.Time // of the whole request
	StateBy      time.Time // of the present state; zero once final

	Error    *events.Error // of a rejection, failure or cancellation: the first one
	Prefill  *events.RequestPrefilled
	Grant    *events.TransferGranted // the last one
	Transfer *events.RequestTransferred
	Decoded  *events.RequestDecoded

	Held     []Holding  // pages that workers hold for the request
	Recorded []Recorded // answers to commands, oldest first
	Tainted  string     // why the history is illegal; "" if it is not
}

// Holding is one allocation that the log knows of and that is not released.
type Holding struct {
	Worker     string
	Epoch      uint64
	Role       events.Role
	Generation uint64
	Pages      int
}

// Recorded is the answer to one command, kept so that a repeated command gets
// it again.
type Recorded struct {
	Key    string       // events.Command.Key
	Met    events.State // the state the command met
	State  events.State // the state after it
	Type   events.Type
	N      int
	Pos    events.Position
	Hash   string
	Denied *events.Denial
}

// Open says whether the request may still change or still holds pages.
func (r *Request) Open() bool { return !r.State.Final() || len(r.Held) > 0 }

// Answer looks up the recorded answer to a command. A recorded denial counts
// only in the state it was given in: what was too early may be in time now.
func (r *Request) Answer(key string) (Recorded, bool) {
	for i := len(r.Recorded) - 1; i >= 0; i-- {
		a := r.Recorded[i]
		if a.Key == key && (a.Denied == nil || a.Met == r.State) {
			return a, true
		}
	}
	return Recorded{}, false
}

// Facts are what a decision rests on besides the request's own history. The
// service gathers them; those that mattered are written into the event.
type Facts struct {
	Now       time.Time
	Known     bool                  // some worker serves the model
	Admission events.AdmissionFacts // admit
	Sender    *events.WorkerJoined  // the sending worker's current registration; nil: none
	Owner     *events.WorkerJoined  // grant: the prefill worker's current registration; nil: none
	Timeouts  Timeouts
}

// Timeouts are the deadlines that events carry.
type Timeouts struct {
	Request time.Duration // whole life, unless the command says less
	Prefill time.Duration // admitted to prefilled
	Decode  time.Duration // transferred to decoded
	Skew    time.Duration // how far ahead of Now a request id's time may lie
	Fresh   time.Duration // how old a request id may be at admission
}

// Guards are the checks beside the table. Production leaves the zero value: all
// on. Tests take them away one at a time and see the failure.
type Guards struct {
	NoAdmissionLimit bool // admit: prompt against the limits of the model's nodes
	NoTokenCount     bool // prefilled, decoded: prompt_tokens as admitted
	NoGrantState     bool // grant: only in prefilled
	NoDigest         bool // transferred: KV digest as prefilled
	NoLease          bool // grant, transferred: lease not over
	NoWorker         bool // the sender holds what it reports on
}
