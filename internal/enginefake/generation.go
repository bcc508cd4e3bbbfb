package enginefake

import (
	"bytes"
	"unicode/utf8"
)

// Finish reasons of the OpenAI routes.
const (
	FinishLength = "length"
	FinishStop   = "stop"
	FinishTools  = "tool_calls"
	FinishAbort  = "abort"
	FinishError  = "error"
)

// Generation is one choice as it comes to be. It reads the KV once, when it is
// made: what is in the blocks then is what it says.
type Generation struct {
	kv     []byte
	max    int
	stops  []string
	out    []byte // all tokens, those of a stop sequence too
	sent   int    // bytes of out that Step has given out
	keep   int    // bytes of out that belong to the text, once it is over
	primed bool   // the first token came from elsewhere, and Step has not shown it
	ended  bool   // the last event of a stream is out
	called bool   // a stream has named the tool
	Finish string // empty while it goes on
	Stop   string // the stop sequence that ended it
}

// NewGeneration continues the KV by up to max tokens. first, if there is one, is
// the first token as another node computed it.
func NewGeneration(kv []byte, max int, r *Request, first ...byte) *Generation {
	g := &Generation{kv: kv, max: max, stops: r.Stop}
	if r.Chat && !r.IgnoreEOS {
		g.stops = append([]string{"\n"}, g.stops...)
	}
	for _, b := range first {
		g.push(b)
		g.primed = true
	}
	return g
}

// Mute takes the text away and leaves the tokens.
func (g *Generation) Mute() { g.keep = 0 }

// Tokens is how many were generated.
func (g *Generation) Tokens() int { return len(g.out) }

// Raw is every token, of stop sequences too.
func (g *Generation) Raw() []byte { return g.out }

func (g *Generation) push(b byte) {
	g.out = append(g.out, b)
	g.keep = len(g.out)
	for _, s := range g.stops {
		if bytes.HasSuffix(g.out, []byte(s)) {
			g.keep, g.Finish, g.Stop = len(g.out)-len(s), FinishStop, s
			return
		}
	}
	if len(g.out) >= g.max {
		g.Finish = FinishLength
	}
}

// Step generates one token, unless it is over, and returns the text that is
// certain by then: no half of a character, nothing that may be a stop sequence.
func (g *Generation) Step() string {
	if g.Finish == "" && !g.primed {
		g.push(Next(g.kv, g.out))
	}
	g.primed = false
	end := g.keep
	if g.Finish == "" {
		for _, s := range g.stops {
			for n := min(len(s)-1, len(g.out)); n > 0; n-- {
				if bytes.HasSuffix(g.out, []byte(s[:n])) {
					end = min(end, len(g.out)-n)
					break
				}
			}
		}
		for end > g.sent && end > len(g.out)-utf8.UTFMax && !utf8.Valid(g.out[g.sent:end]) {
			end--
		}
	}
	if end <= g.sent {
		return ""
	}
	text := string(bytes.ToValidUTF8(g.out[g.sent:end], []byte("\uFFFD")))
	g.sent = end
	return text
}

// All runs it to its end.
func (g *Generation) All() string {
	for g.Finish == "" {
		g.push(Next(g.kv, g.out))
	}
	return string(bytes.ToValidUTF8(g.out[:g.keep], []byte("\uFFFD")))
}
