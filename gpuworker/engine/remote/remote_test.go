package remote

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pdgate/pdgate/events"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, h http.HandlerFunc) *Node {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	n, err := NewNode(s.URL, "secret")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Close)
	return n
}

// A request is sent once, whatever becomes of its connection.
func TestSendIsOnce(t *testing.T) {
	var got atomic.Int32
	n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got.Add(1)
		c, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			_ = c.(*net.TCPConn).SetLinger(0)
			_ = c.Close()
		}
	})
	for range 3 {
		resp, err := n.Send(t.Context(), Post{Path: "/x", Body: []byte("{}")})
		if err == nil {
			_ = resp.Body.Close()
			t.Fatal("an answer")
		}
		if errors.Is(err, ErrUnsent) {
			t.Errorf("sent, and yet: %v", err)
		}
	}
	if got.Load() != 3 {
		t.Errorf("%d requests came, want 3", got.Load())
	}
	n.Close()
	gone, err := NewNode("http://127.0.0.1:1", "")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := gone.Send(t.Context(), Post{Path: "/x"}); !errors.Is(err, ErrUnsent) {
		t.Errorf("nobody there: %v", err)
	}
}

// Nothing leaves past the limit, not even where it passes while dialling.
func TestSendBefore(t *testing.T) {
	var got atomic.Int32
	n := serve(t, func(http.ResponseWriter, *http.Request) { got.Add(1) })
	now := time.Unix(1000, 0)
	at := func() time.Time { return now }
	if _, err := n.Send(t.Context(), Post{Path: "/x", Before: now, Now: at}); !errors.Is(err, ErrLate) || got.Load() != 0 {
		t.Errorf("late before: %v, %d requests", err, got.Load())
	}
	looks := 0
	passes := func() time.Time { looks++; return now.Add(time.Duration(looks-1) * time.Hour) }
	if _, err := n.Send(t.Context(), Post{Path: "/x", Before: now.Add(time.Second), Now: passes}); !errors.Is(err, ErrLate) {
		t.Errorf("late while dialling: %v", err)
	}
	resp, err := n.Send(t.Context(), Post{Path: "/x", Before: now.Add(time.Second), Now: at})
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
}

func TestRedirectsAreRefused(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	})
	var s *Status
	if _, err := n.Get(t.Context(), "/x"); !errors.As(err, &s) || s.Code != 307 {
		t.Errorf("get: %v", err)
	}
	resp, err := n.Send(t.Context(), Post{Path: "/x", Body: []byte("a prompt")})
	if err != nil || resp.StatusCode != 307 {
		t.Errorf("send: %v", err)
	} else {
		_ = resp.Body.Close()
	}
	if elsewhere.Load() != 0 {
		t.Error("the redirect was followed")
	}
}

func TestAnswersAreBounded(t *testing.T) {
	n := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
		}
		for i := 0; i < maxSmall+1; i += 1 << 16 {
			if _, err := w.Write(make([]byte, 1<<16)); err != nil {
				return
			}
		}
	})
	if _, err := n.Get(t.Context(), "/x"); !errors.Is(err, ErrTooLong) {
		t.Errorf("endless: %v", err)
	}
}

func TestAddresses(t *testing.T) {
	for _, bad := range []string{"", "host:1", "ftp://h", "http://", "http://u:pass@h:1", "http://h?x", "http://h#x", "p1=http://h"} {
		if _, err := NewNode(bad, ""); err == nil || strings.Contains(err.Error(), "pass@") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestStream(t *testing.T) {
	long := strings.Repeat("x", maxEvent)
	for _, c := range []struct {
		in   string
		want []string
		end  error
	}{
		{"data: a\n\ndata:b\r\n\r\n: comment\nevent: x\ndata: \n\ndata: [DONE]\n\ndata: after\n", []string{"a", "b"}, io.EOF},
		{"data: [DONE]\n", nil, io.EOF},
		{"data: a\n\ndata: b", []string{"a"}, ErrCut},
		{"", nil, ErrCut},
		{"data: " + long[:maxEvent-10] + "\n\ndata: [DONE]\n", []string{long[:maxEvent-10]}, io.EOF},
		{"data: " + long + "\n", nil, ErrTooLong},
	} {
		s := NewStream(strings.NewReader(c.in))
		var got []string
		var err error
		for {
			var b []byte
			if b, err = s.Next(); err != nil {
				break
			}
			got = append(got, string(b))
		}
		if !errors.Is(err, c.end) || len(got) != len(c.want) || strings.Join(got, "|") != strings.Join(c.want, "|") {
			t.Errorf("%.40q: %.40q, %v", c.in, got, err)
		}
	}
}

// What is put together again is the same JSON, and the kept values are the same
// bytes.
func FuzzObject(f *testing.F) {
	for _, s := range []string{`{}`, ` { "a" : [1, {"b":"}\""}] ,"c":-1.5e3,"d":null ,"e":"x" } `, `{"a\u0062":true}`, `[]`, `{"a":1`, `{"a":"\\"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ParseObject(b)
		var want map[string]any
		isObject := json.Unmarshal(b, &want) == nil && want != nil
		if (err == nil) != isObject {
			t.Fatalf("%q: %v, JSON says object %v", b, err, isObject)
		}
		if err != nil {
			return
		}
		for _, m := range o {
			if !json.Valid(m.Value) {
				t.Fatalf("%q: value %q", b, m.Value)
			}
		}
		out := o.Bytes()
		var got map[string]any
		if err := json.Unmarshal(out, &got); err != nil || len(got) != len(want) {
			t.Fatalf("%q became %q: %v", b, out, err)
		}
		again, err := ParseObject(out)
		if err != nil || string(again.Bytes()) != string(out) {
			t.Fatalf("%q is not stable: %v", out, err)
		}
	})
}

func TestMetrics(t *testing.T) {
	page := []byte("# HELP x\nvllm:cache_config_info{block_size=\"16\",note=\"a\\\"b,}\\n\",kv_cache_size_tokens=\"463459\"} 1.0\n" +
		"failed_total{engine=\"0\"} 2\nfailed_total{engine=\"1\"} 3 1700000000\nfailed_total_created 9\nbad{x=\"1} 3\nbad nonsense\n")
	m := Metrics(page, "vllm:cache_config_info", "failed_total", "bad", "none")
	c := m["vllm:cache_config_info"]
	if len(c) != 1 || c[0].Labels["kv_cache_size_tokens"] != "463459" || c[0].Labels["note"] != "a\"b,}\n" || c[0].Value != 1 {
		t.Errorf("info: %+v", c)
	}
	if v, ok := Total(m["failed_total"]); v != 5 || !ok {
		t.Errorf("total %v %v of %+v", v, ok, m["failed_total"])
	}
	if _, ok := Total(m["none"]); ok || len(m["bad"]) != 0 {
		t.Errorf("%+v", m)
	}
}

func TestFailure(t *testing.T) {
	prompt := []byte(`{"messages":[{"role":"user","content":"my card is 4111-9651-7141\nplease keep it"},{"role":"user","content":"hunter2"}],"temperature":0}`)
	for _, c := range []struct {
		status  int
		body    string
		code    events.Code
		http    int
		message string // "": the engine's words are not shown
	}{
		{400, `{"object":"error","message":"Input length (700 tokens) exceeds the maximum allowed length (506 tokens)","code":400}`, events.CodeContextLength, 400, "700 tokens"},
		{400, `{"error":{"message":"This model's maximum context length is 512 tokens"}}`, events.CodeContextLength, 400, "512 tokens"},
		{400, `{"error":{"message":"bad value for temperature"}}`, events.CodeEngineRefused, 400, "temperature"},
		{400, `{"error":{"message":"cannot parse: my card is 4111 9651 7141"}}`, events.CodeEngineRefused, 400, ""},
		{400, `{"error":{"message":"token HUNTER2 is odd"}}`, events.CodeEngineRefused, 400, ""},
		{422, `{"detail":[{"input":"my card is 4111-9651-7141"}]}`, events.CodeEngineRefused, 422, ""},
		{503, `{"message":"The request queue is full."}`, events.CodeOverloaded, 503, "queue is full"},
		{429, `not json`, events.CodeOverloaded, 429, ""},
		{500, `{"error":{"message":"Decode transfer failed for request rank=0"}}`, events.CodeTransferFailed, 500, "rank=0"},
		{500, `<html>`, events.CodePrefillFailed, 500, ""},
		{401, `{"error":"Unauthorized"}`, events.CodeUnavailable, 503, ""},
		{307, ``, events.CodePrefillFailed, 502, ""},
	} {
		e := Failure(c.status, []byte(c.body), prompt, events.CodePrefillFailed)
		if e.Code != c.code || e.HTTPStatus() != c.http || !strings.Contains(e.Message, c.message) || c.message == "" && strings.HasPrefix(e.Message, "the engine:") {
			t.Errorf("%d %s: %s %d %q", c.status, c.body, e.Code, e.HTTPStatus(), e.Message)
		}
	}
	if e := Failure(400, []byte(`{"message":"`+strings.Repeat("é", 4000)+`"}`), prompt, events.CodeInternal); len(e.Message) > 500 {
		t.Errorf("a message of %d bytes", len(e.Message))
	}
}
