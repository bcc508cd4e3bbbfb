package statemachine

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pdgate/pdgate/events"
)

// refusal is a guard's no, on its way into a command.denied.v1.
type refusal struct {
	code             events.Code
	message          string
	expected, actual string
}

func (r *refusal) Error() string { return string(r.code) + ": " + r.message }

func refuse(code events.Code, message string) *refusal { return &refusal{code: code, message: message} }

// are sets what was expected and what came.
func (r *refusal) are(expected, actual string) *refusal {
	r.expected, r.actual = word(expected), word(actual)
	return r
}

func (r *refusal) numbers(expected, actual int64) *refusal {
	r.expected, r.actual = strconv.FormatInt(expected, 10), strconv.FormatInt(actual, 10)
	return r
}

func (r *refusal) epochs(expected, actual uint64) *refusal {
	r.expected, r.actual = strconv.FormatUint(expected, 10), strconv.FormatUint(actual, 10)
	return r
}

func (r *refusal) times(expected, actual time.Time) *refusal {
	r.expected, r.actual = events.Micros(expected).Format(wireTime), events.Micros(actual).Format(wireTime)
	return r
}

const wireTime = "2006-01-02T15:04:05.000000Z"

// maxWord is enough for every digest, name and number.
const maxWord = 128

// word lets names, digests and numbers into a denial, and nothing that could be
// a piece of a prompt: denials are kept for ever and shown to auditors.
func word(s string) string {
	if len(s) > maxWord {
		return "(not a name)"
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.IndexByte("-_:/.+=|,", c) >= 0:
		default:
			return "(not a name)"
		}
	}
	return s
}

func roleList(all []events.Role) string {
	s := make([]string, len(all))
	for i, r := range all {
		s[i] = string(r)
	}
	return strings.Join(s, "|")
}

// maxMessage bounds what an engine may say in an event.
const maxMessage = 2048

// normal makes an engine's or a service's error fit to be recorded: it has a
// code, its status is an error's, and its message is bounded. A refusal that
// says 200 would reach the client as one.
func normal(e events.Error, code events.Code) events.Error {
	if !e.Code.Known() {
		e.Code = code
	}
	if e.Status < 400 || e.Status > 599 {
		e.Status = e.Code.HTTPStatus()
	}
	if !utf8.ValidString(e.Message) {
		e.Message = strings.ToValidUTF8(e.Message, "?")
	}
	if len(e.Message) > maxMessage {
		n := maxMessage
		for n > 0 && !utf8.RuneStart(e.Message[n]) {
			n--
		}
		e.Message = e.Message[:n]
	}
	return e
}

// illegal is the refusal of a command that the table does not allow in the
// state.
func (m *Machine) illegal(state events.State) *refusal {
	if d, ok := m.c.Data.(*events.Transfer); ok && m.r != nil && m.r.Transfer != nil && d.GrantEpoch <= m.r.Transfer.GrantEpoch {
		return refuse(events.CodeGrantUsed, "the grant was used, and the state is "+word(string(state))).numbers(int64(m.r.Transfer.GrantEpoch)+1, int64(d.GrantEpoch))
	}
	var from []string
	for _, r := range table {
		if r.Event == commandRows[m.c.Type].Events[0] {
			from = append(from, string(r.From))
		}
	}
	return refuse(events.CodeIllegalState, string(m.c.Type)+" is not legal in state "+word(string(state))).are(strings.Join(from, "|"), string(state))
}

// tainted refuses whatever would lead on from a history that is illegal. It may
// end, and its pages may come back.
func (m *Machine) tainted() *refusal {
	if m.r == nil || m.r.Tainted == "" {
		return nil
	}
	switch m.c.Type {
	case events.CmdFail, events.CmdCancel, events.CmdReleased:
		return nil
	}
	return refuse(events.CodeIllegalState, "the request's history is illegal").are("legal", "tainted")
}

// add and mul are saturating: a count from the wire may be anything.
func add(a, b int64) int64 {
	s := a + b
	switch {
	case a > 0 && b > 0 && s < 0:
		return 1<<63 - 1
	case a < 0 && b < 0 && s >= 0:
		return -1 << 63
	}
	return s
}

// mul multiplies counts; a negative one counts as 0.
func mul(a, b int64) int64 {
	if a <= 0 || b <= 0 {
		return 0
	}
	if a > (1<<63-1)/b {
		return 1<<63 - 1
	}
	return a * b
}
