package gateway

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/pdgate/pdgate/events"
)

// fixedRelay counts what it is told to.
type fixedRelay struct {
	tokens int
	err    error
}

func (f fixedRelay) Count(context.Context, []byte) (int, error) { return f.tokens, f.err }

func relaysOf(r Relay) map[string]Relay { return map[string]Relay{"m": r} }

// What the gateway does not understand goes on as it came, byte for byte; what
// is its own goes.
func TestRelayedBody(t *testing.T) {
	for _, c := range []struct {
		name, in, want string
		chat           bool
	}{
		{"spacing and order stay", `{ "top_k" : 5,"model":"m", "prompt":"a\nb\u00e9" , "logit_bias":{"1": -1.50e0} }`,
			`{"top_k":5,"prompt":"a\nb\u00e9","logit_bias":{"1": -1.50e0}}`, false},
		{"the gateway's own go", `{"model":"m","stream":true,"stream_options":{"include_usage":true},"n":1,"max_tokens":5,"max_completion_tokens":5,"min_tokens":2,"prompt":["x"],"rid":"r","request_id":"r"}`,
			`{"prompt":["x"]}`, false},
		{"tools and formats stay", `{"model":"m","messages":[{"role":"tool","tool_call_id":"1","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"response_format":{"type":"json_schema","json_schema":{}},"logprobs":true,"top_logprobs":3,"stop":["a"],"seed":7}`,
			`{"messages":[{"role":"tool","tool_call_id":"1","content":"x"}],"tools":[{"type":"function","function":{"name":"f","parameters":{}}}],"response_format":{"type":"json_schema","json_schema":{}},"logprobs":true,"top_logprobs":3,"stop":["a"],"seed":7}`, true},
		{"null is not said", `{"model":"m","prompt":"x","max_tokens":null,"n":null,"seed":null,"temperature":null}`, `{"prompt":"x","temperature":null}`, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := []byte(c.in)
			r, ours, err := parseRelayed(in, c.chat, 8, relaysOf(fixedRelay{tokens: 1}))
			if err != nil || !ours || string(r.prompt) != c.want || string(in) != c.in {
				t.Fatalf("%v, ours %v:\n%s\nwant\n%s\nthe input became\n%s", err, ours, r.prompt, c.want, in)
			}
			if !json.Valid(r.prompt) {
				t.Error("not JSON")
			}
		})
	}
}

func TestRelayedBodyRefused(t *testing.T) {
	const chat = `{"model":"m","messages":[{"role":"user","content":"x"}],`
	for _, c := range []struct {
		in, field string
		chat      bool
		forbidden bool
	}{
		{in: `{"model":"m","prompt":"x","kv_transfer_params":{}}`, field: "kv_transfer_params", forbidden: true},
		{in: `{"model":"m","prompt":"x","KV_Transfer_Params":{}}`, field: "KV_Transfer_Params", forbidden: true},
		{in: `{"model":"m","prompt":"x","kv\u005ftransfer_params":{}}`, field: "kv_transfer_params", forbidden: true},
		{in: `{"model":"m","prompt":"x","bootstrap_room":1}`, field: "bootstrap_room", forbidden: true},
		{in: `{"model":"m","prompt":"x","vllm_xargs":{"deep":[{"bootstrap_host":"h"}]}}`, field: "vllm_xargs.deep[0].bootstrap_host", forbidden: true},
		{in: chat + `"disaggregated_params":{}}`, chat: true, field: "disaggregated_params", forbidden: true},
		{in: `{"model":"m","prompt":"x","top_k":1,"top_k":2}`, field: "top_k"},
		{in: `{"model":"m","prompt":"x","top\u005fk":1,"top_k":2}`, field: "top_k"},
		{in: `{"model":"m","prompt":["a","b"]}`, field: "prompt[1]"},
		{in: `{"model":"m","prompt":[1,2]}`, field: "prompt[0]"},
		{in: `{"model":"m","prompt":""}`, field: "prompt"},
		{in: `{"model":"m"}`, field: "prompt"},
		{in: `{"model":"m","prompt":"x","best_of":2}`, field: "best_of"},
		{in: `{"model":"m","prompt":"x","use_beam_search":true}`, field: "use_beam_search"},
		{in: `{"model":"m","prompt":"x","prompt_embeds":"x"}`, field: "prompt_embeds"},
		{in: `{"model":"m","prompt":"x","n":9}`, field: "n"},
		{in: `{"model":"m","prompt":"x","max_tokens":0}`, field: "max_tokens"},
		{in: `{"model":"m","prompt":"x","stream_options":{"include_usage":true}}`, field: "stream_options"},
		{in: `{"model":"m","messages":[]}`, chat: true, field: "messages"},
		{in: chat + `"prompt":"x"}`, chat: true, field: "prompt"},
		{in: `{"model":"m","prompt":"x"} x`},
	} {
		_, ours, err := parseRelayed([]byte(c.in), c.chat, 8, relaysOf(fixedRelay{tokens: 1}))
		b, ok := err.(*bodyError)
		if !ours && c.field == "" {
			continue // the other reader says it
		}
		if !ok || b.field != c.field || b.forbidden != c.forbidden {
			// An internal field ends the reading before the model may be known.
			if !ours && c.forbidden {
				if _, err := parseRequest([]byte(c.in), c.chat, 8); err != nil && err.(*bodyError).forbidden {
					continue
				}
			}
			t.Errorf("%s: ours %v, %v; want field %q, forbidden %v", c.in, ours, err, c.field, c.forbidden)
		}
	}
}

// Another model's body is left to the reader that understands it.
func TestRelayedBodyOfAnotherModel(t *testing.T) {
	in := `{"model":"ref","prompt":"a\n","unknown":1}`
	b := []byte(in)
	if _, ours, _ := parseRelayed(b, false, 8, relaysOf(fixedRelay{tokens: 1})); ours || string(b) != in {
		t.Errorf("ours %v, and the input became %s", ours, b)
	}
}

func FuzzRelayedBody(f *testing.F) {
	f.Add([]byte(`{"model":"m","prompt":"a\n","x":[1,{"y":"\u00e9"}]}`), false)
	f.Add([]byte(`{"model":"m","messages":[{"content":"x"}],"tools":[]}`), true)
	f.Fuzz(func(t *testing.T, in []byte, chat bool) {
		before := string(in)
		r, ours, err := parseRelayed(in, chat, 8, relaysOf(fixedRelay{tokens: 1}))
		if string(in) != before {
			t.Fatal("the input was changed")
		}
		if err != nil || !ours {
			return
		}
		var got map[string]json.RawMessage
		if err := json.Unmarshal(r.prompt, &got); err != nil {
			t.Fatalf("%q: %v", r.prompt, err)
		}
		for name := range got {
			if x, known := relayFields[name]; internalField(name) || known && !x.keep {
				t.Errorf("%q is left in %q", name, r.prompt)
			}
		}
	})
}

// Pieces may be cut anywhere; the one with the finish reason waits for the end.
func TestLines(t *testing.T) {
	const all = `{"delta":{"role":"assistant","content":""},"finish_reason":null}` + "\n" +
		`{"delta":{"content":"<a>","kv_transfer_params":{"x":1},"tool_calls":[{"index":0}]},"logprobs":{"content":[]},"finish_reason":null}` + "\n" +
		`{"delta":{},"finish_reason":"tool_calls","stop_reason":7}` + "\n"
	f := &flight{choice: 3}
	for cut := range len(all) {
		var l lines
		a, err1 := l.push(f, []byte(all[:cut]), false)
		b, err2 := l.push(f, []byte(all[cut:]), false)
		if err1 != nil || err2 != nil || len(a)+len(b) != 2 {
			t.Fatalf("cut at %d: %d and %d pieces, %v %v", cut, len(a), len(b), err1, err2)
		}
		end, err := l.push(f, nil, true)
		if err != nil || len(end) != 1 || *end[0].FinishReason != "tool_calls" || end[0].Index != 3 || string(end[0].StopReason) != "7" {
			t.Fatalf("cut at %d: the end is %+v, %v", cut, end, err)
		}
		got := string(marshal(append(a, b...)[1]))
		if strings.Contains(got, "kv_transfer_params") || !strings.Contains(got, `"tool_calls":[{"index":0}]`) || !strings.Contains(got, `"logprobs":{"content":[]}`) {
			t.Fatalf("piece: %s", got)
		}
	}
	for _, bad := range []string{"", "{}", "{\n", "nothing\n", `{"text":"x","finish_reason":null}` + "\n"} {
		var l lines
		if _, err := l.push(f, []byte(bad), true); err == nil || !err.lost {
			t.Errorf("%q is a whole output", bad)
		}
	}
}

// What cannot be counted is not admitted, and the client hears why.
func TestRelayWithoutACount(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		says   string
	}{
		{events.NewError(events.CodeUnavailable, "the engine cannot count"), http.StatusServiceUnavailable, "cannot count"},
		{context.DeadlineExceeded, http.StatusServiceUnavailable, "counted"},
		{events.NewError(events.CodeContextLength, "too long"), http.StatusBadRequest, "too long"},
	} {
		r := newRig(t, rigConfig{cfg: func(cfg *Config) { cfg.Relays = relaysOf(fixedRelay{err: c.err}) }})
		a := r.do(r.request(t.Context(), "/v1/completions", `{"model":"m","prompt":"`+canary+`"}`))
		if a.status != c.status || !strings.Contains(a.body, c.says) || strings.Contains(a.body, canary) {
			t.Errorf("%v: HTTP %d %s", c.err, a.status, a.body)
		}
	}
}

// A prefix cache is divided by tenant, and within one by the client's own salt.
func TestSalt(t *testing.T) {
	salt := func(tenant, own string) string {
		b := salted([]byte(`{"prompt":"x"}`), testSecret, tenant, own)
		var v map[string]string
		if err := json.Unmarshal(b, &v); err != nil || v["prompt"] != "x" || len(v["cache_salt"]) != 32 {
			t.Fatalf("%s: %v", b, err)
		}
		return v["cache_salt"]
	}
	all := map[string]bool{salt("a", ""): true, salt("b", ""): true, salt("a", "x"): true, salt("a", "y"): true, salt("ax", ""): true}
	if len(all) != 5 || !all[salt("a", "")] {
		t.Errorf("salts are not one for each: %v", all)
	}
}
