package gateway

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
)

func TestBodies(t *testing.T) {
	completion := func(rest string) string { return `{"model":"ref","prompt":"p"` + rest + `}` }
	chat := func(rest string) string {
		return `{"model":"ref","messages":[{"role":"user","content":"c"}]` + rest + `}`
	}
	for body, want := range map[string]string{ // error, "" for none; a body with messages is a chat
		completion(""): "", chat(""): "",
		completion(`,"prompt":null`):                                       "prompt: stands twice",
		completion(`,"model":"x"`):                                         "model: stands twice",
		completion(`,"\u006dodel":"x"`):                                    "model: stands twice",
		completion(`,"Model":"x"`):                                         "Model: is not known here",
		`{"model":"ref","prompt":"p"`:                                      "want a comma or the end of the object",
		`{"model":"ref","prompt":"p"}{}`:                                   "more follows after the JSON object",
		`{"model":"ref","prompt":"p",}`:                                    "want the name of a member",
		`[]`:                                                               "want an object",
		``:                                                                 "want an object",
		"{\"model\":\"ref\",\"prompt\":\"\xff\"}":                          "the body is not valid UTF-8",
		`{"model":"ref","prompt":"\ud800"}`:                                "prompt: a string holds an invalid escape",
		`{"model":"ref","prompt":"\x"}`:                                    "prompt: a string holds an invalid escape",
		"{\"model\":\"ref\",\"prompt\":\"a\nb\"}":                          "prompt: a control character stands unescaped in a string",
		`{"model":"ref","prompt":"\ud834\udd1e\u20ac\/\n\t"}`:              "",
		completion(`,"user":"` + strings.Repeat("u", 513) + `"`):           "user: want at most 512 bytes",
		completion(`,"safety_identifier":7`):                               "safety_identifier: want a string",
		`{"prompt":"p"}`:                                                   "model: is required",
		`{"model":"a b","prompt":"p"}`:                                     "model: is not a valid name",
		`{"model":7,"prompt":"p"}`:                                         "model: want a string",
		`{"model":"ref"}`:                                                  "prompt: is required, and must not be empty",
		`{"model":"ref","prompt":""}`:                                      "prompt: is required, and must not be empty",
		`{"model":"ref","prompt":["p"]}`:                                   "",
		`{"model":"ref","prompt":["p","q"]}`:                               "prompt[1]: only one prompt, as a string, is supported",
		`{"model":"ref","prompt":[1,2]}`:                                   "prompt[0]: only one prompt, as a string, is supported",
		`{"model":"ref","messages":[]}`:                                    "messages: is required, and must not be empty",
		`{"model":"ref","messages":[{"content":"c"}]}`:                     "messages[0].role: is required",
		`{"model":"ref","messages":[{"role":"user"}]}`:                     "messages[0].content: is required",
		`{"model":"ref","messages":[{"role":"tool","content":"c"}]}`:       "messages[0].role: want system, developer, user or assistant",
		`{"model":"ref","messages":[{"role":"user","content":"c","x":1}]}`: "messages[0].x: is not supported",
		`{"model":"ref","messages":[{"role":"assistant","content":"c","refusal":null,"tool_calls":[],"annotations":[]}]}`: "",
		`{"model":"ref","messages":[{"role":"assistant","content":"c","tool_calls":[{}]}]}`:                               "messages[0].tool_calls: is not supported",
		`{"model":"ref","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}`:           "messages[0].content[0].type: only the type text is supported",
		`{"model":"ref","messages":[{"role":"user","content":[{"type":"text"}]}]}`:                                        "messages[0].content[0]: want a type and a text",
		completion(`,"max_tokens":0`):                           "max_tokens: want an integer from 1 to 1073741824",
		completion(`,"max_tokens":1.5`):                         "max_tokens: want an integer from 1 to 1073741824",
		completion(`,"max_tokens":"1"`):                         "max_tokens: want an integer",
		completion(`,"max_tokens":01`):                          "max_tokens: want an integer",
		completion(`,"max_tokens":5,"max_completion_tokens":5`): "",
		completion(`,"max_tokens":5,"max_completion_tokens":6`): "max_completion_tokens: differs from max_tokens",
		completion(`,"n":0`):                                    "n: want an integer from 1 to 8",
		completion(`,"n":9`):                                    "n: want an integer from 1 to 8",
		completion(`,"stop":""`):                                "stop: want 1 to 256 bytes",
		completion(`,"stop":["a",1]`):                           "stop[1]: want a string",
		completion(`,"stop":["1","2","3","4"]`):                 "",
		completion(`,"stop":["1","2","3","4","5"]`):             "stop[4]: is one more than the limit of 4 sequences",
		completion(`,"temperature":2.1`):                        "temperature: want a number from 0 to 2",
		completion(`,"temperature":1e400`):                      "temperature: want a number from 0 to 2",
		completion(`,"seed":9223372036854775808`):               "seed: want an integer from -9223372036854775808 to 9223372036854775807",
		completion(`,"stream":1`):                               "stream: want true or false",
		completion(`,"stream_options":{}`):                      "stream_options: is only allowed with stream",
		completion(`,"stream":true,"stream_options":{"x":1}`):   "stream_options.x: is not known here",
		completion(`,"stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false}`): "",
		// Taken and left aside.
		completion(`,"user":"u","top_p":0.5,"presence_penalty":-2,"frequency_penalty":2,"logit_bias":{"5":1},"metadata":{"a":"b"},"store":false,"service_tier":"auto"`): "",
		completion(`,"top_p":2`):       "top_p: want a number from 0 to 1",
		completion(`,"logit_bias":[]`): "logit_bias: want an object",
		// Nothing asked for.
		completion(`,"best_of":1,"echo":false,"suffix":"","logprobs":null`):                                                                                              "",
		chat(`,"logprobs":false,"top_logprobs":0,"tools":[],"tool_choice":"none","response_format":{"type":"text"},"modalities":["text"],"audio":null,"functions":null`): "",
		// Something that would change the answer.
		completion(`,"best_of":2`):                                         "best_of: is not supported above 1",
		completion(`,"echo":true`):                                         "echo: is not supported",
		completion(`,"suffix":"s"`):                                        "suffix: is not supported",
		completion(`,"logprobs":3`):                                        "logprobs: is not supported",
		chat(`,"logprobs":true`):                                           "logprobs: is not supported",
		chat(`,"top_logprobs":2`):                                          "top_logprobs: is not supported",
		chat(`,"tools":[{"type":"function"}]`):                             "tools: is not supported",
		chat(`,"tool_choice":{"type":"function"}`):                         "tool_choice: is not supported",
		chat(`,"response_format":{"type":"json_object"}`):                  "response_format: only the type text is supported",
		chat(`,"response_format":{"type":"json_schema","json_schema":{}}`): "response_format.json_schema: is not supported",
		chat(`,"modalities":["text","audio"]`):                             "modalities[1]: is not supported",
		chat(`,"audio":{"voice":"x"}`):                                     "audio: is not supported",
		chat(`,"prediction":{}`):                                           "prediction: is not supported",
		chat(`,"web_search_options":{}`):                                   "web_search_options: is not supported",
		completion(`,"top_k":5`):                                           "top_k: is not known here",
		completion(`,"tools":[]`):                                          "tools: is not known here",
		completion(`,"a secret sentence":5`):                               "(a field): is not known here",
		completion(`,"metadata":` + strings.Repeat(`{"a":`, 40) + `1` + strings.Repeat(`}`, 40)): "metadata" + strings.Repeat(".a", 31) + ": nested too deeply",
	} {
		_, err := parseRequest([]byte(body), strings.Contains(body, `"messages"`), 8)
		got := ""
		if err != nil {
			got = err.Error()
		}
		if want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s\n got %s\nwant %s", body, got, want)
		}
		var b *bodyError
		if err != nil && !errors.As(err, &b) {
			t.Errorf("%s: error of type %T", body, err)
		}
	}
}

// F21: what engines pass among themselves never comes from a client.
func TestF21InternalFields(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	for name := range internalFields {
		for _, body := range []string{
			`{"model":"ref","prompt":"p","NAME":{"remote_host":"evil"}}`, `{"model":"ref","prompt":"p","NAME":null}`, `{"NAME":7}`,
			`{"model":"ref","prompt":"p","metadata":{"a":[{"NAME":1}]}}`, `{"model":"ref","prompt":"p","extra_body":{"NAME":1}}`,
			`{"model":"ref","prompt":"p","\u00` + hex2(name[0]) + name[1:] + `":1}`, `{"model":"ref","prompt":"p","` + strings.ToUpper(name) + `":1}`,
		} {
			body = strings.ReplaceAll(body, "NAME", name)
			if _, err := parseRequest([]byte(body), false, 8); misread(err).code != events.CodeForbiddenField {
				t.Errorf("%s: %v", body, err)
			}
		}
	}
	for _, name := range []string{"kv_transfer_params", "bootstrap_host", "bootstrap_port", "bootstrap_room"} {
		for _, path := range []string{"/v1/completions", "/v1/chat/completions"} {
			a := r.post(path, `{"model":"ref","`+name+`":{"remote_host":"evil"},"prompt":"p","stream":true}`)
			if e := a.wantError(t, http.StatusBadRequest, "forbidden_field"); e.Error.Param == nil || *e.Error.Param != name {
				t.Errorf("param %v", e.Error.Param)
			}
		}
	}
	if n := len(r.b.sent(events.CmdAdmit)); n != 0 {
		t.Errorf("%d admissions", n)
	}
}

func hex2(b byte) string { const d = "0123456789abcdef"; return string([]byte{d[b>>4], d[b&15]}) }

func TestRequestErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	r.post("/v1/completions", `{"model":"other","prompt":"`+canary+`"}`).wantError(t, http.StatusNotFound, "model_not_found")
	e := r.post("/v1/completions", `{"model":"ref","prompt":"`+canary+`","temperature":"`+canary+`"}`).wantError(t, http.StatusBadRequest, "invalid_request")
	if e.Error.Param == nil || *e.Error.Param != "temperature" {
		t.Errorf("param %v", e.Error.Param)
	}
	r.post("/v1/completions", `{"model":"ref","prompt":"p","`+canary+` x":1}`).wantError(t, http.StatusBadRequest, "invalid_request")
	r.post("/v1/chat/completions", `{"model":"ref","prompt":"p"}`).wantError(t, http.StatusBadRequest, "invalid_request")
}

// The cursor agrees with encoding/json about what a JSON text says, and is
// stricter where it claims to be.
func FuzzBody(f *testing.F) {
	for _, s := range []string{`{}`, `{"a":1}`, `{"a":[1,"\u00e9\ud834\udd1e",true,null,-1.5e+3]}`, `{"a":{"b":"c"},"a":1}`, `{"bootstrap_room":1}`,
		`{"model":"ref","prompt":"p","stop":["a"],"max_tokens":5}`, `{"model":"ref","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`,
		`{"model":"ref","prompt":"\ud800"}`, "{\"a\":\"\xff\"}", `[1`, `01`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, chat := range []bool{false, true} {
			req, err := parseRequest(bytes.Clone(b), chat, 8)
			if err != nil {
				continue
			}
			var std struct {
				Model     string
				Prompt    any
				MaxTokens *int `json:"max_tokens"`
				Messages  []struct{ Role string }
			}
			if err := json.Unmarshal(b, &std); err != nil {
				t.Fatalf("taken, and encoding/json says %v", err)
			}
			if std.Model != req.model || std.MaxTokens != nil && *std.MaxTokens != req.maxTokens || chat && len(std.Messages) != len(req.messages) {
				t.Fatalf("read differently: %+v and %+v", std, req)
			}
			if p, ok := std.Prompt.(string); ok && !chat && p != string(req.prompt) {
				t.Fatalf("prompt %q, encoding/json reads %q", req.prompt, p)
			}
		}
		// skip takes exactly valid JSON without doubled names, lone surrogates,
		// invalid UTF-8, internal names and great depth.
		c, err := newCursor(bytes.Clone(b))
		if err == nil {
			if err = c.skip(); err == nil {
				err = c.end()
			}
		}
		if err == nil && !json.Valid(b) {
			t.Fatalf("%q is taken and not valid", b)
		}
		if err != nil && json.Valid(b) && strictlyValid(b) {
			t.Fatalf("%q is refused: %v", b, err)
		}
	})
}

// strictlyValid says whether valid JSON is free of what the cursor refuses.
// Escapes are left out: two spellings of one name are doubled too.
func strictlyValid(b []byte) bool {
	if bytes.Contains(b, []byte(`\u`)) || !validText(b) {
		return false
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return strictValue(d, 0)
}

func strictValue(d *json.Decoder, depth int) bool {
	tok, err := d.Token()
	delim, ok := tok.(json.Delim)
	if err != nil || !ok {
		return err == nil
	}
	if depth++; depth > maxDepth {
		return false
	}
	seen := map[string]bool{}
	for d.More() {
		if len(seen) == maxMembers {
			return false
		}
		if delim == '{' {
			name, err := d.Token()
			if s, ok := name.(string); err != nil || !ok || seen[s] || internalField(s) {
				return false
			} else {
				seen[s] = true
			}
		}
		if !strictValue(d, depth) {
			return false
		}
	}
	_, err = d.Token()
	return err == nil
}

func validText(b []byte) bool { return bytes.Equal(bytes.ToValidUTF8(b, nil), b) }

// A body costs what its bytes cost, whatever it is made of.
func TestBodyCost(t *testing.T) {
	many := func(n int, head, tail string, element func(i int) string) string {
		var b strings.Builder
		b.WriteString(head)
		for i := range n {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(element(i))
		}
		return b.String() + tail
	}
	for name, c := range map[string]struct{ body, want string }{
		"parts":   {many(20_000, `{"model":"m","messages":[{"role":"user","content":[`, `]}]}`, func(int) string { return `{"type":"text","text":"` + strings.Repeat("x", 26) + `"}` }), ""},
		"members": {many(100_000, `{"model":"m","messages":[],"logit_bias":{`, `}}`, func(i int) string { return `"` + strconv.Itoa(i) + `":0` }), "logit_bias: holds more than 4096 members"},
		"doubled": {many(2000, `{"model":"m","messages":[],"logit_bias":{`, `}}`, func(i int) string { return `"` + strconv.Itoa(i%1999) + `":0` }), "logit_bias.0: stands twice"},
		"objects": {many(100_000, `{"model":"m","messages":[],"metadata":{"a":[`, `]}}`, func(int) string { return `{"a":1,"b":2}` }), "messages: is required"},
	} {
		var before, after runtime.MemStats
		body := []byte(c.body)
		runtime.ReadMemStats(&before)
		_, err := parseRequest(body, true, 8)
		runtime.ReadMemStats(&after)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%s: %v", name, err)
		}
		if got, limit := after.TotalAlloc-before.TotalAlloc, uint64(10*len(body)+1<<20); got > limit {
			t.Errorf("%s: %d bytes were allocated for a body of %d", name, got, len(body))
		}
	}
}

func TestShownNames(t *testing.T) {
	got := map[string]string{}
	for _, n := range []string{"top_k", "a-b", "", "two words", strings.Repeat("x", 65), "é", "a.b"} {
		got[n] = shown(n)
	}
	want := map[string]string{"top_k": "top_k", "a-b": "a-b", "": "(a field)", "two words": "(a field)", strings.Repeat("x", 65): "(a field)", "é": "(a field)", "a.b": "(a field)"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
