package sglangfake

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// These tests hold the fake to what is known of SGLang's wire: the room, the
// length rule, the table of statuses, the error bodies, and its introspection.

func start(t *testing.T, cfg Config) *Node {
	t.Helper()
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// pair is a prefill and a decode node on one clock.
func pair(t *testing.T, change func(p, d *Config)) (*Node, *Node, *enginefake.Manual) {
	t.Helper()
	clock := enginefake.NewManual()
	p, d := Config{Role: Prefill, ContextTokens: 512, Clock: clock}, Config{Role: Decode, ContextTokens: 512, Clock: clock}
	if change != nil {
		change(&p, &d)
	}
	return start(t, p), start(t, d), clock
}

// legs sends both legs at once.
func legs(t *testing.T, p, d *Node, c enginefake.Call, room int64) (prefill, decode *enginefake.Pending) {
	t.Helper()
	leg := func(n *Node, stream any) *enginefake.Pending {
		body := map[string]any{"bootstrap_host": "127.0.0.1", "bootstrap_port": p.BootstrapPort(), "bootstrap_room": room}
		for k, v := range c.Body {
			body[k] = v
		}
		body["stream"] = stream
		return enginefake.Go(t.Context(), n.URL(), enginefake.Call{Path: c.Path, Header: c.Header, Body: body})
	}
	return leg(p, false), leg(d, c.Body["stream"])
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	res, err := enginefake.Client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// calls are one request on each route.
func calls(who string, prompt, n int) map[string]enginefake.Call {
	text := string(enginefake.Sentinel(who, prompt))
	return map[string]enginefake.Call{
		"/generate":            {Path: "/generate", Body: map[string]any{"text": text, "sampling_params": map[string]any{"max_new_tokens": n}}},
		"/v1/completions":      {Path: "/v1/completions", Body: map[string]any{"prompt": text, "max_tokens": n}},
		"/v1/chat/completions": {Path: "/v1/chat/completions", Body: map[string]any{"messages": []any{map[string]string{"role": "user", "content": text}}, "max_tokens": n, "ignore_eos": true}},
	}
}

// Section 2: prefill's answer, one token, and decode's whole one.
func TestLegs(t *testing.T) {
	for path, c := range calls("alice", 100, 24) {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(path, stream), func(t *testing.T) {
				p, d, _ := pair(t, nil)
				c.Body["stream"], c.Body["stream_options"] = stream, map[string]any{"include_usage": true}
				pre, dec := legs(t, p, d, c, 1<<62)
				first, all := pre.Wait(), dec.Wait()
				kv := enginefake.Sentinel("alice", 100)
				if path == "/v1/chat/completions" {
					kv = fmt.Appendf(nil, "user says: %s\nassistant says:", kv)
				}
				want := string(enginefake.Continue(kv, 24))
				if err := all.Is(want); err != nil || stream != all.Done {
					t.Errorf("%v (stream ended: %v)", err, all.Done)
				}
				if first.Status != 200 || first.First() != want[:1] || first.Output != 1 || first.Prompt != len(kv) || all.Prompt != len(kv) || all.Output != 24 {
					t.Errorf("prefill %s, decode %s", first.Raw, all.Raw)
				}
				if path == "/generate" && !bytes.Contains(first.Raw, []byte(`"finish_reason":{"length":0,"type":"length"}`)) {
					t.Errorf("prefill %s", first.Raw)
				}
				for _, n := range []*Node{p, d} {
					idle := func() bool { s := n.Stats(); return s.Held == 0 && s.Running == 0 }
					if err := enginefake.Until(t.Context(), "the pages", idle); err != nil {
						t.Errorf("%v: %+v", err, n.Stats())
					}
				}
			})
		}
	}
}

// Section 2: prefill's answer waits for the transfer.
func TestPrefillAnswersAfterTheTransfer(t *testing.T) {
	p, d, _ := pair(t, nil)
	release := p.Hold(enginefake.AtTransfer)
	defer release()
	pre, dec := legs(t, p, d, enginefake.Completion("alice", 100, 8), 7)
	if err := held(t.Context(), p, enginefake.AtTransfer, 1); err != nil {
		t.Fatal(err)
	}
	if pre.Ended() || dec.Ended() {
		t.Error("a leg has its answer before the transfer")
	}
	if s := d.Stats(); s.Held != 7 || s.Transferring != 1 { // pages for 108 tokens
		t.Errorf("%+v", s)
	}
	release()
	if err := dec.Wait().Is(enginefake.Right("alice", 100, 8)); err != nil || pre.Wait().Status != 200 {
		t.Errorf("%v, prefill %s", err, pre.Wait().Raw)
	}
}

// Section 2: prefill waits for decode's pages, and decode for prefill, each with a
// limit.
func TestTimeouts(t *testing.T) {
	for _, role := range []Role{Prefill, Decode} {
		p, d, clock := pair(t, nil)
		n, message := p, "Prefill bootstrap failed for request rank=0"
		if role == Decode {
			n, message = d, "Decode transfer failed for request rank=0"
		}
		c := enginefake.Completion("alice", 100, 8)
		c.Body["bootstrap_host"], c.Body["bootstrap_port"], c.Body["bootstrap_room"] = "127.0.0.1", p.BootstrapPort(), 7
		call := enginefake.Go(t.Context(), n.URL(), c)
		if err := enginefake.Until(t.Context(), "the wait", func() bool { return n.Stats().Waiting == 1 }); err != nil {
			t.Fatal(err)
		}
		clock.Advance(300*time.Second - 1)
		if n.Stats().Waiting != 1 || call.Ended() {
			t.Errorf("%s gave up early", role)
		}
		clock.Advance(1)
		if r := call.Wait(); r.Status != 500 || !strings.HasPrefix(r.Message, message) {
			t.Errorf("%s: %d %s", role, r.Status, r.Raw)
		}
		if err := enginefake.Until(t.Context(), "the pages", func() bool { return n.Stats().Held == 0 }); err != nil {
			t.Error(err)
		}
	}
}

// Section 2: the length rule, at its edge.
func TestLengthRule(t *testing.T) {
	// max_req_len 199, max_req_input_len 194: the longest prompt has 193 tokens.
	p, d, _ := pair(t, func(p, d *Config) { p.PoolTokens, p.PageSize = 200, 1 })
	if _, b := get(t, p.URL()+"/server_info"); !strings.Contains(b, `"max_req_input_len":194`) {
		t.Error(b)
	}
	pre, dec := legs(t, p, d, enginefake.Completion("alice", 193, 8), 1)
	if err := dec.Wait().Is(enginefake.Right("alice", 193, 8)); err != nil || pre.Wait().Status != 200 {
		t.Errorf("%v, prefill %s", err, pre.Wait().Raw)
	}
	c := enginefake.Completion("alice", 194, 8)
	c.Body["bootstrap_room"] = 2
	if r := enginefake.Do(t.Context(), p.URL(), c); r.Status != 400 || !strings.HasPrefix(r.Message, "Input length (194 tokens) exceeds the maximum allowed length (194 tokens)") {
		t.Errorf("%d %s", r.Status, r.Raw)
	}
	big := Config{ContextTokens: 1_048_576, RankTokens: []int{681_280}}
	if longest := big.maxInput(0) - 1; longest != 681_273 {
		t.Errorf("a pool of 681280 accepts %d tokens", longest)
	}
}

// Section 2: the table of statuses, and the bodies.
func TestStatuses(t *testing.T) {
	const native, openAI, abort = `{"error":{"message":`, `"object":"error"`, `"type":"abort"`
	for _, c := range []struct {
		name          string
		change        func(c *Config)
		prompt        int
		generate      int
		generateBody  string
		generateSSE   int
		generateEvent string
		chat, chatSSE int
		chatEvent     string
	}{
		{"above the context", nil, 600, 400, native, 200, native, 400, 400, openAI},
		{"above the pool", func(c *Config) { c.PoolTokens = 128 }, 300, 400, native, 200, abort, 400, 200, openAI},
		{"queue full", func(c *Config) { c.MaxQueued = 1 }, 100, 503, native, 200, abort, 503, 200, openAI},
	} {
		for path, call := range calls("alice", c.prompt, 8) {
			for _, stream := range []bool{false, true} {
				p, d, _ := pair(t, func(_, d *Config) {
					if c.change != nil {
						c.change(d)
					}
				})
				call.Body["bootstrap_host"], call.Body["bootstrap_port"], call.Body["bootstrap_room"] = "127.0.0.1", p.BootstrapPort(), 5
				call.Body["stream"] = stream
				if c.name == "queue full" {
					call.Body["bootstrap_room"] = 6
					enginefake.Go(t.Context(), d.URL(), call) // waits for a prefill that never comes
					if err := enginefake.Until(t.Context(), "the queue", func() bool { return d.Stats().Waiting == 1 }); err != nil {
						t.Fatal(err)
					}
				}
				status, body := c.generate, c.generateBody
				switch {
				case path == "/generate" && stream:
					status, body = c.generateSSE, c.generateEvent
				case path != "/generate" && stream:
					status, body = c.chatSSE, c.chatEvent
				case path != "/generate":
					status, body = c.chat, openAI
				}
				r := enginefake.Do(t.Context(), d.URL(), call)
				if r.Status != status || !strings.Contains(string(r.Raw), body) || r.Message == "" {
					t.Errorf("%s, %s, stream %v: %d %s, want %d %s", c.name, path, stream, r.Status, r.Raw, status, body)
				}
				if streamed := stream && status == 200; streamed != r.Done {
					t.Errorf("%s, %s, stream %v: end mark %v", c.name, path, stream, r.Done)
				}
			}
		}
	}
}

// Section 2: an abort without a status is 200, and so is its stream.
func TestAbortUnder200(t *testing.T) {
	for path, call := range calls("alice", 100, 8) {
		for _, stream := range []bool{false, true} {
			p, d, _ := pair(t, nil)
			release := p.Hold(enginefake.AtTransfer)
			call.Body["rid"], call.Body["stream"] = "r-9", stream
			_, dec := legs(t, p, d, call, 5)
			if err := held(t.Context(), p, enginefake.AtTransfer, 1); err != nil {
				t.Fatal(err)
			}
			for _, rid := range []string{"another", "r-9"} {
				if dec.Ended() {
					t.Errorf("%s: ended before the abort", path)
				}
				enginefake.Do(t.Context(), d.URL(), enginefake.Call{Path: "/abort_request", Body: map[string]any{"rid": rid}})
			}
			if r := dec.Wait(); r.Status != 200 || r.FinishFirst() != enginefake.FinishAbort || r.First() != "" {
				t.Errorf("%s: %d %s", path, r.Status, r.Raw)
			}
			if s := d.Stats(); s.Held == 0 || s.Draining != 1 {
				t.Errorf("pages that prefill may write to are free: %+v", s)
			}
			release()
			if err := enginefake.Until(t.Context(), "the drain", func() bool { return d.Stats().Held == 0 && p.Stats().Held == 0 }); err != nil {
				t.Error(err)
			}
		}
	}
}

// Section 2: transfers that fail are 500 on both legs, or an error in the stream.
func TestFailedTransfer(t *testing.T) {
	for _, stream := range []bool{false, true} {
		p, d, _ := pair(t, func(p, _ *Config) { p.Faults.FailTransfer = true })
		c := enginefake.Completion("alice", 100, 8)
		c.Body["stream"] = stream
		pre, dec := legs(t, p, d, c, 5)
		if r := pre.Wait(); r.Status != 500 || !strings.HasPrefix(r.Message, "Prefill transfer failed") {
			t.Errorf("prefill: %d %s", r.Status, r.Raw)
		}
		if r := dec.Wait(); r.Status != map[bool]int{false: 500, true: 200}[stream] || r.Code != 500 || !strings.HasPrefix(r.Message, "Decode transfer failed") {
			t.Errorf("decode: %d %s", r.Status, r.Raw)
		}
		for _, n := range []*Node{p, d} {
			if err := enginefake.Until(t.Context(), "the pages", func() bool { return n.Stats().Held == 0 }); err != nil {
				t.Error(err)
			}
		}
	}
}

// Section 2: with max_tokens 1 decode has no text, prefill has it (sglang#34216).
func TestLoneToken(t *testing.T) {
	for _, keep := range []bool{false, true} {
		p, d, _ := pair(t, func(_, d *Config) { d.KeepLoneToken = keep })
		pre, dec := legs(t, p, d, enginefake.Completion("alice", 100, 1), 5)
		want := enginefake.Right("alice", 100, 1)
		got := dec.Wait()
		if pre.Wait().First() != want || got.Status != 200 || (got.First() == want) != keep || !keep && got.First() != "" {
			t.Errorf("keep %v: prefill %s, decode %s", keep, pre.Wait().Raw, got.Raw)
		}
	}
}

// Section 2: the incident's signature on both legs.
func TestIncidentSignature(t *testing.T) {
	for _, incident := range []Incident{NoIncident, Reported, Silent} {
		p, d, clock := pair(t, func(p, _ *Config) { p.PoolTokens, p.Incident = 160, incident })
		d.Fill(enginefake.Sentinel("mallory", 64))
		pre, dec := legs(t, p, d, enginefake.Completion("alice", 200, 24), 5)
		first := pre.Wait()
		switch incident {
		case NoIncident:
			if err := enginefake.Until(t.Context(), "the wait", func() bool { return d.Stats().Waiting == 1 }); err != nil {
				t.Fatal(err)
			}
			clock.Advance(300 * time.Second)
			if first.Status != 400 || dec.Wait().Status != 500 {
				t.Errorf("prefill %d, decode %d", first.Status, dec.Wait().Status)
			}
			continue
		case Reported:
			if first.Status != 400 {
				t.Errorf("prefill %d", first.Status)
			}
		case Silent:
			if first.Status != 200 || first.Prompt != 1 {
				t.Errorf("prefill %s", first.Raw)
			}
		}
		if err := dec.Wait().Foreign("mallory"); err != nil || dec.Wait().Prompt != 200 {
			t.Errorf("%s: %v", incident, err)
		}
	}
}

// Section 2: a health check transfers nothing.
func TestFakeBootstrap(t *testing.T) {
	p, d, _ := pair(t, nil)
	for _, n := range []*Node{p, d} {
		r := enginefake.Do(t.Context(), n.URL(), enginefake.Call{Path: "/generate", Body: map[string]any{
			"text": "hello", "sampling_params": map[string]any{"max_new_tokens": 1}, "bootstrap_host": "2.2.2.2", "bootstrap_room": 0,
		}})
		if r.Status != 200 {
			t.Errorf("%d %s", r.Status, r.Raw)
		}
	}
	r := enginefake.Do(t.Context(), p.URL(), enginefake.Completion("alice", 10, 1))
	if r.Status != 400 {
		t.Errorf("without a room: %d", r.Status)
	}
}

// Section 2, introspection; section 3, what the log has.
func TestIntrospection(t *testing.T) {
	var log bytes.Buffer
	p, d, _ := pair(t, func(p, _ *Config) {
		p.RankTokens, p.Model, p.KVDtype, p.Log, p.RequestLog, p.TimeStats = []int{2048, 1024}, "m", "fp8_e5m2", &log, true, true
	})
	for path, want := range map[string][]string{
		"/server_info": {`"page_size":16`, `"dp_size":2`, `"tp_size":1`, `"disaggregation_mode":"prefill"`, `"max_total_num_tokens":2048`,
			`"token_capacity":2048`, `"token_capacity":1024`, `"kv_cache_dtype":"fp8_e5m2"`, `"allow_auto_truncate":false`, `"version":"0.5.20"`,
			`"context_length":512`, fmt.Sprintf(`"disaggregation_bootstrap_port":%d`, p.BootstrapPort()), `"disaggregation_transfer_backend"`},
		"/get_server_info":                     {`"page_size":16`},
		"/v1/models":                           {`"max_model_len":512`},
		"/v1/loads?include=core,disagg,queues": {`"dp_rank":0`, `"dp_rank":1`, `"max_total_num_tokens":1024`, `"num_used_tokens":0`, `"disaggregation":{`},
		"/metrics":                             {`sglang:max_total_num_tokens{engine_type="prefill"`, "sglang:context_len{", "sglang:page_size{", "sglang:num_transfer_failed_reqs_total{"},
		"/health":                              {""},
	} {
		code, b := get(t, p.URL()+path)
		for _, w := range want {
			if code != http.StatusOK || !strings.Contains(b, w) {
				t.Errorf("%s: %d, no %s in %s", path, code, w, b)
			}
		}
	}
	c := enginefake.Completion("alice", 100, 8)
	c.Body["model"] = "fake"
	c.Path, c.Body = "/generate", map[string]any{"text": c.Body["prompt"], "sampling_params": map[string]any{"max_new_tokens": 8}}
	pre, dec := legs(t, p, d, c, 7)
	if pre.Wait().Status != 200 || dec.Wait().Status != 200 {
		t.Fatalf("%s %s", pre.Wait().Raw, dec.Wait().Raw)
	}
	for _, want := range []string{
		`(?m)^\[2026-09-01 12:00:00\] \{"event":"request\.received".*"bootstrap_room":7`,
		`(?m)^\[2026-09-01 12:00:00\] \{"event":"request\.finished".*"prompt_tokens":100`,
		`(?m)^ReqTimeStats\(rid=[0-9a-f]+, bootstrap_room=7, input_len=100, cached_input_len=0, output_len=1, attempts=1, type=prefill\): bootstrap_duration=0\.00ms, .*entry_time=1788264000\.000$`,
	} {
		if !regexp.MustCompile(want).MatchString(log.String()) {
			t.Errorf("no %s in\n%s", want, log.String())
		}
	}
	if strings.Contains(log.String(), "alice") {
		t.Error("a prompt is in the log")
	}
}

// /tokenize counts what the answer then reports; old builds have none.
func TestTokenize(t *testing.T) {
	n := start(t, Config{})
	r := enginefake.Do(t.Context(), n.URL(), enginefake.Call{Path: "/tokenize", Body: map[string]any{"prompt": "hé"}})
	var got struct{ Count int }
	if err := json.Unmarshal(r.Raw, &got); err != nil || got.Count != 3 {
		t.Errorf("%s", r.Raw)
	}
	chat := map[string]any{"messages": []any{map[string]string{"role": "user", "content": "hi"}}}
	if r := enginefake.Do(t.Context(), n.URL(), enginefake.Call{Path: "/tokenize", Body: chat}); r.Status != 400 {
		t.Errorf("messages: %d", r.Status)
	}
	n = start(t, Config{TokenizeChat: true, Template: 4})
	r = enginefake.Do(t.Context(), n.URL(), enginefake.Call{Path: "/tokenize", Body: chat})
	if err := json.Unmarshal(r.Raw, &got); err != nil || got.Count != 4+len("user says: hi\nassistant says:") {
		t.Errorf("%s", r.Raw)
	}
	n = start(t, Config{NoTokenize: true})
	if r := enginefake.Do(t.Context(), n.URL(), enginefake.Call{Path: "/tokenize", Body: map[string]any{"prompt": "hi"}}); r.Status != 404 {
		t.Errorf("%d", r.Status)
	}
}
