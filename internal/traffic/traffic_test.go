package traffic

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func collect(t *testing.T, in string) ([]Arrival, error) {
	t.Helper()
	var as []Arrival
	for a, err := range Read(strings.NewReader(in)) {
		if err != nil {
			return as, err
		}
		as = append(as, a)
	}
	return as, nil
}

func TestRead(t *testing.T) {
	moon := `{"timestamp": 100, "input_length": 700, "output_length": 5, "hash_ids": [7, 8]}` + "\n\n" +
		`{"timestamp": 1600, "input_length": 3, "output_length": 0, "hash_ids": []}` + "\n"
	got, err := collect(t, moon)
	want := []Arrival{{1, 0, 700, 5, []int64{7, 8}}, {3, 1500 * time.Millisecond, 3, 0, []int64{}}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("mooncake: %v\n%s", err, d)
	}
	az := "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n2023-11-16 18:17:04.0319600,3180,8\r\n"
	got, err = collect(t, az)
	want = []Arrival{{2, 0, 4808, 10, nil}, {3, 52 * time.Millisecond, 3180, 8, nil}}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Errorf("azure: %v\n%s", err, d)
	}
}

func TestReadRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"": "empty",
		"{\"timestamp\": 0, \"input_length\": 3}\n":                                        "line 1: output_length is missing",
		"{\"timestamp\": 0, \"input_length\": \"3\", \"output_length\": 1}\n":              "line 1: input_length is a string, want a whole number",
		"{\"timestamp\": 0, \"input_length\": 0, \"output_length\": 1}\n":                  "prompt of 0 tokens",
		"{\"timestamp\": 5, \"input_length\": 1, \"output_length\": 1}\n{\"timestamp\": 1": "line 2",
		"a,b,c\n": "want JSON lines",
		"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n":                   "line 2: TIMESTAMP \"yesterday\", want a time",
		"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,1,x\n": "line 2: GeneratedTokens \"x\", want a whole number",
		"no trace\n": "trace line 1: want JSON lines",
		"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,1\n": "wrong number of fields",
	} {
		if _, err := collect(t, in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

func TestPrompt(t *testing.T) {
	a := Arrival{Line: 1, PromptTokens: 1300, Blocks: []int64{1, 2, 3}}
	b := Arrival{Line: 2, PromptTokens: 1100, Blocks: []int64{1, 2, 9}}
	p, q := a.Prompt(), b.Prompt()
	if len(p) != 1300 || len(q) != 1100 {
		t.Fatal(len(p), len(q))
	}
	if !bytes.Equal(p[:1024], q[:1024]) || bytes.Equal(p[1024:1100], q[1024:]) {
		t.Error("equal block ids must give equal blocks, and others not")
	}
}

// The sample in Azure's format is read whole.
func TestSampleCSV(t *testing.T) {
	b, err := os.ReadFile("../../testdata/traffic/sample.csv")
	if err != nil {
		t.Fatal(err)
	}
	if all, err := collect(t, string(b)); err != nil || len(all) != 60 {
		t.Errorf("%d arrivals, %v", len(all), err)
	}
}

// The sample in Mooncake's format is read whole.
func TestSample(t *testing.T) {
	f, err := os.Open("../../testdata/traffic/sample.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for a, err := range Read(f) {
		if err != nil {
			t.Fatal(err)
		}
		if len(a.Blocks) != (a.PromptTokens+BlockTokens-1)/BlockTokens {
			t.Errorf("line %d: %d blocks for %d tokens", a.Line, len(a.Blocks), a.PromptTokens)
		}
		n++
	}
	if n != 60 {
		t.Errorf("%d arrivals", n)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [1]}`))
	f.Add([]byte("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for a, err := range Read(bytes.NewReader(b)) {
			if err == nil && (a.PromptTokens < 1 || a.At < 0) {
				t.Errorf("accepted %+v", a)
			}
		}
	})
}
