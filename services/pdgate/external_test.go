package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestExternalFlags(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(empty, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	nodes := []string{"http://h:1"}
	for _, c := range []struct {
		name, engine string
		x            external
		says         string // "": it is right
	}{
		{"ours", "ref", external{}, ""},
		{"ours, and a key of another command", "ref", external{prefill: []string{"p1", "p2"}}, ""},
		{"ours with nodes", "ref", external{prefill: nodes}, "--engine vllm"},
		{"no nodes", "vllm", external{}, "--prefill"},
		{"names for nodes", "vllm", external{prefill: []string{"p1"}}, "want http://"},
		{"a node twice", "vllm", external{prefill: nodes, decode: []string{"http://h:1/"}}, "twice"},
		{"a lease without room", "vllm", external{prefill: nodes, lease: 5 * time.Second, margin: 5 * time.Second}, "engine-lease"},
		{"a lease that lifecycle does not take", "vllm", external{prefill: nodes, lease: time.Hour}, "10m"},
		{"a policy", "vllm", external{prefill: nodes, policy: "lenient"}, "strict or observe"},
		{"a drain", "sglang", external{prefill: nodes, drain: -1}, "engine-drain"},
		{"an empty key", "vllm", external{prefill: nodes, keyFile: empty}, "empty"},
		{"no key", "vllm", external{prefill: nodes, keyFile: empty + "x"}, "engine-key-file"},
		{"right", "vllm", external{prefill: nodes, decode: []string{"https://d:1/path"}, lease: time.Minute, margin: time.Second}, ""},
	} {
		err := c.x.open(c.engine, 0, slog.New(slog.DiscardHandler))
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
		}
		if c.says == "" && c.x.on() != (c.engine != "ref") {
			t.Errorf("%s: on is %v", c.name, c.x.on())
		}
	}
	names, urls := split([]string{"http://a:1", "west=http://b:2", "http://c:3/x=y"}, "p")
	if !slices.Equal(names, []string{"p1", "west", "p3"}) || !slices.Equal(urls, []string{"http://a:1", "http://b:2", "http://c:3/x=y"}) {
		t.Errorf("%q %q", names, urls)
	}
}
