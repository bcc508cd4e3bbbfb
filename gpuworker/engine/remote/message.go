package remote

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/pdgate/pdgate/events"
)

const (
	maxMessage = 400 // bytes of an engine's own words
	run        = 12  // letters and digits in a row that a message may not share with a prompt
	shortest   = 4   // … of a whole text that is shorter than that
)

// Failure is an error of an engine in our terms: its code from the status and
// the words, its words where they may be shown. fallback is for what neither
// explains.
func Failure(status int, body, prompt []byte, fallback events.Code) *events.Error {
	words := Words(body)
	code := codeOf(status, words, fallback)
	e := events.NewError(code, fmt.Sprintf("the engine answered HTTP %d", status))
	if status >= 400 && status <= 599 {
		e.Status = status
	}
	switch {
	case status == 401 || status == 403:
		// Our credentials at the engine are not the client's.
		e.Status = 0
		return e
	case words != "" && !Repeats(words, prompt):
		e.Message = "the engine: " + bounded(words)
	}
	return e
}

// Inband is an error that came inside an answer whose status says nothing.
func Inband(status int, words string, prompt []byte, fallback events.Code) *events.Error {
	e := events.NewError(codeOf(status, words, fallback), "the engine ended the request in its answer")
	if status >= 400 && status <= 599 {
		e.Status = status
	}
	if words != "" && !Repeats(words, prompt) {
		e.Message = "the engine: " + bounded(words)
	}
	return e
}

var (
	tooLong  = regexp.MustCompile(`(?i)exceeds? the maximum allowed length|maximum context length|longer than the maximum|max_model_len|input length \(?\d+|exceeds .*(context|max.*len|kv cache)`)
	overload = regexp.MustCompile(`(?i)queue is full|too many requests|overloaded|server is busy`)
	transfer = regexp.MustCompile(`(?i)(prefill|decode) (bootstrap|transfer) failed|bootstrap_room mismatch|metadata corruption|kv load fail|failed to load kv|remote kv`)
)

// codeOf classifies.
func codeOf(status int, words string, fallback events.Code) events.Code {
	switch {
	case status == 401 || status == 403:
		return events.CodeUnavailable
	case transfer.MatchString(words):
		return events.CodeTransferFailed
	case status == 429 || status == 503 || overload.MatchString(words):
		return events.CodeOverloaded
	case tooLong.MatchString(words) && status < 500:
		return events.CodeContextLength
	case status >= 400 && status < 500:
		return events.CodeEngineRefused
	}
	return fallback
}

// Words are the engine's own, wherever its routes put them; "": none.
func Words(body []byte) string {
	var b struct {
		Error   json.RawMessage `json:"error"`
		Message string          `json:"message"`
		Detail  json.RawMessage `json:"detail"`
	}
	if json.Unmarshal(body, &b) != nil {
		return ""
	}
	var inner struct {
		Message string `json:"message"`
	}
	var text string
	switch {
	case json.Unmarshal(b.Error, &inner) == nil && inner.Message != "":
		return inner.Message
	case json.Unmarshal(b.Error, &text) == nil && text != "":
		return text
	case b.Message != "":
		return b.Message
	case json.Unmarshal(b.Detail, &text) == nil:
		return text
	}
	return "" // FastAPI's own lists quote the input
}

// bounded makes one short line of an engine's words.
func bounded(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + "…"
	}
	return s
}

// Repeats says whether words repeat something of a request body: a run of its
// texts, or a whole short one. Letters and digits count, whatever stands between
// them. A body that is no JSON is taken as text.
func Repeats(words string, body []byte) bool {
	w := normal(words)
	texts := texts(body)
	runs := map[string]bool{}
	for i := 0; i+run <= len(w); i++ {
		runs[w[i:i+run]] = true
	}
	for _, t := range texts {
		n := normal(t.text)
		if len(n) < run {
			if t.content && len(n) >= shortest && strings.Contains(w, n) {
				return true
			}
			continue
		}
		for i := 0; i+run <= len(n); i++ {
			if runs[n[i:i+run]] {
				return true
			}
		}
	}
	return false
}

// said is one text of a body; content is what a person wrote.
type said struct {
	text    string
	content bool
}

func texts(body []byte) []said {
	var v any
	if json.Unmarshal(body, &v) != nil {
		return []said{{string(body), true}}
	}
	var out []said
	var walk func(key string, depth int, v any)
	walk = func(key string, depth int, v any) {
		switch x := v.(type) {
		case string:
			out = append(out, said{x, key == "prompt" || key == "content" || key == "text" || key == "arguments"})
		case []any:
			for _, e := range x {
				walk(key, depth+1, e)
			}
		case map[string]any:
			for k, e := range x {
				if depth > 0 { // above it are names of parameters, which errors are about
					out = append(out, said{k, false})
				}
				walk(k, depth+1, e)
			}
		case float64:
			if key == "prompt" { // token ids
				out = append(out, said{strconv.FormatFloat(x, 'f', -1, 64), false})
			}
		}
	}
	walk("", 0, v)
	return out
}

// normal keeps letters, digits and everything beyond ASCII, in lower case.
func normal(s string) string {
	b := make([]byte, 0, len(s))
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'A' && c <= 'Z':
			b = append(b, c+'a'-'A')
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c >= 0x80:
			b = append(b, c)
		}
	}
	return string(b)
}
