package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"go.yaml.in/yaml/v3"
)

// ErrTenantExists means that a tenants file has the tenant already.
var ErrTenantExists = errors.New("the tenant stands in the file already")

// AddTenant is a tenants file with one tenant more; comments stay. file may be
// empty. keyDigest is what KeyDigest makes of the tenant's API key.
func AddTenant(file []byte, t Tenant, keyDigest string) ([]byte, error) {
	entry := &yaml.Node{Kind: yaml.MappingNode}
	add := func(name string, v *yaml.Node) {
		entry.Content = append(entry.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, v)
	}
	add("name", &yaml.Node{Kind: yaml.ScalarNode, Value: t.Name})
	add("api_keys", &yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{{Kind: yaml.ScalarNode, Value: keyDigest}}})
	for _, l := range []struct {
		name  string
		limit int
	}{
		{"max_in_flight", t.MaxInFlight}, {"requests_per_minute", t.RequestsPerMinute},
		{"tokens_per_minute", t.TokensPerMinute}, {"max_prompt_tokens", t.MaxPromptTokens},
	} {
		if l.limit > 0 {
			add(l.name, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.Itoa(l.limit)})
		}
	}
	var doc yaml.Node
	if len(bytes.TrimSpace(file)) == 0 {
		doc = yaml.Node{Kind: yaml.DocumentNode, Content: []*yaml.Node{{Kind: yaml.MappingNode, Content: []*yaml.Node{
			{Kind: yaml.ScalarNode, Value: "tenants"}, {Kind: yaml.SequenceNode, Content: []*yaml.Node{entry}}}}}}
	} else {
		// What is there must be right before anything is added to it.
		list, err := parseTenants(file)
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			if e.tenant.Name == t.Name {
				return nil, ErrTenantExists
			}
		}
		if err := yaml.Unmarshal(file, &doc); err != nil {
			return nil, fmt.Errorf("not YAML: %s", syntaxError(err))
		}
		all := doc.Content[0].Content[1] // the one field that parseTenants takes
		all.Content = append(all.Content, entry)
	}
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(&doc), e.Close()); err != nil {
		return nil, fmt.Errorf("tenants file: %w", err)
	}
	if _, err := parseTenants(b.Bytes()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
