package process

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/internal/keyring"
)

// TestHTTPInput sends a running up what clients should not send. Each answer is
// an error that says what is wrong, names the field, and quotes nothing of the
// body; the process goes on, and its log holds nothing that it should not.
func TestHTTPInput(t *testing.T) {
	u := startUp(t, t.TempDir())
	const completions, chat = "POST /v1/completions", "POST /v1/chat/completions"
	good := `"model":"ref","prompt":"` + secretWord + `","max_tokens":4`
	body := func(more string) string { return "{" + good + more + "}" }
	auth := map[string]string{"Authorization": "Bearer " + apiKey, "Content-Type": "application/json"}
	with := func(name, value string) map[string]string {
		h := map[string]string{name: value}
		for k, v := range auth {
			if _, ok := h[k]; !ok {
				h[k] = v
			}
		}
		return h
	}
	for _, tt := range []struct {
		name, route, body string
		header            map[string]string
		status            int
		code, param       string
	}{
		{"no key", completions, body(""), map[string]string{"Content-Type": "application/json"}, 401, "invalid_api_key", ""},
		{"wrong key", completions, body(""), with("Authorization", "Bearer "+apiKey+"x"), 401, "invalid_api_key", ""},
		{"key of another scheme", completions, body(""), with("Authorization", "Basic "+apiKey), 401, "invalid_api_key", ""},
		{"huge key", completions, body(""), with("Authorization", "Bearer "+strings.Repeat("k", 4096)), 401, "invalid_api_key", ""},
		{"no such page", "POST /v1/embeddings", body(""), auth, 404, "unknown_route", ""},
		{"path that climbs", "GET /v1/../../keys/admin.nk", "", auth, 404, "unknown_route", ""},
		{"wrong method", "GET /v1/completions", "", auth, 405, "method_not_allowed", ""},
		{"not JSON by its type", completions, body(""), with("Content-Type", "text/plain"), 415, "unsupported_media_type", ""},
		{"packed", completions, body(""), with("Content-Encoding", "gzip"), 415, "unsupported_media_type", ""},
		{"nothing", completions, "", auth, 400, "invalid_request", ""},
		{"a word", completions, secretWord, auth, 400, "invalid_request", ""},
		{"an array", completions, "[" + body("") + "]", auth, 400, "invalid_request", ""},
		{"cut", completions, body("")[:20], auth, 400, "invalid_request", ""},
		{"two documents", completions, body("") + body(""), auth, 400, "invalid_request", ""},
		{"not UTF-8", completions, body(`,"user":"` + "\xff\xfe" + `"`), auth, 400, "invalid_request", ""},
		{"lone surrogate", completions, `{"model":"ref","max_tokens":1,"prompt":"\ud800"}`, auth, 400, "invalid_request", "prompt"},
		{"field twice", completions, body(`,"max_tokens":5`), auth, 400, "invalid_request", "max_tokens"},
		{"unknown field", completions, body(`,"priority":1`), auth, 400, "invalid_request", "priority"},
		{"engine's field", completions, body(`,"kv_transfer_params":{"remote_host":"10.0.0.1"}`), auth, 400, "forbidden_field", "kv_transfer_params"},
		{"engine's field, in other letters", completions, body(`,"Bootstrap_Room":7`), auth, 400, "forbidden_field", ""},
		{"engine's field, deep", completions, body(`,"metadata":{"a":[{"bootstrap_room":7}]}`), auth, 400, "forbidden_field", ""},
		{"nested too deep", completions, body(`,"metadata":` + strings.Repeat(`{"a":`, 20_000) + "1" + strings.Repeat("}", 20_000)), auth, 400, "invalid_request", ""},
		{"no model", completions, `{"prompt":"` + secretWord + `"}`, auth, 400, "invalid_request", "model"},
		{"unknown model", completions, `{"model":"gpt-9","prompt":"` + secretWord + `"}`, auth, 404, "model_not_found", ""},
		{"model that is a subject", completions, `{"model":"ref.>","prompt":"` + secretWord + `"}`, auth, 400, "invalid_request", "model"},
		{"no prompt", completions, `{"model":"ref"}`, auth, 400, "invalid_request", "prompt"},
		{"empty prompt", completions, `{"model":"ref","prompt":""}`, auth, 400, "invalid_request", "prompt"},
		{"two prompts", completions, `{"model":"ref","prompt":["a","b"]}`, auth, 400, "invalid_request", "prompt"},
		{"token ids", completions, `{"model":"ref","prompt":[1,2,3]}`, auth, 400, "invalid_request", "prompt"},
		{"max_tokens 0", completions, `{"model":"ref","prompt":"x","max_tokens":0}`, auth, 400, "invalid_request", "max_tokens"},
		{"max_tokens negative", completions, `{"model":"ref","prompt":"x","max_tokens":-1}`, auth, 400, "invalid_request", "max_tokens"},
		{"max_tokens a text", completions, `{"model":"ref","prompt":"x","max_tokens":"4"}`, auth, 400, "invalid_request", "max_tokens"},
		{"max_tokens beyond integers", completions, `{"model":"ref","prompt":"x","max_tokens":1e400}`, auth, 400, "invalid_request", "max_tokens"},
		{"max_tokens above the context", completions, `{"model":"ref","prompt":"x","max_tokens":100000}`, auth, 400, "context_length_exceeded", ""},
		{"prompt above the context", completions, `{"model":"ref","prompt":"` + strings.Repeat(secretWord, contextTokens/5) + `"}`, auth, 400, "context_length_exceeded", ""},
		{"too many choices", completions, body(`,"n":9`), auth, 400, "invalid_request", "n"},
		{"hot", completions, body(`,"temperature":2.5`), auth, 400, "invalid_request", "temperature"},
		{"not a number", completions, body(`,"temperature":NaN`), auth, 400, "invalid_request", "temperature"},
		{"unsupported", completions, body(`,"logprobs":5`), auth, 400, "invalid_request", "logprobs"},
		{"options without stream", completions, body(`,"stream_options":{"include_usage":true}`), auth, 400, "invalid_request", "stream_options"},
		{"chat without messages", chat, `{"model":"ref"}`, auth, 400, "invalid_request", "messages"},
		{"chat of nobody", chat, `{"model":"ref","messages":[{"role":"` + secretWord + `","content":"x"}]}`, auth, 400, "invalid_request", ""},
		{"chat with a picture", chat, `{"model":"ref","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://x"}}]}]}`, auth, 400, "invalid_request", ""},
		{"chat with a prompt", chat, `{"model":"ref","prompt":"x","messages":[{"role":"user","content":"x"}]}`, auth, 400, "invalid_request", "prompt"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, header, answer := u.send(t, tt.route, tt.header, tt.body)
			var p piece
			if err := json.Unmarshal(answer, &p); err != nil || p.Error == nil {
				t.Fatalf("HTTP %d: the answer is no error in JSON: %q", status, answer)
			}
			if status != tt.status || p.Error.Code != tt.code {
				t.Errorf("HTTP %d %s, want %d %s: %s", status, p.Error.Code, tt.status, tt.code, p.Error.Message)
			}
			if tt.param != "" && (p.Error.Param == nil || !strings.HasPrefix(*p.Error.Param, tt.param)) {
				t.Errorf("param %v, want %q: %s", p.Error.Param, tt.param, p.Error.Message)
			}
			if p.Error.Message == "" || strings.Contains(string(answer), secretWord) || strings.Contains(string(answer), apiKey) {
				t.Errorf("message %q", answer)
			}
			if header.Get("X-Request-Id") == "" {
				t.Error("no X-Request-Id")
			}
		})
	}
	t.Run("bytes", func(t *testing.T) { u.sendBytes(t) })

	// It goes on as if nothing had been.
	ids := u.ask(t, 3)
	u.lists(t, ids)
	audit := newAuditor(t, connect(t, u.nats, u.ring, keyring.Admin), u.ring)
	audit.settled(settleIn)
	for _, problem := range audit.judge(nil, nil) {
		t.Error(problem)
	}
	u.stop(t)
}

// send is one request as it stands.
func (u *up) send(t *testing.T, route string, header map[string]string, body string) (int, http.Header, []byte) {
	t.Helper()
	method, path, _ := strings.Cut(route, " ")
	req, err := http.NewRequest(method, u.url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.URL.Opaque = path // not cleaned
	for k, v := range header {
		req.Header.Set(k, v)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, b
}

// sendBytes speaks to the port below HTTP: what is not HTTP gets a 4xx or a
// closed connection, soon, and never a 200 for a request inside another one.
func (u *up) sendBytes(t *testing.T) {
	at, err := url.Parse(u.url)
	if err != nil {
		t.Fatal(err)
	}
	inner := "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + apiKey + "\r\nContent-Type: application/json\r\n"
	json := `{"model":"ref","prompt":"x","max_tokens":1}`
	for name, send := range map[string]string{
		"noise":              "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + strings.Repeat("\x00", 64) + "\r\n\r\n",
		"no host":            "GET /ready HTTP/1.1\r\n\r\n",
		"version":            "GET /ready HTTP/9.9\r\nHost: x\r\n\r\n",
		"two lengths":        inner + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n" + json,
		"length too long":    inner + "Content-Length: 99999999999\r\n\r\n" + json,
		"length negative":    inner + "Content-Length: -1\r\n\r\n" + json,
		"chunk that lies":    inner + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n" + json,
		"two encodings":      inner + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"header with no end": "GET /ready HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("y", 2<<20),
		"length and chunks":  inner + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", len(json)) + inner + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(json)) + json,
	} {
		t.Run(name, func(t *testing.T) {
			c, err := net.DialTimeout("tcp", at.Host, patience)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			go io.WriteString(c, send) // ends with the connection; the other side may hang up first
			r := bufio.NewReader(c)
			for i := 0; ; i++ {
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					return // hung up
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode < 400 || i > 0 {
					t.Errorf("answer %d: HTTP %d", i, resp.StatusCode)
				}
			}
		})
	}
}
