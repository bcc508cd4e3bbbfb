package bench

import (
	"cmp"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
)

// WriteHTML writes the report as one page that needs nothing else: charts are in
// it as SVG.
func (r *Report) WriteHTML(w io.Writer) error {
	var table strings.Builder
	if err := r.WriteTable(&table); err != nil {
		return err
	}
	page := struct {
		Title  string
		Charts []template.HTML
		Table  string
	}{Title: "pdgate bench " + r.Started.Format("2006-01-02 15:04 MST"), Table: table.String()}
	charts, err := r.charts()
	if err != nil {
		return err
	}
	page.Charts = charts
	if err := htmlPage.Execute(w, page); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

var htmlPage = template.Must(template.New("page").Parse(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Title}}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 920px; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.4em }
svg { width: 100%; height: auto; margin: 1em 0 }
pre { font-size: 12px; line-height: 1.4; overflow-x: auto; background: #f6f7f9; padding: 1em }
</style>
</head>
<body>
<h1>{{.Title}}</h1>
{{range .Charts}}<figure>{{.}}</figure>
{{end}}<pre>{{.Table}}</pre>
</body>
</html>
`))

// charts draws the cases of each bench, one chart for each unit, the growth and the trace.
func (r *Report) charts() ([]template.HTML, error) {
	var all []template.HTML
	var order []string
	groups := map[string][]*Case{}
	for _, c := range r.Cases {
		key := c.Bench + ": " + c.Name + ", " + c.Product.Unit
		if !slices.Contains(order, key) {
			order = append(order, key)
		}
		groups[key] = append(groups[key], c)
	}
	for _, key := range order {
		var names []string
		var product, ceiling []float64
		for _, c := range groups[key] {
			names = append(names, shortTitle(c))
			product, ceiling = append(product, c.Product.Value.Median), append(ceiling, c.Ceiling.Value.Median)
		}
		h, err := bars(key, names, series{"pdgate", product}, series{"ceiling", ceiling})
		if err != nil {
			return nil, err
		}
		all = append(all, h)
	}
	if r.Growth != nil {
		g, err := r.Growth.charts()
		if err != nil {
			return nil, err
		}
		all = append(all, g...)
	}
	if r.Trace == nil {
		return all, nil
	}
	t, err := r.Trace.charts()
	return append(all, t...), err
}

// shortTitle tells a case from those in the same chart.
func shortTitle(c *Case) string {
	s := c.title()
	if i := strings.IndexByte(s, '['); i >= 0 {
		s = strings.Trim(s[i:], "[]")
	}
	return strings.NewReplacer("fsync=", "", "in flight=", "×", "replicas=", "r", "KV=", "", "page=", "of ", ", ", " ").Replace(s)
}

func (t *Trace) charts() ([]template.HTML, error) {
	var at []float64
	var flying, waiting, prefill, decode []float64
	for _, s := range t.Samples {
		at = append(at, s.At)
		flying, waiting = append(flying, float64(s.InFlight)), append(waiting, float64(s.Waiting))
		prefill, decode = append(prefill, 100*s.Prefill), append(decode, 100*s.Decode)
	}
	points := slices.Clone(t.Arrivals)
	slices.SortFunc(points, func(a, b TracePoint) int { return cmp.Compare(a.At, b.At) })
	var when, ttft []float64
	for _, p := range points {
		when, ttft = append(when, p.At), append(ttft, p.TTFT/1e3)
	}
	var all []template.HTML
	draw := func(title string, at []float64, lists ...series) error {
		if len(at) == 0 {
			return nil
		}
		var ts []float64
		for i := range lists {
			ts, lists[i].values = thin(at, lists[i].values)
		}
		h, err := lines(title, ts, lists...)
		all = append(all, h)
		return err
	}
	if err := draw("requests", at, series{"in flight", flying}, series{"waiting for prefill", waiting}); err != nil {
		return nil, err
	}
	if err := draw("pool use, %", at, series{"prefill", prefill}, series{"decode", decode}); err != nil {
		return nil, err
	}
	err := draw("time to first token, ms, by arrival", when, series{"worst of its stretch", ttft})
	return all, err
}
