package replay

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// Point is a moment of a log: a sequence, whose message is the last one that is
// read, or a time.
type Point struct {
	Seq  uint64    `json:"seq,omitempty"`
	Time time.Time `json:"time,omitzero"`
}

// ParsePoint reads a stream sequence, or a time.
func ParsePoint(s string) (*Point, error) {
	if n, err := strconv.ParseUint(s, 10, 64); err == nil && n > 0 {
		return &Point{Seq: n}, nil
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		return nil, fmt.Errorf("%q: want a stream sequence from 1, or a time like 2026-01-02T15:04:05Z", s)
	}
	return &Point{Time: t}, nil
}

// State is everything at a point.
type State struct {
	Point    *Point         `json:"point"`
	States   map[string]int `json:"states"` // requests by state, those that ended included
	Requests []RequestState `json:"open"`   // not final, or with pages
	Ended    []EndedRequest `json:"ended"`
	Pages    []PageState    `json:"pages"`
}

// RequestState is one open request.
type RequestState struct {
	Request      string       `json:"request"`
	Tenant       string       `json:"tenant"`
	State        events.State `json:"state"`
	Position     string       `json:"position"`
	PromptTokens int          `json:"prompt_tokens"`
	Since        time.Time    `json:"since"`
	Deadline     time.Time    `json:"deadline,omitzero"`
	HeldPages    int          `json:"held_pages"`
	Tainted      string       `json:"tainted,omitempty"`
}

// EndedRequest is one that is final.
type EndedRequest struct {
	Request string       `json:"request"`
	State   events.State `json:"state"`
}

// PageState is a run of pages with what they hold.
type PageState struct {
	Worker     string `json:"worker"`
	Epoch      uint64 `json:"epoch"`
	First      uint64 `json:"first"`
	Count      uint64 `json:"count"`
	Generation uint64 `json:"generation"`
	Request    string `json:"request,omitempty"` // whose KV it is; empty: scrubbed
	Tenant     string `json:"tenant,omitempty"`
	Held       bool   `json:"held"` // the request still holds it
}

// state is the log as it stands.
func (l *logRun) state(at *Point) *State {
	s := &State{Point: at, States: map[string]int{}, Requests: []RequestState{}, Ended: []EndedRequest{}, Pages: []PageState{}}
	open := map[string]bool{}
	l.checker.Requests(func(q *statemachine.Request) {
		open[q.ID] = true
		pages := 0
		for _, h := range q.Held {
			pages += h.Pages
		}
		pos := q.Pos.String()
		if l.p.Unplaced {
			pos = ""
		}
		s.Requests = append(s.Requests, RequestState{q.ID, q.Tenant, q.State, pos, q.PromptTokens, q.UpdatedAt, q.Deadline, pages, q.Tainted})
	})
	for id, state := range l.final {
		s.States[string(state)]++
		if !open[id] {
			s.Ended = append(s.Ended, EndedRequest{id, state})
		}
	}
	slices.SortFunc(s.Ended, func(a, b EndedRequest) int { return cmp.Compare(a.Request, b.Request) })
	for k, c := range l.pages.pools {
		for _, h := range c.spans {
			p := PageState{Worker: k.worker, Epoch: k.epoch, First: h.start, Count: h.end - h.start, Generation: h.generation}
			if h.owner != nil {
				p.Request, p.Tenant = h.owner.request, h.owner.tenant
				p.Held = l.pages.lives[p.Request] != nil
			}
			s.Pages = append(s.Pages, p)
		}
	}
	slices.SortFunc(s.Pages, func(a, b PageState) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.First, b.First))
	})
	return s
}
