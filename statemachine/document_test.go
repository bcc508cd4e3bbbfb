package statemachine

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/looplab/fsm"

	"github.com/pdgate/pdgate/events"
)

// TestStatesDocument compares docs/states.md with the tables; -update writes it.
func TestStatesDocument(t *testing.T) {
	doc, err := statesDocument()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "../docs/states.md", doc)
}

func statesDocument() (string, error) {
	var b strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	p("<!-- Generated from package statemachine by `go generate ./statemachine`. Do not edit. -->\n\n")
	p("# States of a request\n\n")
	p("The table below is the data that decides, folds and checks; this page is made of it.\n\n")

	// Self-loops that stand at every state say nothing in a picture.
	var drawn fsm.Events
	for _, r := range Table() {
		if r.Event != denied && r.Event != events.TypeReleased {
			drawn = append(drawn, fsm.EventDesc{Name: short(r.Event), Src: []string{string(r.From)}, Dst: string(r.To)})
		}
	}
	picture, err := fsm.VisualizeForMermaidWithGraphType(fsm.NewFSM(string(events.New), drawn, nil), fsm.StateDiagram)
	if err != nil {
		return "", err
	}
	p("```mermaid\n%s", picture)
	for _, s := range States() {
		if s.Final() {
			p("    %s --> [*]\n", s)
		}
	}
	p("```\n\n`command.denied.v1` is recorded in every state, `request.released.v1` in every state in which\npages may be held; neither changes the state.\n\n")

	p("## Transitions\n\n| event | from | to | |\n|---|---|---|---|\n")
	var rows []Row
	from := map[Row][]string{}
	for _, r := range Table() {
		k := Row{Event: r.Event, To: r.To, Doc: r.Doc}
		if r.From == r.To && r.Event != events.TypeTransferGranted {
			k.To = "unchanged"
		}
		if from[k] == nil {
			rows = append(rows, k)
		}
		from[k] = append(from[k], string(r.From))
	}
	for _, r := range rows {
		p("| `%s` | %s | %s | %s |\n", r.Event, strings.Join(from[r], ", "), r.To, r.Doc)
	}

	p("\nEvery state but the final ones carries a deadline; %s are final.\n", list(slices.DeleteFunc(States(), func(s events.State) bool { return !s.Final() })))

	p("\n## Commands\n\n| command | who | becomes | |\n|---|---|---|---|\n")
	for _, c := range Commands() {
		var e []string
		for _, t := range c.Events {
			e = append(e, "`"+string(t)+"`")
		}
		p("| `%s` | %s | %s | %s |\n", c.Command, list(c.Roles), strings.Join(e, ", "), c.Doc)
	}

	p("\n## Rejections\n\nAn admission is rejected for the first of these that applies. The client gets the status.\n\n| code | HTTP | |\n|---|---|---|\n")
	for _, r := range Rejections() {
		p("| `%s` | %d | %s |\n", r.Code, r.Code.HTTPStatus(), r.Doc)
	}

	p("\n## Denials\n\nA command that is not legal where it stands is recorded as `command.denied.v1` and changes nothing.\n\n| command | code | |\n|---|---|---|\n")
	for _, d := range Denials() {
		c := "every command"
		if d.Command != "" {
			c = "`" + string(d.Command) + "`"
		}
		p("| %s | `%s` | %s |\n", c, d.Code, d.Doc)
	}
	return b.String(), nil
}

// short is the event's name without what all of them share.
func short(t events.Type) string {
	return strings.TrimSuffix(strings.TrimPrefix(string(t), "request."), ".v1")
}

func list[T ~string](all []T) string {
	s := make([]string, len(all))
	for i, v := range all {
		s[i] = string(v)
	}
	return strings.Join(s, ", ")
}
