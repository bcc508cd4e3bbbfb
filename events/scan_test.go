package events

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"
)

// agree checks that every reader of events makes the same of a line: the same
// value, or the same error.
func agree(t *testing.T, d *Decoder, line []byte) {
	t.Helper()
	want, wantErr := decode(line, forms)
	got, err := Decode(line)
	if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(err, wantErr) {
		t.Fatalf("%q\nDecode  %+v, %v\nparser  %+v, %v", line, got, err, want, wantErr)
	}
	got, err = d.Decode(line)
	if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(err, wantErr) {
		t.Fatalf("%q\nDecoder %+v, %v\nparser  %+v, %v", line, got, err, want, wantErr)
	}
}

func sampleLines(t testing.TB) [][]byte {
	var all [][]byte
	for _, e := range append(fullEvents(), leanEvents()...) {
		b, err := Append(nil, e)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

// Canonical events are the scanner's: only escapes, text beyond ASCII and the
// largest numbers need the parser.
func TestScannerReadsWhatIsWritten(t *testing.T) {
	var d Decoder
	for _, line := range sampleLines(t) {
		agree(t, &d, line)
		if bytes.IndexByte(line, '\\') >= 0 || bytes.Contains(line, []byte("18446744073709551615")) {
			continue
		}
		p := scan{s: string(line)}
		if !p.event(new(Event), nil) {
			t.Errorf("gave up at byte %d of %s", p.i, line)
		}
	}
}

// What is near a canonical event reads as the parser says.
func TestScannerAgreesOnDamage(t *testing.T) {
	var d Decoder
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	pieces := []string{`""`, "0", "00", "1", "-1", "18446744073709551616", "999999999999999999", "1.0", "1e3", "null", "true", `\u0041`, `\"`, "é", "\x80",
		" ", ",", `"x":1,`, "[]", "[[0,0,1]]", "[[1,1,1],]", "[[4294967296,1,1]]", "{}", "}", "0.1", `"1.2147483648"`, "2026-02-29T00:00:00.000000Z", "0000-00-00"}
	for _, line := range sampleLines(t) {
		for i := r.IntN(4); i < len(line); i += 1 + r.IntN(8) {
			b := bytes.Clone(line)
			b[i] ^= 1 << r.IntN(8)
			agree(t, &d, b)
			agree(t, &d, line[:i])
			agree(t, &d, append(line[:i:i], line[i+1:]...))
			p := pieces[r.IntN(len(pieces))]
			agree(t, &d, fmt.Appendf(nil, "%s%s%s", line[:i], p, line[i:]))
			agree(t, &d, fmt.Appendf(nil, "%s%s%s", line[:i], p, line[min(len(line), i+len(p)):]))
		}
		// Members of one event after those of another, doubled, swapped and left out.
		parts := strings.Split(string(line), ",")
		for i := range parts {
			for range 3 {
				other := parts[r.IntN(len(parts))]
				agree(t, &d, []byte(strings.Join(append(append(append([]string{}, parts[:i]...), other), parts[i+1:]...), ",")))
			}
			agree(t, &d, []byte(strings.Join(append(append([]string{}, parts[:i]...), parts[i+1:]...), ",")))
		}
	}
}

func FuzzScanner(f *testing.F) {
	for _, line := range sampleLines(f) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line []byte) { agree(t, new(Decoder), line) })
}

// An event is the decoder's until the next one, and what it says is the second
// event's then, with nothing of the first.
func TestDecoderReuse(t *testing.T) {
	var d Decoder
	full, lean := fullEvents(), leanEvents()
	for i := range full {
		for _, e := range []*Event{full[i], lean[i%len(lean)], full[i]} {
			line, err := Append(nil, e)
			if err != nil {
				t.Fatal(err)
			}
			agree(t, &d, line)
		}
	}
	line, err := Append(nil, full[0])
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = d.Decode(line) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// An event of Decode is its holder's: it does not change with the line.
func TestDecodeKeepsNothingOfTheLine(t *testing.T) {
	for _, line := range sampleLines(t) {
		b := bytes.Clone(line)
		e, err := Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		clear(b)
		if again, err := Append(nil, e); err != nil || !bytes.Equal(again, line) {
			t.Errorf("%s changed to %s, %v", line, again, err)
		}
	}
}

// The times of the canonical form are those of package time.
func TestParseTimeIsTheCalendars(t *testing.T) {
	day := time.Date(0, 1, 1, 23, 59, 58, 987654000, time.UTC)
	for day.Year() < 10000 {
		s := day.Format("2006-01-02T15:04:05.000000Z")
		if got, ok := parseTime(s); !ok || got != day {
			t.Fatalf("%s reads as %v, %v", s, got, ok)
		}
		if day = day.AddDate(0, 0, 1); day.Year() > 400 { // the calendar comes again
			day = day.AddDate(0, 0, 96)
		}
	}
	for year := range 10000 {
		for _, monthDay := range []string{"01-32", "02-29", "02-30", "04-31", "06-31", "09-31", "11-31", "12-32", "00-10", "13-10", "05-00"} {
			s := fmt.Sprintf("%04d-%sT00:00:00.000000Z", year, monthDay)
			_, err := time.Parse(time.RFC3339Nano, s)
			if _, ok := parseTime(s); ok != (err == nil) {
				t.Fatalf("%s: %v, and package time says %v", s, ok, err)
			}
		}
	}
}
