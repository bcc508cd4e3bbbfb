package events

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSampling(t *testing.T) {
	want := &Sampling{MaxTokens: 7, Stop: []string{"\n", "\"end\""}, Temperature: 0.5, Seed: -3}
	b, err := AppendSampling([]byte("x"), want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeSampling(b[1:])
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, bad := range []string{``, `{}`, `[]`, `{"max_tokens":0}`, `{"max_tokens":1,"temperature":-1}`, `{"max_tokens":"CANARY"}`,
		`{"max_tokens":1,"stop":"CANARY"}`, `{"max_tokens":1,"CANARY":2}`, `{"max_tokens":1} {}`} {
		if _, err := DecodeSampling([]byte(bad)); err == nil {
			t.Errorf("%s: no error", bad)
		} else if strings.Contains(err.Error(), "CANARY") {
			t.Errorf("%s: the error quotes the text", bad)
		}
	}
}
