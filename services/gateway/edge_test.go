package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

// exchangeRaw writes bytes to a connection, and reads all answers until the
// server closes it. A server that keeps it open is asked to close by a last
// request of its own, which is answered too.
func exchangeRaw(t *testing.T, addr, raw string) (statuses []int) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() { _, _ = io.WriteString(c, raw+"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") }()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	for r := bufio.NewReader(c); ; {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return statuses
		}
		statuses = append(statuses, resp.StatusCode)
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			return statuses // reset: what came with the request was not read
		}
	}
}

func chunked(body string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(body), body) }

// What two readers of HTTP could read differently is refused, or ends the
// connection: a second request is never found inside the first.
func TestRequestSmuggling(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	body := completionBody(testPrompt, false)
	head := "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + r.key + "\r\nContent-Type: application/json\r\n"
	hidden := "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, c := range map[string]struct {
		raw  string
		want []int // without the last request
		more bool  // the connection goes on, and the last request is answered
	}{
		"plain":                        {head + fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(body), body), []int{200}, true},
		"chunked":                      {head + "Transfer-Encoding: chunked\r\n\r\n" + chunked(body), []int{200}, false},
		"chunked and length":           {head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body) + hidden, []int{200}, false},
		"length and chunked":           {head + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + chunked(body) + hidden, []int{200}, false},
		"two lengths":                  {head + fmt.Sprintf("Content-Length: %d\r\nContent-Length: 4\r\n\r\n%s", len(body), body), []int{400}, false},
		"a list of lengths":            {head + fmt.Sprintf("Content-Length: %d, 4\r\n\r\n%s", len(body), body), []int{400}, false},
		"a signed length":              {head + fmt.Sprintf("Content-Length: +%d\r\n\r\n%s", len(body), body), []int{400}, false},
		"unknown coding":               {head + "Transfer-Encoding: xchunked\r\n\r\n" + chunked(body), []int{501}, false},
		"two codings":                  {head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body), []int{501}, false},
		"space before the colon":       {head + "Transfer-Encoding : chunked\r\n\r\n" + chunked(body), []int{400}, false},
		"bare CR in a header":          {head + "X: a\rb\r\n\r\n", []int{400}, false},
		"bare LF in chunk framing":     {head + "Transfer-Encoding: chunked\r\n\r\n" + strings.ReplaceAll(chunked(body), "\r\n", "\n") + hidden, []int{400}, false},
		"bare LF in a chunk extension": {head + "Transfer-Encoding: chunked\r\n\r\n" + strings.Replace(chunked(body), "\r\n", ";a=b\n", 1) + hidden, []int{400}, false},
		"a huge chunk extension": {head + "Transfer-Encoding: chunked\r\n\r\n" +
			strings.Replace(chunked(body), "\r\n", ";"+strings.Repeat("x", 1<<20)+"\r\n", 1) + hidden, []int{400}, false},
		"a huge header":      {head + "X: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", []int{431}, false},
		"lengths that agree": {head + fmt.Sprintf("Content-Length: %d\r\nContent-Length: %d\r\n\r\n%s", len(body), len(body), body), []int{200}, true},
	} {
		t.Run(name, func(t *testing.T) {
			want := c.want
			if c.more {
				want = append(slices.Clone(want), 404)
			}
			if got := exchangeRaw(t, r.addr, c.raw); !slices.Equal(got, want) {
				t.Errorf("answers %v, want %v", got, want)
			}
		})
	}
	// The control: a handler that leaves the connection open answers what was hidden.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }), nil)
	go srv.Serve(l) //nolint:errcheck // ends with Close
	defer srv.Close()
	raw := head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(body) + hidden
	if got := exchangeRaw(t, l.Addr().String(), raw); len(got) != 3 {
		t.Errorf("answers without the rule: %v, want three", got)
	}
}

// A body that does not come, and a header that does not end.
func TestSlowSenders(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{
		cfg:    func(c *Config) { c.Timeouts.Body = 50 * time.Millisecond },
		server: func(s *http.Server) { s.ReadHeaderTimeout = 50 * time.Millisecond },
	})
	head := "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + r.key + "\r\n"
	for name, c := range map[string]struct{ raw, want string }{
		"body":           {head + "Content-Length: 100\r\n\r\n{", "HTTP/1.1 408 "},
		"header":         {head, ""},
		"body of nobody": {"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{", "HTTP/1.1 401 "},
	} {
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, c.raw); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(conn)
		if err != nil || !strings.HasPrefix(string(b), c.want) || c.want == "" && strings.Contains(string(b), " 200 ") {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	// The deadline of a body does not outlive it.
	r.b.script = func(rec *record) {
		timer := time.NewTimer(100 * time.Millisecond)
		defer timer.Stop()
		<-timer.C
		rec.wholeWalk()
	}
	if a := r.post("/v1/completions", completionBody(testPrompt, false)); a.status != http.StatusOK || textOf(t, a.body)[0] != testAnswer {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// A client that closes its own direction has left, as far as a server can tell.
// It still reads, and must not read a 200 without an answer.
func TestHalfClosed(t *testing.T) {
	t.Parallel()
	for _, stream := range []bool{false, true} {
		r := newRig(t, rigConfig{})
		r.b.script = func(rec *record) { <-rec.ended }
		conn, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		body := completionBody(testPrompt, stream)
		fmt.Fprintf(conn, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", r.key, len(body), body)
		if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		answer{resp.StatusCode, resp.Header, nil, string(b), nil}.wantError(t, 499, "client_gone")
		if c := r.b.sent(events.CmdCancel); len(c) != 1 || c[0].Data.(*events.Cancel).Reason != events.CodeClientGone {
			t.Errorf("cancels %v", c)
		}
	}
}

// No route ends without an answer: net/http would make it a 200.
func TestSilentHandler(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	rec := httptest.NewRecorder()
	r.g.edge(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/", nil))
	if rec.Code != http.StatusInternalServerError {
		t.Errorf("status %d", rec.Code)
	}
}

// A reader that has stopped holds up nobody else, and is given up.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{
		cfg: func(c *Config) { c.Timeouts.Write = 100 * time.Millisecond; c.Timeouts.Output = time.Minute },
		server: func(s *http.Server) {
			s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
				_ = c.(*limitConn).Conn.(*net.TCPConn).SetWriteBuffer(4 << 10)
				return ctx
			}
		},
	})
	full := make(chan struct{})
	r.b.script = func(rec *record) {
		rec.walk()
		piece := strings.Repeat("w", 64<<10)
		for i := range 200 { // 13 MB, far above any socket's buffers
			rec.send(r.b.decode, i, piece)
		}
		close(full)
		<-rec.ended
	}
	c, err := net.Dial("tcp", r.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	body := completionBody(testPrompt, true)
	fmt.Fprintf(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s", r.key, len(body), body)
	<-full
	slow := r.b.record(0)
	r.b.set(func() { r.b.script = (*record).wholeWalk })
	if a := r.post("/v1/completions", completionBody(testPrompt, true)); a.status != http.StatusOK || !parseStream(t, a.body).done {
		t.Errorf("beside a slow reader: %d", a.status)
	}
	<-slow.ended
	if cancel := r.b.sent(events.CmdCancel); len(cancel) != 1 || cancel[0].Subject != slow.id || cancel[0].Data.(*events.Cancel).Reason != events.CodeClientGone {
		t.Errorf("cancels %v", cancel)
	}
}

// No more connections than the cap are served at a time.
func TestConnectionCap(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{conns: 2})
	dial := func() (net.Conn, *bufio.Reader) {
		c, err := net.Dial("tcp", r.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		return c, bufio.NewReader(c)
	}
	answered := func(r *bufio.Reader) bool {
		s, err := r.ReadString('\n')
		return err == nil && strings.Contains(s, "200")
	}
	first, r1 := dial()
	_, r2 := dial()
	if !answered(r1) || !answered(r2) {
		t.Fatal("the first two are not served")
	}
	third, r3 := dial()
	if err := third.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if answered(r3) {
		t.Error("a third is served")
	}
	first.Close()
	if err := third.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if !answered(r3) {
		t.Error("the third is not served after the first has left")
	}
}

func TestRoutes(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	if a := r.get("/health"); a.status != http.StatusOK || !strings.Contains(a.body, "ok") {
		t.Errorf("health: %d %s", a.status, a.body)
	}
	if a := r.get("/ready"); a.status != http.StatusOK || !strings.Contains(a.body, `"models":["ref"]`) {
		t.Errorf("ready: %d %s", a.status, a.body)
	}
	a := r.get("/v1/models")
	var list struct{ Data []modelObject }
	if err := json.Unmarshal([]byte(a.body), &list); err != nil || len(list.Data) != 2 || list.Data[0].ID != "org/ref-1.5" || list.Data[1].MaxModelLen != 2_000_000 {
		t.Errorf("models: %d %s", a.status, a.body)
	}
	if a := r.get("/v1/models/org/ref-1.5"); a.status != http.StatusOK || !strings.Contains(a.body, `"id":"org/ref-1.5"`) {
		t.Errorf("model: %d %s", a.status, a.body)
	}
	r.get("/v1/models/"+canary).wantError(t, http.StatusNotFound, "model_not_found")
	r.get("/v1/embeddings/"+canary).wantError(t, http.StatusNotFound, "unknown_route")
	r.get("/v1/completions").wantError(t, http.StatusMethodNotAllowed, "method_not_allowed")
	for name, header := range map[string][]string{
		"none": {"Authorization", ""}, "wrong": {"Authorization", "Bearer pdg_wrong"}, "basic": {"Authorization", "Basic " + r.key}, "bare": {"Authorization", r.key},
	} {
		t.Run(name, func(t *testing.T) {
			r.post("/v1/completions", completionBody(testPrompt, true), header...).wantError(t, http.StatusUnauthorized, "invalid_api_key")
		})
	}
	r.post("/v1/completions", "{}", "Content-Type", "text/plain").wantError(t, http.StatusUnsupportedMediaType, "unsupported_media_type")
	r.post("/v1/completions", "{}", "Content-Encoding", "gzip").wantError(t, http.StatusUnsupportedMediaType, "unsupported_media_type")
	if a := r.post("/v1/completions", completionBody(testPrompt, false), "Content-Type", "application/json; charset=utf-8"); a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.body)
	}
	// A client's id that could break a header or a log is a label all the same.
	a = r.post("/v1/completions", completionBody(testPrompt, false), "X-Request-Id", "two words")
	if a.status != http.StatusOK || a.header.Get("X-Client-Request-Id") != "" || r.b.record(1).admit.Label == "" {
		t.Errorf("%d %v", a.status, a.header)
	}
}

func TestReady(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		models []events.ModelView
		code   string
	}{
		"no model":    {nil, "no_live_worker"},
		"no prefill":  {[]events.ModelView{{Model: "ref", DecodeNodes: 1}}, "no_live_worker"},
		"no decode":   {[]events.ModelView{{Model: "ref", PrefillNodes: 1}}, "no_live_worker"},
		"quarantined": {[]events.ModelView{{Model: "ref", PrefillNodes: 1, DecodeNodes: 1, Quarantined: true}}, "model_quarantined"},
		"another":     {[]events.ModelView{{Model: "other", PrefillNodes: 1, DecodeNodes: 1}}, "no_live_worker"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigConfig{})
			r.b.models = c.models
			r.get("/ready").wantError(t, http.StatusServiceUnavailable, c.code)
		})
	}
}

// The list says what is to be expected of a model.
func TestModelStates(t *testing.T) {
	t.Parallel()
	for want, models := range map[string][]events.ModelView{
		modelReady:       {{Model: "ref", PrefillNodes: 1, DecodeNodes: 1}},
		modelUnavailable: {{Model: "ref", PrefillNodes: 1}},
		modelQuarantined: {{Model: "ref", PrefillNodes: 1, DecodeNodes: 1, Quarantined: true, Quarantine: &events.QuarantineView{Reason: "wrong answers"}}},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, rigConfig{})
			r.b.models = models
			a := r.get("/v1/models")
			var list struct{ Data []modelObject }
			if err := json.Unmarshal([]byte(a.body), &list); err != nil || len(list.Data) == 0 {
				t.Fatalf("%v: %s", err, a.body)
			}
			for _, m := range list.Data {
				if m.ID == "ref" && (m.State != want || (m.Reason != "") != (want == modelQuarantined)) {
					t.Errorf("%+v, want %s", m, want)
				}
			}
		})
	}
}

// Clients of a quarantined model read why, and come back later than in a second:
// a person has to restore it. Requests that were open end in the same way.
func TestQuarantined(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]func(*record){
		"new": func(rec *record) {
			rec.append(&events.RequestRejected{Error: *events.NewError(events.CodeModelQuarantined, "the model is quarantined: wrong answers"), Stage: "admission"})
		},
		"open": func(rec *record) {
			_, _ = rec.fetch()
			rec.append(&events.RequestCancelled{Reason: events.CodeModelQuarantined, From: events.Admitted})
		},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t, rigConfig{})
				r.b.script = script
				a := r.post("/v1/completions", completionBody(testPrompt, stream))
				e := a.wantError(t, http.StatusServiceUnavailable, "model_quarantined")
				if a.header.Get("Retry-After") != "60" || !strings.Contains(e.Error.Message, "quarantined") {
					t.Errorf("%v %+v", a.header, e)
				}
			})
		}
	}
}

// A panic is answered, and its value, which may be content, is not logged.
func TestPanic(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{cfg: func(c *Config) { c.Models["boom"] = panicTokenizer{} }})
	r.post("/v1/completions", `{"model":"boom","prompt":"`+canary+`"}`).wantError(t, http.StatusInternalServerError, "internal")
	if !strings.Contains(r.log.String(), "handler panicked") {
		t.Error("a panic is not logged")
	}
}

type panicTokenizer struct{ bytesTokenizer }

func (panicTokenizer) Count(_ context.Context, prompt []byte) (int, error) { panic(string(prompt)) }

// A traceparent goes on to lifecycle if it is one.
func TestTraceparent(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	const valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	for i, v := range []string{valid, "", "00-00000000000000000000000000000000-00f067aa0ba902b7-01", strings.ToUpper(valid), canary, valid + "-x"} {
		if a := r.post("/v1/completions", completionBody(testPrompt, false), "Traceparent", v); a.status != http.StatusOK {
			t.Fatalf("%d %s", a.status, a.body)
		}
		want := ""
		if i == 0 {
			want = valid
		}
		if got := r.b.sent(events.CmdAdmit)[i].Traceparent; got != want {
			t.Errorf("%q: %q", v, got)
		}
	}
}
