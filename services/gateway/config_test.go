package gateway

import (
	"strings"
	"testing"
	"time"
)

func TestConfig(t *testing.T) {
	t.Parallel()
	good := newRig(t, rigConfig{}).g.cfg
	for want, change := range map[string]func(*Config){
		"":                      func(*Config) {},
		"not a valid principal": func(c *Config) { c.Name = "a.b" },
		"a NATS connection":     func(c *Config) { c.Conn = nil },
		"a lifecycle client":    func(c *Config) { c.Client = nil },
		"tenants are needed":    func(c *Config) { c.Tenants = nil },
		"the digest secret":     func(c *Config) { c.DigestSecret = c.DigestSecret[:31] },
		"no model":              func(c *Config) { c.Models = nil },
		`model "a b"`:           func(c *Config) { c.Models = map[string]Tokenizer{"a b": bytesTokenizer{}} },
		"temperature":           func(c *Config) { c.Temperature = 2.5 },
		"limits.choices":        func(c *Config) { c.Limits.Choices = -1 },
		"timeouts.poll":         func(c *Config) { c.Timeouts.Poll = -time.Second },
		"above limits.memory":   func(c *Config) { c.Limits.Memory = 1 },
	} {
		cfg := good
		change(&cfg)
		_, err := New(cfg)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	cfg := Config{Name: good.Name, Conn: good.Conn, Client: good.Client, Tenants: good.Tenants, Models: good.Models, DigestSecret: testSecret}
	g, err := New(cfg)
	if err != nil || g.cfg.Limits.Body != 32<<20 || g.cfg.Timeouts.Poll != time.Second || g.cfg.Logger == nil || g.cfg.MaxTokens.Completion != 16 {
		t.Errorf("zero values: %+v, %v", g.cfg, err)
	}
	if f := g.enter(); f == nil {
		t.Error("a gateway that does not run takes requests")
	}
}
