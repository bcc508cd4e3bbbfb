package replay

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
)

// Timelines follows single requests through a replay.
type Timelines struct {
	// Describe says in a line what an event holds.
	Describe func(events.Data) string
	wanted   map[string]bool
	all      map[string]*Timeline
	order    []*Timeline
}

// Timeline is one request's life.
type Timeline struct {
	Request string     `json:"request"`
	Tenant  string     `json:"tenant"`
	Model   string     `json:"model,omitempty"`
	Steps   []Step     `json:"steps"`
	Found   []Evidence `json:"violations,omitempty"`
}

// Step is one event.
type Step struct {
	Position string       `json:"position,omitempty"`
	Time     time.Time    `json:"time"`
	Event    events.Type  `json:"event"`
	By       string       `json:"by,omitempty"`
	State    events.State `json:"state"` // after it
	Legal    bool         `json:"legal"`
	What     string       `json:"what"`
}

// NewTimelines follows the requests of these ids.
func NewTimelines(describe func(events.Data) string, ids ...string) *Timelines {
	t := &Timelines{Describe: describe, wanted: map[string]bool{}, all: map[string]*Timeline{}}
	for _, id := range ids {
		t.wanted[id] = true
	}
	return t
}

// See is an [Options.Observed].
func (t *Timelines) See(o *statemachine.Observation) {
	e := o.Event
	if !t.wanted[e.Subject] {
		return
	}
	l := t.all[e.Subject]
	if l == nil {
		l = &Timeline{Request: strings.Clone(e.Subject), Tenant: strings.Clone(e.Tenant)}
		t.all[l.Request] = l
		t.order = append(t.order, l)
	}
	s := Step{Position: o.Position.String(), Time: e.Time, Event: e.Type, By: strings.Clone(e.Principal), What: strings.Clone(t.Describe(e.Data))}
	if q := o.Request; q != nil {
		_, s.Legal = statemachine.Next(o.Before, e.Type)
		s.State = q.State
		if l.Model == "" {
			l.Model = strings.Clone(q.Model)
		}
	}
	l.Steps = append(l.Steps, s)
}

// Found is an [Options.Violation].
func (t *Timelines) Found(_ statemachine.Kind, e Evidence) {
	if l := t.all[e.Subject]; l != nil {
		l.Found = append(l.Found, e)
	}
}

// All are the followed requests, in the order of their first events.
func (t *Timelines) All() []*Timeline { return t.order }

// barWidth is how wide a life is drawn.
const barWidth = 60

// WriteText draws a request's life: the time in each state as a bar, and each event
// under it.
func (l *Timeline) WriteText(w io.Writer) error {
	p := &printer{Writer: bufio.NewWriter(w)}
	p.line("request %s of %s, model %s", l.Request, dash(l.Tenant), dash(l.Model))
	if len(l.Steps) == 0 {
		p.line("no event")
		return p.Flush()
	}
	first := l.Steps[0].Time
	whole := l.Steps[len(l.Steps)-1].Time.Sub(first)
	column := func(t time.Time) int {
		if whole <= 0 {
			return 0
		}
		return max(0, min(barWidth-1, int(int64(t.Sub(first))*(barWidth-1)/int64(whole))))
	}
	p.line("%s, %v in all", Stamp(first), whole)
	p.line("")
	for i, s := range l.Steps {
		from, to := column(s.Time), barWidth-1
		if i+1 < len(l.Steps) {
			to = column(l.Steps[i+1].Time)
		}
		mark := "█"
		if !s.Legal {
			mark = "░"
		}
		bar := strings.Repeat(" ", from) + strings.Repeat(mark, max(1, to-from))
		p.line("%12s  %-11s |%-*s|", "+"+s.Time.Sub(first).String(), s.State, barWidth, bar)
	}
	p.line("")
	rows := [][]string{{"POSITION", "AFTER", "EVENT", "BY", "STATE", "", "FACTS"}}
	for _, s := range l.Steps {
		note := ""
		if !s.Legal {
			note = "ILLEGAL"
		}
		rows = append(rows, []string{dash(s.Position), s.Time.Sub(first).String(), string(s.Event), dash(s.By), string(s.State), note, s.What})
	}
	p.table(rows)
	for i := range l.Found {
		if i == 0 {
			p.line("")
			p.line("violations")
		}
		p.evidence(fmt.Sprintf("%d", i+1), &l.Found[i])
	}
	return p.Flush()
}
