package events

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestNotice(t *testing.T) {
	for _, tc := range []struct {
		lines []int
		want  string
	}{
		{[]int{4}, "1207.4"},
		{[]int{0, 1, 2, 3, 4, 7}, "1207.0-4,7"},
		{[]int{1, 3, 5, 6}, "1207.1,3,5-6"},
	} {
		n := Notice{Seq: 1207}
		for _, l := range tc.lines {
			n.Add(l, []byte{byte('a' + l)})
		}
		if got := n.Positions(); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.lines, got, tc.want)
		}
	}
	for _, tc := range [][2]string{
		{"", "a\n"}, {"7", "a\n"}, {".0", "a\n"}, {"0.0", "a\n"}, {"7.", "a\n"}, {"7.0", ""}, {"7.0", "a"}, {"7.0", "a\nb\n"}, {"7.0-1", "a\n"},
		{"07.0", "a\n"}, {"7.00", "a\n"}, {"7.0,", "a\n"}, {"7.0,1", "a\nb\n"}, {"7.1,0", "a\nb\n"}, {"7.1-0", "a\nb\n"}, {"7.0-0", "a\n"}, {"7.-1", "a\n"},
		{"7.0-4294967295", "a\n"}, {"7.x", "a\n"}, {"7.0 ", "a\n"}, {"+7.0", "a\n"}, {"7.0-", "a\n"}, {"7.,0", "a\n"},
	} {
		if err := ReadNotice(tc[0], []byte(tc[1]), func(Position, []byte) {}); err != ErrNotice {
			t.Errorf("%q over %q: %v", tc[0], tc[1], err)
		}
	}
}

// What is added is what is read, and the size is never less than the message.
func TestNoticeRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		lines := rapid.SliceOfNDistinct(rapid.IntRange(0, 600), 1, 200, func(i int) int { return i }).Draw(t, "lines")
		slices.Sort(lines)
		n := Notice{Seq: rapid.Uint64Range(1, 1<<63).Draw(t, "seq")}
		var want, got []Position
		for _, l := range lines {
			n.Add(l, []byte{byte('a' + l%26)})
			want = append(want, Position{n.Seq, l})
		}
		h := n.Positions()
		if len(h)+len(n.Lines)+len("NATS/1.0\r\n"+HeaderPosition+": \r\n"+HeaderContent+": "+ContentEvents+"\r\n\r\n") > n.Size() {
			t.Fatalf("size %d of %d bytes and header %q", n.Size(), len(n.Lines), h)
		}
		err := ReadNotice(h, n.Lines, func(pos Position, event []byte) {
			if string(event) != string(rune('a'+pos.Line%26)) {
				t.Fatalf("%v: %q", pos, event)
			}
			got = append(got, pos)
		})
		if err != nil || !slices.Equal(got, want) {
			t.Fatalf("%q: %v, want %v: %v", h, got, want, err)
		}
	})
}

func TestPeekSubject(t *testing.T) {
	for _, e := range append(fullEvents(), leanEvents()...) {
		b, err := Append(nil, e)
		if err != nil {
			t.Fatal(err)
		}
		if got := PeekSubject(b); string(got) != e.Subject {
			t.Errorf("%s: %q, want %q", e.Type, got, e.Subject)
		}
	}
	for _, bad := range []string{"", "{", `{"subject":"x`, `{"id":"\"subject\":\"x\""}`} {
		if got := PeekSubject([]byte(bad)); got != nil {
			t.Errorf("%s: %q", bad, got)
		}
	}
}
