package events

import (
	"strings"
	"testing"
)

func TestAddress(t *testing.T) {
	for s, want := range map[string]bool{
		"tcp://10.0.0.5:7070": true, "tcp://[::1]:7070": true, "tcp://host:0": false, "tcp://host": false,
		"tcp://a b:1": false, "tcp://u@h:1": false, "tcp://::1:7070": false, "http://h:1": false,
		"unix:///run/p1.sock": true, "unix:///data of mine/run/p1.sock": true,
		"unix://run/p1.sock": false, "unix:///a\nb": false, "unix:///": false, "": false,
	} {
		if got := isAddress(s); got != want {
			t.Errorf("%q: %v", s, got)
		}
	}
}

// What a canary records is made of numbers, ids and hashes: text cannot be among
// it.
func TestCanaryLists(t *testing.T) {
	item := sampleEvidence[:strings.IndexByte(sampleEvidence, ' ')]
	for _, c := range []struct {
		lengths, evidence string
		ok                bool
	}{
		{"", "", true},
		{"1+1", item, true},
		{strings.TrimSpace(strings.Repeat("681280+32 ", MaxLengths)), strings.TrimSpace(strings.Repeat(item+" ", MaxEvidence)), true},
		{strings.TrimSpace(strings.Repeat("681280+32 ", MaxLengths+1)), "", false},
		{"", strings.TrimSpace(strings.Repeat(item+" ", MaxEvidence+1)), false},
		{"1", "", false},
		{"1+", "", false},
		{"1+1 ", "", false},
		{"one+1", "", false},
		{"", "the answer was 42", false},
		{"", item + " and so on", false},
		{"", strings.Replace(item, ";q", ";é", 1), false},
		{"", strings.Replace(item, "@", "@x", 1), false},
		{"", "x" + item, false},
	} {
		err := (&Command{Type: CmdCanary, Subject: requestID, Data: &Canary{Model: "m", Verdict: CanaryClean, Lengths: c.lengths, Evidence: c.evidence}}).Check()
		if (err == nil) != c.ok {
			t.Errorf("lengths %q, evidence %q: %v", c.lengths, c.evidence, err)
		}
	}
}
