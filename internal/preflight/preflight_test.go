package preflight

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

const window = 1_048_576

// found says whether the report has a finding of the level and check that holds
// the words.
func found(r Report, l Level, check, words string) bool {
	return slices.ContainsFunc(r.Findings, func(f Finding) bool {
		return f.Level == l && f.Check == check && strings.Contains(f.Text, words)
	})
}

func fleet(t *testing.T, prefill, decode []http.Handler) Report {
	t.Helper()
	var cfg Config
	for _, h := range prefill {
		cfg.Prefill = append(cfg.Prefill, serve(t, h))
	}
	for _, h := range decode {
		cfg.Decode = append(cfg.Decode, serve(t, h))
	}
	cfg.Timeout = 30 * time.Second
	r, err := Fleet(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func text(t *testing.T, r Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := r.Print(&b, false); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestIncident: the public configuration is red, its repair is green.
func TestIncident(t *testing.T) {
	r := fleet(t, []http.Handler{sglang(t, "prefill", 681_280, window, nil)}, []http.Handler{sglang(t, "decode", 2_040_000, window, nil)})
	if r.Worst() != Red || !found(r, Red, checkInput, "prompts of 681,274 to 1,048,569 tokens fit decode and not prefill") || !found(r, Amber, checkPool, "681,280") {
		t.Errorf("the incident:\n%s", text(t, r))
	}
	r = fleet(t, []http.Handler{sglang(t, "prefill", 2_040_000, window, nil)}, []http.Handler{sglang(t, "decode", 2_040_000, window, nil)})
	if r.Worst() != Green {
		t.Errorf("its repair:\n%s", text(t, r))
	}
}

// TestFindings goes through what is judged, one difference at a time.
func TestFindings(t *testing.T) {
	set := func(k string, v any) func(map[string]any) { return func(m map[string]any) { m[k] = v } }
	big := 2_040_000
	decode := sglang(t, "decode", big, window, nil)
	for name, c := range map[string]struct {
		prefill engineNode
		decode  engineNode
		level   Level
		check   string
		words   string
	}{
		"page size":         {sglang(t, "prefill", big, window, set("page_size", 32)), decode, Red, checkPage, "prefill 32 tokens, decode 64"},
		"kv type":           {sglang(t, "prefill", big, window, set("kv_cache_dtype", "fp8_e4m3")), decode, Red, checkKV, "prefill fp8_e4m3, decode auto"},
		"placeholder bug":   {sglang(t, "prefill", big, window, set("version", "0.5.19.post2")), decode, Red, "sglang-placeholder", "0.5.19.post2"},
		"its first fix":     {sglang(t, "prefill", big, window, set("version", "0.5.20")), decode, Amber, "sglang-placeholder-fixes", "0.5.20"},
		"release candidate": {sglang(t, "prefill", big, window, set("version", "0.5.20rc1")), decode, Red, "sglang-placeholder", "0.5.20rc1"},
		"versions differ":   {sglang(t, "prefill", big, window, set("version", "0.5.23")), decode, Amber, checkVersion, "prefill 0.5.23, decode 0.5.22"},
		"odd version":       {sglang(t, "prefill", big, window, set("version", "nightly")), decode, Unknown, checkVersion, `"nightly"`},
		"truncation":        {sglang(t, "prefill", big, window, set("allow_auto_truncate", true)), decode, Amber, checkTruncate, ""},
		"small decode":      {sglang(t, "prefill", big, window, nil), sglang(t, "decode", 900_000, window, nil), Amber, checkPool, "900,000"},
		"wrong role":        {sglang(t, "decode", big, window, nil), decode, Red, checkRole, "says of itself that it is decode"},
		"not disaggregated": {sglang(t, "null", big, window, nil), decode, Red, checkRole, "neither prefill nor decode"},
		"parallelism":       {sglang(t, "prefill", big, window, set("tp_size", 4)), decode, Amber, checkTP, "prefill 4, decode 8"},
		"least rank": {sglang(t, "prefill", big, window, func(m map[string]any) {
			rank := func(n int) any { return map[string]any{"memory_usage": map[string]any{"token_capacity": n}} }
			m["dp_size"], m["internal_states"] = 2, []any{rank(big), rank(681_280)}
			m["max_req_input_len"] = nil
		}), decode, Red, checkInput, "681,274"},
		"ranks untold": {sglang(t, "prefill", big, window, func(m map[string]any) {
			m["dp_size"], m["internal_states"] = 2, []any{}
			m["max_req_input_len"] = nil
		}), decode, Unknown, checkInput, "prefill unknown"},
		"told input below its pool": {sglang(t, "prefill", big, window, set("max_req_input_len", 1000)), decode, Red, checkInput, "prompts of 1,000 to"},
		"context differs":           {sglang(t, "prefill", big, 500_000, nil), decode, Red, checkInput, "prompts of 499,994 to 500,000 tokens"},
		"engines differ":            {vllm(big, window, "0.30.0", "auto"), decode, Red, checkEngine, "prefill is vllm, decode is sglang"},
		"vllm small pool":           {vllm(681_280, window, "0.30.0", "auto"), vllm(big, window, "0.30.0", "auto"), Red, checkInput, "prompts of 681,281 to 1,048,576"},
		"vllm hybrid":               {vllm(0, window, "0.30.0", "auto"), vllm(big, window, "0.30.0", "auto"), Unknown, checkNode, "wrong for hybrid models"},
		"vllm stale reference":      {vllm(big, window, "0.29.0", "auto"), vllm(big, window, "0.29.0", "auto"), Amber, "vllm-stale-reference", "previous prompt"},
		"vllm kv type":              {vllm(big, window, "0.30.0", "fp8"), vllm(big, window, "0.30.0", "auto"), Red, checkKV, "prefill fp8"},
	} {
		t.Run(name, func(t *testing.T) {
			r := fleet(t, []http.Handler{c.prefill}, []http.Handler{c.decode})
			if !found(r, c.level, c.check, c.words) {
				t.Errorf("want %s %s %q:\n%s", c.level, c.check, c.words, text(t, r))
			}
			for _, f := range r.Findings {
				if f.Level == Red && f.Fix == "" {
					t.Errorf("no fix: %+v", f)
				}
			}
			b, err := json.Marshal(r)
			if err != nil || bytes.Contains(b, []byte(secret)) || strings.Contains(text(t, r), secret) {
				t.Errorf("%v: what the node dumped is in the report: %s", err, b)
			}
		})
	}
	if r := fleet(t, []http.Handler{vllm(big, window, "0.30.1", "auto")}, []http.Handler{vllm(big, window, "0.30.1", "auto")}); r.Worst() != Green {
		t.Errorf("a fitting vLLM fleet:\n%s", text(t, r))
	}
	old := decode["/server_info"]
	renamed := engineNode{"/get_server_info": old, "/v1/models": decode["/v1/models"]}
	if r := fleet(t, []http.Handler{sglang(t, "prefill", big, window, nil)}, []http.Handler{renamed}); r.Worst() != Green {
		t.Errorf("an older SGLang's endpoint:\n%s", text(t, r))
	}
}

// TestBadNodes: whatever is at an address, there is one clear line, in bounded
// time, and never what it answered.
func TestBadNodes(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := "http://" + l.Addr().String()
	l.Close()
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	go func() { // ends with the listener
		for {
			c, err := raw.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("220 " + secret + "\r\n"))
			c.Close()
		}
	}()
	h := func(f http.HandlerFunc) string { return serve(t, f) }
	followed := false
	target := h(func(http.ResponseWriter, *http.Request) { followed = true })
	info := sglang(t, "prefill", 2_040_000, window, nil)
	for name, c := range map[string]struct{ url, words string }{
		"down":      {closed, "nobody listens there"},
		"no name":   {"http://no-such-host.invalid:1", "its name cannot be resolved"},
		"slow":      {h(func(w http.ResponseWriter, r *http.Request) { wait(r.Context(), hang) }), "does not answer in time"},
		"no HTTP":   {"http://" + raw.Addr().String(), "breaks off its answer"},
		"redirect":  {h(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, target, http.StatusFound) }), "a redirect: it is not followed"},
		"key":       {h(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, secret, http.StatusUnauthorized) }), "wants credentials"},
		"nothing":   {h(http.NotFound), "neither SGLang's /server_info nor vLLM's /version"},
		"garbage":   {serve(t, engineNode{"/server_info": secret + "{"}), "/server_info is not the JSON"},
		"a page":    {serve(t, engineNode{"/version": "<html>" + secret}), "/version is not the JSON"},
		"a field":   {serve(t, engineNode{"/server_info": `{"disaggregation_mode":"prefill","page_size":"` + secret + `"}`, "/v1/models": info["/v1/models"]}), "field page_size is a string"},
		"a number":  {serve(t, engineNode{"/server_info": `{"disaggregation_mode":"prefill","page_size":1e99}`, "/v1/models": info["/v1/models"]}), "field page_size is a number"},
		"no object": {serve(t, engineNode{"/server_info": `[1]`}), "/server_info"},
		"endless": {h(func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := w.Write(bytes.Repeat([]byte(secret), 1000)); err != nil {
					return
				}
			}
		}), "more than 4 MiB"},
		"endless and slow": {h(func(w http.ResponseWriter, r *http.Request) {
			_, _ = w.Write([]byte("{"))
			w.(http.Flusher).Flush()
			wait(r.Context(), hang)
		}), "does not answer in time"},
		"breaks off": {h(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = w.Write([]byte(secret))
		}), "breaks off its answer"},
	} {
		t.Run(name, func(t *testing.T) {
			timeout := 30 * time.Second
			if strings.Contains(name, "slow") {
				timeout = 200 * time.Millisecond
			}
			r, err := Fleet(t.Context(), Config{Prefill: []string{c.url}, Decode: []string{serve(t, sglang(t, "decode", 2_040_000, window, nil))}, Timeout: timeout})
			if err != nil {
				t.Fatal(err)
			}
			if r.Worst() != Red || !found(r, Red, checkNode, c.words) || !found(r, Unknown, checkFleet, "0 prefill, 1 decode") {
				t.Errorf("want %q:\n%s", c.words, text(t, r))
			}
			if b, _ := json.Marshal(r); bytes.Contains(b, []byte(secret)) || strings.Contains(text(t, r), secret) {
				t.Errorf("the answer is in the report: %s", b)
			}
		})
	}
	if followed {
		t.Error("a redirect was followed")
	}
}

func wait(ctx context.Context, hang chan struct{}) {
	select {
	case <-ctx.Done():
	case <-hang:
	}
}

// TestTogether: as many slow nodes as there are take no longer than one.
func TestTogether(t *testing.T) {
	const nodes = 24
	var inside, most int
	gate := make(chan struct{})
	arrived := make(chan struct{}, nodes)
	go func() { // ends when all are inside at once
		for range nodes {
			<-arrived
			if inside++; inside > most {
				most = inside
			}
		}
		close(gate)
	}()
	url := serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/server_info" {
			arrived <- struct{}{}
			wait(r.Context(), gate)
		}
		http.NotFound(w, r)
	}))
	cfg := Config{Timeout: time.Minute}
	for range nodes / 2 {
		cfg.Prefill, cfg.Decode = append(cfg.Prefill, url), append(cfg.Decode, url)
	}
	if _, err := Fleet(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	<-gate
	if most != nodes {
		t.Errorf("%d of %d at once", most, nodes)
	}
}

func TestNode(t *testing.T) {
	r, err := Node(t.Context(), serve(t, sglang(t, "prefill", 681_280, window, func(m map[string]any) { m["version"] = "0.5.18" })))
	if err != nil || r.Worst() != Red || r.Nodes[0].Role != events.RolePrefill || !found(r, Red, "sglang-placeholder", "") || !found(r, Amber, checkPool, "") {
		t.Errorf("%v\n%s", err, text(t, r))
	}
	// Alone it is no half of anything, and the failure has no way through it.
	r, err = Node(t.Context(), serve(t, sglang(t, "null", 2_040_000, window, func(m map[string]any) { m["version"] = "0.5.18" })))
	if err != nil || r.Worst() != Green {
		t.Errorf("%v\n%s", err, text(t, r))
	}
	if _, err := Node(t.Context(), "ftp://x"); err == nil {
		t.Error("ftp is asked")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Node(ctx, serve(t, http.NotFoundHandler())); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestCheckURL(t *testing.T) {
	for url, ok := range map[string]bool{
		"http://10.0.0.1:30000": true, "https://node/": true, "http://[::1]:1": true,
		"": false, "node:1": false, "http://": false, "ftp://x": false, "http://x/v1": false, "http://x?y": false, "http://u:" + secret + "@x": false, "http://x\x00": false,
	} {
		err := CheckURL(url)
		if (err == nil) != ok || err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", url, err)
		}
	}
}

func worker(name string, role events.Role, pool, context, input int) events.WorkerView {
	return events.WorkerView{Live: true, WorkerJoined: events.WorkerJoined{
		Worker: name, Role: role, Model: "m", Engine: "ref", Version: "1", Layout: "ref.v1:64:8+16", ContextTokens: context, MaxInputTokens: input, PoolPages: pool / 64, PageTokens: 64,
	}}
}

// TestWorkers judges pdgate's own, from what they registered.
func TestWorkers(t *testing.T) {
	good := []events.WorkerView{worker("p1", events.RolePrefill, 131_072, 131_072, 131_072), worker("d1", events.RoleDecode, 262_144, 131_072, 131_072)}
	if r := Workers(good); r.Worst() != Green {
		t.Errorf("as up has them:\n%s", text(t, r))
	}
	incident := []events.WorkerView{worker("p1", events.RolePrefill, 681_280, window, 0), worker("d1", events.RoleDecode, window, window, 0)}
	for _, name := range []string{"p1", "d1"} {
		r := Worker(name, incident)
		if r.Worst() != Red || !found(r, Red, checkInput, "prompts of 681,281 to 1,048,576") {
			t.Errorf("%s:\n%s", name, text(t, r))
		}
	}
	// Limited by its engine, not by its pool: decode takes what it refuses.
	if r := Workers([]events.WorkerView{worker("p1", events.RolePrefill, 4096, 4096, 512), worker("d1", events.RoleDecode, 4096, 4096, 512)}); r.Worst() != Red {
		t.Errorf("engine's limit:\n%s", text(t, r))
	}
	other := worker("d2", events.RoleDecode, 262_144, 131_072, 0)
	other.Layout = "ref.v2"
	if r := Worker("p1", append(slices.Clone(good), other)); !found(r, Red, checkKV, "ref.v2") {
		t.Errorf("layouts:\n%s", text(t, r))
	}
	// Neither the dead, nor other models, nor its own role.
	dead, foreign, twin := incident[0], incident[0], incident[0]
	dead.Live, dead.Worker = false, "p7"
	foreign.Model, foreign.Worker = "other", "p8"
	twin.Worker = "p9"
	if r := Worker("d1", []events.WorkerView{dead, foreign, good[0], good[1]}); r.Worst() != Green {
		t.Errorf("the dead and the foreign:\n%s", text(t, r))
	}
	if r := Worker("p1", append([]events.WorkerView{twin}, good...)); r.Worst() != Green {
		t.Errorf("its own role:\n%s", text(t, r))
	}
	if r := Worker("p1", good[:1]); r.Worst() != Unknown {
		t.Errorf("alone:\n%s", text(t, r))
	}
	if r := Worker("nobody", good); r.Worst() != Unknown || len(r.Findings) != 0 {
		t.Errorf("nobody:\n%s", text(t, r))
	}
}

func TestLog(t *testing.T) {
	for body, want := range map[string]string{
		`{"jetstream":{"config":{"sync_always":true,"sync_interval":120000000000}}}`: "{true true 2m0s }",
		`{"jetstream":{"config":{"sync_interval":120000000000}}}`:                    "{true false 2m0s }",
		`{"jetstream":{}}`: "{false false 0s /varz tells nothing of JetStream}",
		`{}`:               "{false false 0s /varz tells nothing of JetStream}",
		`?`:                "{false false 0s /varz is not the JSON that it should be}",
	} {
		if got := fmt.Sprint(ReadSync(t.Context(), serve(t, engineNode{"/varz": body}), time.Minute)); got != want {
			t.Errorf("%s: %s, want %s", body, got, want)
		}
	}
	always, interval := Sync{Known: true, Always: true}, Sync{Known: true, Interval: 2 * time.Minute}
	for name, c := range map[string]struct {
		log  Log
		want Level
	}{
		"three replicas, fsync": {Log{Replicas: 3, Sync: always}, Green},
		"one replica":           {Log{Replicas: 1, Sync: always}, Amber},
		"interval":              {Log{Replicas: 3, Sync: interval}, Amber},
		"sync not known":        {Log{Replicas: 3}, Unknown},
		"a weakness":            {Log{Replicas: 3, Sync: always, Weak: []Weakness{{"max age is 1s, want none", "nats stream edit"}}}, Red},
		"not to be seen":        {Log{Unseen: "no key", Sync: always}, Unknown},
		"no JetStream":          {Log{Problem: "the NATS server has no JetStream for the log", Sync: always}, Red},
	} {
		if r := (Report{Findings: JudgeLog(c.log)}); r.Worst() != c.want {
			t.Errorf("%s: %s, want %s", name, r.Worst(), c.want)
		}
	}
}

// TestPrint: the levels can be read without colour, and one line is one finding.
func TestPrint(t *testing.T) {
	r := Report{Nodes: []Facts{{Node: "http://a", Engine: "sglang", Version: "0.5.22"}}, Findings: []Finding{
		{Level: Red, Check: "x", Node: "a > b", Text: "bad", Fix: "mend it", Source: "https://s"}, {Level: Green, Check: "y", Text: "good"}}}
	want := "node     http://a: sglang 0.5.22, pool unknown, context unknown, longest prompt unknown, pages of unknown, KV unknown\n\n" +
		"RED     a > b: bad. Fix: mend it (https://s)\nGREEN   good\n"
	if got := text(t, r); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	var b bytes.Buffer
	if err := r.Print(&b, true); err != nil || !strings.Contains(b.String(), "\x1b[31mRED    \x1b[0m a > b: bad") {
		t.Errorf("%v %q", err, b.String())
	}
}
