package gateway

import (
	"encoding/json"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/pdgate/pdgate/events"
	"github.com/pdgate/pdgate/schemas"
)

// What the gateway answers is what schemas/openapi.yaml says.
func TestOpenAPIDocument(t *testing.T) {
	t.Parallel()
	b, err := schemas.Read("openapi")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := openapi3.NewLoader().LoadFromData(b)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, rigConfig{})
	rejecting := func(rec *record) { rec.append(&events.RequestRejected{Error: *contextError, Stage: "engine"}) }
	failing := func(rec *record) {
		_, _ = rec.fetch()
		rec.append(&events.RequestFailed{Error: *events.NewError(events.CodeDeadline, "too late"), From: events.Admitted, Stage: "deadline"})
	}
	chat := `{"model":"ref","messages":[{"role":"user","content":"c"}],"stop":["a"],"n":2}`
	for _, c := range []struct {
		path, body string // no body: GET
		script     func(*record)
		header     []string
	}{
		{"/health", "", nil, nil},
		{"/ready", "", nil, nil},
		{"/v1/models", "", nil, nil},
		{"/v1/models/ref", "", nil, nil},
		{"/v1/completions", completionBody(testPrompt, false), (*record).wholeWalk, nil},
		{"/v1/completions", completionBody(testPrompt, true), (*record).wholeWalk, nil},
		{"/v1/completions", completionBody(testPrompt, true), rejecting, nil},
		{"/v1/completions", completionBody(testPrompt, false), failing, nil},
		{"/v1/completions", completionBody(testPrompt, false), failing, []string{"Content-Type", "text/plain"}},
		{"/v1/completions", completionBody(testPrompt, false), failing, []string{"Authorization", "Bearer no"}},
		{"/v1/chat/completions", chat, (*record).wholeWalk, nil},
		{"/v1/chat/completions", strings.Replace(chat, `"n":2`, `"stream":true,"stream_options":{"include_usage":true}`, 1), (*record).wholeWalk, nil},
		{"/v1/chat/completions", `{"model":"ref","kv_transfer_params":{}}`, rejecting, nil},
		{"/v1/chat/completions", strings.Replace(chat, "ref", "other", 1), rejecting, nil},
	} {
		var a answer
		if c.body == "" {
			a = r.get(c.path)
		} else {
			r.b.set(func() { r.b.script = c.script })
			a = r.post(c.path, c.body, c.header...)
		}
		path := strings.Replace(c.path, "/v1/models/ref", "/v1/models/{model}", 1)
		item := doc.Paths.Find(path)
		if item == nil {
			t.Fatalf("%s is not in the document", path)
		}
		op := item.Get
		if c.body != "" {
			op = item.Post
		}
		response := op.Responses.Status(a.status)
		if response == nil {
			t.Errorf("%s: %d is not in the document", c.path, a.status)
			continue
		}
		kind, _, _ := strings.Cut(a.header.Get("Content-Type"), ";")
		media := response.Value.Content[kind]
		if media == nil {
			t.Errorf("%s: %d as %s is not in the document", c.path, a.status, kind)
			continue
		}
		for name, h := range response.Value.Headers {
			for _, v := range a.header.Values(name) {
				if s := h.Value.Schema.Value; s.Pattern != "" && !regexp.MustCompile(s.Pattern).MatchString(v) {
					t.Errorf("%s: %s %q is not in its form", c.path, name, v)
				}
			}
			if h.Value.Required && a.header.Get(name) == "" {
				t.Errorf("%s: no %s", c.path, name)
			}
		}
		if a.status == http.StatusOK && c.body != "" && a.header.Get("Pdgate-Receipt") == "" {
			t.Errorf("%s: no receipt", c.path)
		}
		bodies := []string{a.body}
		schema := media.Schema.Value
		if kind == "text/event-stream" {
			bodies = nil
			for _, e := range strings.Split(a.body, "\n\n") {
				if data, ok := strings.CutPrefix(e, "data: "); ok && data != "[DONE]" {
					bodies = append(bodies, data)
				}
			}
			name := "Completion"
			if strings.Contains(c.path, "chat") {
				name = "ChatChunk"
			}
			schema = doc.Components.Schemas[name].Value
		}
		for i, body := range bodies {
			var v any
			if err := json.Unmarshal([]byte(body), &v); err != nil {
				t.Errorf("%s: %v", c.path, err)
			} else if err := schema.VisitJSON(v); err != nil {
				t.Errorf("%s: body %s: %v", c.path, strconv.Itoa(i), err)
			}
		}
	}
}
