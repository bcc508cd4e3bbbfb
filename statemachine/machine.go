package statemachine

import (
	"context"
	"errors"
	"slices"

	"github.com/looplab/fsm"

	"github.com/pdgate/pdgate/events"
)

// Machine decides. It is not safe for concurrent use: each partition's goroutine
// has one of its own, for all of its requests.
type Machine struct {
	guards Guards
	fsm    *fsm.FSM

	// What is being decided. Set by Decide; read by the guards, which looplab
	// calls before it moves.
	r   *Request
	c   *events.Command
	f   *Facts
	t   Timeouts
	out events.Data
}

// NewMachine makes a machine with the guards that g leaves on.
func NewMachine(g Guards) *Machine {
	m := &Machine{guards: g}
	m.fsm = newFSM(g, fsm.Callbacks{"before_event": m.before})
	return m
}

// newFSM loads the table into looplab.
func newFSM(g Guards, cb fsm.Callbacks) *fsm.FSM {
	var all fsm.Events
	for _, r := range table {
		all = append(all, fsm.EventDesc{Name: string(r.Event), Src: []string{string(r.From)}, Dst: string(r.To)})
	}
	if g.NoGrantState {
		for _, s := range states {
			if s != events.New && s != events.Prefilled {
				all = append(all, fsm.EventDesc{Name: string(events.TypeTransferGranted), Src: []string{string(s)}, Dst: string(s)})
			}
		}
	}
	return fsm.NewFSM(string(events.New), all, cb)
}

// uncancelled is the context of every transition. A transition under a context
// that ends is left half done, and looplab refuses every later event of that
// instance: no caller's context may come near it.
var uncancelled = context.WithoutCancel(context.Background())

// errOther cancels the transition that was asked for in favour of the one that
// the guard put into out.
var errOther = errors.New("another event is due")

// Decide returns the payload of the event to append for the command: the one it
// asks for, a rejection, or a denial. It never returns nil. r is what the log
// says of the request, nil if nothing; it is not changed.
//
// Repeated commands are the caller's to find first, with [Request.Answer]: here
// they are judged by the state they have led to.
func (m *Machine) Decide(r *Request, c *events.Command, f *Facts) events.Data {
	if f == nil {
		f = &Facts{}
	}
	state := r.current()
	if c == nil {
		return m.deny(state, &events.Command{}, refuse(events.CodeMalformed, "no command"))
	}
	m.r, m.c, m.f, m.t, m.out = r, c, f, f.Timeouts.orDefault(), nil
	defer m.forget()
	row := commandRows[c.Type]
	switch {
	case row == nil || row.ForOps():
		return m.deny(state, c, refuse(events.CodeMalformed, "not a command for a request"))
	case !slices.Contains(row.Roles, c.Role):
		return m.deny(state, c, refuse(events.CodeForbidden, "the sender's role may not do this").are(roleList(row.Roles), string(c.Role)))
	case emptyPayload(c.Data) || c.Data.CommandType() != c.Type:
		return m.deny(state, c, refuse(events.CodeMalformed, "the payload is missing, or is another command's"))
	case state == events.New && c.Type != events.CmdAdmit:
		return m.deny(state, c, refuse(events.CodeUnknownRequest, "no request of this id is open"))
	}
	err := m.fire(state, row.Events[0])
	if err == nil {
		return m.out
	}
	var no *refusal
	switch e := err.(type) {
	case fsm.CanceledError:
		if e.Err == errOther {
			if err = m.fire(state, m.out.EventType()); err == nil {
				return m.out
			}
			no = m.illegal(state)
		} else if !errors.As(e.Err, &no) {
			no = refuse(events.CodeInternal, "the guard gave no reason")
		}
	case fsm.InvalidEventError:
		no = m.illegal(state)
	default:
		no = refuse(events.CodeInternal, "the machine did not move")
	}
	return m.deny(state, c, no)
}

// forget drops what was decided on: a machine outlives every request.
func (m *Machine) forget() { m.r, m.c, m.f, m.out = nil, nil, nil, nil }

// fire drives one transition. A declared self-loop ends in NoTransitionError,
// which is success. Errors of looplab are values and come unwrapped.
func (m *Machine) fire(state events.State, t events.Type) error {
	m.fsm.SetState(string(state))
	err := m.fsm.Event(uncancelled, string(t))
	if same, ok := err.(fsm.NoTransitionError); ok {
		return same.Err
	}
	return err
}

// before runs the guards of a transition that the table allows. Cancelling here
// leaves the state alone; an error in enter_… would come after it changed.
func (m *Machine) before(_ context.Context, e *fsm.Event) {
	if m.out != nil || events.Type(e.Event) == denied {
		return // a rejection or a denial: judged already
	}
	out, no := m.judge()
	if no != nil {
		e.Cancel(no)
		return
	}
	m.out = out
	if out.EventType() != events.Type(e.Event) {
		e.Cancel(errOther)
	}
}

func (m *Machine) judge() (events.Data, *refusal) {
	if no := m.tainted(); no != nil {
		return nil, no
	}
	switch d := m.c.Data.(type) {
	case *events.Admit:
		return m.admit(d)
	case *events.Reject:
		return m.reject(d)
	case *events.Prefill:
		return m.prefilled(d)
	case *events.GrantTransfer:
		return m.grant(d)
	case *events.Transfer:
		return m.transferred(d)
	case *events.DecodeDone:
		return m.decoded(d)
	case *events.Fail:
		return m.fail(d)
	case *events.Cancel:
		return m.cancel(d)
	case *events.Release:
		return m.released(d)
	}
	return nil, refuse(events.CodeMalformed, "the payload is not known to this build")
}

// deny drives the denial's self-loop and makes its payload. A state that the
// table does not know (a damaged snapshot) has no loop; it is denied all the same.
func (m *Machine) deny(state events.State, c *events.Command, no *refusal) events.Data {
	d := &events.CommandDenied{
		Command: c.Type, State: state, Code: no.code, Message: no.message,
		Expected: no.expected, Actual: no.actual,
	}
	m.out = d
	if err := m.fire(state, denied); err != nil && slices.Contains(states, state) {
		d.Code, d.Message = events.CodeInternal, "the machine did not move"
	}
	return d
}

// emptyPayload says whether d is nil or holds a nil pointer.
func emptyPayload(d events.CommandData) bool {
	switch d := d.(type) {
	case nil:
		return true
	case *events.Admit:
		return d == nil
	case *events.Reject:
		return d == nil
	case *events.Prefill:
		return d == nil
	case *events.GrantTransfer:
		return d == nil
	case *events.Transfer:
		return d == nil
	case *events.DecodeDone:
		return d == nil
	case *events.Fail:
		return d == nil
	case *events.Cancel:
		return d == nil
	case *events.Release:
		return d == nil
	case *events.Register:
		return d == nil
	case *events.Leave:
		return d == nil
	case *events.Quarantine:
		return d == nil
	case *events.Restore:
		return d == nil
	case *events.Erase:
		return d == nil
	case *events.Notify:
		return d == nil
	case *events.Canary:
		return d == nil
	case *events.Audit:
		return d == nil
	case *events.Trim:
		return d == nil
	}
	return true
}
