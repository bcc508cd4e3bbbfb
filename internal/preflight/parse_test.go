package preflight

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestVersions(t *testing.T) {
	order := []string{"0.5.0.dev3", "0.5.0rc1", "0.5.0", "0.5.0.post1", "0.5.9", "0.5.18", "0.5.20", "v0.6", "0.29.0", "0.29.1.dev7+g1a2b3c4", "0.29.1", "1.0.0.1"}
	for i := 1; i < len(order); i++ {
		a, errA := parseVersionNumber(order[i-1])
		b, errB := parseVersionNumber(order[i])
		if errA != nil || errB != nil || a.compare(b) >= 0 || b.compare(a) <= 0 || a.compare(a) != 0 {
			t.Errorf("%s is not before %s: %v %v", order[i-1], order[i], errA, errB)
		}
	}
	for _, s := range []string{"", "5", "nightly", "0.5.x", "0..5", "0.5-final", "0.99999999999", "0.5.0\n"} {
		if v, err := parseVersionNumber(s); err == nil {
			t.Errorf("%q is %v", s, v)
		}
	}
}

// The embedded file is whole, and what is not is refused with the row's name.
func TestAdvisories(t *testing.T) {
	rows, err := advisories()
	if err != nil || len(rows) < 4 {
		t.Fatal(rows, err)
	}
	seen := map[string]bool{}
	for _, a := range rows {
		if seen[a.ID] {
			t.Errorf("%s stands twice", a.ID)
		}
		seen[a.ID] = true
	}
	good := "id: a\n    engine: e\n    below: 1.0.0\n    level: RED\n    text: t\n    fix: f\n    source: https://s\n"
	file := func(row string) []byte { return []byte("advisories:\n  - " + row) }
	if _, err := parseAdvisories(file(good)); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{
		strings.Replace(good, "https://s", "http://s", 1), strings.Replace(good, "RED", "GREEN", 1), strings.Replace(good, "below: 1.0.0", "roles: disaggregated", 1),
		strings.Replace(good, "1.0.0", "latest", 1), strings.Replace(good, "below", "from", 1) + "    below: never\n", strings.Replace(good, "fix: f", "fixed: f", 1), good + "    roles: some\n",
	} {
		if _, err := parseAdvisories(file(bad)); err == nil {
			t.Errorf("taken:\n%s", bad)
		}
	}
}

func TestMetrics(t *testing.T) {
	line := func(labels string) string { return "vllm:cache_config_info{" + labels + "} 1.0\n" }
	for name, c := range map[string]struct {
		body, pool, page, dtype string
	}{
		"one engine":   {line(`block_size="16",kv_cache_size_tokens="463459",cache_dtype="auto"`), "463,459", "16", "auto"},
		"the least":    {line(`block_size="16",kv_cache_size_tokens="500",engine="0"`) + line(`block_size="16",kv_cache_size_tokens="400",engine="1"`), "400", "16", ""},
		"one untold":   {line(`block_size="16",kv_cache_size_tokens="500"`) + line(`block_size="16"`), "unknown", "16", ""},
		"pages differ": {line(`block_size="16",cache_dtype="a"`) + line(`block_size="8",cache_dtype="b"`), "unknown", "unknown", ""},
		"a quote":      {line(`note="a \"}\" b",block_size="16",kv_cache_size_tokens="1"`), "1", "16", ""},
		"None":         {line(`block_size="None",kv_cache_size_tokens="None"`), "unknown", "unknown", ""},
		"broken":       {"vllm:cache_config_info{block_size=\"16\n", "unknown", "unknown", ""},
		"another":      {"vllm:cache_config_information{block_size=\"16\"} 1\n", "unknown", "unknown", ""},
		"negative":     {line(`block_size="-16",kv_cache_size_tokens="99999999999999999999"`), "unknown", "unknown", ""},
	} {
		var f Facts
		parseMetrics([]byte(c.body), &f)
		if f.PoolTokens.String() != c.pool || f.PageTokens.String() != c.page || f.KVDtype != c.dtype {
			t.Errorf("%s: pool %s, page %s, type %q", name, f.PoolTokens, f.PageTokens, f.KVDtype)
		}
		if !f.PoolTokens.Known() && len(f.Why) == 0 {
			t.Errorf("%s: nothing says why", name)
		}
	}
}

func TestCount(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 681_280: "681,280", 1_048_576: "1,048,576"} {
		if got := count(n).String(); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
	if b, err := json.Marshal([]Count{{}, count(7)}); err != nil || string(b) != "[null,7]" {
		t.Errorf("%s %v", b, err)
	}
}

// FuzzParse: whatever a node says, it is read, refused or unknown, and never more
// than names and numbers are kept of it.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"version":"0.5.22","disaggregation_mode":"prefill","page_size":64,"max_total_num_tokens":681280,"internal_states":[{"memory_usage":{"token_capacity":1}}]}`))
	f.Add([]byte(`{"data":[{"max_model_len":1048576}],"version":"0.29.0"}`))
	f.Add([]byte("vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\"} 1\n"))
	f.Add([]byte(`{"jetstream":{"config":{"sync_always":true}}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		facts, _, _ := parseSGLang(b, Count{})
		parseMetrics(b, &facts)
		if version, err := parseVersion(b); err == nil {
			facts.Version = version
		}
		if c, err := parseModels(b); err == nil && c.Known() && (c.Int() < 1 || c.Int() > maxCount) {
			t.Errorf("context of %d", c.Int())
		}
		_, _ = parseVarz(b)
		_, _ = parseVersionNumber(string(b))
		for _, c := range []Count{facts.PoolTokens, facts.Context, facts.PageTokens, facts.LongestInput} {
			if c.Int() < 0 || c.Int() > maxCount {
				t.Errorf("count of %d", c.Int())
			}
		}
		for _, s := range []string{facts.Version, facts.KVDtype, facts.Mode, facts.Engine} {
			if len(s) > 64 || strings.ContainsAny(s, "\n\x1b ") {
				t.Errorf("kept: %q", s)
			}
		}
		r := judge([]Facts{facts, facts})
		var out bytes.Buffer
		if err := r.Print(&out, false); err != nil {
			t.Fatal(err)
		}
	})
}
