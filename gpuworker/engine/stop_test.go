package engine

import (
	"strings"
	"testing"
)

// naiveCut is what a stopper must do, with the whole output at hand: cut at the
// stop sequence that is complete first, the longest of those.
func naiveCut(text string, stops []string) (string, bool) {
	for end := 1; end <= len(text); end++ {
		cut := 0
		for _, s := range stops {
			if s != "" && strings.HasSuffix(text[:end], s) {
				cut = max(cut, len(s))
			}
		}
		if cut > 0 {
			return text[:end-cut], true
		}
	}
	return text, false
}

// streamCut feeds text byte by byte. early says that something was emitted which
// a continuation could still have taken back.
func streamCut(text string, stops []string) (out string, stopped, early bool) {
	s := newStopper(stops)
	for i := range len(text) {
		b, stop := s.push(text[i])
		out += string(b)
		if stop {
			return out, true, early
		}
		for _, q := range stops {
			for k := 1; k < len(q) && k <= i+1; k++ {
				if strings.HasSuffix(text[:i+1], q[:k]) && len(out) > i+1-k {
					early = true
				}
			}
		}
	}
	return out + string(s.flush()), false, early
}

func TestStopper(t *testing.T) {
	for _, c := range []struct {
		text  string
		stops []string
		want  string
	}{
		{"hello", nil, "hello"},
		{"hello", []string{""}, "hello"},
		{"a\nb", []string{"\n"}, "a"},
		{"\n", []string{"\n"}, ""},
		{"aaab", []string{"aab"}, "a"},             // the match begins within a failed one
		{"abababac", []string{"ababac"}, "ab"},     // twice
		{"xabcy", []string{"abcd", "bc"}, "xa"},    // the open, longer one is let go
		{"xabc", []string{"bc", "abc"}, "x"},       // both end here: the longest
		{"<|end", []string{"<|end|>"}, "<|end"},    // held back, then flushed
		{"<|end|>tail", []string{"<|end|>"}, ""},   // across many pieces
		{"aXbYc", []string{"Y", "X"}, "a"},         // order of the list does not matter
		{"héllo", []string{"\xa9"}, "h\xc3"},       // bytes, not runes
		{"aaaa", []string{"aaaaa", "aa"}, ""},      // one begins the other
		{"mississippi", []string{"issip"}, "miss"}, // overlap
		{"no stop at all", []string{"?"}, "no stop at all"},
	} {
		out, stopped, early := streamCut(c.text, c.stops)
		if want, wantStop := naiveCut(c.text, c.stops); out != c.want || out != want || stopped != wantStop || early {
			t.Errorf("%q %q: %q %v early %v, want %q", c.text, c.stops, out, stopped, early, c.want)
		}
	}
}

func FuzzStopper(f *testing.F) {
	f.Add("abababac", "ababac", "bac", "c")
	f.Add("<|end|>", "<|end|>", "|", "")
	f.Add("aaaaab", "aab", "aaab", "ab")
	f.Fuzz(func(t *testing.T, text, a, b, c string) {
		if len(text) > 1000 {
			return
		}
		stops := []string{a, b, c}
		want, wantStop := naiveCut(text, stops)
		if out, stopped, early := streamCut(text, stops); out != want || stopped != wantStop || early {
			t.Errorf("%q %q: %q %v early %v, want %q %v", text, stops, out, stopped, early, want, wantStop)
		}
	})
}
