package bench

import (
	"fmt"
	"html/template"
	"strings"
	"text/tabwriter"
)

// growthRow is one measure at every size.
type growthRow struct {
	name string
	cell func(*GrowthPoint) string
}

func growthRows() []growthRow {
	const mb, gb = 1e6, 1e9
	seconds := func(v float64) string { return us(1e6 * v) }
	return []growthRow{
		{"events in the log", func(p *GrowthPoint) string { return num(float64(p.Events)) }},
		{"log, GB", func(p *GrowthPoint) string { return num(float64(p.LogBytes) / gb) }},
		{"log, bytes an event", func(p *GrowthPoint) string { return num(p.BytesPerEvent) }},
		{"snapshot and read side, MB", func(p *GrowthPoint) string { return num(float64(p.StateBytes) / mb) }},
		{"server, resident MB", func(p *GrowthPoint) string { return num(float64(p.ServerRSS) / mb) }},
		{"service, resident MB", func(p *GrowthPoint) string { return num(float64(p.ServiceRSS) / mb) }},
		{"requests of the last 5 minutes", func(p *GrowthPoint) string { return num(float64(p.Retained)) }},
		{"service, heap bytes for each of them", func(p *GrowthPoint) string { return num(p.PerRetained) }},
		{"lifecycles/s, closed loop", func(p *GrowthPoint) string { return num(p.Throughput.Value.Median) }},
		{"  lowest and highest round", func(p *GrowthPoint) string {
			return num(p.Throughput.Value.Low) + " to " + num(p.Throughput.Value.High)
		}},
		{"  a call, p50", func(p *GrowthPoint) string { return us(p.Throughput.Latency.P50) }},
		{"  a call, p99", func(p *GrowthPoint) string { return us(p.Throughput.Latency.P99) }},
		{"  CPU µs an event", func(p *GrowthPoint) string { return cpu(p.Throughput.CPU) }},
		{"clean start, server", func(p *GrowthPoint) string { return seconds(p.CleanServer) }},
		{"clean start, service", func(p *GrowthPoint) string { return seconds(p.CleanService) }},
		{"start after kill -9, server", func(p *GrowthPoint) string { return seconds(p.KilledServer) }},
		{"start after kill -9, service", func(p *GrowthPoint) string { return seconds(p.KilledService) }},
		{"start with events that are in no snapshot", func(p *GrowthPoint) string { return num(float64(p.CatchUpEvents)) }},
		{"  service ready", func(p *GrowthPoint) string { return seconds(p.CatchUp) }},
		{"  read side complete, after that", func(p *GrowthPoint) string { return seconds(p.ReadSide) }},
		{"replay, events/s on one core", func(p *GrowthPoint) string { return num(p.ReplayRate) }},
		{"replay, peak MB", func(p *GrowthPoint) string { return num(p.ReplayPeakMB) }},
		{"filling, events/s", func(p *GrowthPoint) string { return num(p.FillRate) }},
	}
}

func (p *GrowthPoint) title() string { return num(float64(p.Requests)) + " requests" }

// about says how the growth was measured.
func (g *Growth) about() string {
	what := "one log that grows"
	if g.Retain > 0 {
		what += fmt.Sprintf(" and keeps about %s requests", num(float64(g.Retain)))
	}
	return what + fmt.Sprintf(", fsync %s while it is measured; server, service and load are processes; a start is to the first command that is heard, in the service 300 ms of it listening for other replicas", onOff(g.Fsync))
}

func (g *Growth) ratio() string {
	return fmt.Sprintf("throughput at %s to that at %s: %s", g.Points[len(g.Points)-1].title(), g.Points[0].title(), num(g.Ratio))
}

func (g *Growth) table(b *strings.Builder) {
	fmt.Fprintf(b, "\nGROWTH\n\n%s\n\n", g.about())
	t := tabwriter.NewWriter(b, 0, 8, 2, ' ', 0)
	var head []string
	for i := range g.Points {
		head = append(head, g.Points[i].title())
	}
	fmt.Fprintf(t, "\t%s\n", strings.Join(head, "\t"))
	for _, r := range growthRows() {
		fmt.Fprintf(t, "%s", r.name)
		for i := range g.Points {
			fmt.Fprintf(t, "\t%s", r.cell(&g.Points[i]))
		}
		fmt.Fprintln(t)
	}
	t.Flush() // writes to memory
	fmt.Fprintf(b, "\n%s\n", g.ratio())
}

func (g *Growth) charts() ([]template.HTML, error) {
	var names []string
	var all []template.HTML
	values := make([][]float64, 7)
	for i := range g.Points {
		p := &g.Points[i]
		names = append(names, p.title())
		for j, v := range []float64{
			p.Throughput.Value.Median, float64(p.ServerRSS) / 1e6, float64(p.ServiceRSS) / 1e6,
			p.CleanServer, p.CleanService, p.KilledServer, p.KilledService,
		} {
			values[j] = append(values[j], v)
		}
	}
	for _, c := range []struct {
		title string
		all   []series
	}{
		{"growth: lifecycles/s", []series{{"lifecycle service", values[0]}}},
		{"growth: resident memory, MB", []series{{"server", values[1]}, {"service", values[2]}}},
		{"growth: start, seconds", []series{{"server, clean", values[3]}, {"service, clean", values[4]}, {"server, killed", values[5]}, {"service, killed", values[6]}}},
	} {
		h, err := bars(c.title, names, c.all...)
		if err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	return all, nil
}
