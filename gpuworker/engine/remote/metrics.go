package remote

import (
	"bytes"
	"strconv"
	"strings"
)

// Sample is one line of Prometheus' text format.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Metrics are the named families of a page in Prometheus' text format; others
// are passed over, and so are lines that are not understood. A counter is found
// under its name with and without "_total".
func Metrics(page []byte, names ...string) map[string][]Sample {
	found := make(map[string][]Sample, len(names))
	for line := range bytes.Lines(page) {
		for _, name := range names {
			rest, ok := bytes.CutPrefix(line, []byte(name))
			if !ok {
				continue
			}
			if s, ok := sample(string(bytes.TrimSpace(rest))); ok {
				found[name] = append(found[name], s)
			}
		}
	}
	return found
}

// sample reads what follows a name: labels in braces, a value, a time.
func sample(s string) (Sample, bool) {
	out := Sample{Labels: map[string]string{}}
	if s == "" || s[0] != '{' && s[0] != ' ' && !strings.ContainsAny(s[:1], "0123456789+-.NI") {
		return out, false // a longer name
	}
	if s[0] == '{' {
		rest, ok := labels(s[1:], out.Labels)
		if !ok {
			return out, false
		}
		s = rest
	}
	f := strings.Fields(s)
	if len(f) == 0 || len(f) > 2 {
		return out, false
	}
	v, err := strconv.ParseFloat(f[0], 64)
	out.Value = v
	return out, err == nil
}

// labels reads name="value" pairs up to the closing brace.
func labels(s string, into map[string]string) (rest string, ok bool) {
	for {
		s = strings.TrimLeft(s, ", ")
		if r, ok := strings.CutPrefix(s, "}"); ok {
			return r, true
		}
		name, r, ok := strings.Cut(s, `="`)
		if !ok || len(name) > 128 {
			return "", false
		}
		var v strings.Builder
		i := 0
		for ; i < len(r) && r[i] != '"'; i++ {
			if r[i] == '\\' && i+1 < len(r) {
				i++
				if r[i] == 'n' {
					v.WriteByte('\n')
					continue
				}
			}
			v.WriteByte(r[i])
		}
		if i == len(r) {
			return "", false
		}
		into[strings.TrimSpace(name)] = v.String()
		s = r[i+1:]
	}
}

// Total is the sum of a family: one process may count in several places. false:
// there is none.
func Total(s []Sample) (float64, bool) {
	sum := 0.0
	for _, x := range s {
		sum += x.Value
	}
	return sum, len(s) > 0
}
