package statemachine

import "github.com/pdgate/pdgate/events"

// Ops is the aggregate of pdgate.log.ops: which workers there are, and which
// models may not be admitted. Only [FoldOps] changes it.
type Ops struct {
	Pos         events.Position                 // of the last event
	Workers     map[string]*events.WorkerJoined // by name: the present life
	Quarantined map[string]string               // model -> reason
	Subjects    map[string]OpsSubject           // worker or model -> its history's end
}

// OpsSubject is the end of one worker's or model's history.
type OpsSubject struct {
	N        int
	Pos      events.Position
	Recorded []Recorded // the last few answers
}
