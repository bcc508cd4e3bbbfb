package vllmfake

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/internal/enginefake"
)

// These tests hold the fake to what is known of vLLM's wire: NixlConnector's
// fields, its lease, its table of stale references, and its introspection.

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

// prefillLeg runs the first leg of c and returns the reference.
func prefillLeg(t *testing.T, n *Node, c enginefake.Call) (enginefake.Reply, json.RawMessage) {
	t.Helper()
	body := map[string]any{}
	for k, v := range c.Body {
		body[k] = v
	}
	body["stream"], body["max_tokens"] = false, 1
	body["kv_transfer_params"] = json.RawMessage(`{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`)
	r := enginefake.Do(t.Context(), n.URL(), enginefake.Call{Path: c.Path, Header: c.Header, Body: body})
	var got struct {
		Params json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(r.Raw, &got); err != nil {
		t.Fatalf("%v in %s", err, r.Raw)
	}
	return r, got.Params
}

func decodeLeg(t *testing.T, n *Node, c enginefake.Call, reference json.RawMessage) enginefake.Reply {
	t.Helper()
	body := map[string]any{"kv_transfer_params": reference}
	for k, v := range c.Body {
		body[k] = v
	}
	return enginefake.Do(t.Context(), n.URL(), enginefake.Call{Path: c.Path, Header: c.Header, Body: body})
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

// Section 1: the prefill answer and its reference.
func TestReference(t *testing.T) {
	common := []string{"do_remote_prefill", "do_remote_decode", "remote_block_ids", "remote_engine_id", "remote_request_id", "remote_host", "remote_port", "tp_size"}
	recent := []string{"remote_num_tokens", "remote_blocks_expiry_time", "dcp_size", "pp_size", "transfer_mode"}
	for _, c := range []struct {
		name   string
		change func(p, d *Config)
		ids    string
		keys   []string
		id     string // remote_request_id, or its beginning
	}{
		{"current", nil, "[[1,2,3]]", append(common, recent...), "cmpl-r1-0-"},
		{"hybrid", func(p, _ *Config) { p.Groups = 2 }, "[[1,2,3],[1,2,3]]", append(common, recent...), "cmpl-r1-0-"},
		{"old", func(p, d *Config) { p.Build, d.Build = Old, Old }, "[1,2,3]", common, "cmpl-r1-0"},
		{"simulator", func(p, _ *Config) { p.BlockIDs = Strings }, `["1","2","3"]`, append(common, recent...), "cmpl-r1-0-"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, d, _ := pair(t, c.change)
			ask := enginefake.Completion("alice", 40, 8)
			ask.Header = map[string]string{"X-Request-Id": "r1"}
			r, ref := prefillLeg(t, p, ask)
			if r.Status != 200 || r.Prompt != 40 || r.Output != 1 || r.FinishFirst() != enginefake.FinishLength {
				t.Errorf("prefill answered %s", r.Raw)
			}
			var fields map[string]json.RawMessage
			if err := json.Unmarshal(ref, &fields); err != nil {
				t.Fatal(err)
			}
			for _, k := range c.keys {
				if fields[k] == nil {
					t.Errorf("%s is missing", k)
				}
			}
			if len(fields) != len(c.keys) || string(fields["remote_block_ids"]) != c.ids {
				t.Errorf("reference %s", ref)
			}
			id := strings.Trim(string(fields["remote_request_id"]), `"`)
			if !strings.HasPrefix(id, c.id) || (c.name == "old") != (id == c.id) {
				t.Errorf("remote_request_id is %q", id)
			}
			if got := decodeLeg(t, d, ask, ref); got.Is(enginefake.Right("alice", 40, 8)) != nil || got.Prompt != 40 {
				t.Errorf("decode answered %s", got.Raw)
			}
			if !bytes.Contains(d.Generations()[0].Body, ref) {
				t.Error("the reference did not arrive byte for byte")
			}
			if s := p.Stats(); s.Free != s.Blocks {
				t.Errorf("prefill holds blocks after they were read: %+v", s)
			}
			if s := d.Stats(); s.Free != s.Blocks {
				t.Errorf("decode holds blocks after its answer: %+v", s)
			}
		})
	}
}

// Section 1: an aborted prefill frees its blocks and returns null, under 200.
func TestAbortedPrefill(t *testing.T) {
	p, _, _ := pair(t, func(p, _ *Config) { p.Faults.Abort = true })
	r, ref := prefillLeg(t, p, enginefake.Completion("alice", 40, 8))
	if r.Status != 200 || r.FinishFirst() != enginefake.FinishAbort || string(ref) != "null" {
		t.Errorf("prefill answered %s", r.Raw)
	}
	if s := p.Stats(); s.Free != s.Blocks {
		t.Errorf("blocks are left: %+v", s)
	}
}

// Section 1, the table of vllm#52234.
func TestStaleReferences(t *testing.T) {
	foreign := enginefake.Sentinel("mallory", 64)
	for _, c := range []struct {
		name    string
		spoil   func(p, d *Node, clock *enginefake.Manual, ref json.RawMessage) json.RawMessage
		text    string // empty: garbage
		failed  int
		expired int
		logged  string
	}{
		{"unknown id", func(_, _ *Node, _ *enginefake.Manual, ref json.RawMessage) json.RawMessage {
			return bytes.Replace(ref, []byte(`"remote_request_id":"`), []byte(`"remote_request_id":"no-`), 1)
		}, "right", 0, 0, ""},
		{"out of range", func(_, _ *Node, _ *enginefake.Manual, ref json.RawMessage) json.RawMessage {
			return bytes.Replace(ref, []byte("[[1,"), []byte("[[9999,"), 1)
		}, "", 1, 0, ""},
		{"consumed", func(_, d *Node, _ *enginefake.Manual, ref json.RawMessage) json.RawMessage {
			decodeLeg(t, d, enginefake.Completion("alice", 40, 8), ref)
			return ref
		}, "", 1, 0, ""},
		{"blocks reused", func(p, d *Node, _ *enginefake.Manual, ref json.RawMessage) json.RawMessage {
			decodeLeg(t, d, enginefake.Completion("alice", 40, 8), ref)
			p.Fill(foreign)
			return ref
		}, string(enginefake.Continue(foreign[:40], 8)), 0, 0, "Potentially invalid KV blocks for unrecognized request "},
		{"lease over", func(_, _ *Node, clock *enginefake.Manual, ref json.RawMessage) json.RawMessage {
			clock.Advance(45 * time.Second)
			return ref
		}, "right", 0, 1, "which were retrieved by 0 remote worker(s) before lease expired."},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log bytes.Buffer
			p, d, clock := pair(t, func(p, _ *Config) { p.Log = &log })
			ask := enginefake.Completion("alice", 40, 8)
			_, ref := prefillLeg(t, p, ask)
			got := decodeLeg(t, d, ask, c.spoil(p, d, clock, ref))
			right := enginefake.Right("alice", 40, 8)
			switch want := c.text; want {
			case "":
				if err := got.Wrong(right); err != nil {
					t.Error(err)
				}
			case "right":
				if err := got.Is(right); err != nil {
					t.Error(err)
				}
			default:
				if err := got.Is(want); err != nil {
					t.Error(err)
				}
			}
			if s := d.Stats(); s.FailedTransfers != c.failed {
				t.Errorf("failed transfers: %d", s.FailedTransfers)
			}
			if s := p.Stats(); s.Expired != c.expired {
				t.Errorf("expired: %d", s.Expired)
			}
			if !strings.Contains(log.String(), c.logged) || (c.logged == "") != (log.Len() == 0) {
				t.Errorf("log: %s", log.String())
			}
		})
	}
}

// Section 1: a heartbeat each sixth of the lease, from when decode queues the
// request; each adds two thirds.
func TestHeartbeats(t *testing.T) {
	p, d, clock := pair(t, nil)
	ask := enginefake.Completion("alice", 40, 8)
	_, ref := prefillLeg(t, p, ask)
	release := d.Hold(enginefake.AtTransfer)
	defer release()
	var body = map[string]any{"kv_transfer_params": ref}
	for k, v := range ask.Body {
		body[k] = v
	}
	call := enginefake.Go(t.Context(), d.URL(), enginefake.Call{Body: body})
	if err := enginefake.Until(t.Context(), "the transfer", func() bool { return d.Waiting(enginefake.AtTransfer) == 1 }); err != nil {
		t.Fatal(err)
	}
	for i := range 12 { // one minute, twice the lease
		if err := enginefake.Until(t.Context(), "a heartbeat", func() bool {
			if p.Stats().Extended > i {
				return true
			}
			if clock.Pending() > 0 {
				clock.Advance(5 * time.Second)
			}
			return false
		}); err != nil {
			t.Fatal(err)
		}
	}
	if s := p.Stats(); s.Expired != 0 || s.Stranded != 3 {
		t.Errorf("%+v", s)
	}
	release()
	if err := call.Wait().Is(enginefake.Right("alice", 40, 8)); err != nil {
		t.Error(err)
	}
	if _, ref = prefillLeg(t, p, ask); len(ref) == 0 {
		t.Fatal("no reference")
	}
	clock.Advance(30*time.Second - 1)
	before := p.Stats()
	clock.Advance(1)
	if after := p.Stats(); before.Stranded != 3 || before.Expired != 0 || after.Stranded != 0 || after.Expired != 1 || after.Free != after.Blocks {
		t.Errorf("before the lease's end %+v, after it %+v", before, after)
	}
}

// Section 1: what goes wrong, and what comes back.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(p, d *Config)
		stream bool
		status int
		raw    string // in the answer
		held   int    // prefill's blocks that are left
	}{
		{"rejected early", func(_, d *Config) { d.Faults.RejectEarly = true }, false, 400, "BadRequestError", 0},
		{"rejected early, old", func(p, d *Config) { p.Build, d.Build, d.Faults.RejectEarly = Old, Old, true }, false, 400, `"object":"error"`, 3},
		{"load fails", func(_, d *Config) { d.Faults.FailLoads = true }, false, 500, "InternalServerError", 3},
		{"load fails, streamed", func(_, d *Config) { d.Faults.FailLoads = true }, true, 200, `"code":500`, 3},
		{"load fails, recompute", func(_, d *Config) { d.Faults.FailLoads, d.LoadFailure = true, Recompute }, false, 200, "ce. alic", 3},
		{"before the first token", func(_, d *Config) { d.Faults.EmptyStream = true }, true, 200, "data: [DONE]\n\n", 0},
		{"refused", func(_, d *Config) { d.Faults.Refuse = 503 }, true, 503, "injected", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, d, _ := pair(t, c.change)
			ask := enginefake.Completion("alice", 40, 8)
			_, ref := prefillLeg(t, p, ask)
			ask.Body["stream"] = c.stream
			r := decodeLeg(t, d, ask, ref)
			if r.Status != c.status || !strings.Contains(string(r.Raw), c.raw) {
				t.Errorf("%d %s", r.Status, r.Raw)
			}
			if s := p.Stats(); s.Stranded != c.held {
				t.Errorf("prefill: %+v", s)
			}
			if s := d.Stats(); s.Free != s.Blocks {
				t.Errorf("decode: %+v", s)
			}
		})
	}
}

// Section 1: do_remote_prefill without block ids is an assertion in the scheduler.
func TestNoBlockIDs(t *testing.T) {
	_, d, _ := pair(t, nil)
	ask := enginefake.Completion("alice", 40, 8)
	if r := decodeLeg(t, d, ask, json.RawMessage(`{"do_remote_prefill": true}`)); r.Status != 500 {
		t.Errorf("status %d", r.Status)
	}
	if code, _ := get(t, d.URL()+"/health"); code != http.StatusServiceUnavailable {
		t.Errorf("health: %d", code)
	}
	if err := d.Restart(); err != nil {
		t.Fatal(err)
	}
	if r := decodeLeg(t, d, ask, nil); r.Is(enginefake.Right("alice", 40, 8)) != nil {
		t.Errorf("after a restart: %s", r.Raw)
	}
}

// A restarted prefill has another engine id and none of its blocks.
func TestRestart(t *testing.T) {
	p, d, _ := pair(t, nil)
	ask := enginefake.Completion("alice", 40, 8)
	_, ref := prefillLeg(t, p, ask)
	before := p.EngineID()
	if err := p.Restart(); err != nil {
		t.Fatal(err)
	}
	if p.EngineID() == before {
		t.Error("the engine id is the same")
	}
	if r := decodeLeg(t, d, ask, ref); r.Status != 500 {
		t.Errorf("decode answered %d to a reference of an earlier life", r.Status)
	}
	if s := d.Stats(); s.FailedTransfers != 1 {
		t.Errorf("%+v", s)
	}
}

// Section 1, introspection.
func TestIntrospection(t *testing.T) {
	for _, c := range []struct {
		build         Build
		groups        int
		want, without []string
	}{
		{Current, 1, []string{`num_gpu_blocks="128"`, `kv_cache_size_tokens="2048"`, "vllm:kv_cache_usage_perc{"}, []string{"vllm:gpu_cache_usage_perc"}},
		{Current, 4, []string{`num_gpu_blocks="32"`, `kv_cache_size_tokens="2048"`}, nil},
		{Old, 1, []string{`num_gpu_blocks="128"`, "vllm:gpu_cache_usage_perc{"}, []string{"kv_cache_size_tokens", "vllm:kv_cache_usage_perc"}},
	} {
		n := start(t, Config{Build: c.build, Groups: c.groups, ContextTokens: 512, Blocks: 128, Model: "m", Version: "9.9"})
		_, page := get(t, n.URL()+"/metrics")
		for _, w := range append(c.want, "vllm:cache_config_info{", `block_size="16"`, "vllm:nixl_num_failed_transfers_total{", "vllm:nixl_num_kv_expired_reqs_total{", "process_start_time_seconds ") {
			if !strings.Contains(page, w) {
				t.Errorf("%s: no %s in\n%s", c.build, w, page)
			}
		}
		for _, w := range c.without {
			if strings.Contains(page, w) {
				t.Errorf("%s: %s", c.build, w)
			}
		}
		for path, want := range map[string]string{
			"/v1/models": `"max_model_len":512`, "/version": `{"version":"9.9"}`, "/load": `{"server_load":0}`, "/health": "",
		} {
			if code, b := get(t, n.URL()+path); code != 200 || !strings.Contains(b, want) {
				t.Errorf("%s: %d %s", path, code, b)
			}
		}
	}
}

// /tokenize counts what prefill then reports.
func TestTokenize(t *testing.T) {
	n := start(t, Config{Template: 7})
	messages := []any{map[string]string{"role": "user", "content": "hé"}}
	for path, body := range map[string]map[string]any{
		"/v1/completions":      {"model": "fake", "prompt": "hé", "max_tokens": 1},
		"/v1/chat/completions": {"model": "fake", "messages": messages, "max_tokens": 1},
	} {
		r := enginefake.Do(t.Context(), n.URL(), enginefake.Call{Path: path, Body: body})
		c := enginefake.Do(t.Context(), n.URL(), enginefake.Call{Path: "/tokenize", Body: body})
		var count struct {
			Count, MaxModelLen int
			Max                int `json:"max_model_len"`
			Tokens             []int
		}
		if err := json.Unmarshal(c.Raw, &count); err != nil {
			t.Fatal(err)
		}
		want := map[bool]int{true: 3, false: 7 + len("user says: hé\nassistant says:")}[path == "/v1/completions"]
		if count.Count != want || r.Prompt != want || len(count.Tokens) != want || count.Max != 4096 {
			t.Errorf("%s: %d tokens by /tokenize, %d by the answer, want %d", path, count.Count, r.Prompt, want)
		}
	}
}
