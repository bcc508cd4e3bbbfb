package canary

import (
	"context"
	"fmt"
	"strings"
)

// most is how many tokens an answer may have: more than a line of the prompt, so
// that whatever is quoted from one holds a whole sentinel.
const most = 48

const (
	cue    = "code word "
	filler = " a" // one token for the tokenizers that there are; the counts say so
)

func line(sentinel string) string { return cue + sentinel + ";\n" }

// writer makes prompts of so many tokens.
type writer interface {
	// write returns a prompt of n tokens that asks for the sentinel; exact says
	// whether it is known to have so many.
	write(n int, sentinel string) (prompt string, exact bool)
	// least is the shortest prompt that can be written.
	least() int
}

// byteWriter is for engines whose tokens are bytes.
type byteWriter struct{}

func (byteWriter) least() int { return 2*len(line(strings.Repeat("x", 22))) + len(cue) }

func (byteWriter) write(n int, sentinel string) (string, bool) {
	l := line(sentinel)
	rest := n - len(cue)
	lines := strings.Repeat(l, rest/len(l))
	// What is left over comes first, so that the cue follows a whole line.
	pad := rest - len(lines)
	return strings.Repeat(".", pad) + lines + cue, true
}

// countedWriter is for engines whose tokens are their own affair: it measured what
// a line and a word cost.
type countedWriter struct{ base, perLine, perFill float64 }

func (w countedWriter) least() int { return int(w.base+2*w.perLine) + 1 }

func (w countedWriter) write(n int, sentinel string) (string, bool) {
	lines := max(2, int((float64(n)-w.base)/w.perLine))
	fill := int((float64(n) - w.base - float64(lines)*w.perLine) / w.perFill)
	if fill < 0 {
		lines, fill = lines-1, fill+int(w.perLine/w.perFill)
	}
	return strings.Repeat(filler, max(0, fill)) + "\n" + strings.Repeat(line(sentinel), lines) + cue, false
}

// measure finds out what prompts cost, by what the gateway says of a few short
// ones.
func measure(ctx context.Context, sentinel string, count func(ctx context.Context, prompt string) (int, error)) (countedWriter, error) {
	var w countedWriter
	text := func(fill, lines int) string {
		return strings.Repeat(filler, fill) + "\n" + strings.Repeat(line(sentinel), lines) + cue
	}
	var n [3]int
	for i, p := range []string{text(0, 2), text(0, 10), text(80, 2)} {
		var err error
		if n[i], err = count(ctx, p); err != nil {
			return w, err
		}
	}
	w.perLine = float64(n[1]-n[0]) / 8
	w.perFill = float64(n[2]-n[0]) / 80
	w.base = float64(n[0]) - 2*w.perLine
	if w.perLine < 1 || w.perFill <= 0 || w.base < 0 {
		return w, fmt.Errorf("prompts cannot be measured: %d, %d and %d tokens", n[0], n[1], n[2])
	}
	return w, nil
}
