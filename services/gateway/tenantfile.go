package gateway

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pdgate/pdgate/events"
)

type tenantEntry struct {
	tenant Tenant
	keys   [][32]byte
}

// parseTenants reads a tenants file. It walks the nodes itself: the errors of a
// decoder quote values, and somebody may have put a key where its digest
// belongs.
func parseTenants(b []byte) ([]tenantEntry, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(b, &doc); err != nil {
		return nil, fmt.Errorf("not YAML: %s", syntaxError(err))
	}
	if len(doc.Content) != 1 {
		return nil, errNoTenants
	}
	var entries []tenantEntry
	names, keys := make(map[string]int), make(map[[32]byte]int)
	err := members(doc.Content[0], func(name string, v *yaml.Node) error {
		if name != "tenants" {
			return lineError(v, "unknown field; want tenants")
		}
		return elements(v, func(_ int, v *yaml.Node) error {
			e, err := parseTenant(v)
			if err != nil {
				return err
			}
			if line, doubled := names[e.tenant.Name]; doubled {
				return lineError(v, "name: the tenant stands at line "+strconv.Itoa(line)+" too")
			}
			names[e.tenant.Name] = v.Line
			for _, k := range e.keys {
				if line, doubled := keys[k]; doubled {
					return lineError(v, "api_keys: a key belongs to the tenant at line "+strconv.Itoa(line)+" too")
				}
				keys[k] = v.Line
			}
			entries = append(entries, e)
			return nil
		})
	})
	if err == nil && len(entries) == 0 {
		err = errNoTenants
	}
	return entries, err
}

func parseTenant(v *yaml.Node) (e tenantEntry, err error) {
	limits := map[string]*int{
		"max_in_flight": &e.tenant.MaxInFlight, "requests_per_minute": &e.tenant.RequestsPerMinute,
		"tokens_per_minute": &e.tenant.TokensPerMinute, "max_prompt_tokens": &e.tenant.MaxPromptTokens,
	}
	err = members(v, func(name string, v *yaml.Node) error {
		switch name {
		case "name":
			if v.Kind != yaml.ScalarNode || !events.ValidName(v.Value) {
				return lineError(v, "name: want 1 to 64 letters, digits, '-', '_', ':' or '/'")
			}
			e.tenant.Name = v.Value
			return nil
		case "api_keys":
			return elements(v, func(i int, v *yaml.Node) error {
				d, err := hex.DecodeString(v.Value)
				if v.Kind != yaml.ScalarNode || err != nil || len(d) != 32 {
					return lineError(v, "api_keys["+strconv.Itoa(i)+"]: want the SHA-256 of a key, 64 hex digits")
				}
				e.keys = append(e.keys, [32]byte(d))
				return nil
			})
		}
		limit, known := limits[name]
		if !known {
			return lineError(v, "unknown field; want name, api_keys, max_in_flight, requests_per_minute, tokens_per_minute or max_prompt_tokens")
		}
		n, err := strconv.Atoi(v.Value)
		if v.Kind != yaml.ScalarNode || v.Tag != "!!int" || err != nil || n < 0 || n > 1<<40 {
			return lineError(v, name+": want a whole number, 0 for no limit")
		}
		*limit = n
		return nil
	})
	switch {
	case err != nil:
	case e.tenant.Name == "":
		err = lineError(v, "name is missing")
	case len(e.keys) == 0:
		err = lineError(v, "api_keys is missing or empty")
	}
	return e, err
}

// members calls f for each member of a mapping.
func members(n *yaml.Node, f func(name string, v *yaml.Node) error) error {
	if n.Kind != yaml.MappingNode {
		return lineError(n, "want a mapping")
	}
	seen := make(map[string]bool)
	for i := 0; i < len(n.Content); i += 2 {
		k := n.Content[i]
		if k.Kind != yaml.ScalarNode {
			return lineError(k, "want the name of a field")
		}
		if seen[k.Value] {
			return lineError(k, "a field stands twice")
		}
		seen[k.Value] = true
		if err := f(k.Value, n.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

// elements calls f for each element of a sequence.
func elements(n *yaml.Node, f func(i int, v *yaml.Node) error) error {
	if n.Kind != yaml.SequenceNode {
		return lineError(n, "want a list")
	}
	for i, v := range n.Content {
		if err := f(i, v); err != nil {
			return err
		}
	}
	return nil
}

func lineError(n *yaml.Node, what string) error {
	return fmt.Errorf("line %d: %s", n.Line, what)
}

// syntaxError is the parser's own complaint, without the words that it quotes.
func syntaxError(err error) string {
	s := strings.TrimPrefix(err.Error(), "yaml: ")
	if i := strings.IndexAny(s, "'\"`"); i >= 0 {
		s = strings.TrimSpace(s[:i]) + " …"
	}
	return s
}
