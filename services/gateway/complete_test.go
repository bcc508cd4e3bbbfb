package gateway

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pdgate/pdgate/events"
)

func TestCompletion(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	a := r.post("/v1/completions", completionBody(testPrompt, false), "X-Request-Id", "mine")
	if a.status != http.StatusOK {
		t.Fatalf("%d: %s", a.status, a.body)
	}
	rec := r.b.record(0)
	var got map[string]any
	if err := json.Unmarshal([]byte(a.body), &got); err != nil {
		t.Fatal(err)
	}
	delete(got, "created")
	want := map[string]any{
		"id": "cmpl-" + rec.id, "object": "text_completion", "model": "ref",
		"choices": []any{map[string]any{"index": 0.0, "text": testAnswer, "logprobs": nil, "finish_reason": "length"}},
		"usage": map[string]any{"prompt_tokens": float64(len(testPrompt)), "completion_tokens": float64(len(testAnswer)),
			"total_tokens": float64(len(testPrompt) + len(testAnswer))},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	state, receipt := rec.last()
	if got := a.header.Get("Pdgate-Receipt"); got != receipt || state != events.Decoded {
		t.Errorf("receipt %q, want %q; state %s", got, receipt, state)
	}
	if a.header.Get("X-Request-Id") != rec.id || a.header.Get("X-Client-Request-Id") != "mine" {
		t.Errorf("headers %v", a.header)
	}
	if _, err := events.RequestTime(rec.id); err != nil {
		t.Errorf("request id: %v", err)
	}
	if label := (events.DigestKey{Secret: testSecret}).Disclose(events.AdmissionID(rec.id), events.FieldLabel, "mine"); rec.admit.Label != label.Digest() {
		t.Errorf("label %q", rec.admit.Label)
	}
	if rec.admit.Tenant != "acme" || rec.admit.Stream || rec.admit.Group != "" || rec.admit.MaxTokens != 64 {
		t.Errorf("admission %+v", rec.admit)
	}
}

func TestCompletionStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	body := `{"model":"ref","prompt":"` + testPrompt + `","max_tokens":64,"stream":true,"stream_options":{"include_usage":true}}`
	a := r.post("/v1/completions", body)
	if a.status != http.StatusOK || !strings.HasPrefix(a.header.Get("Content-Type"), "text/event-stream") {
		t.Fatalf("%d %v: %s", a.status, a.header, a.body)
	}
	s := parseStream(t, a.body)
	if s.text[0] != testAnswer || s.finish[0] != "length" || !s.done || s.err != "" {
		t.Errorf("stream %+v", s)
	}
	if s.usage == nil || s.usage.TotalTokens != len(testPrompt)+len(testAnswer) {
		t.Errorf("usage %+v", s.usage)
	}
	rec := r.b.record(0)
	if got := a.header.Get("Pdgate-Receipt"); got != receiptOf(rec, events.Transferred) && got != receiptOf(rec, events.Decoded) {
		t.Errorf("receipt %q", got)
	}
	if got := a.trailer.Get("Pdgate-Final-Receipt"); got != receiptOf(rec, events.Decoded) {
		t.Errorf("final receipt %q", got)
	}
}

// receiptOf is the receipt of the event that led to a state.
func receiptOf(r *record, s events.State) string {
	r.b.mu.Lock()
	defer r.b.mu.Unlock()
	for i, l := range r.lines {
		e, err := events.Decode(l)
		if err != nil {
			r.b.t.Fatal(err)
		}
		switch e.Type {
		case events.TypeTransferred:
			if s == events.Transferred {
				return r.positions[i] + ";" + events.Hash(l)
			}
		case events.TypeDecoded:
			if s == events.Decoded {
				return r.positions[i] + ";" + events.Hash(l)
			}
		}
	}
	return ""
}

func TestChat(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	body := `{"model":"org/ref-1.5","messages":[{"role":"system","content":"be ` + canary + `"},{"role":"user","content":[{"type":"text","text":"hel"},{"type":"text","text":"lo"}]}],` +
		`"max_completion_tokens":50,"stop":"END","seed":7,"temperature":0.5,"user":"u","top_p":1}`
	prompt, _ := bytesTokenizer{}.Chat([]Message{{"system", "be " + canary}, {"user", "hello"}})
	sampling := make(chan *events.Sampling, 1)
	script := r.b.script
	r.b.script = func(rec *record) {
		s, err := rec.sampling()
		if err != nil {
			t.Error(err)
		}
		sampling <- s
		script(rec)
	}
	a := r.post("/v1/chat/completions", body)
	if a.status != http.StatusOK {
		t.Fatalf("%d: %s", a.status, a.body)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(a.body), &got); err != nil {
		t.Fatal(err)
	}
	text := answerTo(prompt, 50, 0)
	want := []any{map[string]any{"index": 0.0, "logprobs": nil, "finish_reason": "length",
		"message": map[string]any{"role": "assistant", "content": text}}}
	if d := cmp.Diff(want, got["choices"]); d != "" || got["object"] != "chat.completion" || got["id"] != "chatcmpl-"+r.b.record(0).id {
		t.Error(d, got)
	}
	if d := cmp.Diff(&events.Sampling{MaxTokens: 50, Stop: []string{"END", "\n"}, Temperature: 0.5, Seed: 7}, <-sampling); d != "" {
		t.Error(d)
	}

	r.b.set(func() { r.b.script = script })
	a = r.post("/v1/chat/completions", strings.Replace(body, `"user":"u"`, `"stream":true`, 1))
	first, _, _ := strings.Cut(a.body, "\n\n")
	if !strings.Contains(first, `"delta":{"role":"assistant","content":""}`) || !strings.Contains(first, `"chat.completion.chunk"`) {
		t.Errorf("first event %s", first)
	}
	if s := parseStream(t, a.body); s.text[0] != text || s.finish[0] != "length" || !s.done {
		t.Errorf("stream %+v", s)
	}
}

func TestChoices(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	body := `{"model":"ref","prompt":"` + testPrompt + `","max_tokens":64,"n":3,"stream":STREAM,"stream_options":null}`
	want := []string{testAnswer, answerTo([]byte(testPrompt), 64, 1), answerTo([]byte(testPrompt), 64, 2)}
	a := r.post("/v1/completions", strings.Replace(body, "STREAM", "false", 1))
	if a.status != http.StatusOK {
		t.Fatalf("%d: %s", a.status, a.body)
	}
	if d := cmp.Diff(want, textOf(t, a.body)); d != "" {
		t.Error(d)
	}
	if n := len(a.header.Values("Pdgate-Receipt")); n != 3 {
		t.Errorf("%d receipts", n)
	}
	group := a.header.Get("X-Request-Id")
	for i := range 3 {
		if rec := r.b.record(i); rec.admit.Group != group {
			t.Errorf("group %q, want %q", rec.admit.Group, group)
		}
	}
	var c struct{ Usage usage }
	if err := json.Unmarshal([]byte(a.body), &c); err != nil || c.Usage.CompletionTokens != len(want[0]+want[1]+want[2]) {
		t.Errorf("usage %+v, %v", c.Usage, err)
	}
	s := parseStream(t, r.post("/v1/completions", strings.Replace(body, "STREAM", "true", 1)).body)
	if !s.done || s.text[0] != want[0] || s.text[1] != want[1] || s.text[2] != want[2] || len(s.finish) != 3 {
		t.Errorf("stream %+v", s)
	}
}

// One choice that is refused refuses the request, and what was admitted is
// cancelled.
func TestChoiceRejected(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	r.b.refuse = func(a *events.Admit) *events.Error {
		if a.Choice == 1 {
			return events.NewError(events.CodeTenantConcurrency, "2 requests are open, the limit is 2")
		}
		return nil
	}
	r.b.script = func(rec *record) { <-rec.ended }
	a := r.post("/v1/completions", `{"model":"ref","prompt":"x","n":3}`)
	a.wantError(t, http.StatusTooManyRequests, "tenant_concurrency_exceeded")
	for range 3 {
		<-r.b.landed
	}
	if n := len(r.b.sent(events.CmdCancel)); n != 2 {
		t.Errorf("%d cancels", n)
	}
}

// Defaults of max_tokens, cut to what the context leaves.
func TestDefaultMaxTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	r.b.models[0].ContextTokens = 40
	for _, c := range []struct {
		path, body string
		want       int
	}{
		{"/v1/completions", `{"model":"ref","prompt":"0123456789"}`, 16},
		{"/v1/completions", `{"model":"ref","prompt":"0123456789012345678901234567890123456"}`, 3},
		{"/v1/completions", `{"model":"ref","prompt":"01234567890123456789012345678901234567890123456789"}`, 16}, // lifecycle refuses it
		{"/v1/chat/completions", `{"model":"ref","messages":[{"role":"user","content":"0"}]}`, 22},
		{"/v1/chat/completions", `{"model":"org/ref-1.5","messages":[{"role":"user","content":"0"}]}`, 256},
	} {
		if a := r.post(c.path, c.body); a.status != http.StatusOK {
			t.Fatalf("%d: %s", a.status, a.body)
		}
		r.b.mu.Lock()
		got := r.b.order[len(r.b.order)-1].admit.MaxTokens
		r.b.mu.Unlock()
		if got != c.want {
			t.Errorf("%s: max_tokens %d, want %d", c.body, got, c.want)
		}
	}
}

// A client's own id is a label: used twice at once, it names two lifecycles.
func TestF22ClientRequestID(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	both := make(chan struct{})
	arrived := make(chan struct{}, 2)
	script := r.b.script
	r.b.script = func(rec *record) { arrived <- struct{}{}; <-both; script(rec) }
	answers := make(chan answer, 2)
	for range 2 {
		go func() {
			answers <- r.post("/v1/completions", completionBody(testPrompt, false), "X-Request-Id", "same")
		}()
	}
	<-arrived
	<-arrived
	close(both)
	x, y := <-answers, <-answers
	if x.status != 200 || y.status != 200 || x.header.Get("X-Request-Id") == y.header.Get("X-Request-Id") {
		t.Errorf("%v and %v", x, y)
	}
	if r.b.record(0).admit.Label == r.b.record(1).admit.Label {
		t.Error("labels of two requests can be linked by their digests")
	}
}
