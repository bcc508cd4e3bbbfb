package main

import (
	_ "embed"
	"fmt"
	"hash/fnv"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/statemachine"
	"github.com/pdgate/pdgate/statemachine/replay"
)

//go:embed replay_page.html
var replayPageText string

// replayPage needs no network: styles stand in it, and there is no script.
var replayPage = template.Must(template.New("replay").Funcs(template.FuncMap{
	"stamp":    func(t time.Time) string { return replay.Stamp(t) },
	"join":     func(s []string) string { return dash(strings.Join(s, ", ")) },
	"colour":   tenantColour,
	"bars":     bars,
	"height":   func(l *replay.Timeline) int { return 16 * max(len(l.Steps), 1) },
	"explain":  func(id statemachine.Kind) string { f, _ := replay.Explain(id); return f.Explanation },
	"evidence": groupEvidence,
	"first":    func(n int, all []replay.Response) []replay.Response { return all[:min(n, len(all))] },
}).Parse(replayPageText))

// page is what the HTML shows.
type page struct {
	Title     string
	Exit      int
	Result    *replay.Result
	Report    *replay.Report
	Maps      []replay.PageMap
	Tenants   []string
	Timelines []*replay.Timeline
	Open      bool
}

func (p *page) write(w io.Writer) error {
	p.Exit = int(p.Result.Verdict.Exit)
	seen := map[string]bool{}
	for _, m := range p.Maps {
		for _, x := range m.Pieces {
			if x.Tenant != "" && !seen[x.Tenant] {
				seen[x.Tenant] = true
				p.Tenants = append(p.Tenants, x.Tenant)
			}
		}
	}
	slices.Sort(p.Tenants)
	p.Open = len(p.Timelines) <= 3
	if err := replayPage.Execute(w, p); err != nil {
		return fmt.Errorf("write page: %w", err)
	}
	return nil
}

// tenantColour is the same for a tenant in every page; scrubbed pages are white.
func tenantColour(tenant string) string {
	if tenant == "" {
		return "#ffffff"
	}
	h := fnv.New32a()
	h.Write([]byte(tenant))
	n := h.Sum32()
	return fmt.Sprintf("hsl(%d,%d%%,%d%%)", n%360, 45+n/360%30, 62+n/10800%18)
}

func groupEvidence(g *replay.Group) []replay.Evidence {
	all := append([]replay.Evidence{g.First}, g.Samples...)
	if g.Count > int64(len(all)) {
		all = append(all, g.Last)
	}
	return all
}

// bar is one state's time in a drawing of 1000 units.
type bar struct {
	X, Y, W, TX, TY int
	Fill, Anchor    string
	Title, Text     string
}

func bars(l *replay.Timeline) (all []bar) {
	if len(l.Steps) == 0 {
		return nil
	}
	first := l.Steps[0].Time
	whole := max(l.Steps[len(l.Steps)-1].Time.Sub(first), time.Microsecond)
	at := func(t time.Time) int { return max(0, min(998, int(998*t.Sub(first)/whole))) }
	for i, s := range l.Steps {
		b := bar{X: at(s.Time), Y: 16 * i, W: 2, TY: 16*i + 11, Fill: stateColour(s), Anchor: "start"}
		if i+1 < len(l.Steps) {
			b.W = max(2, at(l.Steps[i+1].Time)-b.X)
		}
		b.Text = shortType(s.Event)
		b.Title = fmt.Sprintf("%s, %s after the first: %s", s.State, s.Time.Sub(first), s.What)
		if b.TX = b.X + b.W + 5; b.TX > 850 {
			b.TX, b.Anchor = b.X-5, "end"
			if b.X < 150 { // the bar fills the line: the text stands in it
				b.TX, b.Anchor = b.X+5, "start"
			}
		}
		all = append(all, b)
	}
	return all
}

func stateColour(s replay.Step) string {
	if !s.Legal {
		return "#b3261e"
	}
	switch s.State {
	case events.Admitted:
		return "#9bb8d3"
	case events.Prefilled:
		return "#6d9dc5"
	case events.Transferred:
		return "#4a7fb0"
	case events.Decoded:
		return "#2e7d32"
	case events.Rejected, events.Failed:
		return "#c77700"
	}
	return "#9e9e9e"
}
