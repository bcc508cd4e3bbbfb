package lifecycle

import "github.com/pdgate/pdgate/events"

// answers remembers the answers to the last few commands by key, for commands
// that no request remembers: denials of unknown requests. Without it, a client
// that sends such a command again would have it recorded again. The oldest goes
// first, whether it was asked for or not.
type answers struct {
	limit int
	byKey map[string]*events.Answer
	order []string // keys, oldest first, as a ring
	next  int
}

func newAnswers(limit int) *answers {
	return &answers{limit: limit, byKey: map[string]*events.Answer{}}
}

func (a *answers) get(key string) (*events.Answer, bool) {
	v, ok := a.byKey[key]
	return v, ok
}

func (a *answers) put(key string, v *events.Answer) {
	if key == "" {
		return
	}
	if _, ok := a.byKey[key]; !ok {
		if len(a.order) < a.limit {
			a.order = append(a.order, key)
		} else {
			delete(a.byKey, a.order[a.next])
			a.order[a.next] = key
			a.next = (a.next + 1) % a.limit
		}
	}
	a.byKey[key] = v
}
