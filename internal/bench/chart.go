package bench

import (
	"fmt"
	"html/template"
	"strconv"

	"github.com/go-analyze/charts"
)

const (
	chartWidth  = 860
	chartHeight = 320
)

// svg renders one chart with draw.
func svg(draw func(*charts.Painter) error) (template.HTML, error) {
	p := charts.NewPainter(charts.PainterOptions{OutputFormat: charts.ChartOutputSVG, Width: chartWidth, Height: chartHeight})
	if err := draw(p); err != nil {
		return "", fmt.Errorf("draw chart: %w", err)
	}
	b, err := p.Bytes()
	if err != nil {
		return "", fmt.Errorf("draw chart: %w", err)
	}
	return template.HTML(b), nil // the library's own markup; names in it are ours
}

// bars draws one bar of each series in every group.
func bars(title string, groups []string, all ...series) (template.HTML, error) {
	var values [][]float64
	var names []string
	for _, s := range all {
		values = append(values, s.values)
		names = append(names, s.name)
	}
	o := charts.NewBarChartOptionWithData(values)
	o.Title.Text = title
	o.CategoryAxis.Labels = groups
	o.Legend.SeriesNames = names
	o.ValueFormatter = num
	return svg(func(p *charts.Painter) error { return p.BarChart(o) })
}

// series is one line, or the bars of one colour, of a chart.
type series struct {
	name   string
	values []float64
}

// lines draws lines over the same points in time.
func lines(title string, at []float64, all ...series) (template.HTML, error) {
	var values [][]float64
	var names, labels []string
	for _, s := range all {
		values = append(values, s.values)
		names = append(names, s.name)
	}
	for _, t := range at {
		labels = append(labels, strconv.FormatFloat(t, 'f', 1, 64))
	}
	o := charts.NewLineChartOptionWithData(values)
	o.Title.Text = title
	o.XAxis.Labels, o.XAxis.LabelCount = labels, 10
	o.XAxis.Title = "seconds"
	o.Legend.SeriesNames = names
	o.Symbol.Shape = charts.SymbolNone
	o.LineStrokeWidth = 1.5
	o.ValueFormatter = num
	return svg(func(p *charts.Painter) error { return p.LineChart(o) })
}

// maxPoints bounds a line: more than these no screen shows.
const maxPoints = 240

// thin keeps at most maxPoints of the points, the largest of each stretch.
func thin(at []float64, v []float64) (ts, vs []float64) {
	step := (len(at) + maxPoints - 1) / maxPoints
	for i := 0; i < len(at); i += max(1, step) {
		most := v[i]
		for _, x := range v[i:min(len(v), i+step)] {
			most = max(most, x)
		}
		ts, vs = append(ts, at[i]), append(vs, most)
	}
	return ts, vs
}
