package preflight

import (
	"fmt"
	"io"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// colours of the levels on a terminal.
var colours = map[Level]string{Green: "\x1b[32m", Unknown: "\x1b[36m", Amber: "\x1b[33m", Red: "\x1b[31m"}

// Print writes a line for each node and for each finding, the worst first. The
// levels are words: colour adds nothing that is not there without it.
func (r *Report) Print(w io.Writer, colour bool) error {
	var b strings.Builder
	for _, f := range r.Nodes {
		if f.Problem != "" {
			fmt.Fprintf(&b, "%-8s %s\n", f.Role, f.Node)
			continue
		}
		fmt.Fprintf(&b, "%-8s %s: %s %s, pool %s, context %s, longest prompt %s, pages of %s, KV %s", role(f.Role), f.Node, f.Engine, orUnknown(f.Version),
			f.PoolTokens, f.Context, f.LongestInput, f.PageTokens, orUnknown(f.KVDtype))
		if f.TP.known {
			fmt.Fprintf(&b, ", tp %s", f.TP)
		}
		if f.DP.known {
			fmt.Fprintf(&b, ", dp %s", f.DP)
		}
		b.WriteByte('\n')
	}
	if len(r.Nodes) > 0 && len(r.Findings) > 0 {
		b.WriteByte('\n')
	}
	for _, f := range r.Findings {
		level := fmt.Sprintf("%-7s", f.Level)
		if colour {
			level = colours[f.Level] + level + "\x1b[0m"
		}
		b.WriteString(level + " ")
		if f.Node != "" {
			b.WriteString(f.Node + ": ")
		}
		b.WriteString(f.Text)
		if f.Fix != "" {
			b.WriteString(". Fix: " + f.Fix)
		}
		if f.Source != "" {
			b.WriteString(" (" + f.Source + ")")
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func role(r events.Role) string {
	if r == "" {
		return "node"
	}
	return string(r)
}
