package main

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
)

// print shows both outcomes side by side.
func (v *verdict) print(w io.Writer, s *scene) error {
	fmt.Fprintf(w, "%d customers sent private records. Then %s sent a prompt of %d tokens;\nprefill takes at most %d, the context window is %d.\n\n",
		len(s.victims), s.intruder.tenant, len(s.intruder.prompt), s.prefillTokens, s.context)
	guarded := "behind pdgate"
	if len(v.Without) > 0 {
		guarded += " (without " + strings.Join(v.Without, ", ") + ")"
	}
	rows := [][3]string{{"", "without pdgate", guarded}, {"", "--------------", strings.Repeat("-", len(guarded))}}
	u, g := &v.Unguarded, &v.Guarded
	rows = append(rows,
		[3]string{"status", fmt.Sprintf("HTTP %d", u.Status), fmt.Sprintf("HTTP %d", g.Status)},
		[3]string{"answer", u.said(), g.said()},
		[3]string{"foreign text", u.foreign(), g.foreign()},
		[3]string{"stopped by", dash(u.StoppedBy), dash(g.StoppedBy)},
		[3]string{"on record", "nothing", dash(strings.Join(g.History, "; "))},
		[3]string{"took", u.Took, g.Took},
	)
	for _, r := range rows {
		if err := writeRow(w, r); err != nil {
			return err
		}
	}
	if v.PeakBytes > 0 {
		fmt.Fprintf(w, "\npeak memory: %d MB\n", v.PeakBytes>>20)
	}
	return nil
}

func (o *outcome) said() string {
	if o.Error != "" {
		return o.Error
	}
	text := o.Text
	if len(text) > 100 {
		text = text[:100] + "…"
	}
	return strconv.Quote(text)
}

func (o *outcome) foreign() string {
	if o.Leaked == "" {
		return "none"
	}
	return fmt.Sprintf("%d bytes in a row from %s's prompt, at byte %d of it (its KV page %d): %q", len(o.Leaked), o.Victim, o.Offset, o.Offset/pageTokens, o.Leaked[:min(len(o.Leaked), 48)])
}

// pageTokens is how many tokens, which are bytes in this engine, a KV page holds.
const pageTokens = 64

const columnWidth = 46

// writeRow writes one row of three columns, wrapping the last two.
func writeRow(w io.Writer, r [3]string) error {
	left, right := wrap(r[1], columnWidth), wrap(r[2], columnWidth)
	for i := range max(len(left), len(right), 1) {
		var l, m, n string
		if i == 0 {
			l = r[0]
		}
		if i < len(left) {
			m = left[i]
		}
		if i < len(right) {
			n = right[i]
		}
		if _, err := fmt.Fprintln(w, strings.TrimRight(fmt.Sprintf("%-13s %-*s  %s", l, columnWidth, m, n), " ")); err != nil {
			return err
		}
	}
	return nil
}

// wrap breaks s into lines of at most width runes, at spaces where it can.
func wrap(s string, width int) []string {
	var lines []string
	r := []rune(s)
	for len(r) > width {
		cut := width
		for i := width; i > width/2; i-- {
			if r[i] == ' ' {
				cut = i
				break
			}
		}
		lines = append(lines, string(r[:cut]))
		r = r[cut:]
		for len(r) > 0 && r[0] == ' ' {
			r = r[1:]
		}
	}
	return append(lines, string(r))
}

// peakRSS is the most memory that the process had, 0 where the system does not
// tell.
func peakRSS() int64 {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			kb, _ := strconv.ParseInt(f[1], 10, 64)
			return kb << 10
		}
	}
	return 0
}
