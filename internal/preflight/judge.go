package preflight

import (
	"fmt"
	"strings"

	"github.com/pdgate/pdgate/events"
)

// The checks, by the names that findings carry.
const (
	checkNode     = "node"
	checkRole     = "role"
	checkVersion  = "version"
	checkTruncate = "auto-truncate"
	checkPool     = "pool"
	checkInput    = "longest-input"
	checkEngine   = "engine"
	checkPage     = "page-size"
	checkKV       = "kv-type"
	checkTP       = "parallelism"
	checkFleet    = "fleet"
)

// judge looks at nodes that are to serve one model together.
func judge(nodes []Facts) Report {
	r := Report{Nodes: nodes}
	var prefill, decode []*Facts
	for i := range nodes {
		f := &nodes[i]
		r.Findings = append(r.Findings, judgeNode(f)...)
		switch {
		case f.Problem != "":
		case f.Role == events.RolePrefill:
			prefill = append(prefill, f)
		case f.Role == events.RoleDecode:
			decode = append(decode, f)
		}
	}
	r.Findings = append(r.Findings, judgeFleet(prefill, decode)...)
	r.Sort()
	return r
}

// judgeNode looks at one node alone.
func judgeNode(f *Facts) []Finding {
	var out []Finding
	add := func(l Level, check, fix, format string, args ...any) {
		out = append(out, Finding{Level: l, Check: check, Node: f.Node, Text: fmt.Sprintf(format, args...), Fix: fix})
	}
	if f.Problem != "" {
		add(Red, checkNode, f.Fix, "%s; nothing is known of it", f.Problem)
		return out
	}
	if f.Role != "" && (f.Mode == "prefill" || f.Mode == "decode" || f.Mode == "null") && f.Mode != string(f.Role) {
		add(Red, checkRole, "list it under its own role, or start it in the other", "is named as %s, and says of itself that it is %s", f.Role, strings.Replace(f.Mode, "null", "neither prefill nor decode", 1))
	}
	out = append(out, judgeVersion(f)...)
	if f.Truncates {
		add(Amber, checkTruncate, "start it without --allow-auto-truncate", "cuts prompts that are too long, and answers as if they were whole")
	}
	for _, why := range f.Why {
		add(Unknown, checkNode, "", "%s", why)
	}
	switch {
	case !f.PoolTokens.known || !f.Context.known:
	case f.PoolTokens.n < f.Context.n:
		add(Amber, checkPool, "give it a larger pool, or a smaller context", "pool of %s tokens is below the context window of %s: no request can be as long as clients are told", f.PoolTokens, f.Context)
	default:
		add(Green, checkPool, "", "pool of %s tokens holds the context window of %s", f.PoolTokens, f.Context)
	}
	return out
}

func judgeVersion(f *Facts) []Finding {
	rows, err := advisories()
	if err != nil { // the file is embedded, and a test reads it
		return []Finding{{Level: Unknown, Check: checkVersion, Node: f.Node, Text: err.Error()}}
	}
	about := false
	for i := range rows {
		about = about || rows[i].Engine == f.Engine
	}
	if !about {
		return nil
	}
	v, err := parseVersionNumber(f.Version)
	if err != nil {
		return []Finding{{Level: Unknown, Check: checkVersion, Node: f.Node, Text: f.Engine + " " + err.Error() + ": no advisory can be looked up", Fix: "compare it with the advisories by hand"}}
	}
	var out []Finding
	for i := range rows {
		if a := &rows[i]; a.applies(f, v) {
			out = append(out, Finding{Level: a.Level, Check: a.ID, Node: f.Node, Text: f.Engine + " " + f.Version + ": " + a.Text, Fix: a.Fix, Source: a.Source})
		}
	}
	if len(out) == 0 {
		out = append(out, Finding{Level: Green, Check: checkVersion, Node: f.Node, Text: f.Engine + " " + f.Version + ": no advisory is known"})
	}
	return out
}

// judgeFleet compares every prefill node with every decode node.
func judgeFleet(prefill, decode []*Facts) []Finding {
	if len(prefill) == 0 || len(decode) == 0 {
		if len(prefill)+len(decode) == 0 {
			return nil
		}
		return []Finding{{Level: Unknown, Check: checkFleet, Text: fmt.Sprintf("readable nodes: %d prefill, %d decode: there is nothing to compare", len(prefill), len(decode)), Fix: "name at least one node of each role"}}
	}
	var out []Finding
	for _, p := range prefill {
		for _, d := range decode {
			out = append(out, judgePair(p, d)...)
		}
	}
	return out
}

func judgePair(p, d *Facts) []Finding {
	pair := p.Node + " > " + d.Node
	var out []Finding
	add := func(l Level, check, fix, format string, args ...any) {
		out = append(out, Finding{Level: l, Check: check, Node: pair, Text: fmt.Sprintf(format, args...), Fix: fix})
	}
	if p.Engine != d.Engine {
		add(Red, checkEngine, "let both roles run the same engine", "prefill is %s, decode is %s", p.Engine, d.Engine)
		return out
	}
	// What decode takes of what may be asked for, and prefill does not: the incident.
	switch reach := least(d.LongestInput, least(p.Context, d.Context)); {
	case !p.LongestInput.known || !reach.known:
		add(Unknown, checkInput, "", "longest prompt: prefill %s, decode %s, context %s: which one is the least cannot be said", p.LongestInput, d.LongestInput, least(p.Context, d.Context))
	case p.LongestInput.n < reach.n:
		add(Red, checkInput, "give prefill a larger pool, or both a context of at most what prefill accepts", "prompts of %s to %s tokens fit decode and not prefill (pools of %s and %s tokens): the public incident's configuration",
			count(p.LongestInput.n+1), reach, p.PoolTokens, d.PoolTokens)
	default:
		add(Green, checkInput, "", "prefill accepts prompts of up to %s tokens, all that decode and context allow (%s)", p.LongestInput, reach)
	}
	switch {
	case !p.PageTokens.known || !d.PageTokens.known:
		add(Unknown, checkPage, "", "page size: prefill %s, decode %s", p.PageTokens, d.PageTokens)
	case p.PageTokens != d.PageTokens:
		add(Red, checkPage, "start both with one page size", "page size: prefill %s tokens, decode %s", p.PageTokens, d.PageTokens)
	default:
		add(Green, checkPage, "", "pages of %s tokens on both", p.PageTokens)
	}
	switch {
	case p.KVDtype == "" || d.KVDtype == "":
		add(Unknown, checkKV, "", "KV type: prefill %s, decode %s", orUnknown(p.KVDtype), orUnknown(d.KVDtype))
	case p.KVDtype != d.KVDtype:
		add(Red, checkKV, "start both with one KV type", "KV type: prefill %s, decode %s", p.KVDtype, d.KVDtype)
	default:
		add(Green, checkKV, "", "KV type %s on both", p.KVDtype)
	}
	if p.Version != d.Version {
		add(Amber, checkVersion, "run one version on both", "versions differ: prefill %s, decode %s", orUnknown(p.Version), orUnknown(d.Version))
	}
	if p.Context.known && d.Context.known && p.Context != d.Context {
		add(Amber, checkInput, "start both with one context window", "context windows differ: prefill %s, decode %s", p.Context, d.Context)
	}
	if p.TP.known && d.TP.known && p.TP != d.TP {
		add(Amber, checkTP, "make sure that the transfer backend supports it", "tensor parallelism differs: prefill %s, decode %s", p.TP, d.TP)
	}
	return out
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
