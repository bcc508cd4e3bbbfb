package gateway

import (
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pdgate/pdgate/events"
)

// Output in pieces is the same text as output in one piece, however the pieces
// cut its characters.
func TestTextPieces(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"plain", "héé€𝄞x", "\xff", "a\xe2\x82", "\xe2\x82a", "\xf0\x9d\x84", "€\xe2", "\x80\x80\x80", "\xf0\x9d\x84\x9e\xf0\x9d"} {
		whole := new(runes)
		want := whole.push([]byte(text)) + whole.flush()
		if !utf8.ValidString(want) {
			t.Errorf("%q became %q", text, want)
		}
		for size := 1; size <= 4; size++ {
			var r runes
			got := ""
			for rest := text; rest != ""; {
				n := min(size, len(rest))
				s := r.push([]byte(rest[:n]))
				if !utf8.ValidString(s) {
					t.Errorf("%q in pieces of %d: %q", text, size, s)
				}
				got, rest = got+s, rest[n:]
			}
			if got += r.flush(); got != want {
				t.Errorf("%q in pieces of %d: %q, want %q", text, size, got, want)
			}
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add([]byte("h€llo \xf0\x9d\x84\x9e\xff"), uint8(2))
	f.Add([]byte("\xe2\x82"), uint8(1))
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		var r runes
		var got strings.Builder
		for rest := b; len(rest) > 0; {
			n := min(int(size)%7+1, len(rest))
			got.WriteString(r.push(rest[:n]))
			rest = rest[n:]
		}
		got.WriteString(r.flush())
		if want := replaceInvalid(b); got.String() != want {
			t.Fatalf("%q, want %q", got.String(), want)
		}
	})
}

// The same over HTTP: characters are whole in each event, and usage counts
// tokens, which here are bytes.
func TestSplitCharacters(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigConfig{})
	const text = "naïve €5 𝄞 \xff end\xe2\x82"
	want := "naïve €5 𝄞 \uFFFD end\uFFFD\uFFFD"
	r.b.script = func(rec *record) {
		rec.walk()
		for i := range len(text) {
			rec.send(r.b.decode, i, text[i:i+1])
		}
		rec.decoded(text, events.FinishStop)
	}
	body := `{"model":"ref","prompt":"x","stream":true,"stream_options":{"include_usage":true}}`
	a := r.post("/v1/completions", body)
	s := parseStream(t, a.body)
	if a.status != http.StatusOK || !s.done || s.text[0] != want || s.usage.CompletionTokens != len(text) {
		t.Errorf("%d %+v", a.status, s)
	}
	if strings.Contains(strings.ReplaceAll(a.body, `\ufffd`, ""), "\xff") || !utf8.ValidString(a.body) {
		t.Errorf("invalid UTF-8 in the stream")
	}
	if got := textOf(t, r.post("/v1/completions", `{"model":"ref","prompt":"x"}`).body)[0]; got != want {
		t.Errorf("in one piece: %q", got)
	}
}
