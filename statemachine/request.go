package statemachine

import (
	"time"

	"github.com/pdgate/pdgate/events"
)

// Request is one aggregate: what the log says of one request. Only [Fold]
// changes it.
type Request struct {
	ID    string          `json:"id"`
	State events.State    `json:"state"`
	N     int             `json:"n"`    // number of the last event
	Pos   events.Position `json:"-"`    // of the last event
	Hash  string          `json:"hash"` // of the last event

	Tenant       string    `json:"tenant,omitempty"`
	Model        string    `json:"model,omitempty"`
	Gateway      string    `json:"gateway,omitempty"`
	Traceparent  string    `json:"traceparent,omitempty"`
	PromptTokens int       `json:"prompt_tokens,omitempty"`
	MaxTokens    int       `json:"max_tokens,omitempty"`
	PromptDigest string    `json:"prompt_digest,omitempty"`
	TenantKey    string    `json:"tenant_key,omitempty"` // fingerprint of the key that the digests are under; "": the cluster's secret
	AdmittedAt   time.Time `json:"admitted_at,omitzero"`
	UpdatedAt    time.Time `json:"updated_at,omitzero"`
	Deadline     time.Time `json:"deadline,omitzero"` // of the whole request
	StateBy      time.Time `json:"state_by,omitzero"` // of the present state; zero once final

	Error    *events.Error              `json:"error,omitempty"` // of a rejection, failure or cancellation: the first one
	Prefill  *events.RequestPrefilled   `json:"prefilled,omitempty"`
	Grant    *events.TransferGranted    `json:"granted,omitempty"` // the last one
	Transfer *events.RequestTransferred `json:"transferred,omitempty"`
	Decoded  *events.RequestDecoded     `json:"decoded,omitempty"`

	Held     []Holding  `json:"held,omitempty"`     // pages that workers hold for the request
	Recorded []Recorded `json:"recorded,omitempty"` // answers to commands, oldest first
	Tainted  string     `json:"tainted,omitempty"`  // why the history is illegal; "" if it is not
}

// Holding is one allocation that the log knows of and that is not released.
type Holding struct {
	Worker     string      `json:"worker"`
	Epoch      uint64      `json:"epoch"`
	Role       events.Role `json:"role"`
	Generation uint64      `json:"generation"`
	Pages      int         `json:"pages"`
}

// Recorded is the answer to one command, kept so that a repeated command gets
// it again.
type Recorded struct {
	Key    string          `json:"key"`   // events.Command.Key
	Met    events.State    `json:"met"`   // the state the command met
	State  events.State    `json:"state"` // the state after it
	Type   events.Type     `json:"type"`
	N      int             `json:"n"`
	Pos    events.Position `json:"-"`
	Hash   string          `json:"hash"`
	Denied *events.Denial  `json:"denied,omitempty"`
}

// current is the state; a request of which nothing is recorded is new.
func (r *Request) current() events.State {
	if r == nil || r.State == "" {
		return events.New
	}
	return r.State
}

// holds says whether the log knows of the allocation and of no release.
func (r *Request) holds(role events.Role, worker string, epoch, gen uint64) bool {
	for i := range r.Held {
		h := &r.Held[i]
		if h.Role == role && h.Worker == worker && h.Epoch == epoch && h.Generation == gen {
			return true
		}
	}
	return false
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
	TenantKey string                // admit: fingerprint of the tenant's key that the service holds; "": none
	Sender    *events.WorkerJoined  // the sending worker's current registration; nil: none
	Owner     *events.WorkerJoined  // grant: the prefill worker's current registration; nil: none
	Timeouts  Timeouts
}

// Timeouts are the deadlines that events carry. A field that is not above zero
// takes its default: no state of a request is without a deadline.
type Timeouts struct {
	Request time.Duration // whole life, unless the command says less; default 10 minutes
	Prefill time.Duration // admitted to prefilled; default 2 minutes
	Decode  time.Duration // transferred to decoded; default 5 minutes
	Lease   time.Duration // longest lease a prefill worker may offer; default 10 minutes
	Skew    time.Duration // how far ahead of Now a request id's time may lie; default 5 seconds
	Fresh   time.Duration // how old a request id may be at admission; default 1 minute
}

func (t Timeouts) orDefault() Timeouts {
	set := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	set(&t.Request, 10*time.Minute)
	set(&t.Prefill, 2*time.Minute)
	set(&t.Decode, 5*time.Minute)
	set(&t.Lease, 10*time.Minute)
	set(&t.Skew, 5*time.Second)
	set(&t.Fresh, time.Minute)
	return t
}

// Guards are the checks beside the table. Production leaves the zero value: all
// on. Tests take them away one at a time and see the failure.
type Guards struct {
	NoAdmissionLimit bool // admit: prompt against the limits of the model's nodes
	NoTokenCount     bool // prefilled, decoded: prompt_tokens as admitted
	NoGrantState     bool // grant: only in prefilled
	NoDigest         bool // prefilled: a KV digest at all; transferred: the same one, and the same bytes
	NoLease          bool // grant, transferred: lease not over
	NoWorker         bool // senders are registered, and hold what they report on
}
