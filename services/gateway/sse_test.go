package gateway

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pdgate/pdgate/events"
)

func recorder() (*httptest.ResponseRecorder, *answerWriter) {
	rec := httptest.NewRecorder()
	return rec, &answerWriter{ResponseWriter: rec, x: &exchange{}, control: http.NewResponseController(rec), timeout: time.Second}
}

// Whatever an output holds, one event carries it, and it reads back.
func FuzzSSE(f *testing.F) {
	f.Add([]byte("plain"), false)
	f.Add([]byte("data: [DONE]\n\ndata: {}\r\n\r\n: x\nevent: y\x00\u2028"), true)
	f.Add([]byte("\xff\xfe€"), false)
	f.Fuzz(func(t *testing.T, text []byte, chat bool) {
		rec, w := recorder()
		c := &call{id: "x", req: &request{chat: chat, model: "ref"}}
		s := newSSE(w)
		shown := replaceInvalid(text)
		s.send(c.piece(&flight{}, shown, false, ""))
		s.send(c.piece(&flight{}, "", false, events.FinishStop))
		s.done()
		if err := s.push(); err != nil {
			t.Fatal(err)
		}
		parts := strings.Split(rec.Body.String(), "\n\n")
		if len(parts) != 4 || parts[2] != "data: [DONE]" || parts[3] != "" {
			t.Fatalf("%d parts: %q", len(parts), rec.Body)
		}
		var got struct {
			Choices []struct {
				Text  string
				Delta struct{ Content string }
			}
		}
		data, ok := bytes.CutPrefix([]byte(parts[0]), []byte("data: "))
		if !ok || bytes.ContainsAny(data, "\r\n") {
			t.Fatalf("not one line: %q", parts[0])
		}
		if err := json.Unmarshal(data, &got); err != nil {
			t.Fatal(err)
		}
		if s := got.Choices[0].Text + got.Choices[0].Delta.Content; s != shown {
			t.Fatalf("read back %q, want %q", s, shown)
		}
	})
}
