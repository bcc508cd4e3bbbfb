package enginefake

import (
	"fmt"
	"net/http"
	"strings"
)

// Metrics collects a page of metrics in the text format.
type Metrics struct{ b strings.Builder }

// Add adds one sample. labels are name and value in turn.
func (m *Metrics) Add(name, kind string, value float64, labels ...string) {
	if !strings.Contains(m.b.String(), "# TYPE "+name+" ") {
		fmt.Fprintf(&m.b, "# HELP %s %s.\n# TYPE %s %s\n", name, name, name, kind)
	}
	var l []string
	for i := 0; i+1 < len(labels); i += 2 {
		l = append(l, fmt.Sprintf("%s=%q", labels[i], labels[i+1]))
	}
	m.b.WriteString(name)
	if len(l) > 0 {
		m.b.WriteString("{" + strings.Join(l, ",") + "}")
	}
	fmt.Fprintf(&m.b, " %v\n", value)
}

// Write answers with the page.
func (m *Metrics) Write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write([]byte(m.b.String()))
}
