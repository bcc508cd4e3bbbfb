package schemas

import (
	"context"
	"io/fs"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"go.yaml.in/yaml/v3"

	"github.com/pdgate/pdgate/events"
)

func loadAsyncAPI(t *testing.T) map[string]any {
	t.Helper()
	b, err := Read("asyncapi")
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func at(v any, path ...string) any {
	for _, p := range path {
		m, _ := v.(map[string]any)
		v = m[p]
	}
	return v
}

// resolve follows a reference inside the document, or to a file beside it.
func resolve(doc map[string]any, ref string) any {
	if file, ok := strings.CutPrefix(ref, "./"); ok {
		if _, err := fs.Stat(FS, file); err != nil {
			return nil
		}
		return file
	}
	path, ok := strings.CutPrefix(ref, "#/")
	if !ok {
		return nil
	}
	v := at(doc, strings.Split(path, "/")...)
	if m, ok := v.(map[string]any); ok && m["$ref"] != nil {
		return resolve(doc, m["$ref"].(string))
	}
	return v
}

func TestAsyncAPIReferencesResolve(t *testing.T) {
	doc := loadAsyncAPI(t)
	count := 0
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				count++
				if resolve(doc, ref) == nil {
					t.Errorf("%s: %s leads nowhere", path, ref)
				}
			}
			for k, e := range v {
				walk(path+"/"+k, e)
			}
		case []any:
			for _, e := range v {
				walk(path, e)
			}
		}
	}
	walk("", doc)
	if count < 100 {
		t.Errorf("only %d references", count)
	}
	if doc["asyncapi"] != "3.0.0" {
		t.Errorf("version %v", doc["asyncapi"])
	}
}

type operation struct {
	address  string
	action   string
	security []string
	reply    bool
	payloads []string // schema files of its messages
}

func operations(t *testing.T, doc map[string]any) map[string]operation {
	t.Helper()
	out := make(map[string]operation)
	for name, v := range at(doc, "operations").(map[string]any) {
		var op operation
		channel := resolve(doc, at(v, "channel", "$ref").(string))
		op.address = at(channel, "address").(string)
		op.action = at(v, "action").(string)
		for _, s := range at(v, "security").([]any) {
			ref := at(s, "$ref").(string)
			op.security = append(op.security, ref[strings.LastIndexByte(ref, '/')+1:])
		}
		for _, m := range at(v, "messages").([]any) {
			message := resolve(doc, at(m, "$ref").(string))
			file, _ := at(message, "payload", "schema", "$ref").(string)
			op.payloads = append(op.payloads, strings.TrimPrefix(file, "./"))
		}
		if r := at(v, "reply"); r != nil {
			op.reply = true
			if resolve(doc, at(r, "channel", "$ref").(string)) == nil || at(r, "address", "location") == nil {
				t.Errorf("%s: its reply goes nowhere", name)
			}
		}
		// Every {parameter} of the address is explained, and no other is.
		params, _ := at(channel, "parameters").(map[string]any)
		if n := strings.Count(op.address, "{"); n != len(params) {
			t.Errorf("%s: %d parameters in %s, %d explained", name, n, op.address, len(params))
		}
		for p := range params {
			if about, _ := at(params[p], "description").(string); about == "" || !strings.Contains(op.address, "{"+p+"}") {
				t.Errorf("%s: parameter %s of %s", name, p, op.address)
			}
		}
		out[name] = op
	}
	return out
}

var fill = strings.NewReplacer("{principal}", "w1", "{partition}", "3", "{role}", "operator", "{model}", "llama-3~1",
	"{request_id}", "r", "{gateway}", "gw1", "{worker}", "d1")

// The document has an operation for all that a role may send, on the subject
// that the code builds, under that role's NATS user, and for nothing else.
func TestAsyncAPICommands(t *testing.T) {
	found := make(map[string]operation)
	for name, op := range operations(t, loadAsyncAPI(t)) {
		subject := fill.Replace(op.address)
		if _, twice := found[subject]; twice {
			t.Errorf("%s: %s has two operations", name, subject)
		}
		found[subject] = op
	}
	expect := func(subject, action, payload string, reply bool, roles ...events.Role) {
		t.Helper()
		op, ok := found[subject]
		delete(found, subject)
		if !ok {
			t.Errorf("%s has no operation", subject)
			return
		}
		var who []string
		for _, r := range roles {
			who = append(who, string(r))
		}
		if op.action != action || op.reply != reply || strings.Join(op.security, " ") != strings.Join(who, " ") {
			t.Errorf("%s is %+v; want %s by %v, reply %v", subject, op, action, who, reply)
		}
		for _, p := range op.payloads {
			if !strings.HasPrefix(p, payload) || p == "" != (payload == "") {
				t.Errorf("%s carries %q, want %q", subject, p, payload)
			}
		}
	}
	for _, role := range events.AllRoles() {
		for _, c := range events.AllCommandTypes() {
			if role.May(c) {
				file := "commands/" + string(c) + ".json"
				expect(events.CommandSubject(role, "w1", c, 3), "receive", file, true, role)
				expect(events.CommandSubjectAny(role, "w1", c, 3), "receive", file, true, role)
			}
		}
	}
	for _, q := range events.AllQueries() {
		expect(events.QuerySubject(events.RoleOperator, "w1", q), "receive", "queries/"+q+".json", true,
			events.RoleGateway, events.RolePrefill, events.RoleDecode, events.RoleOperator, events.RoleCanary, events.RoleAuditor)
	}
	for _, role := range []events.Role{events.RolePrefill, events.RoleDecode} {
		expect(events.HeartbeatSubject(role, "w1"), "receive", "messages/heartbeat.json", false, role)
		expect(events.WorkSubject("llama-3.1", role), "send", "messages/work.json", false, events.RoleLifecycle)
	}
	expect(events.NotifySubject("llama-3.1", 3), "send", "", false, events.RoleLifecycle)
	expect(events.PromptSubject("gw1", "operator", "d1", "r"), "receive", "messages/prompt_request.json", true, events.RolePrefill, events.RoleDecode)
	expect(events.OutputSubject("gw1", "d1", "r"), "receive", "", false, events.RoleDecode)
	expect(events.ReceiptSubject("operator", "w1"), "receive", "", true, events.RoleGateway, events.RoleAuditor)
	for subject := range found {
		t.Errorf("%s has an operation, but nothing in the code sends it", subject)
	}
}

// Receipts and proofs in the form that the auditor has are in the document's.
func TestAsyncAPIReceipts(t *testing.T) {
	doc := loadAsyncAPI(t)
	pattern := func(path ...string) *regexp.Regexp {
		t.Helper()
		p, _ := at(doc, append([]string{"components", "messages"}, path...)...).(string)
		if p == "" {
			t.Fatalf("%v has no pattern", path)
		}
		return regexp.MustCompile(p)
	}
	query := pattern("receipt_query", "payload", "properties", "receipt", "pattern")
	for receipt, want := range map[string]bool{
		events.Position{Seq: 7}.String() + ";" + events.Hash([]byte("line")): true, "12.3": true,
		"0.0": false, "7": false, "7.0;": false, "7.0;short": false, "07.0": false,
	} {
		if query.MatchString(receipt) != want {
			t.Errorf("%q: want %v", receipt, want)
		}
	}
	if p := pattern("receipt_proof", "payload", "pattern"); !p.MatchString("c2sp.org/tlog-proof@v1\nextra e30\n") || p.MatchString("{}") {
		t.Errorf("proof: %s", p)
	}
}

func loadOpenAPI(t *testing.T) *openapi3.T {
	t.Helper()
	b, err := Read("openapi")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(b)
	if err != nil {
		t.Fatal(err)
	}
	if err := doc.Validate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestOpenAPI(t *testing.T) {
	doc := loadOpenAPI(t)
	for path, method := range map[string]string{"/v1/completions": http.MethodPost, "/v1/chat/completions": http.MethodPost,
		"/v1/models": http.MethodGet, "/health": http.MethodGet, "/ready": http.MethodGet} {
		item := doc.Paths.Find(path)
		if item == nil || item.GetOperation(method) == nil {
			t.Fatalf("%s %s is missing", method, path)
		}
		if method != http.MethodPost {
			continue
		}
		responses := item.GetOperation(method).Responses
		// Every code that can end a request has its status in the document.
		for _, code := range events.AllCodes() {
			if responses.Status(code.HTTPStatus()) == nil {
				t.Errorf("%s: no response %d, which is that of %s", path, code.HTTPStatus(), code)
			}
		}
		for status, r := range responses.Map() {
			if r.Value.Headers["X-Request-Id"] == nil || r.Value.Headers["Pdgate-Receipt"] == nil {
				t.Errorf("%s: response %s lacks its headers", path, status)
			}
			if retry := r.Value.Headers["Retry-After"] != nil; retry != (status == "429" || status == "503") {
				t.Errorf("%s: response %s has Retry-After: %v", path, status, retry)
			}
			if r.Value.Content["text/event-stream"] != nil != (status == "200") {
				t.Errorf("%s: response %s streams", path, status)
			}
		}
	}
}

func TestOpenAPIBodies(t *testing.T) {
	doc := loadOpenAPI(t)
	for _, tc := range []struct {
		schema, body string
		ok           bool
	}{
		{"CompletionRequest", `{"model":"m","prompt":"x"}`, true},
		{"CompletionRequest", `{"model":"m","prompt":"x","stop":"a","stream":true,"stream_options":{"include_usage":true},"n":2,"seed":-1}`, true},
		{"CompletionRequest", `{"model":"m","prompt":"x","stop":["a","b"],"temperature":0.5,"top_p":1,"max_tokens":1,"user":"u"}`, true},
		{"CompletionRequest", `{"model":"m"}`, false},
		{"CompletionRequest", `{"prompt":"x"}`, false},
		{"CompletionRequest", `{"model":"m","prompt":["x"]}`, false},
		{"CompletionRequest", `{"model":"m","prompt":"x","max_tokens":0}`, false},
		{"CompletionRequest", `{"model":"m","prompt":"x","stop":[]}`, false},
		{"CompletionRequest", `{"model":"m","prompt":"x","stop":["a","b","c","d","e"]}`, false},
		{"CompletionRequest", `{"model":"m","prompt":"x","temperature":3}`, false},
		{"ChatRequest", `{"model":"m","messages":[{"role":"user","content":"x"}],"max_completion_tokens":5}`, true},
		{"ChatRequest", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}]}`, true},
		{"ChatRequest", `{"model":"m","messages":[]}`, false},
		{"ChatRequest", `{"model":"m","messages":[{"role":"king","content":"x"}]}`, false},
		{"ChatRequest", `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","text":"x"}]}]}`, false},
		{"ErrorBody", `{"error":{"message":"m","type":"invalid_request_error","param":null,"code":"context_length_exceeded"}}`, true},
		{"ErrorBody", `{"error":{"message":"m","type":"invalid_request_error","param":null}}`, false},
		{"Completion", `{"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"x","finish_reason":"stop"}],"usage":null}`, true},
		{"Completion", `{"id":"c","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"x","finish_reason":"abort"}]}`, false},
		{"ChatChunk", `{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}`, true},
		{"Chat", `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length"}]}`, true},
		{"Chat", `{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"user","content":"x"},"finish_reason":"length"}]}`, false},
	} {
		var v any
		if err := yaml.Unmarshal([]byte(tc.body), &v); err != nil {
			t.Fatal(err)
		}
		err := doc.Components.Schemas[tc.schema].Value.VisitJSON(v)
		if (err == nil) != tc.ok {
			t.Errorf("%s %s: %v", tc.schema, tc.body, err)
		}
	}
}
